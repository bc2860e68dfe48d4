"""Measurements on any model, with BatchNorm in train mode, that change nothing of it."""

from trimtab.probes.activations import Activations, ActivationsResult, LayerActivations, MomentChange, moment_change
from trimtab.probes.conditioning import Conditioning, ConditioningResult, LayerConditioning
from trimtab.probes.covariate import CovariateShift, CovariateShiftResult, LayerShift
from trimtab.probes.distribution import Distribution
from trimtab.probes.input_gradients import GradientCorrelation, gradient_correlation, neighbours
from trimtab.probes.landscape import Landscape, LandscapeResult, RandomLandscape
from trimtab.probes.monitor import Monitor
from trimtab.probes.noise import BatchNoise, BatchNoiseResult, LayerNoise, split_batch
from trimtab.probes.result import CannotMeasure, LossFunction, Probe, Result
from trimtab.probes.spectrum import Jacobian, Spectrum, SpectrumResult, fisher_lambda_max, lanczos_max
from trimtab.probes.step_landscape import StepLandscape, StepLandscapeResult
from trimtab.probes.surface import Surface

__all__ = [
    "Activations",
    "ActivationsResult",
    "BatchNoise",
    "BatchNoiseResult",
    "CannotMeasure",
    "Conditioning",
    "ConditioningResult",
    "CovariateShift",
    "CovariateShiftResult",
    "Distribution",
    "GradientCorrelation",
    "Jacobian",
    "Landscape",
    "LandscapeResult",
    "LayerActivations",
    "LayerConditioning",
    "LayerNoise",
    "LayerShift",
    "LossFunction",
    "MomentChange",
    "Monitor",
    "Probe",
    "RandomLandscape",
    "Result",
    "Spectrum",
    "SpectrumResult",
    "StepLandscape",
    "StepLandscapeResult",
    "Surface",
    "fisher_lambda_max",
    "gradient_correlation",
    "lanczos_max",
    "moment_change",
    "neighbours",
    "split_batch",
]
