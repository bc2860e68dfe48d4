"""Faster ways to do what `statistics` and `update` do in plain PyTorch, where the machine has them.

On the CPU it is a small library in C, built when trimtab is installed and a compiler is there. On an NVIDIA GPU it is
Triton, which comes with PyTorch. Without them, and for whatever they do not take, the plain way is gone.
"""

from trimtab.bnp.kernels.choice import Kernels, describe, moments
from trimtab.bnp.kernels.found import NUMBERS, KernelMoments, Recipe, SummedMoments

__all__ = ["NUMBERS", "KernelMoments", "Kernels", "Recipe", "SummedMoments", "describe", "moments"]
