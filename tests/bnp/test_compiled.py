"""Compiled models and compiled steps: the same numbers as eager ones, in one graph without a break."""

import copy
import inspect
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch._dynamo import decorators
from torch._dynamo.backends.registry import lookup_backend
from torch._dynamo.utils import counters
from torch._guards import CompileContext
from torch.utils.checkpoint import checkpoint

import trimtab
from tests.bnp.helpers import (
    assert_same,
    batch,
    gradients,
    loss_of,
    pending_rows,
    plain_step,
    small_model,
    statistics,
    train,
    weights,
)
from trimtab import _torch
from trimtab.bnp import layers
from trimtab.bnp.rows.hooks import paused
from trimtab.networks.builder import Builder
from trimtab.networks.residual import Block, Plan, resnet
from trimtab.norms import Norm

# The compiler's own, which it keeps from its users.
pytestmark = pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf:UserWarning")
compares_marks = pytest.mark.skipif(
    "_has_dynamo_dim_marking" not in inspect.getsource(decorators), reason="this torch does not compare such marks"
)
sees_unfreezing = pytest.mark.skipif(
    torch.__version__ < "2.12", reason="code that this torch has compiled does not notice that a layer was unfrozen"
)
shares_code = pytest.mark.skipif(
    torch.__version__ < "2.11", reason="code that this torch compiles is for the hooks of one block only"
)
exports_hooks = pytest.mark.skipif(
    torch.__version__ < "2.10", reason="strict torch.export of this torch refuses a model that has a forward hook"
)
NOTHING = {"0": 0, "2": 0, "5": 0, "7": 0}


@pytest.fixture(autouse=True)
def fresh() -> Iterator[None]:
    torch.compiler.reset()
    counters.clear()
    yield
    torch.compiler.reset()


class Compiler:
    """Compiles to the plain operations, and counts."""

    def __init__(self) -> None:
        self.graphs: set[object] = set()

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        # One graph may be tried several times before it is taken.
        self.graphs.add(CompileContext.current_compile_id())
        return lookup_backend("aot_eager")(*args, **kwargs)

    def compile(self, function: Any) -> Any:
        return torch.compile(function, backend=self, fullgraph=True)

    def assert_graphs(self, number: int) -> None:
        assert not counters["graph_break"]
        assert len(self.graphs) == number


def compiled(model: nn.Module) -> Any:
    return Compiler().compile(model)


MORE_OPTIONS = [{"spatial": "site"}, {"statistics": "batch"}, {"debias": True}, {"no_bias": "variance"}]
OPTIONS = [{}, *[pytest.param(options, marks=pytest.mark.slow) for options in MORE_OPTIONS]]


@pytest.mark.parametrize("options", [{}, {"spatial": "site"}], ids=str)
def test_one_graph_for_the_model_over_20_steps(options: dict[str, Any]) -> None:
    results = []
    compiler = Compiler()
    for how in ("eager", "compiled"):
        model = small_model()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.02, momentum=0.9)
        bnp = trimtab.BNP(model, **options).attach(optimizer)
        train(model if how == "eager" else compiler.compile(model), optimizer, range(20))
        results.append((weights(model), statistics(bnp)))
    compiler.assert_graphs(1)
    assert_same(results[0][0], results[1][0])
    assert_same(results[0][1], results[1][1])


@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_one_graph_for_the_model_and_one_for_the_step_over_20_steps(options: dict[str, Any]) -> None:
    results = []
    for_model, for_step = Compiler(), Compiler()
    for how in ("eager", "compiled"):
        model = small_model()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.02, momentum=0.9)
        bnp = trimtab.BNP(model, **options)
        run, step = (model, bnp.step) if how == "eager" else (for_model.compile(model), for_step.compile(bnp.step))
        train(run, optimizer, range(20), between=step)
        results.append((weights(model), statistics(bnp)))
    for_model.assert_graphs(1)
    for_step.assert_graphs(1)
    assert_same(results[0][0], results[1][0])
    assert_same(results[0][1], results[1][1])


def test_an_optimizer_compiled_with_its_bnp() -> None:
    """With torch's own breaks, which every optimizer's step has, and none of ours."""
    results = []
    for how in ("eager", "compiled"):
        model = small_model()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        bnp = trimtab.BNP(model).attach(optimizer)
        run, step = model, optimizer.step
        if how == "compiled":
            run, step = compiled(model), torch.compile(optimizer.step, backend="aot_eager")
        for index in range(4):
            optimizer.zero_grad()
            loss_of(run, batch(index)).backward()
            step()
        results.append((weights(model), statistics(bnp)))
    assert all("torch._dynamo.graph_break()" in reason for reason in counters["graph_break"])
    assert_same(results[0][0], results[1][0])
    assert_same(results[0][1], results[1][1])


class Twice(nn.Module):
    """One layer, called twice with batches of different size."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(3, 3)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.layer(self.layer(x).tanh()[:2])
        return out


class Checkpointed(nn.Module):
    """Whose inside is computed again in the backward."""

    def __init__(self) -> None:
        super().__init__()
        self.inside = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 3))
        self.outside = nn.Linear(3, 2)

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.outside(checkpoint(self.inside, x, use_reentrant=False))
        return y


def frozen() -> nn.Module:
    model = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 3), nn.Linear(3, 2))
    model[0].weight.requires_grad_(False)
    assert model[1].bias is not None
    model[1].bias.requires_grad_(False)
    return model


MODELS: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "relu in place": (lambda: nn.Sequential(nn.Linear(3, 4), nn.ReLU(inplace=True)), (5, 3)),
    "relu in place, 3 dimensions": (lambda: nn.Sequential(nn.Linear(3, 4), nn.ReLU(inplace=True)), (5, 2, 3)),
    "dense, one sample": (lambda: nn.Linear(3, 4), (3,)),
    "dense, one row": (lambda: nn.Linear(3, 4), (1, 3)),
    "dense, no bias": (lambda: nn.Linear(3, 4, bias=False), (5, 3)),
    "wide": (lambda: nn.Linear(40, 3), (5, 40)),
    "grouped": (lambda: nn.Conv2d(4, 6, 3, groups=2, padding=1), (5, 4, 6, 6)),
    "one dimension, strided": (lambda: nn.Conv1d(2, 3, 3, stride=2, dilation=2), (5, 2, 9)),
    "no batch dimension": (lambda: nn.Conv1d(2, 3, 3), (2, 9)),
    "transposed": (lambda: nn.ConvTranspose2d(4, 2, 3, stride=2, groups=2), (3, 4, 3, 3)),
    "transposed, cropped": (lambda: nn.ConvTranspose1d(2, 2, 3, padding=2), (3, 2, 5)),
    "called twice": (Twice, (5, 3)),
    "checkpointed": (Checkpointed, (5, 3)),
    "frozen": (frozen, (5, 3)),
}


LONG = ("checkpointed", "frozen", "transposed, cropped", "no batch dimension", "relu in place", "dense, no bias")


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.slow) if name in LONG else name for name in MODELS]
)
def test_layers_of_all_kinds(name: str) -> None:
    make, shape = MODELS[name]
    torch.manual_seed(0)
    plain = make().double()
    twin = copy.deepcopy(plain)
    results = []
    for model, run in ((plain, plain), (twin, compiled(twin))):
        bnp = trimtab.BNP(model)
        for seed in range(2):
            x = 0.5 + torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
            model.zero_grad()
            run(x).square().sum().backward()
            bnp.step()
        results.append((gradients(model), statistics(bnp)))
    assert not counters["graph_break"]
    assert_same(results[0][0], results[1][0])
    assert_same(results[0][1], results[1][1])


def test_a_single_row_has_no_variance_of_its_own() -> None:
    """With the statistics of the batch too: the running ones are used, which an eager step says."""
    results = []
    for how in ("eager", "compiled"):
        torch.manual_seed(0)
        layer = nn.Linear(3, 2).double()
        bnp = trimtab.BNP(layer, statistics="batch")
        run = layer if how == "eager" else compiled(layer)
        for seed in range(2):
            layer.zero_grad()
            x = torch.randn(1, 3, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
            run(x).square().sum().backward()
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", trimtab.TrimtabWarning)
                bnp.step()
        results.append((gradients(layer), statistics(bnp)))
    assert_same(results[0][0], results[1][0])
    assert_same(results[0][1], results[1][1])


@pytest.mark.slow
def test_forward_alone_leaves_no_trace() -> None:
    model = small_model()
    bnp = trimtab.BNP(model)
    run = compiled(model)
    with torch.no_grad():
        run(batch(1))
    run(batch(2))
    model.eval()
    run(batch(1))
    model.train()
    x = batch(1).requires_grad_()
    torch.autograd.grad(loss_of(run, x), x)
    assert pending_rows(bnp) == NOTHING
    loss_of(run, batch(3)).backward()
    assert pending_rows(bnp) == {"0": 6 * 16, "2": 6 * 16, "5": 6, "7": 6}
    bnp.step()
    expected = plain_step(model, batch(3))
    assert_same(statistics(bnp), expected[1])
    assert not counters["graph_break"]


def test_the_leaf_for_the_sums_follows_a_model_that_was_moved() -> None:
    model = small_model()
    bnp = trimtab.BNP(model)
    tallies = [layer._compiled for layer in bnp._observed.layers.values()]
    for tally in tallies:
        assert tally.token is not None
        tally.token = nn.Parameter(tally.token.detach().to("meta"))  # where the model was, so to speak
    loss_of(model, batch(1)).backward()
    bnp.step()
    assert all(tally.token is not None and tally.token.is_cpu for tally in tallies)
    model.zero_grad()
    loss_of(compiled(model), batch(2)).backward()
    assert pending_rows(bnp)["7"] == 6


def test_unobserved() -> None:
    model = small_model()
    bnp = trimtab.BNP(model)
    run = compiled(model)
    loss_of(run, batch(4)).backward()
    model.zero_grad()
    bnp.discard()
    with paused(model):
        loss_of(run, batch(4)).backward()
    assert pending_rows(bnp) == NOTHING
    model.zero_grad()
    loss_of(run, batch(3)).backward()
    assert pending_rows(bnp) == {"0": 6 * 16, "2": 6 * 16, "5": 6, "7": 6}


@pytest.mark.parametrize("mixed", [False, True], ids=["all compiled", "some eager"])
def test_micro_batches_equal_the_whole_batch(mixed: bool) -> None:
    model = small_model()
    expected = plain_step(model, batch(1))
    bnp = trimtab.BNP(model)
    run = compiled(model)
    for index, part in enumerate(batch(1).split([1, 3, 2])):
        loss_of(model if mixed and index == 1 else run, part).backward()
    bnp.step()
    assert pending_rows(bnp) == NOTHING
    assert_same(gradients(model), expected[0])
    assert_same(statistics(bnp), expected[1])
    assert not counters["graph_break"]


@pytest.mark.parametrize(
    "drop", ["none", "zero", *[pytest.param(drop, marks=pytest.mark.slow) for drop in ("discard", "half")]]
)
def test_rows_are_dropped_with_their_gradient(drop: str) -> None:
    model = small_model()
    bnp = trimtab.BNP(model)
    run = compiled(model)
    for _ in range(2):
        loss_of(run, batch(1)).backward()
        if drop == "half":
            for parameter in model.parameters():
                assert parameter.grad is not None
                parameter.grad.mul_(0.5)
        elif drop == "discard":
            model.zero_grad()
            bnp.discard()
            assert pending_rows(bnp) == NOTHING
        else:
            model.zero_grad(set_to_none=drop == "none")
    expected = plain_step(model, batch(2))
    loss_of(run, batch(2)).backward()
    assert pending_rows(bnp)["7"] == (18 if drop == "half" else 6)
    bnp.step()
    if drop != "half":
        assert_same(gradients(model), expected[0])
        assert_same(statistics(bnp), expected[1])


@pytest.mark.slow
def test_pending_rows_are_saved_as_numbers_and_taken_up() -> None:
    model = small_model()
    expected = plain_step(model, batch(1))
    bnp = trimtab.BNP(model)
    loss_of(compiled(model), batch(1)[:4]).backward()
    state = bnp.state_dict()
    pending = state["layers"]["7"]["pending"]
    assert [pending[name] for name in ("count", "samples", "outputs", "zeros")] == [4, 4, 4, 0]
    assert all(type(pending[name]) is int for name in ("count", "samples", "outputs", "zeros"))
    bnp.detach()
    other = trimtab.BNP(model)
    other.load_state_dict(state)
    loss_of(compiled(model), batch(1)[4:]).backward()
    other.step()
    assert_same(gradients(model), expected[0])
    assert_same(statistics(other), expected[1])


def test_gradients_taken_by_hand_are_left_as_they_are() -> None:
    """Compiled code has no place for rows that nobody accumulates."""
    model = small_model()
    bnp = trimtab.BNP(model)
    parameters = list(model.parameters())
    grads = torch.autograd.grad(loss_of(compiled(model), batch(0)), parameters)
    for parameter, grad in zip(parameters, grads, strict=True):
        parameter.grad = grad.clone()
    with pytest.warns(trimtab.TrimtabWarning, match="No input was seen"):
        bnp.step()
    assert_same(gradients(model), list(grads))


@pytest.mark.slow
@sees_unfreezing
def test_a_layer_unfrozen_later() -> None:
    model = small_model()
    bnp = trimtab.BNP(model)
    run = compiled(model)
    model[0].requires_grad_(False)
    loss_of(run, batch(0)).backward()
    assert pending_rows(bnp) == {"0": 0, "2": 6 * 16, "5": 6, "7": 6}
    bnp.step()
    model[0].requires_grad_(True)
    model.zero_grad()
    loss_of(run, batch(1)).backward()
    assert pending_rows(bnp)["0"] == 6 * 16
    assert not counters["graph_break"]


def test_a_parameter_that_is_replaced() -> None:
    model = nn.Sequential(nn.Linear(3, 2))
    bnp = trimtab.BNP(model)
    run = compiled(model)
    for _ in range(2):
        run(torch.randn(4, 3)).sum().backward()
        assert pending_rows(bnp) == {"0": 4}
        bnp.step()
        model[0].weight = nn.Parameter(torch.randn(2, 3))


@pytest.mark.slow
def test_what_is_not_finite_is_kept_out() -> None:
    model = small_model()
    bnp = trimtab.BNP(model)
    run, step = compiled(model), Compiler().compile(bnp.step)
    for scale in (1.0, float("inf"), 1.0):
        model.zero_grad()
        loss_of(run, scale * batch(0)).backward()
        step()
    assert [(layer.steps, layer.not_finite) for layer in bnp.report().layers] == [(2, 1)] * 4
    assert all(value.isfinite().all() for value in statistics(bnp).values())


@pytest.mark.slow
def test_a_layer_that_is_not_called_in_a_step_keeps_its_gradient() -> None:
    """An eager step says so; a compiled one cannot."""
    model = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 3)).double()
    bnp = trimtab.BNP(model)
    run, step = compiled(model[0]), Compiler().compile(bnp.step)
    for is_eager in (True, False):
        model.zero_grad()
        y = run(torch.randn(4, 3, dtype=torch.float64))
        torch.nn.functional.linear(y, model[1].weight, model[1].bias).sum().backward()
        before = gradients(model)
        if is_eager:
            with pytest.warns(trimtab.TrimtabWarning, match="No input was seen for '1'"):
                bnp.step()
            bnp._observed.layers["1"].warned_unseen = False
        else:
            step()
        assert torch.equal(before[2], gradients(model)[2])
        assert not torch.equal(before[0], gradients(model)[0])
    assert not counters["graph_break"]


def test_bfloat16_autocast() -> None:
    layer = nn.Linear(3, 2)
    bnp = trimtab.BNP(layer, rho=0.0)
    run = compiled(layer)
    x = 1000 + torch.randn(64, 3)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        run(x).float().mean().backward()
    bnp.step()
    stats = statistics(bnp)
    assert stats[".mean"].dtype == torch.float32
    torch.testing.assert_close(stats[".mean"], x.double().mean(0).float(), rtol=1e-6, atol=0)
    torch.testing.assert_close(stats[".variance"], x.double().var(0, correction=0).float(), rtol=1e-3, atol=1e-3)


def test_registered_types() -> None:
    """Traced too, if their columns are those of their weight."""

    class Doubled(nn.Linear):
        def forward(self, x: Tensor) -> Tensor:
            return 2 * super().forward(x)

    before = dict(layers._TYPES)
    try:

        @trimtab.register_layer(Doubled)
        def doubled(layer: Any, x: Tensor, y: Tensor, options: Any) -> trimtab.Rows:
            return layers.linear(layer, x, y, options)

        model = Doubled(3, 2)
        bnp = trimtab.BNP(model)
        compiled(model)(torch.randn(4, 3)).sum().backward()
        assert pending_rows(bnp) == {"": 4}
        assert not counters["graph_break"]
    finally:
        layers._TYPES.clear()
        layers._TYPES.update(before)


@shares_code
@pytest.mark.parametrize("blocks", [pytest.param(2, marks=pytest.mark.slow), 4])
def test_equal_blocks_share_their_code(blocks: int) -> None:
    """As many graphs as without BNP, however many blocks there are."""
    compiler = Compiler()
    torch.manual_seed(0)
    model = resnet(Builder("net", Norm("gn")), (3, 8, 8), 4, plan=Plan(widths=(4, 8), blocks=blocks, projection=False))
    bnp = trimtab.BNP(model)
    for module in model:
        if isinstance(module, Block):
            module.compile(backend=compiler, fullgraph=True)
    plain = copy.deepcopy(model)  # not compiled, not observed
    expected = trimtab.BNP(plain)
    for net, observer in ((model, bnp), (plain, expected)):
        net(torch.randn(5, 3, 8, 8, generator=torch.Generator().manual_seed(0))).square().sum().backward()
        observer.step()
    compiler.assert_graphs(3)
    torch.testing.assert_close(gradients(model), gradients(plain), rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(statistics(bnp), statistics(expected), rtol=1e-5, atol=1e-6)


class Through(nn.Module):
    """A module that torch does not know."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, x: Tensor) -> Any:
        return self.model(x)


@pytest.mark.parametrize(
    "how", ["wrapped", *[pytest.param(how, marks=pytest.mark.slow) for how in ("in place", "in a function")]]
)
def test_a_compiled_model_that_has_run_is_refused(how: str) -> None:
    model = Through(small_model())
    if how == "wrapped":
        run = compiled(model)
    elif how == "in place":
        model.compile(backend="aot_eager")
        run = model
    else:
        run = torch.compile(lambda x: model(x), backend="aot_eager")
    run(batch(0))
    for target in (model, nn.Sequential(model), *([run] if how == "wrapped" else [])):
        with pytest.raises(RuntimeError, match=r"has run before BNP was made.*torch\.compiler\.reset\(\)"):
            trimtab.BNP(target)
        assert not any(module._forward_hooks or module._forward_pre_hooks for module in model.modules())
    trimtab.BNP(copy.deepcopy(model))  # which was not compiled
    torch.compiler.reset()
    bnp = trimtab.BNP(model)
    loss_of(run, batch(1)).backward()
    assert pending_rows(bnp)["model.7"] == 6


@pytest.mark.slow
@compares_marks
def test_another_bnp_for_a_model_that_was_compiled_with_one() -> None:
    model = small_model()
    run = compiled(model)
    for _ in range(2):
        with trimtab.BNP(model) as bnp:
            loss_of(run, batch(1)).backward()
            assert pending_rows(bnp)["7"] == 6
        loss_of(run, batch(1)).backward()  # compiled without hooks now


def test_code_of_a_model_without_bnp_is_not_used_for_one_with_it() -> None:
    plain, model = small_model(), small_model()
    bnp = trimtab.BNP(model)
    runs = [compiled(plain), compiled(model)]
    for _ in range(2):
        for run in runs:
            loss_of(run, batch(1)).backward()
    assert pending_rows(bnp)["7"] == 12
    bnp.detach()
    model.zero_grad()
    loss_of(runs[1], batch(1)).backward()
    assert all(not parameter.__dict__.get("_dynamo_static_indices") for parameter in model.parameters())


@pytest.mark.slow
def test_what_the_compiler_makes_of_it() -> None:
    """Compiled to code of its own: the same numbers up to rounding."""
    results = []
    for how in ("eager", "compiled"):
        model = small_model()
        bnp = trimtab.BNP(model)
        run = model if how == "eager" else torch.compile(model, fullgraph=True)
        for step in range(3):
            model.zero_grad()
            loss_of(run, batch(step)).backward()
            bnp.step()
        results.append((gradients(model), statistics(bnp)))
    assert_same(results[0][0], results[1][0])
    assert_same(results[0][1], results[1][1])


@pytest.mark.parametrize("strict", [False, pytest.param(True, marks=exports_hooks)])
def test_what_is_exported_knows_nothing_of_bnp(strict: bool) -> None:
    model = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2))
    bnp = trimtab.BNP(model)
    sizes = ({0: torch.export.Dim("n", min=2)},)
    exported = torch.export.export(model, (torch.randn(5, 3),), dynamic_shapes=sizes, strict=strict)
    assert [str(node.target) for node in exported.graph.nodes if node.op == "call_function"] == [
        "aten.linear.default",
        "aten.tanh.default",
        "aten.linear.default",
    ]
    compiled(model)(torch.randn(5, 3)).sum().backward()  # which is not taken for an export
    assert pending_rows(bnp) == {"0": 5, "2": 5}


def test_gradients_set_to_zero_from_the_first_on() -> None:
    model = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2))
    bnp = trimtab.BNP(model)
    run = compiled(model)
    for _ in range(4):
        model.zero_grad(set_to_none=False)
        run(torch.randn(5, 3)).square().sum().backward()
        assert pending_rows(bnp) == {"0": 5, "2": 5}


def test_the_first_backward_of_a_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """It has the number 0. Compiled code and the weight's gradient come one after the other, in whatever order."""
    first = _torch.current_backward
    seen: dict[int, int] = {}
    monkeypatch.setattr(
        _torch, "current_backward", lambda: -1 if (n := first()) == -1 else seen.setdefault(n, len(seen))
    )
    model = small_model()
    bnp = trimtab.BNP(model)
    loss_of(compiled(model), batch(1)).backward()
    assert pending_rows(bnp) == {"0": 6 * 16, "2": 6 * 16, "5": 6, "7": 6}
