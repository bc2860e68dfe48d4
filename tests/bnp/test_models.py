"""Odd models: each has a defined behaviour."""

import copy
import gc
import io
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils import parametrizations
from torch.optim.swa_utils import AveragedModel

import trimtab
from tests.bnp.helpers import (
    assert_identical,
    assert_same,
    batch,
    gradients,
    loss_of,
    pending_rows,
    plain_step,
    small_model,
    statistics,
    weights,
)


def why(bnp: trimtab.BNP) -> dict[str, str | None]:
    return {layer.name: layer.left_alone for layer in bnp.report().layers}


def backward(model: nn.Module, *shape: int) -> None:
    model(torch.randn(*shape)).square().sum().backward()


def test_subclasses_are_treated_as_their_base() -> None:
    class Special(nn.Linear):
        pass

    torch.manual_seed(0)
    plain, special = nn.Linear(3, 2), Special(3, 2)
    special.load_state_dict(plain.state_dict())
    x = torch.randn(5, 3)
    for layer in (plain, special):
        with trimtab.BNP(layer) as bnp:
            layer(x).square().sum().backward()
            bnp.step()
    assert_same(gradients(plain), gradients(special))


def test_a_layer_without_input_keeps_its_gradient_and_that_is_said_once() -> None:
    model = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 3))
    bnp = trimtab.BNP(model)
    for step in range(3):
        model.zero_grad()
        y = model[0](torch.randn(4, 3))
        torch.nn.functional.linear(y, model[1].weight, model[1].bias).sum().backward()
        before = gradients(model[1])
        if step == 0:
            with pytest.warns(trimtab.TrimtabWarning, match=r"No input was seen for '1'"):
                bnp.step()
        else:
            bnp.step()  # warnings are errors in these tests
        assert_identical(gradients(model[1]), before)


def test_multihead_attention_leaves_out_proj_plain() -> None:
    torch.manual_seed(0)
    model = nn.ModuleDict({"attention": nn.MultiheadAttention(8, 2, batch_first=True), "head": nn.Linear(8, 1)})
    bnp = trimtab.BNP(model)
    x = torch.randn(2, 5, 8)
    y: Tensor = model["attention"](x, x, x)[0]
    model["head"](y).sum().backward()
    out_proj: Any = model["attention"].out_proj
    before, head_before = gradients(out_proj), gradients(model["head"])
    with pytest.warns(trimtab.TrimtabWarning, match=r"attention\.out_proj"):
        bnp.step()
    assert_identical(gradients(out_proj), before)
    assert not torch.equal(gradients(model["head"])[0], head_before[0])
    assert why(bnp)["attention"] == "not a type that BNP knows"
    assert why(bnp)["attention.out_proj"] == "no input of it was seen"


def test_frozen_weight() -> None:
    model = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 2))
    model[0].weight.requires_grad_(False)
    bnp = trimtab.BNP(model)
    backward(model, 4, 3)
    before = gradients(model[0])  # the bias alone
    bnp.step()
    assert_identical(gradients(model[0]), before)
    assert why(bnp) == {"0": "its weight is frozen", "1": None}


def test_unfreezing_later() -> None:
    torch.manual_seed(0)
    model = small_model()
    bnp = trimtab.BNP(model)
    model.requires_grad_(False)
    model[7].requires_grad_(True)
    loss_of(model, batch(0)).backward()
    bnp.step()
    assert set(statistics(bnp)) == {f"7.{name}" for name in ("mean", "variance", "weight", "steps", "skipped")}
    model.requires_grad_(True)
    model.zero_grad()
    loss_of(model, batch(1)).backward()
    bnp.step()
    assert_same(gradients(model)[:5], plain_step(model, batch(1))[0][:5])


@pytest.mark.parametrize("how", ["frozen", "no gradient"])
def test_a_bias_without_gradient_is_as_no_bias(how: str) -> None:
    torch.manual_seed(0)
    layer, twin = nn.Linear(3, 2), nn.Linear(3, 2, bias=False)
    twin.weight = nn.Parameter(layer.weight.detach().clone())
    x = 2 + torch.randn(5, 3)
    assert layer.bias is not None
    with torch.no_grad():
        layer.bias.zero_()
    with trimtab.BNP(layer) as bnp:
        layer.bias.requires_grad_(how != "frozen")
        layer(x).square().sum().backward()
        layer.bias.grad = None
        bnp.step()
        assert layer.bias.grad is None
    with trimtab.BNP(twin) as bnp:
        twin(x).square().sum().backward()
        bnp.step()
    assert layer.weight.grad is not None
    assert_same([layer.weight.grad], gradients(twin))


def test_a_weight_without_gradient() -> None:
    layer = nn.Linear(3, 2)
    bnp = trimtab.BNP(layer)
    backward(layer, 4, 3)
    layer.weight.grad = None
    assert layer.bias is not None
    assert layer.bias.grad is not None
    before = layer.bias.grad.clone()
    bnp.step()
    assert torch.equal(layer.bias.grad, before)
    assert pending_rows(bnp) == {"": 0}


class Tied(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(7, 4)
        self.middle = nn.Linear(4, 4)
        self.head = nn.Linear(4, 7, bias=False)
        self.head.weight = self.embedding.weight

    def forward(self, tokens: Tensor) -> Tensor:
        out: Tensor = self.head(self.middle(self.embedding(tokens)))
        return out


def test_parameters_shared_with_an_unobserved_module_are_left_alone() -> None:
    model = Tied()
    with pytest.warns(trimtab.TrimtabWarning, match=r"'head' \(it shares parameters with 'embedding'\)"):
        bnp = trimtab.BNP(model)
    model(torch.arange(7)).square().sum().backward()
    before = gradients(model.head)
    bnp.step()
    assert_identical(gradients(model.head), before)
    assert why(bnp)["head"] == "it shares parameters with 'embedding'"
    assert why(bnp)["middle"] is None


def test_parameters_shared_between_layers_are_left_alone() -> None:
    model = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 3), nn.Linear(3, 3))
    model[2].weight = model[0].weight
    with pytest.warns(trimtab.TrimtabWarning, match=r"alone: '0' \(.*\), '2' \("):
        bnp = trimtab.BNP(model)
    backward(model, 4, 3)
    before = [gradients(model[0]), gradients(model[2])]
    bnp.step()
    assert_identical(gradients(model[0]), before[0])
    assert_identical(gradients(model[2]), before[1])
    assert why(bnp) == {"0": "it shares parameters with '2'", "1": None, "2": "it shares parameters with '0'"}


def test_parameters_tied_after_construction() -> None:
    model = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 3))
    bnp = trimtab.BNP(model)
    model[1].bias = model[0].bias
    for step in range(2):
        backward(model, 4, 3)
        before = gradients(model)
        if step == 0:
            with pytest.warns(trimtab.TrimtabWarning, match="alone: '0'"):
                bnp.step()
        else:
            bnp.step()
        assert_identical(gradients(model), before)


def test_one_module_under_two_names_is_not_tied() -> None:
    layer = nn.Linear(3, 3)
    model = nn.Sequential(layer, nn.Tanh(), layer)
    bnp = trimtab.BNP(model)
    backward(model, 4, 3)
    assert pending_rows(bnp) == {"0": 8}
    bnp.step()
    assert why(bnp) == {"0": None}


@pytest.mark.parametrize("name", ["weight", "bias"])
def test_parametrized_layers_are_left_alone(name: str) -> None:
    class Double(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return 2 * x

    model = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 3))
    nn.utils.parametrize.register_parametrization(model[0], name, Double())
    with pytest.warns(trimtab.TrimtabWarning, match=f"its {name} is computed from other parameters"):
        bnp = trimtab.BNP(model)
    backward(model, 4, 3)
    before = gradients(model[0])
    bnp.step()
    assert_identical(gradients(model[0]), before)
    assert why(bnp)["0"] == f"its {name} is computed from other parameters"
    assert why(bnp)["1"] is None


def test_weight_norm_applied_after_construction() -> None:
    model = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 3))
    bnp = trimtab.BNP(model)
    parametrizations.weight_norm(model[0])
    backward(model, 4, 3)
    before = gradients(model[0])
    with pytest.warns(trimtab.TrimtabWarning, match="alone: '0'"):
        bnp.step()
    assert_identical(gradients(model[0]), before)
    assert why(bnp)["0"] == "its weight is computed from other parameters"


def test_lazy_modules() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.LazyConv2d(4, 3), nn.Flatten(), nn.LazyLinear(2))
    bnp = trimtab.BNP(model)
    print(bnp.report())  # noqa: T201 (must not fail before the shapes are known)
    state = bnp.state_dict()
    x = torch.randn(5, 2, 4, 4)
    model(x).square().sum().backward()
    bnp.step()
    ours = gradients(model)
    model.zero_grad()
    with trimtab.BNP(model) as plain:
        model(x).square().sum().backward()
        plain.step()
    assert_same(ours, gradients(model))
    bnp.load_state_dict(state)
    fresh = trimtab.BNP(nn.Sequential(nn.LazyConv2d(4, 3), nn.Flatten(), nn.LazyLinear(2)))
    fresh.load_state_dict(plain.state_dict())
    assert "preconditioned" in str(fresh.report())


def test_layers_called_with_keywords() -> None:
    linear, transposed = nn.Linear(3, 2), nn.ConvTranspose1d(2, 2, 3, stride=2)
    with trimtab.BNP(linear) as bnp:
        linear(input=torch.randn(4, 3)).sum().backward()
        assert pending_rows(bnp) == {"": 4}
    with trimtab.BNP(transposed) as bnp:
        transposed(output_size=[8], input=torch.randn(2, 2, 3)).sum().backward()
        assert pending_rows(bnp) == {"": 6}


def test_a_layer_added_later_is_observed_from_its_first_forward() -> None:
    model = small_model()
    bnp = trimtab.BNP(model)
    loss_of(model, batch(0)).backward()
    bnp.step()
    model.zero_grad()
    model.append(nn.Linear(3, 3).double())
    loss_of(model, batch(1)).backward()
    assert pending_rows(bnp)["8"] == 6
    bnp.step()
    assert why(bnp)["8"] is None


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(3, 3)

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.layer(x)
        return y


def test_a_module_replaced_by_one_at_its_address() -> None:
    for _ in range(8):  # Python mostly puts the next object of a type where the last one was, not always
        model = nn.Module()
        model.block = Block()
        model.forward = lambda x, model=model: model.block(x)
        bnp = trimtab.BNP(model)
        backward(model, 4, 3)
        bnp.step()
        del model.block
        model.block = Block()
        backward(model, 4, 3)
        assert pending_rows(bnp) == {"block.layer": 4}
        bnp.step()
        assert statistics(bnp)["block.layer.steps"] == 1


def test_a_layer_removed_later_is_let_go() -> None:
    model = small_model()
    bnp = trimtab.BNP(model)
    old = model[7]
    model[7] = nn.Linear(5, 3).double()
    loss_of(model, batch(1)).backward()
    bnp.step()
    assert statistics(bnp)["7.steps"] == 1
    assert not old._forward_hooks
    del model[7]
    loss_of(model, batch(1)).backward()
    bnp.step()
    assert "7" not in bnp.state_dict()["layers"]


def test_a_parameter_that_is_replaced() -> None:
    model = nn.Sequential(nn.Linear(3, 2))
    bnp = trimtab.BNP(model)
    backward(model, 4, 3)
    bnp.step()
    model[0].weight = nn.Parameter(torch.randn(2, 3))
    model.zero_grad()
    backward(model, 4, 3)
    assert pending_rows(bnp) == {"0": 4}
    bnp.step()


def test_an_input_width_that_changes_under_the_statistics_is_an_error_that_names_the_layer() -> None:
    model = nn.Sequential(nn.Linear(3, 2))
    bnp = trimtab.BNP(model)
    backward(model, 4, 3)
    bnp.step()
    model[0].weight = nn.Parameter(torch.randn(2, 5))
    backward(model, 4, 5)
    with pytest.raises(ValueError, match="Layer '0' has statistics of shape"):
        bnp.step()


@pytest.mark.parametrize("way", ["deepcopy", "save", "averaged"])
def test_copies_of_the_model_are_unobserved(way: str, tmp_path: Path) -> None:
    model = small_model()
    bnp = trimtab.BNP(model)
    loss_of(model, batch(0)).backward()
    if way == "deepcopy":
        twin: Any = copy.deepcopy(model)
    elif way == "averaged":
        twin = AveragedModel(model)
    else:
        buffer = io.BytesIO()
        torch.save(model, buffer)
        buffer.seek(0)
        twin = torch.load(buffer, weights_only=False)
    rows = pending_rows(bnp)
    loss_of(twin, batch(1)).backward()
    assert pending_rows(bnp) == rows
    if way == "averaged":
        twin.update_parameters(model)
    with trimtab.BNP(twin) as other:  # the copy can have a BNP of its own
        loss_of(twin, batch(1)).backward()
        assert pending_rows(other) == rows


def test_a_copy_of_the_bnp_itself_does_no_harm() -> None:
    """As when it is an attribute of something that is copied."""
    model = small_model()
    bnp = trimtab.BNP(model)
    twin = copy.deepcopy(bnp)
    loss_of(model, batch(0)).backward()
    assert pending_rows(bnp)["7"] == 6
    assert pending_rows(twin)["7"] == 0


def test_a_bnp_kept_in_the_model_can_be_saved_and_copied_with_it() -> None:
    model: Any = small_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    model.bnp = trimtab.BNP(model).attach(optimizer)
    loss_of(model, batch(0)).backward()
    optimizer.step()
    torch.save(model, io.BytesIO())
    copy.deepcopy(model).bnp.detach()
    assert model[0]._forward_hooks


def test_a_bnp_that_is_dropped_takes_its_hooks_with_it() -> None:
    model = small_model()
    for _ in range(3):  # as when a notebook's cell is run again
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        bnp = trimtab.BNP(model).attach(optimizer)
        gc.collect()
    assert len(model[0]._forward_hooks) == 1
    bnp.detach()
    trimtab.BNP(model)
    gc.collect()
    assert not model[0]._forward_hooks


def test_the_report_does_not_compute_parametrized_weights() -> None:
    model = nn.Sequential(parametrizations.spectral_norm(nn.Linear(3, 3)), nn.Linear(3, 3))
    with pytest.warns(trimtab.TrimtabWarning, match="computed from other parameters"):
        bnp = trimtab.BNP(model)
    before = [b.clone() for b in model.buffers()]
    bnp.report()
    assert_identical(before, list(model.buffers()))


def test_a_model_that_changes_its_type() -> None:
    model = small_model().float()
    bnp = trimtab.BNP(model)
    loss_of(model, batch(0).float()).backward()
    bnp.step()
    model.double()
    model.zero_grad()
    loss_of(model, batch(0)).backward()
    bnp.step()
    assert statistics(bnp)["7.mean"].dtype == torch.float64


def test_detaching_takes_every_hook_off() -> None:
    model = small_model()
    bnp = trimtab.BNP(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    bnp.attach(optimizer)
    loss_of(model, batch(0)).backward()
    optimizer.step()
    bnp.detach()
    bnp.detach()  # twice is no harm
    for module in model.modules():
        assert not module._forward_hooks
        assert not module._forward_pre_hooks
        assert not module._forward_hooks_with_kwargs
    for parameter in model.parameters():
        assert not parameter._backward_hooks
        assert not parameter._post_accumulate_grad_hooks
    assert not optimizer._optimizer_step_pre_hooks
    model.zero_grad()
    loss_of(model, batch(0)).backward()
    before = gradients(model)
    optimizer.step()
    assert_identical(gradients(model), before)


def test_the_model_is_not_changed() -> None:
    model = small_model()
    names, values = list(model.state_dict()), weights(model)
    with trimtab.BNP(model) as bnp:
        loss_of(model, batch(0)).backward()
        bnp.step()
        assert list(model.state_dict()) == names
        assert_identical(weights(model), values)


def test_skip() -> None:
    model = nn.Sequential(nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 3)), nn.Linear(3, 3))
    assert set(trimtab.BNP(model, skip="0").state_dict()["layers"]) == {"1"}
    assert set(trimtab.BNP(model, skip=["0.1"]).state_dict()["layers"]) == {"0.0", "1"}
    assert set(trimtab.BNP(model, skip=("0.*",)).state_dict()["layers"]) == {"1"}
    bnp = trimtab.BNP(model, skip=("0.?",))
    backward(model, 4, 3)
    before = gradients(model[0])
    bnp.step()
    assert_identical(gradients(model[0]), before)
    assert why(bnp) == {"0.0": "named in skip", "0.1": "named in skip", "1": None}
    assert why(trimtab.BNP(model, skip="0")) == why(bnp)


def test_report_reads_well() -> None:
    model = nn.Sequential(nn.Conv2d(1, 2, 3, bias=False), nn.BatchNorm2d(2), nn.Flatten(), nn.Linear(8, 2))
    bnp = trimtab.BNP(model)
    backward(model, 4, 1, 4, 4)
    bnp.step()
    text = str(bnp.report())
    assert "scaled, not centred: no trained bias" in text
    assert "left alone: not a type that BNP knows" in text
    assert text.endswith("BNP preconditions 2 of 3 modules with parameters, when you call its step().")
    assert "2 layers" in repr(bnp)


def test_the_report_knows_which_biases_take_part() -> None:
    """Frozen, or not in the optimizer: scaled by the second moment, as the step does it."""
    spreads = []
    for way in ("none", "frozen", "not in the optimizer"):
        torch.manual_seed(0)
        layer = nn.Linear(3, 2, bias=way != "none")
        if way == "frozen":
            layer.bias.requires_grad_(False)
        optimizer = torch.optim.SGD([layer.weight], lr=0.1)
        bnp = trimtab.BNP(layer, rho=0.0).attach(optimizer)
        torch.manual_seed(1)
        layer(torch.randn(8, 3) + torch.tensor([0.0, 10.0, 0.0])).sum().backward()
        optimizer.step()
        (row,) = bnp.report().layers
        assert not row.bias
        spreads.append(row.spread)
    assert spreads[0] == spreads[1] == spreads[2] > 20


def test_complex_weights_are_left_alone() -> None:
    layer = nn.Linear(2, 2, dtype=torch.complex64)
    model = nn.ModuleList([layer, nn.Linear(2, 2)])
    with pytest.warns(trimtab.TrimtabWarning, match="its weight is complex64"):
        bnp = trimtab.BNP(model)
    layer(torch.randn(3, 2, dtype=torch.complex64)).abs().sum().backward()
    before = gradients(layer)
    bnp.step()
    assert_identical(gradients(layer), before)
    assert why(bnp)["0"] == "its weight is complex64"


@pytest.mark.parametrize("order", ["compiled after", "compiled before"])
def test_compiled_models(order: str) -> None:
    model = small_model()
    expected = plain_step(model, batch(1))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        if order == "compiled after":
            bnp = trimtab.BNP(model)
            compiled = torch.compile(model, backend="aot_eager")
        else:
            compiled = torch.compile(model, backend="aot_eager")
            bnp = trimtab.BNP(compiled)
        loss_of(compiled, batch(1)).backward()
        bnp.step()
    assert_same(gradients(model), expected[0])
    assert_same(statistics(bnp), expected[1])
    bnp.detach()


@pytest.mark.parametrize("fast", [True, False])
@pytest.mark.parametrize("between", ["steps", "backward and step"])
def test_statistics_of_a_model_that_had_no_numbers_begin_anew(fast: bool, between: str) -> None:
    model, twin = nn.Linear(3, 2), nn.Linear(3, 2)
    bnp = trimtab.BNP(model, fast=fast)
    for x in (torch.randn(4, 3), torch.randn(4, 3, device="meta")):
        model.to(x.device)
        model(x).sum().backward()
        if x.is_meta and between == "backward and step":
            model.to_empty(device="cpu")
            with pytest.warns(trimtab.TrimtabWarning, match="No input was seen for ''"):
                bnp.step()
        else:
            bnp.step()
    model.to_empty(device="cpu").load_state_dict(twin.state_dict())
    if between == "backward and step":  # the averages of the first step are there still
        assert statistics(bnp)[".steps"] == 1
        return
    model.zero_grad()
    x = torch.randn(5, 3)
    results = []
    for each, its_bnp in ((model, bnp), (twin, trimtab.BNP(twin, fast=fast))):
        each(x).square().sum().backward()
        its_bnp.step()
        results.append((gradients(each), statistics(its_bnp)))
    assert_same(*[found[0] for found in results])
    assert_same(*[found[1] for found in results])
