"""The spectra of Hessian, Gauss–Newton and Fisher matrix of any model, by products with vectors only."""

from trimtab.probes.spectrum.jacobian import Jacobian, fisher_lambda_max
from trimtab.probes.spectrum.lanczos import lanczos_max
from trimtab.probes.spectrum.probe import Spectrum
from trimtab.probes.spectrum.result import SpectrumResult, stable_factor

__all__ = ["Jacobian", "Spectrum", "SpectrumResult", "fisher_lambda_max", "lanczos_max", "stable_factor"]
