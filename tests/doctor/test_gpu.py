"""The doctor on a GPU: nobody waits for what a look sends to the host."""

import pytest
import torch
from torch import nn

from tests.bnp.test_gpu import no_synchronization
from tests.doctor.trainings import cross_entropy, some_steps
from trimtab import Doctor

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]


def network() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 10)
    )


def looked_at(device: str) -> Doctor:
    model = network().to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    doctor = Doctor(model, optimizer, cross_entropy, level="standard", every=8)
    generator = torch.Generator().manual_seed(1)
    draws = [torch.randn(16, 3, 9, 9, generator=generator, dtype=torch.float64).float() for _ in range(40)]
    classes = torch.randint(10, (40, 16), generator=generator)
    data = [(x.to(device), y.to(device)) for x, y in zip(draws, classes, strict=True)]
    some_steps(doctor, model, optimizer, data)
    return doctor


def test_a_look_waits_for_nothing() -> None:
    model = network().cuda()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    doctor = Doctor(model, optimizer, cross_entropy, every=8)
    batch = torch.randn(16, 3, 9, 9, device="cuda"), torch.randint(10, (16,), device="cuda")

    some_steps(doctor, model, optimizer, [batch] * 3)
    with no_synchronization():
        some_steps(doctor, model, optimizer, [batch] * 60)
    record = doctor.record
    assert [look.step for look in record.looks] == [0, 4, 8, *range(12, 63, 4)]
    assert len(record.losses) == 63 and not record.problems


def test_it_sees_there_what_it_sees_on_the_host(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.backends.cuda.matmul, "allow_tf32", False)
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", False)
    there, here = looked_at("cuda").record, looked_at("cpu").record
    assert not there.problems
    assert there.losses == pytest.approx(here.losses, rel=1e-3)
    for ours, theirs in zip(there.looks, here.looks, strict=True):
        assert ours.gradient == pytest.approx(theirs.gradient, rel=1e-2)
        assert [layer.update for layer in ours.layers] == pytest.approx(
            [layer.update for layer in theirs.layers], rel=1e-2
        )
    for mine, other in zip(there.trials, here.trials, strict=True):
        assert (mine.loss, mine.after, *mine.others) == pytest.approx(
            (other.loss, other.after, *other.others), rel=1e-3
        )
        assert mine.promised == pytest.approx(other.promised, rel=1e-2)
        assert mine.evaluated == pytest.approx(other.evaluated, rel=1e-2)
