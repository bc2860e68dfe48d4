"""Steps taken as a CUDA graph against the same steps taken one operation after another."""

import functools
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from trimtab import TrimtabWarning, cli
from trimtab._torch import allow_recompilations, has_combo_kernels, replace_cuda_generator_state
from trimtab.data import Dataset, Split
from trimtab.networks import build
from trimtab.records import EVENTS, Probed, Resumed, RunEnded, RunStarted, read_events
from trimtab.training import run as running
from trimtab.training.clock import Clock
from trimtab.training.recipes import resolve
from trimtab.training.run import Run
from trimtab.training.session import Session
from trimtab.training.settings import Settings
from trimtab.training.stepping import compiling, steppers
from trimtab.training.stepping.optimizers import load_state, make_capturable, portable_state, set_rate
from trimtab.training.stepping.step import TrainingStep
from trimtab.training.stepping.steppers import StepMode, choose_step_mode

CPU, CUDA = torch.device("cpu"), torch.device("cuda")
on_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")


def images(classes: int = 4) -> Dataset:
    """Small images whose mean depends on their class."""
    generator = torch.Generator().manual_seed(0)
    targets = torch.randint(classes, (200,), generator=generator)
    inputs = torch.randn(200, 1, 8, 8, generator=generator) + targets.view(-1, 1, 1, 1)
    split = Split(inputs, targets)
    return Dataset(name="digits", train=split, test=split, classes=classes, scale=1.0, mean=(1.5,), std=(1.5,))


def session(device: torch.device = CPU, **told: Any) -> Session:
    usual = {"network": "small-cnn", "batch_size": 16, "steps": 24, "epochs": None, "optimizer": "sgd"}
    # At 0.05 a nudge of 1e-7 leads Adam elsewhere.
    usual["lr"] = 0.005 if told.get("optimizer") == "adam" else 0.05
    return Session(
        resolve(Settings(**{**usual, "momentum": 0.9, "schedule": "cosine", **told})), device, None, images()
    )


def parts(ran: Session) -> dict[str, Tensor]:
    """Everything that a run has learned."""
    found = dict(ran.model.state_dict())
    for number, state in ran.optimizer.state_dict()["state"].items():
        found |= {f"optimizer.{number}.{name}": v for name, v in state.items() if isinstance(v, Tensor)}
    if ran.bnp is not None:
        for name, layer in ran.bnp.state_dict()["layers"].items():
            found |= {f"bnp.{name}.{key}": value for key, value in layer["running"].items()}
    return {name: value.detach().cpu().clone() for name, value in found.items()}


def assert_close(ours: Session, theirs: Session, tolerance: float = 1e-4) -> None:
    assert ours.step == theirs.step
    torch.testing.assert_close(parts(ours), parts(theirs), rtol=tolerance, atol=tolerance)
    (loss, accuracy), expected = ours.take_means(), theirs.take_means()
    assert loss == pytest.approx(expected[0], rel=tolerance, abs=tolerance)
    assert accuracy == pytest.approx(expected[1], abs=0.02)


def advance(ran: Session, to: int) -> Session:
    while ran.step < to:
        ran.advance()
    return ran


# What is chosen


@pytest.mark.parametrize(
    ("wanted", "device", "steps", "probes", "expected"),
    [
        ("auto", "cpu", 1000, False, "eager"),
        ("eager", "cuda", 1000, False, "eager"),
        ("auto", "cuda", 1000, False, "captured CUDA graph"),
        ("auto", "cuda:1", 50, False, "captured CUDA graph"),
        ("auto", "cuda", 49, False, "eager (49 steps are too few to capture)"),
        ("auto", "cuda", 1000, True, "eager (there are probes)"),
        ("captured", "cuda", 5, True, "captured CUDA graph"),
    ],
)
def test_what_is_chosen(wanted: Any, device: str, steps: int, probes: bool, expected: str) -> None:
    assert str(choose_step_mode(wanted, torch.device(device), steps, probes=probes)) == expected


def test_capturing_needs_a_gpu(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    told = ["train", "--out", str(tmp_path / "run"), "--device", "cpu", "--step-mode", "captured"]
    assert cli.main(told) == 2
    assert (
        "step_mode captured needs a CUDA device, and this run is on cpu; use step_mode auto" in capsys.readouterr().err
    )
    assert not (tmp_path / "run").exists()


def test_what_was_chosen_is_printed_and_recorded(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = tmp_path / "run"
    told = ["train", "--out", str(folder), "--epochs", "1", "--device", "cpu"]
    assert cli.main(told) == 0
    line = next(line for line in capsys.readouterr().err.splitlines() if line.startswith("step: "))
    assert line.startswith("step: eager; BNP: ")
    assert line.endswith("; precision: fp32")
    assert cli.main([*told, "--resume", "--step-mode", "eager", "--quiet"]) == 0  # how steps are taken may change
    assert not [line for line in capsys.readouterr().err.splitlines() if line.startswith("step: ")]
    events = list(read_events(folder / EVENTS))
    kept = [event.execution for event in events if isinstance(event, RunStarted | Resumed | RunEnded)]
    assert kept == [line] * 3  # the first end was taken back
    assert cli.main([*told, "--resume", "--precision", "bf16"]) == 2


def test_records_without_it_are_read(tmp_path: Path) -> None:
    path = tmp_path / EVENTS
    path.write_text(
        '{"schema": 1, "kind": "run_started", "settings": {}, "command": "", "machine": "", "versions": {}, '
        '"parameters": 1}\n{"schema": 1, "kind": "resumed", "step": 1, "machine": ""}\n'
    )
    assert [event.execution for event in read_events(path)] == ["", ""]  # type: ignore[union-attr]


def test_methods_without_bnp_do_not_speak_of_it() -> None:
    assert session(method="gn", precision="bf16").execution == "step: eager; precision: bf16"


# The optimizer in a form that can be captured

OPTIMIZERS: dict[str, Callable[[Any], torch.optim.Optimizer]] = {
    "sgd": lambda p: torch.optim.SGD(p, lr=0.1),
    "momentum": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, weight_decay=0.01),
    "nesterov": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, nesterov=True),
    "adam": lambda p: torch.optim.Adam(p, lr=0.01, weight_decay=0.01),
    "adamw": lambda p: torch.optim.AdamW(p, lr=0.01, weight_decay=0.1),
}


def take_steps(optimizer: torch.optim.Optimizer, count: int) -> list[Tensor]:
    held = [p for group in optimizer.param_groups for p in group["params"]]
    generator = torch.Generator().manual_seed(count)
    for number in range(count):
        set_rate(optimizer, 0.1 / (1 + number))
        for p in held:
            p.grad = torch.randn(p.shape, generator=generator).to(p.device)
        optimizer.step()
    return [p.detach().cpu().clone() for p in held]


def groups(device: torch.device) -> list[dict[str, Any]]:
    torch.manual_seed(0)
    weights = [nn.Parameter(torch.randn(3, 2).to(device)) for _ in range(3)]
    return [{"params": weights[:2]}, {"params": weights[2:], "weight_decay": 0.0}]


@pytest.mark.parametrize("device", [CPU, pytest.param(CUDA, marks=[pytest.mark.gpu, on_gpu])], ids=str)
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_both_forms_take_the_same_steps_and_each_others_states(name: str, device: torch.device) -> None:
    plain, capturable = (OPTIMIZERS[name](groups(device)) for _ in range(2))
    make_capturable(capturable, device)
    torch.testing.assert_close(take_steps(capturable, 3), take_steps(plain, 3), rtol=1e-5, atol=1e-6)
    assert all(isinstance(group["lr"], Tensor) for group in capturable.param_groups)
    assert all(isinstance(group["lr"], float) for group in portable_state(capturable)["param_groups"])
    states = portable_state(plain), portable_state(capturable)
    assert states[0].keys() == states[1].keys()
    for one, other in zip(states[0]["param_groups"], states[1]["param_groups"], strict=True):
        assert {**one, "lr": 0} == {**other, "lr": 0}
    load_state(plain, states[1])
    load_state(capturable, states[0])
    assert all(isinstance(group["lr"], float) for group in plain.param_groups)
    assert all(s["step"].device == CPU for s in plain.state.values() if "step" in s)
    assert all(s["step"].device.type == device.type for s in capturable.state.values() if "step" in s)
    torch.testing.assert_close(take_steps(capturable, 4), take_steps(plain, 4), rtol=1e-5, atol=1e-6)


def test_the_rate_on_a_device_stays_where_it_is() -> None:
    optimizer = OPTIMIZERS["adam"](groups(CPU))
    make_capturable(optimizer, CPU)
    before = [group["lr"] for group in optimizer.param_groups]
    set_rate(optimizer, 0.25)
    assert all(
        group["lr"] is lr and lr.item() == 0.25 for group, lr in zip(optimizer.param_groups, before, strict=True)
    )
    assert all(group["lr"].dtype == torch.float32 for group in optimizer.param_groups)


def test_gradients_and_momentum_are_laid_out_as_their_parameter() -> None:
    """The strides of a dimension of size 1 can be anything, and the fused kernels for CUDA refuse other ones."""
    weight = nn.Parameter(torch.randn(4, 3, 1, 1))
    odd = torch.randn(4, 3, 1, 1).as_strided((4, 3, 1, 1), (3, 1, 3, 3))
    assert odd.stride() != weight.stride()
    plain, capturable = (torch.optim.SGD([nn.Parameter(weight.detach().clone())], 0.1, momentum=0.9) for _ in range(2))
    plain.param_groups[0]["params"][0].grad = odd.clone()
    plain.step()
    make_capturable(capturable, CPU)
    load_state(capturable, portable_state(plain))
    (p,) = capturable.param_groups[0]["params"]
    p.data.copy_(plain.param_groups[0]["params"][0])
    for optimizer in (plain, capturable):
        optimizer.param_groups[0]["params"][0].grad = odd.clone()
        optimizer.step()
    assert p.grad.stride() == p.stride() == capturable.state[p]["momentum_buffer"].stride()
    torch.testing.assert_close(p, plain.param_groups[0]["params"][0])


# Capturing, with a stand-in for CUDA: what is recorded is done when it is replayed


class Graph:
    def __init__(self) -> None:
        self.recorded: list[Callable[[], None]] = []

    def replay(self) -> None:
        for work in self.recorded:
            work()


class StandIn:
    """What `steppers` wants of torch.cuda."""

    CUDAGraph = Graph

    def __init__(self) -> None:
        self.under_way: Graph | None = None
        self.log: list[str] = []

    @contextmanager
    def graph(self, graph: Graph, **_: Any) -> Iterator[None]:
        self.log.append("capture")
        self.under_way = graph
        try:
            yield
        finally:
            self.under_way = None

    def is_current_stream_capturing(self) -> bool:
        return self.under_way is not None

    def Stream(self, device: Any = None) -> Any:  # noqa: N802
        return SimpleNamespace(wait_stream=lambda other: None)

    current_stream = Stream

    def device(self, device: Any) -> Any:
        return nullcontext()

    stream = device

    def get_rng_state(self) -> Tensor:
        return torch.get_rng_state()

    def set_stream(self, stream: Any) -> None:
        self.log.append("stream")


@pytest.fixture
def cuda(monkeypatch: pytest.MonkeyPatch) -> StandIn:
    standin, step = StandIn(), TrainingStep.__call__
    monkeypatch.setattr(steppers, "torch", SimpleNamespace(cuda=standin, Tensor=Tensor))
    monkeypatch.setattr(steppers, "replace_cuda_generator_state", lambda state: standin.log.append("generator"))
    monkeypatch.setattr("trimtab.training.session.choose_step_mode", lambda wanted, *_, **__: StepMode(wanted))

    def recorded(self: TrainingStep, inputs: Tensor, targets: Tensor) -> None:
        if standin.under_way is None:
            standin.log.append("step")
            step(self, inputs, targets)
        else:
            standin.under_way.recorded.append(functools.partial(step, self, inputs, targets))

    monkeypatch.setattr(TrainingStep, "__call__", recorded)
    return standin


@pytest.mark.parametrize("optimizer", ["sgd", "adam"])
def test_three_steps_come_before_the_capture_which_is_none(optimizer: str, cuda: StandIn) -> None:
    ours, theirs = (advance(session(method="bnp", step_mode=s, optimizer=optimizer), 10) for s in ("captured", "eager"))
    assert cuda.log == ["step"] * 3 + ["capture"] + ["step"] * 10  # the last ten are those of the eager run
    assert_close(ours, theirs)


@pytest.mark.parametrize("optimizer", ["sgd", "adam"])
@pytest.mark.parametrize(("first", "then"), [("captured", "eager"), ("eager", "captured"), ("captured", "captured")])
def test_a_run_goes_on_in_the_other_way(first: str, then: str, optimizer: str, cuda: StandIn) -> None:
    told = {"method": "bnp-debias", "optimizer": optimizer}
    state = advance(session(step_mode=first, **told), 7).state()
    ours = session(step_mode=then, **told)
    advance(ours, 5)
    ours.restore(state)  # a graph that was there is no longer used
    del cuda.log[:]
    advance(ours, 14)
    assert cuda.log == (["step"] * 3 + ["capture"] if then == "captured" else ["step"] * 7)
    assert_close(ours, advance(session(step_mode="eager", **told), 14))


def test_a_step_that_cannot_be_captured_goes_on(cuda: StandIn, monkeypatch: pytest.MonkeyPatch) -> None:
    ours = session(method="bnp", step_mode="captured")
    step = TrainingStep.__call__

    def refused(self: TrainingStep, inputs: Tensor, targets: Tensor) -> None:
        step(self, inputs, targets)
        if cuda.under_way is not None:
            ours.model(inputs)  # leaves something behind
            raise RuntimeError("operation not permitted\nin a graph")

    monkeypatch.setattr(TrainingStep, "__call__", refused)
    advance(ours, 3)
    assert ours.execution.startswith("step: captured CUDA graph; ")
    with pytest.warns(TrimtabWarning, match=r"goes on without one. \(RuntimeError: operation not permitted\)$"):
        ours.advance()
    assert ours.execution.startswith("step: eager (the step could not be captured); ")
    advance(ours, 10)
    assert cuda.log == ["step"] * 3 + ["capture", "stream", "generator"] + ["step"] * 7
    monkeypatch.setattr(TrainingStep, "__call__", step)
    assert_close(ours, advance(session(method="bnp", step_mode="eager"), 10))


# Time


class Times:
    """A clock to set."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 0.0
        monkeypatch.setattr(time, "monotonic", lambda: self.now)

    def take(self, seconds: float) -> None:
        self.now += seconds


def test_a_clock_waits_for_the_device_when_it_is_stopped(monkeypatch: pytest.MonkeyPatch) -> None:
    times = Times(monkeypatch)
    clock = Clock(lambda: times.take(5))
    clock.stop()
    assert clock.seconds == 0
    clock.start()
    times.take(1)
    clock.start()
    clock.stop()
    assert clock.seconds == 6
    clock.stop()
    times.take(100)
    clock.start()
    times.take(1)
    clock.stop()
    assert clock.seconds == 12


def test_seconds_are_those_of_training(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A step is asked for in 1 second and takes the device 10; whatever waits for it waits for the rest."""
    times, behind, waits = Times(monkeypatch), [0.0], [0]
    ran = session(steps=12, probe=("landscape",), probe_every=6, log_every=4, evaluate_every=1000, method="vanilla")

    def wait() -> None:
        times.take(behind[0])
        behind[0] = 0
        waits[0] += 1

    def after(function: Any, then: Callable[[], None]) -> Any:
        def both(*given: Any, **named: Any) -> Any:
            result = function(*given, **named)
            then()
            return result

        return both

    def asked() -> None:
        times.take(1)
        behind[0] += 9

    monkeypatch.setattr(ran, "wait", wait)
    monkeypatch.setattr(ran, "advance", after(ran.advance, asked))
    monkeypatch.setattr(ran, "loss_so_far", after(ran.loss_so_far, wait))
    monkeypatch.setattr(ran, "evaluate", after(ran.evaluate, lambda: times.take(1000)))
    monkeypatch.setattr(running.checkpoint, "save", after(running.checkpoint.save, lambda: times.take(1000)))
    run = Run(ran, tmp_path, checkpoint_seconds=500)
    assert run._monitor is not None
    monkeypatch.setattr(run._monitor, "measure", after(run._monitor.measure, lambda: times.take(1000)))
    run.begin("", {}, {})
    run.train()
    seconds = {}
    for event in read_events(tmp_path / EVENTS):
        if not isinstance(event, RunStarted | Probed | Resumed):
            seconds.setdefault(event.kind, []).append(event.seconds)
    assert seconds == {"trained": [40, 80, 120], "evaluated": [120], "run_ended": [120]}
    assert waits[0] < 12


# Compiled networks


def test_a_residual_network_is_compiled_block_by_block(monkeypatch: pytest.MonkeyPatch) -> None:
    model = build("resnet110", "gn", classes=4)
    assert len(compiling.residual_blocks(model)) == 54
    done: list[nn.Module] = []
    monkeypatch.setattr(nn.Module, "compile", lambda module, dynamic: dynamic or done.append(module))
    assert compiling.compiled(model) is model
    assert done == compiling.residual_blocks(model)
    assert not compiling.residual_blocks(build("small-cnn", "gn", classes=4))
    assert len(compiling.residual_blocks(build("preact18", "gn", classes=4))) == 8


def test_what_shares_kernels_on_a_gpu_does_not_on_a_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    model = nn.Linear(2, 2)
    assert compiling.compile_options(model) == compiling.compile_options(nn.ReLU()) == {"dynamic": False}
    monkeypatch.setattr(Tensor, "is_cuda", True)
    for version, shared in {"2.10.1+cu128": False, "2.11.0+cu130": True, "2.13.0": True}.items():
        monkeypatch.setattr(torch, "__version__", torch.torch_version.TorchVersion(version))
        assert ("options" in compiling.compile_options(model)) is shared


@pytest.mark.parametrize("name", ["recompile_limit", "cache_size_limit"])  # the second up to torch 2.6
def test_the_limit_of_recompilations_is_raised_whatever_its_name(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    config = SimpleNamespace(**{name: 8})
    monkeypatch.setitem(sys.modules, "torch._dynamo", SimpleNamespace(config=config))
    for count, expected in ((64, 64), (16, 64)):
        allow_recompilations(count)
        assert vars(config) == {name: expected}


def test_nothing_is_set_where_there_is_no_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    config = SimpleNamespace()
    for compiler in (SimpleNamespace(config=config), None):  # None: it cannot be imported
        monkeypatch.setitem(sys.modules, "torch._dynamo", compiler)
        allow_recompilations(64)
    assert not vars(config)


def test_options_that_the_compiler_does_not_have_are_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch, "__version__", torch.torch_version.TorchVersion("2.99.0"))
    for compiler, expected in (
        (SimpleNamespace(list_options=lambda: ["combo_kernels"]), True),
        (SimpleNamespace(list_options=lambda: []), False),
        (SimpleNamespace(), False),
        (None, False),
    ):
        monkeypatch.setitem(sys.modules, "torch._inductor", compiler)
        assert has_combo_kernels() is expected


@pytest.mark.parametrize("has_graphsafe_states", [True, False])
def test_a_generator_gets_its_state_back(has_graphsafe_states: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """With a generator of the CPU in the place of a CUDA device's."""
    ours, state = torch.Generator(), torch.Generator().manual_seed(3).get_state()
    given: list[Tensor] = []
    stand_in = SimpleNamespace(graphsafe_set_state=lambda other: given.append(other.get_state()))
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    monkeypatch.setattr(torch.cuda, "default_generators", [stand_in if has_graphsafe_states else object()])
    monkeypatch.setattr(torch.cuda, "set_rng_state", lambda state, device: given.append(state))
    monkeypatch.setattr(
        torch, "Generator", lambda device: SimpleNamespace(set_state=ours.set_state, graphsafe_get_state=lambda: ours)
    )
    replace_cuda_generator_state(state)
    assert len(given) == 1 and torch.equal(given[0], state)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_equal_blocks_are_compiled_once_and_evaluated_as_written(monkeypatch: pytest.MonkeyPatch) -> None:
    from torch._dynamo.testing import CompileCounterWithBackend

    torch.compiler.reset()
    backend = CompileCounterWithBackend("aot_eager")
    monkeypatch.setattr(nn.Module, "compile", functools.partialmethod(nn.Module.compile, backend=backend))
    told = {"network": "resnet18", "method": "bnp+gn", "batch_size": 2, "stem": "cifar", "precision": "fp32"}
    ours, theirs = session(compile=True, **told), session(**told)
    for one in (ours, theirs):
        monkeypatch.setattr(one.evaluate, "batches", [next(iter(one.evaluate.batches))])
    assert ours.execution.startswith("step: eager, blocks compiled; ")
    assert_close(advance(ours, 3), advance(theirs, 3), 1e-3)
    graphs = backend.frame_count
    assert 1 <= graphs <= 7  # four widths and three changes of width in eight blocks
    assert ours.evaluate() == pytest.approx(theirs.evaluate(), rel=1e-3)
    advance(ours, 5)
    assert backend.frame_count == graphs
    torch.compiler.reset()


# On a GPU

gpu = [pytest.mark.gpu, on_gpu, pytest.mark.usefixtures("_exact")]


@pytest.fixture
def _exact(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Convolutions that do not depend on which algorithm was found the fastest."""
    before = torch.backends.cudnn.deterministic
    torch.backends.cudnn.deterministic = True
    yield
    torch.backends.cudnn.deterministic = before


def both(steps: int = 20, **told: Any) -> tuple[Session, Session]:
    ours, theirs = (advance(session(CUDA, step_mode=step, **told), steps) for step in ("captured", "eager"))
    assert isinstance(ours._stepper, steppers.CapturedStepper)
    assert ours._stepper._graph is not None
    assert ours.execution.startswith("step: captured CUDA graph")
    return ours, theirs


@pytest.mark.parametrize(
    "told",
    [
        *[{"method": method} for method in ("vanilla", "bn", "ln", "wn", "brn", "ghost", "bn4", "l1", "var-bn")],
        *[{"method": method} for method in ("bnp", "bnp-debias", "bnp+gn", "bnp+bn")],
        {"method": "bnp", "statistics": "batch"},
        {"method": "bnp", "spatial": "site", "no_bias": "variance"},
        {"method": "bnp", "optimizer": "adam"},
        {"method": "bn", "optimizer": "adamw", "lr": 0.005, "weight_decay": 0.1, "decay_on": "weights"},
        {"method": "bnp", "schedule": "step", "milestones": (1,), "warmup": 5, "nesterov": True},
        {"method": "bnp+bn", "momentum": 0.0, "zeta": 0.01},
        {"method": "bn", "zeta": 0.01, "network": "small-mlp"},
        {"method": "bnp", "network": "small-mlp", "batch_size": 1},
    ],
    ids=lambda told: "-".join(map(str, told.values())),
)
class TestOnAGPU:
    pytestmark = gpu

    def test_captured_steps_are_the_eager_ones(self, told: dict[str, Any]) -> None:
        ours, theirs = both(**told)
        assert_close(ours, theirs, 2e-3)
        assert ours.evaluate() == pytest.approx(theirs.evaluate(), rel=1e-2, abs=1e-2)


class TestMoreOnAGPU:
    pytestmark = gpu

    @pytest.mark.parametrize("precision", ["tf32", "bf16"])
    def test_other_precisions(self, precision: str) -> None:
        ours, theirs = both(method="bnp", precision=precision)
        assert_close(ours, theirs, 0.05)

    def test_noise_is_new_in_each_step(self) -> None:
        ours, _ = both(method="noisy-bn")
        x, y = ours.next_batch()
        losses = []
        for _ in range(3):
            ours.take_means()
            set_rate(ours.optimizer, 0.0)
            ours.advance((x, y))
            losses.append(ours.take_means()[0])
        assert len({*losses}) == 3
        assert all(0 < loss < 100 for loss in losses)

    def test_the_generator_is_saved_where_the_replays_have_brought_it(self) -> None:
        ours, theirs = (
            advance(session(CUDA, step_mode=step, method="noisy-bn"), 8).state() for step in ("captured", "eager")
        )
        assert torch.equal(ours["device_generator"], theirs["device_generator"])

    @pytest.mark.parametrize("optimizer", ["sgd", "adam"])
    @pytest.mark.parametrize(
        ("first", "then"), [("captured", "eager"), ("eager", "captured"), ("captured", "captured")]
    )
    def test_going_on(self, first: str, then: str, optimizer: str, tmp_path: Path) -> None:
        told = {"method": "bnp", "optimizer": optimizer, "lr": 0.01}
        path = tmp_path / "checkpoint.pt"
        running.checkpoint.save(path, advance(session(CUDA, step_mode=first, **told), 9).state())
        ours = advance(session(CUDA, step_mode=then, **told), 6)
        ours.restore(running.checkpoint.load(path, CUDA))
        assert_close(advance(ours, 20), advance(session(CUDA, step_mode="eager", **told), 20), 2e-3)

    @pytest.mark.parametrize("method", ["bn", "bnp"])
    def test_probes_leave_the_graph_as_it_is(self, method: str, tmp_path: Path) -> None:
        told = {"method": method, "network": "small-mlp"}
        plain = session(CUDA, step_mode="eager", **told)
        probed = session(CUDA, step_mode="captured", probe=("all",), probe_every=5, **told)
        Run(plain).train()
        run = Run(probed, tmp_path)
        run.begin("", {}, {})
        run.train()
        assert_close(probed, plain, 2e-3)
        problems = [e.result["problem"] for e in read_events(tmp_path / EVENTS) if isinstance(e, Probed)]
        assert problems
        assert not any(problems)

    def test_evaluations_in_between_do_not_matter(self) -> None:
        ours, theirs = (session(CUDA, step_mode=step, method="bnp+bn") for step in ("captured", "eager"))
        for stop in (2, 5, 9, 20):
            for one in (ours, theirs):
                advance(one, stop).evaluate()
        assert_close(ours, theirs, 2e-3)

    def test_a_step_that_waits_for_the_device_is_not_captured(self) -> None:
        """A failed capture leaves nothing behind: not the stream, not the generator, not what BNP saw."""
        told = {"method": "bnp+noisy-bn"}
        ours = advance(session(CUDA, step_mode="captured", **told), 3)
        sums: list[float] = []
        handle = ours.model.register_forward_hook(lambda module, args, output: sums.append(output.sum().item()))
        stream, state = torch.cuda.current_stream(), torch.cuda.get_rng_state()
        theirs = advance(session(CUDA, step_mode="eager", **told), 3)
        torch.cuda.set_rng_state(state)
        with pytest.warns(TrimtabWarning, match="goes on without one"):
            ours.advance()
        assert torch.cuda.current_stream() == stream
        advance(ours, 12)
        handle.remove()
        torch.cuda.set_rng_state(state)
        assert_close(ours, advance(theirs, 12), 2e-3)
        assert ours.execution.startswith("step: eager (the step could not be captured)")

    @pytest.mark.filterwarnings("ignore")
    @pytest.mark.parametrize("network", ["preact18", "small-cnn"])
    def test_compiled_and_captured(self, network: str) -> None:
        # Not resnet18: on such small images a nudge of 1e-6 turns some of its ReLUs on or off.
        told = {"network": network, "method": "bnp+gn", "stem": "cifar", "lr": 0.001}
        torch.compiler.reset()
        ours = advance(session(CUDA, step_mode="captured", compile=True, **told), 8)
        assert isinstance(ours._stepper, steppers.CapturedStepper)
        assert ours._stepper._graph is not None
        theirs = advance(session(CUDA, step_mode="eager", **told), 8)
        assert_close(ours, theirs, 0.01)
        assert ours.evaluate() == pytest.approx(theirs.evaluate(), rel=0.01, abs=0.01)
        torch.compiler.reset()

    @pytest.mark.filterwarnings("ignore:Synchronization debug mode")
    def test_nothing_waits_for_the_device_once_it_is_captured(self) -> None:
        ours, _ = both(10, method="bnp")
        batch = ours.next_batch()
        torch.cuda.set_sync_debug_mode("error")
        try:
            for _ in range(5):
                set_rate(ours.optimizer, 0.01)
                ours.advance(batch)
        finally:
            torch.cuda.set_sync_debug_mode("default")
