"""Weights, Fisher, gradients at norms, robustness, ablation, variance shift: each against an oracle of its own."""

import math
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.func import functional_call

from trimtab.norms import Norm
from trimtab.probes import (
    Ablation,
    Activations,
    Fisher,
    NormGradients,
    Robustness,
    VarianceShift,
    Weights,
    fisher_lambda_max,
    stable_rank,
)
from trimtab.probes import activations as activations_module
from trimtab.theory import bounds
from trimtab.theory.bounds.landscape import standardize

Batch = tuple[Tensor, Tensor]


def loss_fn(model: nn.Module, batch: Batch) -> Tensor:
    return F.cross_entropy(model(batch[0]), batch[1])


def squared(model: nn.Module, batch: Batch) -> Tensor:
    return (model(batch[0]) - batch[1]).square().sum(1).mean() / 2


def dense_network() -> nn.Sequential:
    """With a BatchNorm before and one after the activation, some steps into a training."""
    torch.manual_seed(3)
    model = nn.Sequential(
        nn.Linear(5, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 6), nn.ReLU(), nn.BatchNorm1d(6), nn.Linear(6, 3)
    ).double()
    optimizer = torch.optim.SGD(model.parameters(), 0.3)
    for _ in range(5):
        optimizer.zero_grad()
        loss_fn(model, labelled(40)).backward()
        optimizer.step()
    return model


def labelled(count: int, shape: tuple[int, ...] = (5,)) -> Batch:
    generator = torch.Generator().manual_seed(7)
    x = torch.randn(count, *shape, generator=generator, dtype=torch.float64) * 2 + 0.3
    return x, (x.flatten(1)[:, :3] + 0.3 * torch.randn(count, 3, generator=generator)).argmax(1)


# Weights


def test_weights_of_a_linear_network_in_closed_form() -> None:
    """½ mean ‖W₂W₁x − y‖²: its gradients are matrix products."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 5, bias=False), nn.Linear(5, 2, bias=False)).double()
    x, y = torch.randn(30, 4).double(), torch.randn(30, 2).double()
    first, second = (layer.weight.detach() for layer in model)
    error = (x @ first.T @ second.T - y) / len(x)
    gradients = [second.T @ error.T @ x, error.T @ (x @ first.T)]
    found = Weights()(model, squared, (x, y))
    assert [layer.layer for layer in found.layers] == ["0", "1"] and found.norms == ()
    for layer, weight, gradient in zip(found.layers, (first, second), gradients, strict=True):
        assert layer.gradient_norm == pytest.approx(float(gradient.norm()), rel=1e-12)
        assert layer.norm == layer.folded_norm == pytest.approx(float(np.linalg.norm(weight.numpy())), rel=1e-12)
        assert layer.variance == pytest.approx(np.var(weight.numpy()), rel=1e-12) and layer.size == weight.numel()


def test_the_folded_norm_is_that_of_the_layer_without_its_batchnorm() -> None:
    """In evaluation the layer and its BatchNorm are one linear map, whose matrix its outputs show."""
    model = dense_network()
    found = {layer.layer: layer for layer in Weights()(model, loss_fn, labelled(40)).layers}
    model.eval()
    with torch.no_grad():
        matrix = model[:2](torch.eye(5).double()) - model[:2](torch.zeros(1, 5).double())
    assert found["0"].folded_norm == pytest.approx(float(matrix.norm()), rel=1e-12)
    for name in ("3", "6"):  # an activation stands between, or nothing follows
        assert found[name].folded_norm == found[name].norm


@pytest.mark.parametrize("kind", [nn.Conv2d, nn.ConvTranspose2d])
def test_convolutions_in_groups_are_folded_by_output_channel(kind: Any) -> None:
    torch.manual_seed(1)
    model = nn.Sequential(kind(4, 6, 3, groups=2, bias=False), nn.BatchNorm2d(6), nn.Flatten()).double()
    with torch.no_grad():
        model[1].weight.copy_(torch.randn(6))
        model[1].running_var.copy_(torch.rand(6) + 0.2)
    folded = kind(4, 6, 3, groups=2, bias=False).double()
    scale = model[1].weight.detach() / torch.sqrt(model[1].running_var + model[1].eps)
    shape = (2, 2, 3, 3, 3) if kind is nn.ConvTranspose2d else (2, 3, 2, 3, 3)
    place = (2, 1, 3, 1, 1) if kind is nn.ConvTranspose2d else (2, 3, 1, 1, 1)
    with torch.no_grad():
        folded.weight.copy_((model[0].weight.view(shape) * scale.view(place)).view(model[0].weight.shape))
    x = torch.randn(3, 4, 5, 5).double()
    model.eval()
    moved = model[1].bias.detach() - model[1].running_mean * scale
    torch.testing.assert_close(model[1](model[0](x)), folded(x) + moved.view(-1, 1, 1))  # the oracle is right
    (layer,) = Weights(statistics="running")(model, lambda m, b: m(b).square().mean(), x).layers
    assert layer.folded_norm == pytest.approx(float(folded.weight.detach().norm()), rel=1e-12)


def test_gamma_and_beta() -> None:
    model = dense_network()
    found = Weights()(model, loss_fn, labelled(40)).norms
    assert [norm.layer for norm in found] == ["1", "5"]
    for norm in found:
        gamma, beta = (p.detach().numpy() for p in model[int(norm.layer)].parameters())
        assert norm.gamma_square == pytest.approx(np.mean(gamma**2)) and norm.gamma == pytest.approx(gamma.mean())
        assert (norm.gamma_least, norm.gamma_largest) == (gamma.min(), gamma.max()) and norm.units == len(gamma)
        assert norm.beta == pytest.approx(beta.mean()) and norm.beta_square == pytest.approx(np.mean(beta**2))


def test_gamma_of_weight_normalization_is_the_length() -> None:
    torch.manual_seed(0)
    layer = Norm("wn").weight(nn.Linear(5, 3))
    x, y = labelled(10)
    found = Weights()(nn.Sequential(layer), loss_fn, (x.float(), y))
    (norm,), (weights,) = found.norms, found.layers
    lengths = layer.weight.detach().norm(dim=1)
    assert norm.gamma_square == pytest.approx(float(lengths.square().mean()), rel=1e-5) and math.isnan(norm.beta)
    assert weights.norm == pytest.approx(float(layer.weight.detach().norm()), rel=1e-5)


def test_layers_are_chosen() -> None:
    model, batch = dense_network(), labelled(40)
    found = Weights(layers="3")(model, loss_fn, batch)
    assert [layer.layer for layer in found.layers] == ["3"] and found.norms == ()
    found = Weights(max_layers=2)(model, loss_fn, batch)
    assert [layer.layer for layer in found.layers] == ["0", "6"] and len(found.norms) == 2


# Fisher


def jacobian(model: nn.Module, x: Tensor) -> Tensor:
    """Rows of outputs, columns of parameters, by autograd."""
    names, values = zip(*((name, p.detach()) for name, p in model.named_parameters()), strict=True)

    def outputs(*given: Tensor) -> Tensor:
        return functional_call(model, dict(zip(names, given, strict=True)), (x,))

    parts = torch.autograd.functional.jacobian(outputs, values)
    return torch.cat([part.flatten(2) for part in parts], dim=2)


def test_fisher_against_the_dense_matrix() -> None:
    torch.manual_seed(2)
    model = nn.Sequential(nn.Linear(5, 6), nn.Tanh(), nn.Linear(6, 3)).double()
    x, y = labelled(20)
    optimizer = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9)
    probe = Fisher(
        forward=lambda m, b: m(b[0]),
        criterion=lambda f, b: F.cross_entropy(f, b[1]),
        output=1,
        optimizer=optimizer,
        tolerance=1e-8,
    )
    found = probe(model, loss_fn, (x, y))
    j = jacobian(model, x)  # samples, outputs, parameters
    p = torch.softmax(model(x), 1).detach()
    inner = torch.diag_embed(p) - p[:, :, None] * p[:, None, :]
    dense = {
        "one_output": j[:, 1].T @ j[:, 1] / 20,
        "all_outputs": torch.einsum("mkp,mkq->pq", j, j) / 20,
        "gauss_newton": torch.einsum("mkp,mkl,mlq->pq", j, inner, j) / 20,
    }
    for name, matrix in dense.items():
        largest = float(torch.linalg.eigvalsh(matrix)[-1])
        assert getattr(found, name) == pytest.approx(largest, rel=1e-6)
        assert getattr(found, f"{name}_rate") == pytest.approx(2 * 1.9 / largest, rel=1e-6)  # meanfield, eq. 7
    assert found.learning_rate == 0.1 and found.converged


def test_fisher_is_mean_fields_with_batchnorm() -> None:
    """With statistics frozen, as `fisher_lambda_max` has it; the loss's matrix has the gradient through them."""
    model, batch = dense_network(), labelled(30)
    wanted = {output: fisher_lambda_max(model, batch[0], outputs=output) for output in (0, "all")}
    probe = Fisher(forward=lambda m, b: m(b[0]), criterion=lambda f, b: f.square().sum() / 60, tolerance=1e-6)
    found = probe(model, loss_fn, batch)
    assert found.one_output == pytest.approx(wanted[0], rel=1e-4)
    assert found.all_outputs == pytest.approx(wanted["all"], rel=1e-4)
    through = fisher_lambda_max(model, batch[0], statistics="batch")
    assert found.gauss_newton == pytest.approx(through, rel=1e-4) and abs(through / wanted["all"] - 1) > 0.01


def test_an_output_that_is_not_there_is_said() -> None:
    found = Fisher(forward=lambda m, b: m(b[0]), output=3)(dense_network(), loss_fn, labelled(20))
    assert found.problem == "There is no output 3: the model has 3, counted from 0."


# Gradients at norms


def by_hand(model: nn.Sequential, place: int, batch: Batch) -> tuple[Tensor, Tensor]:
    """Output of a layer, and the gradient there, by running the rest of the model by itself."""
    z = model[: place + 1](batch[0]).detach().requires_grad_()
    (gradient,) = torch.autograd.grad(F.cross_entropy(model[place + 1 :](z), batch[1]), z)
    return z.detach(), gradient


def test_gradients_at_a_norm_by_hand_and_theorem_41() -> None:
    model, batch = dense_network(), labelled(40)
    found = {layer.layer: layer for layer in NormGradients()(model, loss_fn, batch).layers}
    assert list(found) == ["1", "5"]
    for name, layer in found.items():
        place = int(name)
        z, g = (each.numpy() for each in by_hand(model, place, batch))
        y = model[:place](batch[0]).detach().numpy()
        gamma = model[place].weight.detach().numpy()
        units = [unit for unit in range(z.shape[1]) if np.any(g[:, unit]) and z[:, unit].std() > 1e-12]
        mean, inner, kept, through = [], [], [], 0.0
        for unit in units:
            square, standard = g[:, unit] @ g[:, unit], standardize(y[:, unit]).standard
            mean.append(g[:, unit].sum() ** 2 / (40 * square))
            inner.append((g[:, unit] @ standard) ** 2 / (40 * square))
            # The closed form of Fact C.1, with eps in σ.
            below = bounds.bn_gradient(y[:, unit], gamma[unit], g[:, unit])
            variance = y[:, unit].var()
            kept.append(variance * (below @ below) / (gamma[unit] ** 2 * square))
            through += (below @ below) * variance / (variance + model[place].eps)
        assert layer.units == len(units) and layer.values == 40
        assert layer.output_norm == pytest.approx(np.linalg.norm(g), rel=1e-9)
        assert layer.input_norm == pytest.approx(math.sqrt(through), rel=1e-3)  # eps
        assert layer.mean_share == pytest.approx(np.median(mean), rel=1e-9)
        assert layer.inner_share == pytest.approx(np.median(inner), rel=1e-9)
        assert layer.correlated == pytest.approx(np.mean([one >= 3 / 40 for one in inner]))
        assert layer.kept == pytest.approx(np.median(kept), rel=1e-3)
        np.testing.assert_allclose(kept, 1 - np.array(mean) - np.array(inner), rtol=1e-9)  # Theorem 4.1, corrected


def test_the_sum_of_gradients_by_batch_size() -> None:
    model, batch = dense_network(), labelled(40)
    found = NormGradients(layers="1", sizes=(10, 20, 40, 80))(model, loss_fn, batch).layers[0]
    wanted = []
    for size in (10, 20, 40):
        part = batch[0][:size], batch[1][:size]
        _, g = by_hand(model, 1, part)
        wanted.append(np.median((size * g.sum(0)).square().numpy()))
    assert found.sizes == (10, 20, 40) and found.sum_squares == pytest.approx(wanted, rel=1e-9)
    steps = np.log([10, 20, 40])
    assert found.slope == pytest.approx(np.cov(steps, np.log(wanted))[0, 1] / np.var(steps, ddof=1))


def test_equal_gradients_add_up_quadratically() -> None:
    """A loss that is linear in z has the same gradient at each sample: the mean takes all, and the slope is 2."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 3), nn.BatchNorm1d(3)).double()
    weight = torch.tensor([1.0, -2.0, 0.5]).double()
    probe = NormGradients(sizes=(8, 16, 32))
    (layer,) = probe(model, lambda m, b: (m(b) @ weight).mean(), torch.randn(32, 4).double()).layers
    assert layer.mean_share == pytest.approx(1) and layer.slope == pytest.approx(2)
    assert layer.kept < 1e-20 and layer.inner_share < 1e-20 and layer.correlated == 0


def test_gradients_in_convolutions_and_without_norms() -> None:
    """Positions are values of a unit; an activation in place and another reader of the input change nothing."""

    class Branched(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv = nn.Conv2d(2, 4, 3, padding=1)
            self.norm = nn.BatchNorm2d(4)
            self.act = nn.ReLU(inplace=True)
            self.out = nn.Linear(4, 3)

        def forward(self, x: Tensor) -> Tensor:
            y = self.conv(x)
            return self.out((self.act(self.norm(y)) + y).mean((2, 3)))

    torch.manual_seed(0)
    model, (x, t) = Branched().double(), labelled(12, (2, 5, 5))
    (layer,) = NormGradients()(model, loss_fn, (x, t)).layers
    y = model.conv(x).detach()
    leaf = y.clone().requires_grad_()
    z = model.norm(leaf)
    slope = torch.autograd.grad(F.cross_entropy(model.out((F.relu(z) + y).mean((2, 3))), t), z, retain_graph=True)[0]
    (through,) = torch.autograd.grad(z, leaf, slope)
    assert layer.values == 12 * 25 and layer.output_norm == pytest.approx(float(slope.norm()))
    assert layer.input_norm == pytest.approx(float(through.norm()))
    assert layer.kept == pytest.approx(1 - layer.mean_share - layer.inner_share, abs=0.1)  # medians of each
    found = NormGradients(layers=("conv", "out"))(model, loss_fn, (x, t)).layers
    assert [one.layer for one in found] == ["conv", "out"] and all(math.isnan(one.kept) for one in found)


# Stable rank and saturation


def test_stable_rank_against_all_singular_values(monkeypatch: pytest.MonkeyPatch) -> None:
    generator = np.random.default_rng(0)
    for shape in ((30, 7), (7, 30), (20, 20)):
        matrix = generator.normal(size=shape) * generator.uniform(0.01, 1, size=shape[1]) + 0.2
        values = np.linalg.svd(matrix, compute_uv=False)
        wanted = (values**2).sum() / values[0] ** 2
        assert stable_rank(torch.tensor(matrix)) == pytest.approx(wanted, rel=1e-10)
        with monkeypatch.context() as patched:
            patched.setattr(activations_module, "_DENSE_RANK", 0)  # by Lanczos' method
            assert stable_rank(torch.tensor(matrix)) == pytest.approx(wanted, rel=1e-3)
    assert stable_rank(torch.outer(torch.randn(9), torch.randn(5))) == pytest.approx(1, rel=1e-5)
    assert stable_rank(torch.eye(6)) == pytest.approx(6) and math.isnan(stable_rank(torch.zeros(3, 2)))


def test_activations_have_stable_rank_and_saturation() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(5, 8), nn.Tanh(), nn.Linear(8, 8), nn.Sigmoid(), nn.Linear(8, 3)).double()
    with torch.no_grad():
        model[0].weight.mul_(4)
        model[2].weight.mul_(6)
    batch = labelled(50)
    found = Activations(layers=("0", "2"))(model, loss_fn, batch)
    first, second = model[:2](batch[0]), model[:4](batch[0])
    values = np.linalg.svd(model[0](batch[0]).detach().numpy(), compute_uv=False)
    assert found.layers[0].stable_rank == pytest.approx((values**2).sum() / values[0] ** 2)
    beyond = (first.abs() > 0.95).sum() + ((second < 0.025) | (second > 0.975)).sum()
    assert 0.05 < found.saturated < 0.95
    assert found.saturated == float(beyond) / (first.numel() + second.numel())
    assert math.isnan(Activations()(dense_network(), loss_fn, batch).saturated)


# Accuracy


def test_sign_perturbations_one_sample_at_a_time() -> None:
    model, (x, labels) = dense_network(), labelled(60)
    scale, limits = torch.tensor([1.0, 2.0, 0.5, 1.0, 3.0]).double(), (torch.full((5,), -3.0), 4.0)
    probe = Robustness(eps=(0.1, 0.4, 1.0), scale=scale, limits=limits)
    found = probe(model, loss_fn, (x, labels))
    model.eval()
    right = dict.fromkeys((0.0, 0.1, 0.4, 1.0), 0)
    for sample, label in zip(x, labels, strict=True):
        leaf = sample[None].clone().requires_grad_()
        (gradient,) = torch.autograd.grad(F.cross_entropy(model(leaf), label[None]), leaf)
        for eps in right:
            moved = (sample + eps * scale * torch.sign(gradient[0])).clamp(-3.0, 4.0) if eps else sample
            right[eps] += int(model(moved[None]).argmax() == label)
    assert found.accuracy == right[0.0] / 60 and found.samples == 60
    assert found.accuracies == pytest.approx([right[eps] / 60 for eps in found.eps], abs=1e-12)
    assert found.accuracies[-1] < found.accuracy  # it says something


def test_of_a_linear_classifier_the_perturbed_accuracy_is_known() -> None:
    """Two classes, logits ±w·x/2: moving by ε changes the margin by −ε‖w‖₁."""
    w = torch.tensor([0.5, -1.0, 2.0]).double()
    model = nn.Linear(3, 2, bias=False).double()
    with torch.no_grad():
        model.weight.copy_(torch.stack([w, -w]) / 2)
    x = torch.randn(200, 3, generator=torch.Generator().manual_seed(0)).double()
    labels = (x @ w < 0.3).long()
    margin = torch.where(labels == 0, x @ w, -(x @ w))
    found = Robustness(eps=(0.05, 0.2))(model, loss_fn, (x, labels))
    assert found.accuracy == float((margin > 0).double().mean())
    assert found.accuracies == tuple(float((margin > eps * 3.5).double().mean()) for eps in (0.05, 0.2))


def test_ablation_by_brute_force() -> None:
    """Units switched off by zeros in the weights that read them."""
    torch.manual_seed(4)
    model = nn.Sequential(nn.Linear(5, 7), nn.ReLU(inplace=True), nn.Linear(7, 4), nn.Tanh(), nn.Linear(4, 3)).double()
    optimizer, batch = torch.optim.Adam(model.parameters(), 0.03), labelled(80)
    for _ in range(60):
        optimizer.zero_grad()
        loss_fn(model, batch).backward()
        optimizer.step()
    shares = (0.25, 0.5, 0.75, 1.0)
    found = Ablation(shares=shares, orders=3, seed=5)(model, loss_fn, batch)
    assert found.units == 11 and found.samples == 80
    for number, row in enumerate(found.accuracies):
        order = torch.randperm(11, generator=torch.Generator().manual_seed(5 + number)).tolist()
        for share, accuracy in zip(shares, row, strict=True):
            off = order[: round(share * 11)]
            second, third = model[2].weight.detach().clone(), model[4].weight.detach().clone()
            second[:, [unit for unit in off if unit < 7]] = 0
            third[:, [unit - 7 for unit in off if unit >= 7]] = 0
            hidden = torch.tanh(F.relu(model[0](batch[0])) @ second.T + model[2].bias)
            wanted = ((hidden @ third.T + model[4].bias).argmax(1) == batch[1]).double().mean()
            assert accuracy == pytest.approx(float(wanted), abs=1e-12)
        line = np.interp(np.linspace(0, 1, 40001), (0, *shares), (found.accuracy, *row))
        below = np.flatnonzero(line <= found.accuracy / 2)
        assert found.halved[number] == pytest.approx(below[0] / 40000, abs=1e-4)
    assert found.halved_at == pytest.approx(np.median(found.halved))
    rows = np.array([[found.accuracy, *row] for row in found.accuracies]) / found.accuracy
    assert found.area == pytest.approx(((rows[:, 1:] + rows[:, :-1]) / 2).mean())


def test_feature_maps_and_calls_are_units() -> None:
    """A map goes with all its positions; a module that is called twice has the units of both calls."""

    class Twice(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv, self.act, self.out = nn.Conv2d(1, 6, 3), nn.ReLU(), nn.Linear(6, 3)

        def forward(self, x: Tensor) -> Tensor:
            return self.out(self.act(self.act(self.conv(x)).mean((2, 3)) - 0.1))

    torch.manual_seed(0)
    model, batch = Twice().double(), labelled(30, (1, 4, 4))
    found = Ablation(shares=(1.0,), orders=1)(model, loss_fn, batch)
    assert found.units == 12
    constant = int(model.out.bias.argmax())
    assert found.accuracies == ((float((batch[1] == constant).double().mean()),),)
    linear = nn.Sequential(nn.Linear(5, 4), nn.Linear(4, 3)).double()
    assert Ablation(shares=(1.0,), orders=1)(linear, loss_fn, labelled(30)).units == 4


def test_accuracy_never_halved_is_not_a_number() -> None:
    model = dense_network()
    x, labels = labelled(30)
    found = Ablation(shares=(0.1,), orders=2)(model, loss_fn, (x, labels))
    assert found.accuracies[0][0] > found.accuracy / 2 and math.isnan(found.halved_at) and math.isnan(found.halved[0])


def test_what_accuracy_needs_is_said() -> None:
    model, (x, labels) = dense_network(), labelled(20)
    for batch, words in (
        ({"x": x}, "The batch is not a pair of inputs and labels; give pair, a function that makes one of it."),
        ((x, x), "Accuracy needs a class for each sample, a tensor of whole numbers."),
        ((x, labels[:-1]), "Accuracy needs a class for each sample, a tensor of whole numbers."),
    ):
        for probe in (Robustness(), Ablation()):
            assert probe(model, loss_fn, batch).problem == words
    found = Robustness()(model, loss_fn, (x.long(), labels))
    assert found.problem == "The inputs must be floating-point numbers, which can be moved a little."
    assert Robustness(data=(x, labels))(model, loss_fn, {"other": 3}).samples == 20


# Variance


def test_variance_in_evaluation_over_running_variance() -> None:
    model, batch = dense_network(), labelled(40)
    found = VarianceShift()(model, loss_fn, batch).layers
    model.eval()
    for layer, place in zip(found, (1, 5), strict=True):
        running = model[place].running_var
        ratio = (model[:place](batch[0]).detach().var(0, correction=0) / running).numpy()
        ratio = ratio[ratio > 0]
        assert layer.ratio == pytest.approx(np.median(ratio)) and layer.channels == len(ratio)
        assert layer.distance == pytest.approx(np.median(np.abs(np.log(ratio))))


@pytest.mark.parametrize(("before", "wanted"), [(True, 1.0 / 2.0), (False, 1.0)])
def test_dropout_before_batchnorm_shifts_its_variance(before: bool, wanted: float) -> None:
    """Zero-mean inputs through dropout of ½, scaled by 2, have twice the variance in training."""
    torch.manual_seed(0)
    drop, norm = nn.Dropout(0.5), nn.BatchNorm1d(6, momentum=None)
    model = nn.Sequential(*([drop, norm] if before else [norm, drop]), nn.Linear(6, 2))
    for _ in range(40):
        model(torch.randn(500, 6))
    (layer,) = VarianceShift()(model, loss_fn, (torch.randn(4000, 6), torch.zeros(4000).long())).layers
    assert layer.ratio == pytest.approx(wanted, rel=0.05)
    found = VarianceShift()(nn.Linear(5, 3).double(), loss_fn, labelled(5))
    assert found.problem is None and found.layers == ()  # a network without BatchNorm beside one with it
