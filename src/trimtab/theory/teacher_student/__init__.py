"""Online learning of a teacher by a student with BN, WN or neither (regularization paper, Sec. 3 and App. 2).

Inputs x ~ N(0, I/N), one sample a step, time t = samples/N, N → ∞. The student is g(w̃ᵀx) with w̃ = √N γ w/‖w‖ for BN and
WN, and g(wᵀx) for SGD. The state is (γ, R, L): the length of w̃, its overlap with the teacher, the length of w (both
over √N). The learning rate η belongs to the loss ½[g(w*ᵀx) − g(w̃ᵀx)]² + ½ζγ², and γ's own rate is η/N. BatchNorm enters
as WN with the decay ζ of Theorem 1. `trimtab.theory.simulation` does the same with vectors.
"""

from trimtab.theory.teacher_student.averages import Averages, averages, slopes
from trimtab.theory.teacher_student.dynamics import Trajectory, jacobian, rate, solve
from trimtab.theory.teacher_student.stability import (
    FixedPoint,
    PaperStability,
    Stability,
    fixed_point,
    resting_point,
    stability,
)

__all__ = [
    "Averages",
    "FixedPoint",
    "PaperStability",
    "Stability",
    "Trajectory",
    "averages",
    "fixed_point",
    "jacobian",
    "rate",
    "resting_point",
    "slopes",
    "solve",
    "stability",
]
