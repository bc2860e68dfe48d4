"""Probes on a GPU: what they find is what they find on a CPU, and a run with them is the run without."""

import copy
import gc
import os
import random

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import trimtab
from trimtab.probes import (
    Activations,
    BatchNoise,
    Conditioning,
    CovariateShift,
    Landscape,
    Monitor,
    RandomLandscape,
    Spectrum,
)
from trimtab.probes.isolation import IsolatedModel

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]


def network() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(), nn.Flatten(), nn.Dropout(0.3), nn.Linear(8 * 64, 4)
    )


def data(device: str) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    return torch.randn(16, 3, 8, 8, generator=generator).to(device), (torch.arange(16) % 4).to(device)


def loss_fn(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
    return nn.functional.cross_entropy(model(batch[0]), batch[1])


def every(optimizer: torch.optim.Optimizer, bnp: trimtab.BNP) -> list[trimtab.probes.Probe]:
    return [
        Landscape(optimizer=optimizer),
        RandomLandscape(optimizer=optimizer),
        CovariateShift(optimizer=optimizer, bnp=bnp),
        Activations(),
        Conditioning(bnp=bnp),
        Spectrum(optimizer=optimizer, trace_vectors=2, density_vectors=2, per_layer=True),
        BatchNoise(),
    ]


@pytest.fixture
def deterministic() -> None:
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    torch.use_deterministic_algorithms(True)
    yield
    torch.use_deterministic_algorithms(False)


@pytest.mark.usefixtures("deterministic")
def test_a_run_with_every_probe_is_the_run_without() -> None:
    def run(probing: bool) -> tuple[list[Tensor], list[object]]:
        model = network().cuda()
        torch.cuda.manual_seed(0)
        random.seed(0)
        np.random.seed(0)
        optimizer = torch.optim.Adam(model.parameters(), 0.01)
        bnp = trimtab.BNP(model).attach(optimizer)
        monitor = Monitor(every(optimizer, bnp) if probing else [], every=1)
        batch = data("cuda")
        for _ in range(3):
            for name, result in monitor(model, loss_fn, batch).items():
                assert result.problem is None, f"{name}: {result.problem}"
            optimizer.zero_grad()
            loss_fn(model, batch).backward()
            optimizer.step()
        bnp.detach()
        return [*model.parameters(), *model.buffers()], [random.getstate(), torch.cuda.get_rng_state().tolist()]

    (plain, dice), (probed, others) = run(False), run(True)
    assert all(torch.equal(a, b) for a, b in zip(plain, probed, strict=True))
    assert dice == others


def test_numbers_are_those_of_the_cpu() -> None:
    found = []
    for device in ("cpu", "cuda"):
        model = network().double().to(device)
        model[4] = nn.Identity()  # masks differ
        x, y = data(device)
        optimizer = torch.optim.SGD(model.parameters(), 0.1)
        told = {"statistics": "batch"}
        landscape = Landscape(optimizer=optimizer, **told)(model, loss_fn, (x.double(), y))
        spectrum = Spectrum(optimizer=optimizer, tolerance=1e-6, **told)(model, loss_fn, (x.double(), y))
        shift = CovariateShift(optimizer=optimizer)(model, loss_fn, (x.double(), y))
        found.append([*landscape.losses, *landscape.gradient_changes, spectrum.largest[0], shift.layers[-1].distance])
    assert found[0] == pytest.approx(found[1], rel=1e-6)


def test_memory_is_given_back() -> None:
    model = network().cuda()
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    bnp = trimtab.BNP(model)
    batch = data("cuda")
    for probe in every(optimizer, bnp):
        probe(model, loss_fn, batch)  # what libraries keep for themselves
    gc.collect()  # what other tests have left would be given back in the middle
    torch.cuda.synchronize()
    before = torch.cuda.memory_allocated()
    for probe in every(optimizer, bnp):
        assert probe(model, loss_fn, batch).problem is None
        assert torch.cuda.memory_allocated() == before, probe.name


def test_running_out_of_memory_is_said() -> None:
    model = network().cuda()

    def large(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
        return loss_fn(model, batch) + torch.empty(1 << 45, device="cuda").sum()

    result = Landscape(step_size=0.1)(model, large, data("cuda"))
    assert result.problem == "Out of memory."


@pytest.mark.parametrize("momentum", [0.1, None])
def test_counts_of_batches_are_as_before_a_run(momentum: float | None) -> None:
    """In it they are on the host, unless the running statistics depend on them."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 3), nn.BatchNorm1d(3, momentum=momentum)).cuda()
    x = torch.randn(8, 4, device="cuda")
    for _ in range(3):
        model(x + torch.randn_like(x))
    before, norm = copy.deepcopy(model), model[1]

    def work() -> tuple[bool, Tensor]:
        model(x)
        return norm.num_batches_tracked.is_cuda, norm.running_mean.clone()

    on_the_gpu, running = IsolatedModel(model).run(work)
    assert on_the_gpu == (momentum is None)
    assert norm.num_batches_tracked.is_cuda and norm.num_batches_tracked == 3
    torch.testing.assert_close(model.state_dict(), before.state_dict(), rtol=0, atol=0)
    before(x)
    torch.testing.assert_close(running, before[1].running_mean, rtol=0, atol=0)
