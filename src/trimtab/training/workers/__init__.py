"""Runs trained by worker processes: `task.py` is what one worker does, `pool.py` who gets which task."""
