"""The step that an optimizer would take next, against the step that it then takes."""

import copy
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.optim import SGD, Adagrad, Adam, AdamW, Optimizer, RMSprop
from torch.optim.optimizer import register_optimizer_step_post_hook

import trimtab
from tests.probes.odd_models import ODD, Words, a_batch, loss_fn, odd_model
from tests.probes.untouched import untouched
from trimtab.bnp import bnps_attached_to
from trimtab.probes.result import CannotMeasure
from trimtab.probes.surface import Surface
from trimtab.probes.updates import next_step


class Own(SGD):
    """Keeps state where torch's optimizers keep none, overwrites gradients, draws numbers and looks at marks."""

    def __init__(self, parameters, lr: float) -> None:
        super().__init__(parameters, lr)
        self.calls, self.sums = 0, [torch.zeros(1)]

    @torch.no_grad()
    def step(self, closure=None) -> None:
        self.calls += 1
        self.sums[0] += self.calls
        for group in self.param_groups:
            for p in group["params"]:
                if p.grad is not None:
                    p.grad.mul_(self.sums[0] + getattr(p, "mark", 0)).add_(torch.rand(p.shape).to(p), alpha=1e-3)
                    p.sub_(p.grad, alpha=group["lr"])


class NotToCopy:
    """A hook that may hold anything."""

    def __init__(self, seen: list[object]) -> None:
        self.seen = seen

    def __call__(self, *args: object) -> None:
        self.seen.append(args)

    def __deepcopy__(self, memo: object) -> None:
        raise TypeError("not to be copied")


OPTIMIZERS: dict[str, Callable[[list[nn.Parameter]], Optimizer]] = {
    "momentum and decay": lambda p: SGD(p, 0.1, momentum=0.9, weight_decay=0.1),
    "nesterov, many tensors at once": lambda p: SGD(p, 0.1, momentum=0.9, nesterov=True, foreach=True, maximize=True),
    "Adam": lambda p: Adam(p, 0.1),
    "AdamW": lambda p: AdamW(p, 0.1, amsgrad=True),
    "two groups": lambda p: AdamW([{"params": p[:1], "lr": 1.0}, {"params": p[1:], "weight_decay": 0.0}], lr=0.1),
    "RMSprop": lambda p: RMSprop(p, 0.1, momentum=0.5, centered=True),
    "Adagrad": lambda p: Adagrad(p, 0.1),
    "one of the user's": lambda p: Own(p, 0.1),
}
BNPS: dict[str, dict | None] = {
    "without BNP": None,
    "BNP": {},
    "BNP by batch": {"statistics": "batch"},
    "BNP without bias": {"debias": True, "rho": 0.5},
}


def backward(model: nn.Module, batch: dict, optimizer: Optimizer) -> None:
    optimizer.zero_grad()
    loss_fn(model, batch).backward()


def assert_foretold(model: nn.Module, optimizer: Optimizer, batch: dict, bnp: trimtab.BNP | None = None) -> None:
    """What is foretold is what then happens, bit by bit, at the first steps and later, and nothing is touched."""
    watched = next(iter(bnps_attached_to(optimizer)), bnp)
    for _ in range(3):
        with untouched(model, optimizer, watched):
            attributes = copy.deepcopy(vars(optimizer).get("calls")), sorted(vars(optimizer))
            loss, gradient, foretold = next_step(Surface(model, loss_fn, batch), optimizer, bnp)
            assert attributes == (vars(optimizer).get("calls"), sorted(vars(optimizer)))
        state = torch.get_rng_state()
        backward(model, batch, optimizer)
        trained = {name: p for name, p in model.named_parameters() if p.requires_grad}
        assert gradient.keys() == {name for name, p in trained.items() if p.grad is not None}
        for name, g in gradient.items():
            assert torch.equal(g, trained[name].grad)
        if bnp is not None:
            bnp.step()
        if "calls" in vars(optimizer):
            torch.set_rng_state(state)  # the rehearsal threw the same dice
            loss_fn(model, batch)
        optimizer.step()
        assert foretold.keys() == trained.keys()
        for name, p in trained.items():
            assert torch.equal(foretold[name], p), name
        assert loss > 0


@pytest.mark.parametrize("told", BNPS.values(), ids=BNPS)
@pytest.mark.parametrize("make", OPTIMIZERS.values(), ids=OPTIMIZERS)
def test_it_is_the_step_that_is_then_taken(make: Callable, told: dict | None) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 6), nn.LayerNorm(6), nn.ReLU(), nn.Linear(6, 3))
    model[0].weight.mark = 2.0
    optimizer = make(list(model.parameters()))
    if told is not None:
        trimtab.BNP(model, **told).attach(optimizer)
    assert_foretold(model, optimizer, a_batch())


@pytest.mark.filterwarnings("ignore:BNP leaves these layers alone", "ignore:No input was seen")
@pytest.mark.parametrize("name", ODD)
def test_odd_models(name: str) -> None:
    model, batch = odd_model(name)
    model.train()
    optimizer = Adam(model.parameters(), 0.01)
    trimtab.BNP(model).attach(optimizer)
    assert_foretold(model, optimizer, batch)


def test_a_bnp_whose_step_is_called_by_hand() -> None:
    model = nn.Sequential(nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, 3))
    optimizer = SGD(model.parameters(), 0.1, momentum=0.9)
    assert_foretold(model, optimizer, a_batch(), trimtab.BNP(model))


def test_a_bnp_that_is_given_and_attached_preconditions_once() -> None:
    model = nn.Sequential(nn.Linear(4, 5), nn.ReLU(), nn.Linear(5, 3))
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    bnp = trimtab.BNP(model).attach(optimizer)
    _, _, once = next_step(Surface(model, loss_fn, a_batch()), optimizer)
    _, _, given = next_step(Surface(model, loss_fn, a_batch()), optimizer, bnp)
    assert all(torch.equal(once[name], given[name]) for name in once)


def test_two_bnps_and_parameters_of_others() -> None:
    model, other = (nn.Sequential(nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, 3)) for _ in range(2))
    optimizer = SGD([*model.parameters(), *other.parameters()], 0.1, momentum=0.9)
    first, second = (trimtab.BNP(m, skip=skip).attach(optimizer) for m, skip in ((model, "0"), (model, "2")))
    both = trimtab.BNP(other).attach(optimizer)
    batch = a_batch()
    for _ in range(2):
        with untouched(other, optimizer, both), untouched(model, optimizer, first), untouched(model, None, second):
            *_, foretold = next_step(Surface(model, loss_fn, batch), optimizer)
        optimizer.zero_grad()
        (loss_fn(model, batch) + loss_fn(other, batch)).backward()
        optimizer.step()
        assert all(torch.equal(foretold[name], p) for name, p in model.named_parameters())


def test_a_model_beside_it_in_the_loss_is_left_alone() -> None:
    model, judge = nn.Linear(4, 3), nn.Linear(3, 3)
    optimizer = SGD([*model.parameters(), *judge.parameters()], 0.1)
    both = nn.ModuleList([model, judge])
    bnp = trimtab.BNP(both, rho=0.5).attach(optimizer)

    def judged(model: nn.Module, batch: dict) -> Tensor:
        return nn.functional.cross_entropy(judge(model(batch["x"])), batch["y"])

    for _ in range(2):
        optimizer.zero_grad()
        judged(model, a_batch()).backward()
        optimizer.step()
    optimizer.zero_grad()
    judged(model, a_batch()).backward()
    with untouched(both, optimizer, bnp):
        *_, foretold = next_step(Surface(model, judged, a_batch()), optimizer)
    assert foretold.keys() == {"weight", "bias"}
    optimizer.step()
    assert all(torch.equal(foretold[name], p) for name, p in model.named_parameters())


def test_a_rehearsal_says_nothing() -> None:
    model = nn.Linear(4, 3)
    optimizer = SGD(model.parameters(), 0.1)
    trimtab.BNP(model).attach(optimizer)
    large = {"x": 1e25 * a_batch()["x"]}  # its variance is not finite in float32, but its gradient is

    def small(model: nn.Module, batch: dict) -> Tensor:
        return 1e-25 * model(batch["x"]).sum()

    next_step(Surface(model, small, large), optimizer)
    small(model, large).backward()
    with pytest.warns(UserWarning, match="not finite"):
        optimizer.step()


def test_rows_that_wait_for_a_step_stay_and_do_not_count() -> None:
    model = nn.Sequential(nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, 3))
    optimizer = SGD(model.parameters(), 0.1)
    bnp = trimtab.BNP(model, rho=0.5).attach(optimizer)
    *_, foretold = next_step(Surface(model, loss_fn, a_batch()), optimizer)
    backward(model, a_batch(3), optimizer)
    with untouched(model, optimizer, bnp):
        *_, again = next_step(Surface(model, loss_fn, a_batch()), optimizer)
    assert all(torch.equal(foretold[name], again[name]) for name in foretold)
    before = {name: p.detach().clone() for name, p in model.named_parameters()}
    optimizer.step()
    torch.testing.assert_close(bnp.state_dict()["layers"]["0"]["running"]["mean"], a_batch(3)["x"].mean(0) / 2)
    assert not torch.equal(before["0.weight"], model[0].weight)


def test_schedulers_and_hooks_see_nothing() -> None:
    model = nn.Linear(4, 3)
    optimizer = SGD(model.parameters(), 0.1)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1)
    seen: list[object] = []
    optimizer.register_step_pre_hook(NotToCopy(seen))
    optimizer.register_step_post_hook(NotToCopy(seen))
    handle = register_optimizer_step_post_hook(lambda *args: seen.append(args))
    patched = vars(optimizer)["step"]
    counts = getattr(optimizer, "_opt_called", None), scheduler.last_epoch
    next_step(Surface(model, loss_fn, a_batch()), optimizer)
    handle.remove()
    assert not seen and vars(optimizer)["step"] is patched
    assert (getattr(optimizer, "_opt_called", None), scheduler.last_epoch) == counts
    assert_foretold(model, optimizer, a_batch())


def test_only_what_the_optimizer_holds() -> None:
    model = nn.Sequential(nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, 3))
    *_, foretold = next_step(Surface(model, loss_fn, a_batch()), SGD(model[2].parameters(), 0.1))
    assert foretold.keys() == {"2.weight", "2.bias"}
    with pytest.raises(CannotMeasure, match="holds none"):
        next_step(Surface(model, loss_fn, a_batch()), SGD(nn.Linear(2, 2).parameters(), 0.1))


def test_what_cannot_be_tried_out_is_said() -> None:
    class Fails(SGD):
        def step(self, closure=None) -> None:
            raise AttributeError("cannot")

    class Full(SGD):
        def step(self, closure=None) -> None:
            raise torch.OutOfMemoryError("full")

    model = nn.Linear(4, 3)
    surface = Surface(model, loss_fn, a_batch())
    with untouched(model):
        with pytest.raises(CannotMeasure, match=r"LBFGS.step\(\) needs a closure"):
            next_step(surface, torch.optim.LBFGS(model.parameters()))
        with pytest.raises(CannotMeasure, match="copy of Fails failed: AttributeError: cannot"):
            next_step(surface, Fails(model.parameters(), 0.1))
        with pytest.raises(torch.OutOfMemoryError):
            next_step(surface, Full(model.parameters(), 0.1))


def test_sparse_gradients() -> None:
    model, batch = Words(), Words.batch
    optimizer = torch.optim.SparseAdam(model.words.parameters(), 0.1)
    *_, foretold = next_step(Surface(model, loss_fn, batch), optimizer)
    loss_fn(model, batch).backward()
    optimizer.step()
    assert torch.equal(foretold["words.weight"], model.words.weight)
