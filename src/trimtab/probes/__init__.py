"""Measurements on any model, with BatchNorm in train mode, that change nothing of it."""

from trimtab.probes.ablation import Ablation, AblationResult
from trimtab.probes.activations import (
    Activations,
    ActivationsResult,
    LayerActivations,
    MomentChange,
    moment_change,
    stable_rank,
)
from trimtab.probes.conditioning import Conditioning, ConditioningResult, LayerConditioning
from trimtab.probes.covariate import CovariateShift, CovariateShiftResult, LayerShift
from trimtab.probes.distribution import Distribution
from trimtab.probes.fisher import Fisher, FisherResult
from trimtab.probes.input_gradients import GradientCorrelation, gradient_correlation, neighbours
from trimtab.probes.landscape import Landscape, LandscapeResult, RandomLandscape
from trimtab.probes.monitor import Monitor
from trimtab.probes.noise import BatchNoise, BatchNoiseResult, LayerNoise, split_batch
from trimtab.probes.norm_gradients import LayerGradient, NormGradients, NormGradientsResult
from trimtab.probes.result import CannotMeasure, LossFunction, Probe, Result
from trimtab.probes.robustness import Robustness, RobustnessResult
from trimtab.probes.spectrum import Jacobian, Spectrum, SpectrumResult, fisher_lambda_max, lanczos_max
from trimtab.probes.step_landscape import StepLandscape, StepLandscapeResult
from trimtab.probes.surface import Surface
from trimtab.probes.variance_shift import LayerVariance, VarianceShift, VarianceShiftResult
from trimtab.probes.weights import LayerWeights, NormWeights, Weights, WeightsResult

__all__ = [
    "Ablation",
    "AblationResult",
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
    "Fisher",
    "FisherResult",
    "GradientCorrelation",
    "Jacobian",
    "Landscape",
    "LandscapeResult",
    "LayerActivations",
    "LayerConditioning",
    "LayerGradient",
    "LayerNoise",
    "LayerShift",
    "LayerVariance",
    "LayerWeights",
    "LossFunction",
    "MomentChange",
    "Monitor",
    "NormGradients",
    "NormGradientsResult",
    "NormWeights",
    "Probe",
    "RandomLandscape",
    "Result",
    "Robustness",
    "RobustnessResult",
    "Spectrum",
    "SpectrumResult",
    "StepLandscape",
    "StepLandscapeResult",
    "Surface",
    "VarianceShift",
    "VarianceShiftResult",
    "Weights",
    "WeightsResult",
    "fisher_lambda_max",
    "gradient_correlation",
    "lanczos_max",
    "moment_change",
    "neighbours",
    "split_batch",
    "stable_rank",
]
