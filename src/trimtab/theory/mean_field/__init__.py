"""Mean field: the largest eigenvalue of the Fisher matrix of a random network, computed from its architecture."""

from trimtab.theory.mean_field.activations import ACTIVATIONS, Activation, Erf, LeakyReLU, Quadrature
from trimtab.theory.mean_field.draw import draw_network
from trimtab.theory.mean_field.eigenvalue import MeanField, Order, max_learning_rate, mean_field
from trimtab.theory.mean_field.graph import Term
from trimtab.theory.mean_field.layers import Conv, Dense, Layer, MaxPool, Pool, Residual
from trimtab.theory.mean_field.measured import MeasuredOrder, measure_orders

__all__ = [
    "ACTIVATIONS",
    "Activation",
    "Conv",
    "Dense",
    "Erf",
    "Layer",
    "LeakyReLU",
    "MaxPool",
    "MeanField",
    "MeasuredOrder",
    "Order",
    "Pool",
    "Quadrature",
    "Residual",
    "Term",
    "draw_network",
    "max_learning_rate",
    "mean_field",
    "measure_orders",
]
