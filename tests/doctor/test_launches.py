"""How many operations looks and trials take: on a GPU each is a launch, whatever it computes."""

from typing import Any

import pytest
import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

from tests.doctor.trainings import cross_entropy
from trimtab import Doctor
from trimtab.doctor.probing import probe_model
from trimtab.networks import build
from trimtab.probes.isolation import IsolatedModel

VIEWS = "view detach alias aten.t. transpose expand as_strided slice select squeeze permute split unbind empty set_"


class Counted(TorchDispatchMode):
    """Counts operations that compute something."""

    def __init__(self) -> None:
        super().__init__()
        self.count = 0

    def __torch_dispatch__(self, operation: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.count += not any(name in str(operation) for name in VIEWS.split())
        return operation(*args, **(kwargs or {}))


def operations_of_steps(model: nn.Module, level: Any, steps: int) -> list[int]:
    """Of each step of a training, with a doctor that looks at the first ones."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, foreach=True)
    doctor = None if level is None else Doctor(model, optimizer, cross_entropy, level=level, every=34)
    found = []
    for _ in range(steps):
        batch = torch.randn(4, 3, 16, 16), torch.randint(10, (4,))
        with Counted() as counted:
            optimizer.zero_grad()
            loss = cross_entropy(model, batch)
            loss.backward()
            if doctor is not None:
                doctor.step(batch, loss)
            optimizer.step()
        found.append(counted.count)
    if doctor is not None:
        assert not doctor.record.problems
        doctor.close()
    return found


def test_looks_take_less_operations_than_a_step_and_trials_as_many_as_a_few() -> None:
    torch.manual_seed(0)
    model = build("resnet18", "bn", input_shape=(3, 16, 16))
    step = operations_of_steps(model, None, 2)[1]
    light = operations_of_steps(model, "light", 20)
    # At step 17 nothing sees activations; what comes of the look is counted in step 18.
    assert sum(light[17:19]) - 2 * step < 0.3 * step
    assert sum(light[:2]) - 2 * step < 0.8 * step  # with activations
    # In step 1 the step before is tried.
    assert operations_of_steps(model, "standard", 2)[1] - light[1] < 6.5 * step


def test_a_trial_is_one_run_of_the_isolated_model(monkeypatch: pytest.MonkeyPatch) -> None:
    """To begin one takes as long as a step, whatever the model computes."""
    runs = 0
    run = IsolatedModel.run

    def counted(*args: Any) -> Any:
        nonlocal runs
        runs += 1
        return run(*args)

    monkeypatch.setattr(IsolatedModel, "run", counted)
    torch.manual_seed(0)
    model = nn.Sequential(nn.Flatten(), nn.Linear(3 * 16 * 16, 8), nn.BatchNorm1d(8), nn.Linear(8, 10))
    operations_of_steps(model, "standard", 3)  # with the trials of step 0
    assert runs == 1


@pytest.mark.slow
def test_probes_of_the_notes_do_no_more_than_the_notes_need() -> None:
    torch.manual_seed(0)
    model = build("resnet18", "bn", input_shape=(3, 16, 16))
    step = operations_of_steps(model, None, 2)[1]
    batch = torch.randn(32, 3, 16, 16), torch.randint(10, (32,))
    counts = {}
    for name in ("noise", "spectrum"):
        with Counted() as counted:
            found = probe_model(name, model, torch.optim.SGD(model.parameters()), cross_entropy, batch, "standard")
        assert found.problem is None
        counts[name] = counted.count
    assert counts["noise"] < 15 * step and counts["spectrum"] < 110 * step, counts
