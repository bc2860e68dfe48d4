"""Each network takes a step with each norm that makes sense for it; the others are refused in a sentence."""

import copy

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from tests.networks.helpers import SHAPES, inputs
from trimtab.networks import NETWORKS, build
from trimtab.norms import NORMS, Norm

# InstanceNorm over the positions of a dense layer, which has none.
DENSE_PLACES = {
    **{"mlp3x100": 0, "mlp2x100": 0, "deep-mlp": 0, "dln25": 0, "mf-mlp": 0, "small-mlp": 0},
    **{"cnn5": 3, "regcnn": 4},
}
# Their small relatives (vgg, resnet18, preact18) are tried with every norm; of these, the rest is for the slow tests.
LARGE = ("vgg16", "resnet110", "preact110")
QUICK = ("none", "bn", "gn", "bn4", "wn")
CASES = [
    pytest.param(name, norm, marks=[pytest.mark.slow] if name in LARGE and norm not in QUICK else [])
    for name in NETWORKS
    for norm in NORMS
    if not (norm == "in" and name in DENSE_PLACES)
]


def step(model: nn.Module, x: torch.Tensor) -> None:
    """One step of SGD: everything gets a finite gradient, something moves, and evaluation works after it."""
    before = copy.deepcopy(model.state_dict())
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    loss = F.cross_entropy(model(x), torch.arange(len(x)) % 10)
    loss.backward()
    for name, parameter in model.named_parameters():
        if parameter.requires_grad:
            assert parameter.grad is not None and parameter.grad.isfinite().all(), name
    optimizer.step()
    assert any(not torch.equal(before[name], p) for name, p in model.named_parameters())
    with torch.no_grad():
        assert model.eval()(x).shape == (len(x), 10)


@pytest.mark.parametrize(("name", "norm"), CASES)
def test_a_step(name: str, norm: str) -> None:
    torch.manual_seed(0)
    step(build(name, norm, input_shape=SHAPES[name]), inputs(name))


@pytest.mark.parametrize(("name", "place"), DENSE_PLACES.items())
def test_instance_norm_is_refused_where_there_are_no_positions(name: str, place: int) -> None:
    with pytest.raises(ValueError, match=rf"'in' makes no sense at place {place} of {name}"):
        build(name, "in", input_shape=SHAPES[name])


@pytest.mark.parametrize(("name", "places"), [("cnn5", 3), ("regcnn", 4)])
def test_instance_norm_at_the_convolutions_alone(name: str, places: int) -> None:
    step(build(name, "in", input_shape=SHAPES[name], norm_layers=range(places)), inputs(name))


def test_groups_that_do_not_fit_are_refused() -> None:
    with pytest.raises(ValueError, match=r"'gn' makes no sense at place 0 of mf-conv"):
        build("mf-conv", Norm("gn", group_size=4), input_shape=SHAPES["mf-conv"])
    step(build("resnet18", Norm("gn", group_size=4), input_shape=SHAPES["resnet18"]), inputs("resnet18"))


def test_settings_of_the_norm_reach_every_layer() -> None:
    model = build("cnn5", Norm("bn", gamma=0.1))
    gammas = [m.weight for m in model.modules() if isinstance(m, nn.BatchNorm1d | nn.BatchNorm2d)]
    assert len(gammas) == 4
    assert all(torch.equal(gamma, torch.full_like(gamma, 0.1)) for gamma in gammas)
