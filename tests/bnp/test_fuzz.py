"""Two hundred of the random cases that `make sanitize` runs by the thousand, for their results."""

import pytest
import torch

from tests.bnp.fuzz.check import problem
from tests.bnp.fuzz.odd import Registered
from tests.bnp.fuzz.play import play
from tests.bnp.sanitize import FAULTS, SMALL, edited
from trimtab.bnp import Moments, Rows, layers
from trimtab.bnp.backends import Backends, cpu


@pytest.mark.parametrize("first", range(0, 200, 50))
def test_cases(first: int) -> None:
    problems = {seed: problem(seed)[0] for seed in range(first, first + 50)}
    assert not {seed: text for seed, text in problems.items() if text}


def test_the_cases_reach_the_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    """Else they would compare the plain way with itself."""
    if not cpu.available():
        pytest.skip("the C kernels were not built")
    steps: list[int] = []
    do = cpu.CpuBackend.step
    monkeypatch.setattr(cpu.CpuBackend, "step", lambda *args: steps.append(1) or do(*args))
    for seed in range(40):
        play(seed, "fast")
    assert len(steps) > 20


def test_a_kernel_that_is_wrong_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    right = Backends.moments

    def wrong(backends: Backends, x: torch.Tensor, column: int, saved: bool = False) -> Moments:
        found = right(backends, x, column, saved)
        return Moments(found.count, 1.5 * found.mean, found.variance) if backends._options.fast else found

    monkeypatch.setattr(Backends, "moments", wrong)
    assert any(problem(seed)[0] for seed in range(40))


def test_rows_that_are_taken_on_trust_are_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    """Layers that BNP is told something wrong about have to be left alone."""
    right = layers.layer_type(Registered(2, 2, True, torch.float32))
    assert right is not None
    observe = right.observe

    def trusted(layer: Registered, x: torch.Tensor, y: torch.Tensor, options: object) -> Rows:
        way, layer.way = layer.way, "right"
        try:
            return observe(layer, x, y, options)  # type: ignore[arg-type]
        finally:
            layer.way = way

    monkeypatch.setattr(type(right), "observe", property(lambda kind: trusted if kind is right else observe))
    seeds = [seed for seed in range(200) if any("rows: samples 0" in kind for kind in play(seed, "none").kinds)]
    assert seeds and any("preconditioned" in problem(seed)[0] for seed in seeds)


def test_what_is_planted_for_the_sanitizers_is_in_the_source() -> None:
    """So that a change of the source is noticed here, and not by the next one who runs make sanitize."""
    for fault in FAULTS:
        assert edited(fault=fault)
    assert edited(SMALL)
