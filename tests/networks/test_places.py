"""Where the normalization stands, and what goes with it."""

import pytest
import torch
from torch import fx, nn

from tests.networks.helpers import AFTER, BEFORE, PUBLISHED_BN, RESIDUAL, inputs, layers, traced
from trimtab.networks import NETWORKS, build, places
from trimtab.norms import Norm


def kinds_of(model: nn.Module) -> list[str]:
    nodes, kinds = traced(model)
    return [kinds[node] for node in nodes]


def test_cnn5_in_order() -> None:
    conv, dense = ["Conv2d", "ReLU", "BatchNorm2d"], ["Linear", "ReLU", "BatchNorm1d"]
    assert kinds_of(build("cnn5", "bn")) == [
        *(*conv, "MaxPool2d", *conv, "MaxPool2d", *conv),
        *("Flatten", *dense, "Linear"),
    ]


def test_regcnn_in_order_with_dropout() -> None:
    conv = ["Conv2d", "BatchNorm2d", "Dropout", "ReLU"]
    assert kinds_of(build("regcnn", "bn", dropout=0.125)) == [
        *(conv * 4),
        *("MaxPool2d", "Flatten", "Linear", "BatchNorm1d", "Dropout", "ReLU", "Linear"),
    ]


def test_dropout_follows_layers_under_weight_norm_and_stays_away_from_places_without_norm() -> None:
    under_weight_norm = [kind.removeprefix("Parametrized") for kind in kinds_of(build("regcnn", "wn", dropout=0.25))]
    assert under_weight_norm[:4] == ["Conv2d", "Dropout", "ReLU", "Conv2d"]
    one = kinds_of(build("regcnn", "bn", dropout=0.25, norm_layers=[1]))
    assert one.count("Dropout") == one.count("BatchNorm2d") == 1
    rates = {m.p for m in build("regcnn", "bn", dropout=0.25).modules() if isinstance(m, nn.Dropout)}
    assert rates == {0.25}


@pytest.mark.parametrize("name", AFTER)
@pytest.mark.parametrize("before", [False, True])
def test_after_the_activation_unless_asked_otherwise(name: str, before: bool) -> None:
    model = build(name, Norm("bn", before_activation=before))
    nodes, kinds = traced(model)
    norms = [node for node in nodes if kinds[node].startswith("BatchNorm")]
    assert len(norms) == places(name)
    for node in norms:
        source = kinds[node.all_input_nodes[0]]
        assert source in (("Conv2d", "Linear") if before else ("ReLU",))
    assert kinds_of(model) == kinds_of(build(name, "bn-pre" if before else "bn"))


@pytest.mark.parametrize("name", BEFORE)
def test_before_the_activation_as_published(name: str) -> None:
    nodes, kinds = traced(build(name, "bn"))
    norms = [node for node in nodes if kinds[node].startswith("BatchNorm")]
    assert len(norms) == places(name)
    for node in norms:
        assert kinds[node.all_input_nodes[0]] in ("Conv2d", "Linear")
        assert [kinds[user] for user in node.users] == ["ReLU"]


@pytest.mark.parametrize("name", ["resnet110", "resnet18"])
def test_residual_networks(name: str) -> None:
    nodes, kinds = traced(build(name, "bn"))
    blocks = 54 if name == "resnet110" else 8
    sums = [node for node in nodes if kinds[node] == "add"]
    assert len(sums) == blocks
    for node in sums:
        branch, shortcut = node.all_input_nodes
        assert kinds[branch] == "BatchNorm2d"
        assert kinds[_through_identity(shortcut, kinds)] in ("ReLU", "pad", "BatchNorm2d")
        assert [kinds[user] for user in node.users] == ["ReLU"]
    for node in nodes:
        if kinds[node] == "BatchNorm2d":
            assert kinds[node.all_input_nodes[0]] == "Conv2d"
            assert [kinds[user] for user in node.users] in (["ReLU"], ["add"])
    projections = [m for m in layers(build(name)) if isinstance(m, nn.Conv2d) and m.kernel_size == (1, 1)]
    assert len(projections) == (0 if name == "resnet110" else 3)


@pytest.mark.parametrize("name", ["preact110", "preact18"])
def test_preactivation_networks(name: str) -> None:
    nodes, kinds = traced(build(name, "bn"))
    for node in nodes:
        if kinds[node] == "BatchNorm2d":  # reads a convolution or a sum, and is read by one activation
            assert kinds[node.all_input_nodes[0]] in ("Conv2d", "add")
            assert [kinds[user] for user in node.users] == ["ReLU"]
        if kinds[node] == "add":
            branch, shortcut = node.all_input_nodes
            assert kinds[branch] == "Conv2d"
            # the stem's activation for the first block, a sum for most; where the shape changes, made of an activation
            if kinds[shortcut] in ("Conv2d", "pad"):
                source = shortcut.all_input_nodes[0]
                source = source.all_input_nodes[0] if kinds[shortcut] == "pad" else source
                assert kinds[source] == "ReLU"
            else:
                assert kinds[_through_identity(shortcut, kinds)] in ("add", "ReLU")
    shortcuts = [kinds[node.all_input_nodes[1]] for node in nodes if kinds[node] == "add"]
    assert [shortcuts.count(kind) for kind in ("pad", "Conv2d")] == ([2, 0] if name == "preact110" else [0, 3])
    assert kinds_of(build(name, "bn"))[-5:] == ["BatchNorm2d", "ReLU", "AdaptiveAvgPool2d", "Flatten", "Linear"]


def _through_identity(node: fx.Node, kinds: dict[fx.Node, str]) -> fx.Node:
    while kinds.get(node) == "Identity":
        node = node.all_input_nodes[0]
    return node


@pytest.mark.parametrize("name", NETWORKS)
def test_plain_tracing(name: str) -> None:
    model = build(name, "bn", input_shape=None).eval()
    shape = {"dln25": (10,), "small-cnn": (1, 8, 8), "small-mlp": (1, 8, 8)}.get(name, (3, 32, 32))
    x = torch.randn(1, *shape)
    with torch.no_grad():
        torch.testing.assert_close(fx.symbolic_trace(model)(x), model(x))


@pytest.mark.parametrize("name", NETWORKS)
def test_norm_layers_picks_exactly_the_chosen_places(name: str) -> None:
    every = _norm_positions(build(name, "bn"))
    chosen = sorted({0, places(name) // 2, places(name) - 1})
    some = build(name, "bn", norm_layers=chosen)
    # a place is known by how many convolutions and dense layers were computed before it
    assert _norm_positions(some) == [every[place] for place in chosen]
    assert _norm_positions(build(name, "bn", norm_layers=())) == []


def _norm_positions(model: nn.Module) -> list[tuple[int, int]]:
    """For each norm in forward order: how many layers come before it, and its width."""
    nodes, kinds = traced(model)
    positions, before = [], 0
    for node in nodes:
        module = model.get_submodule(str(node.target)) if node.op == "call_module" else None
        if isinstance(module, PUBLISHED_BN):
            positions.append((before, module.num_features))
        before += kinds[node] in ("Conv2d", "Linear")
    return positions


def test_norm_layers_of_a_projection_shortcut() -> None:
    # resnet18: stem 0, two blocks 1 to 4, then conv1 5, conv2 6, shortcut 7
    model = build("resnet18", "bn", norm_layers=[7])
    names = [name for name, m in model.named_modules() if isinstance(m, nn.BatchNorm2d)]
    assert len(names) == 1 and "shortcut" in names[0]


@pytest.mark.parametrize("name", RESIDUAL)
def test_residual_networks_spare_biases_under_bn_only(name: str) -> None:
    def with_bias(model: nn.Module) -> list[bool]:
        return [m.bias is not None for m in layers(model) if isinstance(m, nn.Conv2d)]

    assert not any(with_bias(build(name, "bn")))
    assert all(with_bias(build(name, "none")))
    assert all(with_bias(build(name, "gn")))
    assert all(with_bias(build(name, "bn", conv_bias=True)))
    assert not any(with_bias(build(name, "none", conv_bias=False)))
    first = with_bias(build(name, "bn", norm_layers=[0]))
    assert not first[0] and all(first[1:])
    assert all(m.bias is not None for m in layers(build(name, "bn", conv_bias=False)) if isinstance(m, nn.Linear))


@pytest.mark.parametrize("name", ["cnn5", "vgg16", "mf-conv", "regcnn", "small-cnn"])
def test_other_networks_keep_their_biases(name: str) -> None:
    for m in layers(build(name, "bn-pre")):
        assert m.bias is not None
    for m in layers(build(name, "bn", conv_bias=False)):
        assert (m.bias is None) == isinstance(m, nn.Conv2d)


@pytest.mark.parametrize("name", NETWORKS)
def test_weight_norm_stands_before_the_places(name: str) -> None:
    def under(model: nn.Module) -> list[bool]:
        return [hasattr(m, "parametrizations") for m in layers(model)]

    everywhere = under(build(name, "wn"))
    assert not everywhere[-1]
    assert sum(everywhere) == len(everywhere) - (3 if name == "vgg" else 1)
    first = under(build(name, "wn", norm_layers=[0]))
    assert first[0] and not any(first[1:])


def test_weight_norm_keeps_the_function_drawn() -> None:
    for name in ("cnn5", "regcnn"):
        torch.manual_seed(3)
        plain = build(name, input_shape=(1, 22, 22))
        torch.manual_seed(3)
        reparametrized = build(name, "wn", input_shape=(1, 22, 22))
        x = torch.randn(2, 1, 22, 22)
        torch.testing.assert_close(plain(x), reparametrized(x))


def test_a_preactivation_convolution_belongs_to_the_norm_that_reads_it() -> None:
    # preact18: place 0 after the stem; block 1: place 1 between its convolutions; place 2 reads the first sum
    model = build("preact18", "wn", norm_layers=[2])
    normalized = [
        name for name, m in model.named_modules() if isinstance(m, nn.Conv2d) and hasattr(m, "parametrizations")
    ]
    assert len(normalized) == 1 and normalized[0].endswith("conv2")
    assert build("preact18", "wn", norm_layers=[2])(inputs("preact18")).shape == (4, 10)
