"""Theorems of the bnp and landscape papers: each is a function that returns both sides of the statement."""

from trimtab.theory.bounds.conditioning import (
    best_scaling,
    centring,
    centring_is_strict,
    column_scaling,
    gain,
    product_conditioning,
    property_a,
    unscaled_columns,
    van_der_sluis,
)
from trimtab.theory.bounds.descent import (
    contraction,
    optimal_contraction,
    optimal_learning_rate,
    scaling_null_space,
)
from trimtab.theory.bounds.hessians import (
    convolution_as_product,
    convolution_hessian,
    dense_hessian,
    normalized_input,
    preconditioned_hessian,
    site_means,
    unfold,
)
from trimtab.theory.bounds.inputs import condition_number
from trimtab.theory.bounds.landscape import (
    bn_gradient,
    bn_hessian,
    initialization,
    kept_minima,
    lipschitzness,
    same_activations,
    smoothness,
    smoothness_by_gradient,
    weight_lipschitzness,
)
from trimtab.theory.bounds.minimax import claimed_curvature, largest_curvature, weight_smoothness
from trimtab.theory.bounds.norms import normalized_norm, orthogonal_norm, seginer
from trimtab.theory.bounds.operations import bn_operations, bnp_operations, cheaper_than_bn
from trimtab.theory.bounds.sides import Sides
from trimtab.theory.bounds.steps import one_step, over_parametrized

__all__ = [
    "Sides",
    "best_scaling",
    "bn_gradient",
    "bn_hessian",
    "bn_operations",
    "bnp_operations",
    "centring",
    "centring_is_strict",
    "cheaper_than_bn",
    "claimed_curvature",
    "column_scaling",
    "condition_number",
    "contraction",
    "convolution_as_product",
    "convolution_hessian",
    "dense_hessian",
    "gain",
    "initialization",
    "kept_minima",
    "largest_curvature",
    "lipschitzness",
    "normalized_input",
    "normalized_norm",
    "one_step",
    "optimal_contraction",
    "optimal_learning_rate",
    "orthogonal_norm",
    "over_parametrized",
    "preconditioned_hessian",
    "product_conditioning",
    "property_a",
    "same_activations",
    "scaling_null_space",
    "seginer",
    "site_means",
    "smoothness",
    "smoothness_by_gradient",
    "unfold",
    "unscaled_columns",
    "van_der_sluis",
    "weight_lipschitzness",
    "weight_smoothness",
]
