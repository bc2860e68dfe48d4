"""Normalizations by name: what they build, what they refuse, which γ is theirs."""

import dataclasses

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from trimtab.norms import NORMS, FourThingsBatchNorm, GhostBatchNorm, Norm, RunningNorm, gamma_decay

LAYERS = [name for name in NORMS if name not in ("none", "wn")]
SHAPES = {0: (6, 8), 1: (6, 8, 3), 2: (6, 8, 3, 3), 3: (6, 8, 2, 3, 2)}
CONVOLUTIONS = {1: nn.Conv1d, 2: nn.Conv2d, 3: nn.Conv3d}


def network(norm: Norm, space: int) -> nn.Sequential:
    first = nn.Linear(8, 8, bias=norm.bias) if space == 0 else CONVOLUTIONS[space](8, 8, 1, bias=norm.bias)
    return nn.Sequential(norm.weight(first), norm.layer(8, space))


@pytest.mark.parametrize("space", SHAPES)
@pytest.mark.parametrize("name", NORMS)
def test_each_trains_a_step_in_each_space(name: str, space: int) -> None:
    torch.manual_seed(0)
    norm = Norm(name)
    if name == "in" and space == 0:
        with pytest.raises(ValueError, match="InstanceNorm needs positions"):
            norm.layer(8, space)
        return
    model = network(norm, space)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    before = [p.detach().clone() for p in model.parameters() if p.requires_grad]
    y = model(torch.randn(SHAPES[space]))
    assert y.shape == SHAPES[space]
    y.pow(3).sum().backward()
    optimizer.step()
    after = [p for p in model.parameters() if p.requires_grad]
    assert all(torch.isfinite(p).all() for p in after)
    assert sum(not torch.equal(a, b) for a, b in zip(before, after, strict=True)) >= 2


@pytest.mark.parametrize("norm", [*LAYERS, "bn4 grouped", "bn4 small"])
def test_bias_says_whether_a_constant_per_channel_matters(norm: str) -> None:
    """Before the activation a bias is superfluous exactly where the layer's output does not change with it."""
    torch.manual_seed(0)
    name, _, variant = norm.partition(" ")
    norm = Norm(
        name, before_activation=True, **{"grouped": {"group_size": 4}, "small": {"ghost_size": 2}}.get(variant, {})
    )
    x, shift = torch.randn(SHAPES[2]), torch.randn(8).view(8, 1, 1)
    outputs = []
    for value in (x, x + shift):
        torch.manual_seed(1)
        outputs.append(norm.layer(8, 2)(value))
    assert norm.bias is not torch.allclose(*outputs, atol=1e-4)
    assert Norm(name).bias


def test_norms_without_a_layer() -> None:
    for name in ("none", "wn"):
        assert isinstance(Norm(name).layer(4, 2), nn.Identity)
        assert Norm(name, before_activation=True).bias


@pytest.mark.parametrize("name", NORMS)
def test_parse(name: str) -> None:
    assert Norm.parse(name) == Norm(name)
    assert Norm.parse(f"{name}-pre") == Norm(name, before_activation=True)
    norm = Norm(name, eps=1e-3)
    assert Norm.parse(norm) is norm
    assert "\n" not in NORMS[name]


@pytest.mark.parametrize(
    ("wrong", "near"), [("bm", "bn"), ("ghots", "ghost"), ("noisy", "noisy-bn"), ("bn-stop", "bn-stopgrad")]
)
def test_an_unknown_name_gets_the_nearest(wrong: str, near: str) -> None:
    for make in (Norm, Norm.parse):
        with pytest.raises(ValueError, match=f"did you mean '{near}'"):
            make(wrong)


def test_an_unknown_name_unlike_any_gets_them_all() -> None:
    with pytest.raises(ValueError, match="known are none, bn, "):
        Norm("zzzzzzz")


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"name": "bn", "gamma": float("nan")}, "gamma"),
        ({"name": "bn", "zeta": -1.0}, "zeta"),
        ({"name": "bn", "eps": -1.0}, "eps"),
        ({"name": "bn", "momentum": 1.5}, "momentum"),
        ({"name": "bn", "group_size": 4}, "group_size has no meaning for bn; it is for gn and bn4"),
        ({"name": "gn", "ghost_size": 4}, "ghost_size has no meaning for gn"),
        ({"name": "gn", "group_size": 0}, "group_size"),
        ({"name": "none", "gamma": 2.0}, "no γ"),
        ({"name": "none", "zeta": 0.1}, "no γ"),
    ],
)
def test_settings_without_meaning(settings: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Norm(**settings)


def test_layers_that_cannot_be() -> None:
    with pytest.raises(ValueError, match="must divide the 10 channels"):
        Norm("gn", group_size=4).layer(10, 2)
    with pytest.raises(ValueError, match="space"):
        Norm("bn").layer(10, 4)
    with pytest.raises(ValueError, match="width"):
        Norm("bn").layer(0, 2)


def test_a_norm_is_a_value() -> None:
    with pytest.raises(dataclasses.FrozenInstanceError):
        Norm("bn").name = "ln"  # type: ignore[misc]
    with pytest.raises(TypeError):
        Norm("bn", True)  # type: ignore[misc]


@settings(max_examples=30, deadline=None)
@given(width=st.integers(1, 200))
def test_groups_by_default(width: int) -> None:
    """Four channels each, or as few more as divide the width."""
    sizes = [size for size in range(1, width + 1) if width % size == 0 and (size >= 4 or size == width)]
    assert Norm("gn").layer(width, 2).num_groups == width // min(sizes)


def test_group_size_counts_channels() -> None:
    assert Norm("gn", group_size=4).layer(64, 2).num_groups == 16


@pytest.mark.parametrize(("batch", "ghost", "group"), [(1, 1, 4), (4, 4, 4), (5, 5, 1), (16, 16, 1), (128, 16, 1)])
def test_four_things_by_batch_size(batch: int, ghost: int, group: int) -> None:
    """Groups of channels for small batches, ghosts for large ones (bnp paper, Sec. 5)."""
    layer = Norm("bn4").for_batch_size(batch).layer(64, 2)
    assert isinstance(layer, FourThingsBatchNorm)
    assert (layer.ghost_size, layer.group_size, layer.alpha) == (ghost, group, 1 / ghost)
    layer(torch.randn(batch, 64, 2, 2))


def test_sizes_that_were_chosen_stay() -> None:
    norm = Norm("bn4", ghost_size=8, group_size=4)
    assert norm.for_batch_size(128) is norm
    layer = norm.layer(64, 2)
    assert isinstance(layer, FourThingsBatchNorm) and (layer.ghost_size, layer.group_size) == (8, 4)
    ghost = Norm("ghost", ghost_size=32).for_batch_size(2).layer(64, 2)
    assert isinstance(ghost, GhostBatchNorm) and ghost.ghost_size == 32


@pytest.mark.parametrize("name", [name for name in LAYERS if name not in ("wn+mean-bn", "noise-only")])
def test_settings_reach_the_layer(name: str) -> None:
    layer = Norm(name, gamma=0.5, fixed_gamma=True, eps=1e-3, momentum=0.2).layer(8, 2)
    assert layer.eps == 1e-3 and layer.weight.tolist() == [0.5] * 8 and not layer.weight.requires_grad
    assert getattr(layer, "momentum", 0.2) == 0.2 or name == "in"  # which keeps no running statistics
    assert getattr(layer, "space", 2) == 2 or not isinstance(layer, RunningNorm)


def effective_weight(layer: nn.Module) -> Tensor:
    return layer.weight.detach().clone()


@pytest.mark.parametrize("layer", [nn.Linear(5, 3), nn.Conv2d(2, 3, 3), nn.ConvTranspose2d(2, 3, 3)])
def test_weight_norm_keeps_the_weights_that_were_drawn(layer: nn.Module) -> None:
    before = effective_weight(layer)
    wrapped = Norm("wn").weight(layer)
    assert wrapped is layer
    torch.testing.assert_close(effective_weight(layer), before)
    assert layer.parametrizations.weight.original0.numel() == 3  # one length per output


def test_weight_norm_scales_by_gamma_and_fixes_it() -> None:
    layer = nn.Linear(5, 3)
    before = effective_weight(layer)
    Norm("wn", gamma=2.0, fixed_gamma=True).weight(layer)
    torch.testing.assert_close(effective_weight(layer), 2 * before)
    assert not layer.parametrizations.weight.original0.requires_grad


def test_other_norms_leave_the_weight_alone() -> None:
    layer = nn.Linear(5, 3)
    assert Norm("bn").weight(layer) is layer
    assert isinstance(layer._parameters["weight"], nn.Parameter)


@pytest.mark.parametrize("name", [name for name in NORMS if name not in ("none", "noise-only")])
def test_each_norm_has_one_gamma(name: str) -> None:
    """The decay is of as many γ as there are units, whichever part of the norm they are in."""
    torch.manual_seed(0)
    model = network(Norm(name), 2)
    decay = gamma_decay(model, 0.1)
    decay.backward()
    trained = [p for p in model.parameters() if p.grad is not None]
    assert [p.numel() for p in trained] == [8]
    torch.testing.assert_close(decay, 0.1 * trained[0].square().sum())
    torch.testing.assert_close(trained[0].grad, 0.2 * trained[0].detach())


def test_gamma_decay_sums_over_layers_and_leaves_out_what_is_fixed() -> None:
    model = nn.Sequential(
        Norm("bn", gamma=2.0).layer(3, 0),
        nn.Linear(3, 3),
        Norm("brn", gamma=3.0).layer(3, 0),
        Norm("bn", gamma=5.0, fixed_gamma=True).layer(3, 0),
        nn.BatchNorm1d(3, affine=False),
    )
    assert gamma_decay(model, 0.5).item() == pytest.approx(0.5 * 3 * (4 + 9))
    assert gamma_decay(nn.Linear(3, 3), 0.5).item() == 0


def test_a_length_under_variance_only_has_no_effect_and_stays() -> None:
    """Why the γ of `wn+var-bn` is that of the layer: its output does not change with the length of the weights."""
    torch.manual_seed(0)
    model = network(Norm("wn+var-bn", eps=0.0), 2)
    nn.init.zeros_(model[0].bias)
    x = torch.randn(SHAPES[2])
    y = model(x)
    length = model[0].parametrizations.weight.original0
    assert not length.requires_grad
    length.data *= 3
    torch.testing.assert_close(model(x), y, rtol=1e-4, atol=1e-5)
