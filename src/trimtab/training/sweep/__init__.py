"""Sweeps: a grid of settings, hundreds of networks trained at once or one by one, and how each of them ended."""
