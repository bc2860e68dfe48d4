"""Measurements on any model: what the loss surface and the Fisher matrix of a real network look like."""

from trimtab.probes.spectrum import Jacobian, Spectrum, SpectrumResult, fisher_lambda_max, lanczos_max

__all__ = ["Jacobian", "Spectrum", "SpectrumResult", "fisher_lambda_max", "lanczos_max"]
