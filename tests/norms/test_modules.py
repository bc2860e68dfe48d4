"""Our layers as modules: saving, copying, compiling, vmapping, reduced precision, several processes, bad input."""

import copy
import io

import pytest
import torch
from torch import Tensor, nn
from torch.func import functional_call, grad, stack_module_state, vmap

from tests.norms.cases import CASES, CHANNELS, inputs, make
from trimtab.norms import BatchRenorm, FourThingsBatchNorm, GhostBatchNorm, LpNorm, NoisyBatchNorm

NAMES = list(CASES)


@pytest.mark.parametrize("name", NAMES)
def test_state_dict_round_trip(name: str) -> None:
    torch.manual_seed(0)
    layer, other = make(name), make(name)
    layer(inputs(5, CHANNELS, 2))
    file = io.BytesIO()
    torch.save(layer.state_dict(), file)
    file.seek(0)
    other.load_state_dict(torch.load(file, weights_only=True))
    x = inputs(5, CHANNELS, 2)
    torch.testing.assert_close(other(x), layer(x))
    torch.testing.assert_close(other.eval()(x), layer.eval()(x))
    torch.testing.assert_close(other.state_dict(), layer.state_dict())


@pytest.mark.parametrize("name", NAMES)
def test_a_deep_copy_lives_alone(name: str) -> None:
    torch.manual_seed(0)
    layer = make(name)
    before = copy.deepcopy(layer.state_dict())
    copy.deepcopy(layer)(inputs(5, CHANNELS))
    torch.testing.assert_close(layer.state_dict(), before)


@pytest.mark.parametrize("name", NAMES)
def test_reset(name: str) -> None:
    layer = make(name, gamma=0.5)
    layer(inputs(5, CHANNELS))
    layer.reset_parameters()
    torch.testing.assert_close(layer.state_dict(), CASES[name].make(CHANNELS, gamma=0.5).double().state_dict())


@pytest.mark.parametrize(
    "name", [*[pytest.param(name, marks=pytest.mark.slow) for name in NAMES[::2]], *NAMES[1::2], "noise"]
)
def test_compiled_without_a_graph_break(name: str) -> None:
    torch.manual_seed(0)
    torch._dynamo.reset()
    layer = make(name) if name != "noise" else NoisyBatchNorm(CHANNELS).double()
    compiled = torch.compile(copy.deepcopy(layer), backend="aot_eager", fullgraph=True)
    for step in range(2):
        results = []
        for model in (layer, compiled):
            torch.manual_seed(step)
            x = inputs(7, CHANNELS, 2).requires_grad_()
            y = model(x)
            results.append((y, *torch.autograd.grad(y.pow(3).sum(), (x, *model.parameters()))))
        torch.testing.assert_close(*results)
    torch.testing.assert_close(layer.state_dict(), compiled._orig_mod.state_dict())
    torch.testing.assert_close(layer.eval()(x), compiled.eval()(x))


@pytest.mark.parametrize("name", NAMES)
def test_vmapped_training_equals_one_model_after_the_other(name: str) -> None:
    torch.manual_seed(0)
    models = [nn.Sequential(nn.Linear(3, CHANNELS).double(), make(name), nn.Linear(CHANNELS, 1).double()) for _ in "ab"]
    parameters, buffers = stack_module_state(models)
    x = torch.randn(2, 7, 3, dtype=torch.float64)

    def loss(parameters: dict[str, Tensor], buffers: dict[str, Tensor], x: Tensor) -> Tensor:
        return functional_call(models[0], (parameters, buffers), (x,)).square().sum()

    gradients = vmap(grad(loss), randomness="different")(parameters, buffers, x)
    for i, model in enumerate(models):
        model(x[i]).square().sum().backward()
        for key, parameter in model.named_parameters():
            torch.testing.assert_close(gradients[key][i], parameter.grad)
        for key, buffer in model.named_buffers():
            torch.testing.assert_close(buffers[key][i], buffer)


def test_vmapped_models_draw_noise_of_their_own() -> None:
    torch.manual_seed(0)
    parameters, buffers = stack_module_state([NoisyBatchNorm(CHANNELS) for _ in "ab"])
    x = torch.randn(7, CHANNELS).expand(2, -1, -1)
    layer = NoisyBatchNorm(CHANNELS)
    y = vmap(lambda p, b, x: functional_call(layer, (p, b), (x,)), randomness="different")(parameters, buffers, x)
    assert not torch.allclose(y[0].mean(0), y[1].mean(0), atol=1e-2)  # the channels' centres differ, too


@pytest.mark.parametrize("name", NAMES)
def test_bfloat16_inputs_with_float32_layers(name: str) -> None:
    """As under autocast: statistics in float32, output in the type of the input."""
    torch.manual_seed(0)
    layer = make(name).float()
    reference = copy.deepcopy(layer)
    x = inputs(64, CHANNELS, 4).bfloat16()
    y = layer(x)
    assert y.dtype == torch.bfloat16
    torch.testing.assert_close(y, reference(x.float()).bfloat16())
    torch.testing.assert_close(layer.state_dict(), reference.state_dict())
    assert {b.dtype for b in layer.buffers()} <= {torch.float32, torch.long}


@pytest.mark.parametrize("name", NAMES)
def test_a_fixed_gamma(name: str) -> None:
    layer = CASES[name].make(CHANNELS, gamma=0.25, fixed_gamma=True)
    assert layer.weight.tolist() == [0.25] * CHANNELS
    layer(torch.randn(5, CHANNELS)).sum().backward()
    assert layer.weight.grad is None and layer.bias.grad is not None
    assert "gamma=0.25, fixed_gamma=True" in repr(layer)


def test_sync_batchnorm_conversion_leaves_ours_as_they_are() -> None:
    model = nn.Sequential(nn.BatchNorm1d(CHANNELS), *(CASES[name].make(CHANNELS) for name in NAMES))
    ours = list(model)[1:]
    converted = nn.SyncBatchNorm.convert_sync_batchnorm(model)
    assert isinstance(converted[0], nn.SyncBatchNorm)
    assert all(a is b for a, b in zip(list(converted)[1:], ours, strict=True))


@pytest.mark.parametrize("name", NAMES)
def test_several_processes_are_refused_unless_allowed(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.distributed, "is_available", lambda: True)
    monkeypatch.setattr(torch.distributed, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.distributed, "get_world_size", lambda: 2)
    layer, x = make(name), inputs(5, CHANNELS)
    with pytest.raises(RuntimeError, match=r"does not synchronize its statistics.*local_statistics = True"):
        layer(x)
    assert layer.num_batches_tracked == 0
    layer.eval()(x)
    layer.local_statistics = True
    layer.train()(x)
    monkeypatch.setattr(torch.distributed, "get_world_size", lambda: 1)
    make(name)(x)


@pytest.mark.parametrize("shape", [(1, CHANNELS), (1, CHANNELS, 1, 1), (0, CHANNELS, 3)])
@pytest.mark.parametrize("name", sorted(CASES.keys() - {"bn4-group"}))
def test_one_value_per_channel_is_refused_in_training(name: str, shape: tuple[int, ...]) -> None:
    """The kind of error that torch's BatchNorm raises, and nothing moved by it."""
    layer = make(name)
    with pytest.raises(ValueError, match="more than one value per statistic"):
        layer(inputs(*shape))
    assert layer.num_batches_tracked == 0
    assert layer.eval()(inputs(*shape)).shape == shape


def test_one_value_per_ghost_is_refused() -> None:
    with pytest.raises(ValueError, match="more than one value"):
        GhostBatchNorm(3, ghost_size=1)(torch.randn(8, 3))
    with pytest.raises(ValueError, match="more than one value"):
        FourThingsBatchNorm(3, ghost_size=1)(torch.randn(8, 3))


@pytest.mark.parametrize(
    ("space", "shape", "message"),
    [
        (None, (4,), "2 to 5 dimensions"),
        (None, (2, 4, 1, 1, 1, 1), "2 to 5 dimensions"),
        (2, (2, 4), "4 dimensions"),
        (0, (2, 4, 3), "2 dimensions"),
        (None, (2, 3), "4 channels"),
    ],
)
def test_wrong_shapes(space: int | None, shape: tuple[int, ...], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        BatchRenorm(4, space=space)(torch.randn(shape))


def test_integers_are_refused() -> None:
    with pytest.raises(ValueError, match="floating-point"):
        BatchRenorm(4)(torch.ones(3, 4, dtype=torch.long))


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: BatchRenorm(0), "num_features"),
        (lambda: BatchRenorm(4, space=4), "space"),
        (lambda: BatchRenorm(4, eps=-1), "eps"),
        (lambda: BatchRenorm(4, momentum=2), "momentum"),
        (lambda: BatchRenorm(4, scale=False, gamma=2.0), "without a γ"),
        (lambda: BatchRenorm(4, r_max=0.5), "r_max"),
        (lambda: BatchRenorm(4, d_max=-1), "d_max"),
        (lambda: BatchRenorm(4, warmup=30_000), "warmup"),
        (lambda: GhostBatchNorm(4, ghost_size=0), "ghost_size"),
        (lambda: FourThingsBatchNorm(4, group_size=3), "group_size"),
        (lambda: FourThingsBatchNorm(4, alpha=1.5), "alpha"),
        (lambda: LpNorm(4, p=0.5), "p must"),
    ],
)
def test_impossible_settings(make: object, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make()
