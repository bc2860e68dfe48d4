"""Operations of BNP and BatchNorm as sums, each found by counting: python benchmarks/operations.py (seconds).

Algorithms as the papers print them are counted by `trimtab.theory.bounds.operations`. What trimtab's reference step and
torch's autograd do is counted by the operations that reach torch. As in the paper, a sum of N terms has N − 1
operations, and comparisons and selections are free; changes of sign, of which autograd makes some, are free too.
"""

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from trimtab.bnp.algorithm.averages import RunningAverage
from trimtab.bnp.algorithm.moments import Moments, Rows
from trimtab.bnp.algorithm.step import LayerStep, layer_step
from trimtab.bnp.options import Options
from trimtab.theory.bounds import bn_operations, bnp_operations
from trimtab.theory.bounds.operations import Counter, bn_step

EACH = {
    **dict.fromkeys(("add", "add_", "sub", "mul", "div", "div_", "pow", "sqrt", "reciprocal"), 1),
    "addcmul": 2,
    "lerp": 3,
}
"""Operations for each entry of the result."""
FREE = frozenset({"detach", "slice", "view", "unsqueeze", "expand", "new_full", "copy_", "neg"}) | frozenset(
    {"clamp", "amax", "maximum", "where", "gt", "eq", "bitwise_and", "bitwise_not"}
)
Count = Callable[[int, int, int], int]
"""Of n, n′ and N."""


class Counting(TorchDispatchMode):
    """Counts the operations on single numbers; one that it does not know is an error."""

    def __init__(self) -> None:
        super().__init__()
        self.made = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Count one operation of torch by its shapes."""
        result, name = func(*args, **(kwargs or {})), func.overloadpacket.__name__
        if name in EACH:
            self.made += EACH[name] * result.numel() * result.is_floating_point()
        elif name in ("sum", "mean"):
            self.made += args[0].numel() - (result.numel() if name == "sum" else 0)
        elif name not in FREE:
            raise NotImplementedError(f"The operations of {name} are not known.")
        return result


def reference(n_in: int, n_out: int, batch: int) -> int:
    """Of trimtab's reference step, statistics included."""
    inputs, weight, bias = torch.randn(batch, n_in), torch.randn(n_out, n_in), torch.randn(n_out)
    running, shape = RunningAverage(inputs[0], debias=False), (1, n_out, n_in, 1)
    with Counting() as counting:
        rows = Rows(Moments.of(inputs, columns=1), batch, batch)
        step = LayerStep("layer", weight, bias, rows, running, lambda x: x.view(shape), shape, True)
        layer_step(step, Options(), True)
    return counting.made


def autograd(n_in: int, _: int, batch: int) -> int:
    """Of the gradient of eq. 2 through the batch's statistics, written out and left to autograd."""
    inputs, slopes = (torch.randn(batch, n_in, dtype=torch.float64) for _ in range(2))
    gamma, beta = (torch.randn(n_in, dtype=torch.float64) for _ in range(2))
    leaves = [one.requires_grad_() for one in (inputs, gamma, beta)]
    mean = inputs.mean(0)
    away = inputs - mean
    output = (inputs - mean) / (away * away).mean(0).sqrt() * gamma + beta
    with Counting() as counting:
        found: tuple[Tensor, ...] = torch.autograd.grad(output, leaves, slopes)
    closed = bn_step(Counter(), *(one.detach().numpy() for one in (inputs, slopes, gamma, beta)))
    for ours, theirs in zip(found, closed[1:], strict=True):  # both are the same gradient
        np.testing.assert_allclose(ours.numpy(), theirs, rtol=1e-6, atol=1e-9)
    return counting.made


def as_sum(count: Count) -> str:
    """The sum in n, n′ and N that gives a count: coefficients by differences, tried at other sizes."""
    at = [(n, m, batch) for n in (3, 4) for m in (3, 4) for batch in (8, 9)]
    terms = {"nN": 0b101, "nn′": 0b110, "n′N": 0b011, "n": 0b100, "n′": 0b010, "N": 0b001, "": 0}
    counts = np.array([count(*sizes) for sizes in at], dtype=float)
    matrix = np.array([[_term(sizes, bits) for bits in terms.values()] for sizes in at])
    found = np.linalg.lstsq(matrix, counts, rcond=None)[0].round().astype(int)
    for sizes in (*at, (17, 5, 32), (6, 40, 12)):
        if count(*sizes) != sum(f * _term(sizes, bits) for f, bits in zip(found, terms.values(), strict=True)):
            raise SystemExit(f"The count at {sizes} is not the sum that was found.")
    parts = [f"{abs(f) if abs(f) != 1 or not name else ''}{name}" for name, f in zip(terms, found, strict=True) if f]
    signs = [" + " if f > 0 else " − " for f in found if f]
    return "".join(sign + part for sign, part in zip(signs, parts, strict=True)).removeprefix(" + ")


def _term(sizes: tuple[int, int, int], bits: int) -> float:
    return float(np.prod([size for size, place in zip(sizes, (4, 2, 1), strict=True) if bits & place]))


def main() -> None:
    """Print a table."""
    torch.manual_seed(0)
    counts: dict[str, Count] = {
        "BNP, Algorithm 2": lambda n, m, batch: int(bnp_operations(n, m, batch).left),
        "— as printed in Prop. 6": lambda n, m, batch: int(bnp_operations(n, m, batch, form="printed").right),
        "BNP, trimtab's reference step": reference,
        "BN, eq. 2 and Fact C.1": lambda n, m, batch: int(bn_operations(n, batch).left),
        "— as printed after Prop. 6": lambda n, m, batch: int(bn_operations(n, batch, form="printed").right),
        "BN, backward pass by autograd": autograd,
    }
    print("| what is counted | operations |")
    print("|---|---|")
    for name, count in counts.items():
        print(f"| {name} | {as_sum(count)} |")


if __name__ == "__main__":
    main()
