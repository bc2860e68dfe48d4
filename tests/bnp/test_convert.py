"""Taking BatchNorm out of a model."""

import warnings
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

import trimtab


def biases(model: nn.Module) -> dict[str, bool]:
    layers = {name: m for name, m in model.named_modules() if isinstance(m, nn.Linear | nn.Conv2d | nn.ConvTranspose2d)}
    return {name: layer.bias is not None for name, layer in layers.items()}


def test_sequential() -> None:
    model = nn.Sequential(
        nn.Conv2d(3, 4, 3, bias=False),
        nn.BatchNorm2d(4),
        nn.ReLU(),
        nn.ConvTranspose2d(4, 6, 3, groups=2, bias=False),
        nn.SyncBatchNorm(6),
        nn.Flatten(),
        nn.Linear(6 * 36, 5, bias=False),
        nn.ReLU(),
        nn.Linear(5, 5, bias=False),
        nn.Dropout(),
        nn.BatchNorm1d(5),
        nn.Linear(5, 2, bias=False),
    )
    plain = trimtab.without_batchnorm(model)
    assert biases(plain) == {"0": True, "3": True, "6": False, "8": True, "11": False}
    assert not any(isinstance(m, nn.modules.batchnorm._BatchNorm) for m in plain.modules())
    assert any(isinstance(m, nn.BatchNorm2d) for m in model.modules())
    assert not biases(model)["0"]
    assert plain(torch.randn(2, 3, 6, 6)).shape == (2, 2)
    for name, parameter in plain.named_parameters():
        kept = dict(model.named_parameters()).get(name)
        expected = torch.zeros_like(parameter) if kept is None else kept
        assert torch.equal(parameter, expected), name
        assert parameter is not kept


class PreActivationBlock(nn.Module):
    """Its last convolution meets a BatchNorm only in the next block, through the sum."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.bn1, self.bn2 = nn.BatchNorm2d(width), nn.BatchNorm2d(width)
        self.conv1 = nn.Conv2d(width, width, 3, padding=1, bias=False)
        self.conv2 = nn.Conv2d(width, width, 3, padding=1, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.conv1(self.bn1(x).relu())
        out = self.conv2(self.bn2(out).relu())
        return x + out


def test_biases_are_found_through_sums_and_pooling() -> None:
    model = nn.Sequential(
        nn.Conv2d(3, 4, 3, bias=False),
        PreActivationBlock(4),
        PreActivationBlock(4),
        nn.AvgPool2d(2),
        nn.BatchNorm2d(4),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(16, 2, bias=False),
    )
    plain = trimtab.without_batchnorm(model)
    found = biases(plain)
    assert found.pop("7") is False
    assert all(found.values())
    assert len(found) == 5


class Untraceable(nn.Module):
    """torch.fx cannot follow a branch on data."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1, self.conv2 = nn.Conv2d(3, 4, 1, bias=False), nn.Conv2d(4, 4, 1, bias=False)
        self.bn1, self.bn2 = nn.BatchNorm2d(4), nn.BatchNorm2d(4)
        self.inner = nn.Sequential(nn.Conv2d(4, 6, 1, bias=False))
        self.bn3 = nn.BatchNorm2d(6)
        self.head = nn.Conv2d(6, 2, 1, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        x = self.bn1(self.conv1(x))
        if x.sum() > 0:
            x = x.relu()
        y: Tensor = self.head(self.bn3(self.inner(self.bn2(self.conv2(x)))))
        return y


def test_a_model_that_cannot_be_traced() -> None:
    expected = {"conv1": True, "conv2": True, "inner.0": True, "head": False}
    plain = trimtab.without_batchnorm(Untraceable())
    assert biases(plain) == expected
    assert plain(torch.randn(2, 3, 4, 4)).shape == (2, 2, 4, 4)


class Auxiliary(nn.Module):
    """A branch that the trace does not take, and one that it takes by chance."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.norm = nn.Conv2d(3, 4, 1, bias=False), nn.BatchNorm2d(4)
        self.aux_conv, self.aux_norm = nn.Conv2d(4, 5, 1, bias=False), nn.BatchNorm2d(5)
        self.deep_conv, self.deep_norm = nn.Conv2d(4, 4, 1, bias=False), nn.BatchNorm2d(4)

    def forward(self, x: Tensor) -> Tensor:
        x = self.norm(self.conv(x))
        if self.training:
            self.aux_norm(self.aux_conv(x))
        if torch.rand(()) < 0.5:
            return x
        y: Tensor = self.deep_norm(self.deep_conv(x))
        return y


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("training", [True, False])
def test_branches_that_are_not_taken(seed: int, training: bool) -> None:
    torch.manual_seed(seed)
    before = torch.get_rng_state()
    plain = trimtab.without_batchnorm(Auxiliary().train(training))
    assert all(biases(plain).values())
    torch.manual_seed(seed)
    Auxiliary()  # draws what making the model above has drawn
    expected = torch.get_rng_state()
    torch.set_rng_state(before)
    trimtab.without_batchnorm(Auxiliary().train(training))
    assert torch.equal(torch.get_rng_state(), expected)


def test_wrapped_models() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model = nn.Sequential(nn.DataParallel(nn.Sequential(nn.Linear(2, 3, bias=False), nn.BatchNorm1d(3))))
    assert biases(trimtab.without_batchnorm(model)) == {"0.module.0": True}


def test_a_batchnorm_alone_and_a_model_without_any() -> None:
    assert isinstance(trimtab.without_batchnorm(nn.BatchNorm1d(3)), nn.Identity)
    model = nn.Linear(3, 2, bias=False)
    assert trimtab.without_batchnorm(model).bias is None


def test_bias_goes_where_the_weight_is() -> None:
    model = nn.Sequential(nn.Linear(3, 2, bias=False, dtype=torch.float64), nn.BatchNorm1d(2, dtype=torch.float64))
    model[0].requires_grad_(False)
    plain = trimtab.without_batchnorm(model)
    bias = plain[0].bias
    assert bias.dtype == torch.float64
    assert not bias.requires_grad


class Tokens(nn.Module):
    """BatchNorm over tokens: the channel is transposed to where BatchNorm wants it."""

    def __init__(self) -> None:
        super().__init__()
        self.linear, self.norm = nn.Linear(3, 4, bias=False), nn.BatchNorm1d(4)
        self.calls = 0

    def forward(self, x: Tensor) -> Tensor:
        self.calls += 1
        self.last = self.linear(x)
        y: Tensor = self.norm(self.last.transpose(1, 2)).transpose(1, 2)
        return y


def test_the_models_own_code_leaves_no_trace() -> None:
    plain = trimtab.without_batchnorm(Tokens())
    assert biases(plain) == {"linear": True}
    assert plain.calls == 0
    assert not hasattr(plain, "last")


def test_a_module_named_like_a_passing_function_does_not_pass() -> None:
    model = nn.Sequential()
    model.add_module("conv", nn.Conv2d(3, 4, 1, bias=False))
    model.add_module("view", nn.ReLU())
    model.add_module("norm", nn.BatchNorm2d(4))
    assert biases(trimtab.without_batchnorm(model)) == {"conv": False}


def test_a_batchnorm_with_more_in_it_is_refused() -> None:
    class BatchNormAct2d(nn.BatchNorm2d):
        def forward(self, x: Tensor) -> Tensor:
            return super().forward(x).relu()

    with pytest.raises(ValueError, match="1 is a BatchNormAct2d, which is more than BatchNorm"):
        trimtab.without_batchnorm(nn.Sequential(nn.Conv2d(1, 2, 1), BatchNormAct2d(2)))


class NormAct(nn.BatchNorm2d):
    """As BatchNormAct2d of timm: it normalizes by itself, and then calls its dropout and its activation."""

    def __init__(self, width: int, act: nn.Module, drop: nn.Module | None = None) -> None:
        super().__init__(width)
        self.drop = nn.Identity() if drop is None else drop
        self.act = act

    def forward(self, x: Tensor) -> Tensor:
        assert x.ndim == 4
        x = nn.functional.batch_norm(
            x, self.running_mean, self.running_var, self.weight, self.bias, self.training, self.momentum, self.eps
        )
        return self.act(self.drop(x))


class ActDrop(NormAct):
    """The same in an order that its submodules do not show."""

    def forward(self, x: Tensor) -> Tensor:
        return self.drop(self.act(nn.BatchNorm2d.forward(self, x)))


class Scaled(NormAct):
    """With a parameter that does nothing at the start."""

    def __init__(self, width: int) -> None:
        super().__init__(width, nn.ReLU())
        self.offset = nn.Parameter(torch.zeros(()))

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x) + self.offset


class SyncNormAct(nn.SyncBatchNorm):
    def __init__(self, width: int) -> None:
        super().__init__(width)
        self.act = nn.Hardswish()

    def forward(self, x: Tensor) -> Tensor:
        return self.act(super().forward(x))


@pytest.mark.parametrize("act", [nn.ReLU(inplace=True), nn.SiLU(), nn.PReLU(4), nn.Sigmoid()])
def test_a_batchnorm_that_has_its_activation_becomes_that(act: nn.Module) -> None:
    model = nn.Sequential(nn.Conv2d(3, 4, 1, bias=False), NormAct(4, act), nn.Conv2d(4, 2, 1, bias=False)).eval()
    plain = trimtab.without_batchnorm(model)
    assert biases(plain) == {"0": True, "2": False}
    x = torch.randn(2, 3, 5, 5)
    assert torch.equal(plain(x), model[2](act(model[0](x))))
    assert set(dict(plain.named_parameters())) == {*dict(model.named_parameters()), "0.bias"} - {"1.weight", "1.bias"}
    assert [m.training for m in plain.modules()] == [m.training for m in model.modules()]
    assert getattr(model[1].act, "inplace", None) == getattr(act, "inplace", None)


def test_its_dropout_and_its_activation_come_in_their_order() -> None:
    norm = NormAct(4, nn.Sigmoid(), nn.Dropout(0.5))
    norm.drop.eval()
    rest = trimtab.without_batchnorm(norm)
    assert [name for name, _ in rest.named_children()] == ["drop", "act"]
    assert [m.training for m in rest.modules()] == [True, False, True]
    assert torch.equal(
        trimtab.without_batchnorm(nn.Sequential(norm, norm))(torch.zeros(1, 4, 1, 1)),
        torch.full((1, 4, 1, 1), 0.5).sigmoid(),
    )
    assert isinstance(trimtab.without_batchnorm(NormAct(4, nn.Identity())), nn.Identity)
    assert isinstance(trimtab.without_batchnorm(SyncNormAct(4)).act, nn.Hardswish)


class PreActivation(nn.Module):
    """Reads its input again after an activation that works in place."""

    def __init__(self, activation: Callable[[Tensor], Tensor], norm: nn.Module | None = None) -> None:
        super().__init__()
        self.norm = nn.BatchNorm2d(4) if norm is None else norm
        self.activation = activation
        self.conv = nn.Conv2d(4, 4, 1, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.conv(self.activation(self.norm(x)))


IN_PLACE = [nn.ReLU(inplace=True), lambda x: x.relu_(), lambda x: nn.functional.relu(x, inplace=True), torch.relu_]


@pytest.mark.parametrize("activation", IN_PLACE)
def test_what_follows_in_place_does_not_change_what_others_read(activation: Callable[[Tensor], Tensor]) -> None:
    plain = trimtab.without_batchnorm(nn.Sequential(nn.Conv2d(3, 4, 1), PreActivation(activation)))
    x = plain[0](torch.randn(2, 3, 5, 5)).detach()
    assert torch.equal(plain[1](x.clone()), x + plain[1].conv(x.relu()))
    x.requires_grad_()
    plain[1](x + 0).sum().backward()
    assert x.grad is not None


def test_nothing_is_copied_where_nobody_else_reads() -> None:
    model = nn.Sequential(nn.Conv2d(3, 4, 1), nn.BatchNorm2d(4), nn.ReLU(inplace=True), PreActivation(torch.relu))
    plain = trimtab.without_batchnorm(model)
    assert type(plain[1]) is nn.Identity and type(plain[3].norm) is nn.Identity


def test_an_activation_in_place_does_not_change_what_others_read() -> None:
    class Shortcut(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.norm = NormAct(4, nn.ReLU(inplace=True))

        def forward(self, x: Tensor) -> Tensor:
            return x + self.norm(x)

    x = torch.randn(2, 4, 3, 3)
    assert torch.equal(trimtab.without_batchnorm(Shortcut())(x.clone()), x + x.relu())


@pytest.mark.parametrize("norm", [ActDrop(4, nn.Sigmoid(), nn.Dropout(0.5)), Scaled(4)])
def test_what_is_not_normalization_and_submodules_in_their_order_is_refused(norm: nn.Module) -> None:
    model = nn.Sequential(nn.Conv2d(3, 4, 1), norm)
    before = torch.get_rng_state()
    with pytest.raises(ValueError, match=rf"1 is a {type(norm).__name__}, which is more than BatchNorm"):
        trimtab.without_batchnorm(model)
    assert torch.equal(torch.get_rng_state(), before)


def test_a_batchnorm_with_its_activation_and_without_running_averages() -> None:
    class Sparse(nn.BatchNorm1d):
        def __init__(self) -> None:
            super().__init__(4, affine=False, track_running_stats=False)
            self.act = nn.ReLU()

        def forward(self, x: Tensor) -> Tensor:
            return self.act(super().forward(x))

    assert isinstance(trimtab.without_batchnorm(Sparse()).act, nn.ReLU)


@pytest.mark.parametrize("how", [{"device": "meta"}, {"dtype": torch.bfloat16}])
def test_a_batchnorm_with_its_activation_on_another_device_or_of_another_type(how: dict) -> None:
    assert isinstance(trimtab.without_batchnorm(NormAct(4, nn.ReLU()).to(**how)).act, nn.ReLU)


def test_lazy_layers_are_refused() -> None:
    with pytest.raises(ValueError, match="run a batch through it first"):
        trimtab.without_batchnorm(nn.Sequential(nn.LazyConv2d(3, 3, bias=False), nn.LazyBatchNorm2d()))


def test_bnp_centres_what_it_could_not_before() -> None:
    model = nn.Sequential(nn.Linear(3, 4, bias=False), nn.BatchNorm1d(4), nn.ReLU(), nn.Linear(4, 2))
    report = trimtab.BNP(trimtab.without_batchnorm(model)).report()
    assert [layer.bias for layer in report.layers] == [True, True]
