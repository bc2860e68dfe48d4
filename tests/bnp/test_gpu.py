"""BNP on a CUDA device. Skipped where there is none."""

import copy
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from torch import nn

import trimtab
from tests.bnp.helpers import batch, gradients, loss_of, small_model, statistics, train, weights
from trimtab.bnp.alarm import EVERY

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]


@contextmanager
def no_synchronization() -> Iterator[None]:
    torch.cuda.synchronize()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # the mode is a prototype, it says
            torch.cuda.set_sync_debug_mode("error")
        yield
    finally:
        torch.cuda.set_sync_debug_mode("default")


def cuda_step(model: nn.Module, optimizer: torch.optim.Optimizer, step: int) -> None:
    optimizer.zero_grad()
    loss_of(model, batch(step).cuda()).backward()
    optimizer.step()


@pytest.mark.parametrize(
    "options", [{}, {"debias": True}, {"statistics": "batch"}, {"spatial": "site"}, {"no_bias": "variance"}], ids=str
)
def test_the_gpu_takes_the_steps_of_the_cpu(options: dict[str, Any]) -> None:
    on_cpu, on_gpu = small_model(), small_model().cuda()
    optimizers = [torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9) for model in (on_cpu, on_gpu)]
    bnps = [
        trimtab.BNP(model, **options).attach(optimizer)
        for model, optimizer in zip((on_cpu, on_gpu), optimizers, strict=True)
    ]
    train(on_cpu, optimizers[0], range(5))
    for step in range(5):
        cuda_step(on_gpu, optimizers[1], step)
    ours = {name: value.cpu() for name, value in statistics(bnps[1]).items()}
    torch.testing.assert_close(ours, statistics(bnps[0]), rtol=1e-8, atol=1e-10)
    torch.testing.assert_close([w.cpu() for w in weights(on_gpu)], weights(on_cpu), rtol=1e-8, atol=1e-10)


@pytest.mark.parametrize("options", [{}, {"debias": True}, {"statistics": "batch"}, {"spatial": "site"}], ids=str)
def test_a_step_does_not_synchronize(options: dict[str, Any]) -> None:
    model = small_model().cuda()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    trimtab.BNP(model, **options).attach(optimizer)
    x = batch(0).cuda()
    for _ in range(2):
        optimizer.zero_grad()
        loss_of(model, x).backward()
        optimizer.step()
    with no_synchronization():
        for _ in range(3):
            optimizer.zero_grad()
            loss_of(model, x).backward()
            optimizer.step()


def test_steps_that_are_not_finite_are_said_without_synchronization() -> None:
    model = small_model().cuda()
    bnp = trimtab.BNP(model)
    x = batch(0).cuda()
    x[0, 0, 0, 0] = float("nan")
    caught: list[warnings.WarningMessage]
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        with no_synchronization():
            loss_of(model, x).backward()
            bnp.step()
            model.zero_grad()
        torch.cuda.synchronize()
        for step in range(EVERY + 1):
            loss_of(model, batch(step).cuda()).backward()
            bnp.step()
            model.zero_grad()
            torch.cuda.synchronize()
    messages = [str(w.message) for w in caught if issubclass(w.category, trimtab.TrimtabWarning)]
    assert len(messages) == 1
    assert "not finite" in messages[0]
    assert [(layer.steps, layer.not_finite) for layer in bnp.report().layers] == [(EVERY + 1, 1)] * 4


def test_a_model_that_moves() -> None:
    model, still = small_model(), small_model()
    bnp, other = trimtab.BNP(model), trimtab.BNP(still)
    for step, device in enumerate(["cpu", "cuda", "cuda", "cpu"]):
        model.to(device)
        for m, b, x in ((model, bnp, batch(step).to(device)), (still, other, batch(step))):
            m.zero_grad()
            loss_of(m, x).backward()
            b.step()
        torch.testing.assert_close([g.cpu() for g in gradients(model)], gradients(still), rtol=1e-9, atol=1e-11)


def test_a_state_loads_onto_the_parameters_device() -> None:
    model = small_model()
    bnp = trimtab.BNP(model)
    loss_of(model, batch(0)).backward()
    bnp.step()
    loss_of(model, batch(1)).backward()
    on_gpu = copy.deepcopy(model).cuda()
    other = trimtab.BNP(on_gpu)
    other.load_state_dict(bnp.state_dict())
    assert all(value.is_cuda for value in statistics(other).values())
    assert other.state_dict()["layers"]["7"]["pending"]["mean"].is_cuda


@pytest.mark.parametrize("fused", [False, True])
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_autocast_and_gradient_scaler(fused: bool, dtype: torch.dtype) -> None:
    """A skipped step leaves no trace, also where the optimizer does the skipping on the device."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(2, 8, 3, padding=1), nn.ReLU(), nn.Flatten(), nn.Linear(128, 3)).cuda()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, fused=fused)
    bnp = trimtab.BNP(model).attach(optimizer)
    scaler = torch.amp.GradScaler("cuda", init_scale=2.0**8)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for step in range(5):
            optimizer.zero_grad()
            with torch.autocast("cuda", dtype=dtype):
                out = model(batch(step).float().cuda())
            loss = out.float().square().mean() * (float("inf") if step == 2 else 1.0)
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
        averages = statistics(bnp)  # says that a step was not finite, if none has yet
    assert [layer.steps for layer in bnp.report().layers] == [4, 4]
    assert all(value.dtype == torch.float32 for name, value in averages.items() if name.endswith("mean"))
    assert all(w.isfinite().all() for w in weights(model))


@pytest.mark.parametrize("backend", ["aot_eager", "inductor"])
def test_compiled(backend: str) -> None:
    plain, model = small_model().float().cuda(), small_model().float().cuda()
    results = []
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for m in (plain, model):
            bnp = trimtab.BNP(m)
            run = torch.compile(m, backend=backend) if m is model else m
            for step in range(3):
                m.zero_grad()
                loss_of(run, batch(step).float().cuda()).backward()
                bnp.step()
            results.append(gradients(m))
    torch.testing.assert_close(results[0], results[1], rtol=1e-4, atol=1e-5)


def test_peak_memory_over_vanilla() -> None:
    """Nothing of the forward is kept: the peak is that of the plain model and a little for the step."""

    def peak(with_bnp: bool) -> int:
        torch.manual_seed(0)
        model = nn.Sequential(*[m for _ in range(6) for m in (nn.Conv2d(64, 64, 3, padding=1), nn.ReLU())]).cuda()
        bnp = trimtab.BNP(model) if with_bnp else None
        for _ in range(2):
            torch.cuda.reset_peak_memory_stats()
            model.zero_grad()
            model(torch.randn(64, 64, 32, 32, device="cuda")).mean().backward()
            if bnp is not None:
                bnp.step()
        return torch.cuda.max_memory_allocated()

    assert peak(True) < 1.02 * peak(False)


def test_an_optimizer_made_anew_is_noticed_and_the_users_line_is_shown() -> None:
    """The backward runs in a thread of torch's, and a fused optimizer leaves a weight's version as it is."""
    model = small_model().cuda()
    bnp = trimtab.BNP(model).attach(torch.optim.SGD(model.parameters(), lr=0.01))
    anew = torch.optim.Adam(model.parameters(), lr=0.01, fused=True)
    for step in range(3):
        cuda_step(model, anew, step)
    with pytest.warns(trimtab.TrimtabWarning, match="trained without BNP: 3 gradients in a row") as said:
        cuda_step(model, anew, 3)
    assert said[0].filename == __file__
    bnp.detach()


def test_a_second_bnp_is_refused_and_a_step_of_two_can_be_captured() -> None:
    model = small_model().cuda()
    first, second = trimtab.BNP(model), trimtab.BNP(model)
    x = batch(0).cuda()
    loss_of(model, x).backward()
    first.step()
    with pytest.raises(RuntimeError, match="preconditioned by another BNP since it arrived"):
        second.step()

    front, back = trimtab.BNP(model, skip=["5", "7"]), trimtab.BNP(model, skip=["0", "2"])
    for bnp in (first, second):
        bnp.detach()

    def step() -> None:
        model.zero_grad()
        loss_of(model, x).backward()
        front.step()
        back.step()

    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(3):
            step()
    torch.cuda.current_stream().wait_stream(stream)
    model.zero_grad()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        step()
    graph.replay()
    graph.replay()
    step()
    assert [layer.steps for layer in front.report().layers if layer.left_alone is None] == [6, 6]
