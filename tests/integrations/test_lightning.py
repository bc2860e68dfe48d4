"""Lightning: every row is the plain loop, to the last bit."""

import gc
import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

import trimtab
from tests.integrations import helpers
from tests.integrations.helpers import assert_same_state, assert_same_weights, batches, loss_of, network, plain_loop
from trimtab.probes import Activations, CovariateShift, Landscape, Spectrum
from trimtab.records import read_events

pytest.importorskip("lightning", reason="lightning is not installed; it is in the dev extra")
import lightning
from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.callbacks import Callback, ModelCheckpoint

from trimtab.integrations.lightning import BNPCallback, MonitorCallback

pytestmark = [
    pytest.mark.slow,
    pytest.mark.filterwarnings(
        "ignore:The '.*_dataloader' does not have many workers",
        "ignore:You defined a `validation_step` but have no `val_dataloader`",
        "ignore:Be aware that when using `ckpt_path`, callbacks used to create the checkpoint need to be provided",
        "ignore:Checkpoint directory .* exists and is not empty",
        "ignore:.*`isinstance\\(treespec, LeafSpec\\)` is deprecated",
    ),
]


class Classifier(LightningModule):
    """One optimizer; Lightning does the rest."""

    def __init__(self, seed: int = 0) -> None:
        super().__init__()
        self.net = network(seed)

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        loss = loss_of(self.net, batch)
        self.log("loss", loss)
        return loss

    def validation_step(self, batch: Any, batch_idx: int) -> None:
        self.log("val_loss", loss_of(self.net, batch))

    def configure_optimizers(self) -> Any:
        return helpers.sgd(self.net)


class ByHand(Classifier):
    """The same in manual optimization."""

    def __init__(self) -> None:
        super().__init__()
        self.automatic_optimization = False

    def training_step(self, batch: Any, batch_idx: int) -> None:
        optimizer: Any = self.optimizers()
        self.manual_backward(loss_of(self.net, batch))
        self.clip_gradients(optimizer, gradient_clip_val=helpers.CLIP, gradient_clip_algorithm="norm")
        optimizer.step()
        optimizer.zero_grad()


def data(start: int = 0) -> Any:
    return DataLoader(TensorDataset(*(t[start:] for t in helpers.samples())), batch_size=helpers.SIZE)


def trainer(*callbacks: Callback, **settings: Any) -> Trainer:
    quiet = {"enable_progress_bar": False, "enable_model_summary": False, "enable_checkpointing": False}
    settings = {"max_epochs": 1, "accelerator": "cpu", "logger": False, **quiet, **settings}
    return Trainer(callbacks=list(callbacks), **settings)


@pytest.fixture(autouse=True)
def _quiet() -> Iterator[None]:
    loggers = [logging.getLogger(name) for name in ("lightning.pytorch", "lightning.fabric")]
    before = [logger.level for logger in loggers]
    for logger in loggers:
        logger.setLevel(logging.ERROR)
    yield
    for logger, level in zip(loggers, before, strict=True):
        logger.setLevel(level)


@pytest.mark.parametrize(
    ("settings", "plain"),
    [
        ({}, {}),
        ({}, {"debias": True, "rho": 0.5}),
        ({"accumulate_grad_batches": 2}, {"accumulate": 2}),
        ({"precision": "bf16-mixed"}, {"autocast": True}),
        ({"gradient_clip_val": helpers.CLIP}, {"clip": "before"}),
        ({"gradient_clip_val": helpers.CLIP}, {"clip": "after"}),
        ({"gradient_clip_val": helpers.CLIP, "accumulate_grad_batches": 4}, {"clip": "after", "accumulate": 4}),
    ],
    ids=["plain", "options", "accumulation", "bf16", "clip before", "clip after", "clip after accumulation"],
)
def test_the_same_as_the_plain_loop(settings: dict[str, Any], plain: dict[str, Any]) -> None:
    ours, theirs = Classifier(), network()
    ours_alone = {name: value for name, value in plain.items() if name in ("clip", "debias", "rho")}
    callback = BNPCallback(**ours_alone)
    trainer(callback, **settings).fit(ours, data(), data())  # with a validation, which leaves no trace
    assert_same_state(callback.bnps[0], plain_loop(theirs, **plain))
    assert_same_weights(ours.net, theirs)


def test_without_it_the_weights_are_others() -> None:
    ours, theirs = Classifier(), network()
    trainer().fit(ours, data())
    plain_loop(theirs)
    with pytest.raises(AssertionError):
        assert_same_weights(ours.net, theirs)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf Tensor is being accessed")
@pytest.mark.parametrize("what", ["module", "network"])
def test_compiled(what: str) -> None:
    class Silent(Classifier):  # torch.compile fails at `self.log`, with BNP and without
        def training_step(self, batch: Any, batch_idx: int) -> Tensor:
            return loss_of(self.net, batch)

    ours, theirs = Silent(), network()
    if what == "network":
        ours.net.compile(backend="aot_eager")
    trainer(BNPCallback()).fit(torch.compile(ours, backend="aot_eager") if what == "module" else ours, data())
    plain_loop(theirs)
    assert_same_weights(ours.net, theirs)


def test_true_precision() -> None:
    ours, theirs = Classifier(), network().bfloat16()
    trainer(BNPCallback(), precision="bf16-true").fit(ours, data())
    plain_loop(theirs, data=[(x.bfloat16(), y) for x, y in batches()])
    assert_same_weights(ours.net, theirs)


def test_manual_optimization() -> None:
    ours, theirs = ByHand(), network()
    trainer(BNPCallback()).fit(ours, data())
    plain_loop(theirs, clip="before")
    assert_same_weights(ours.net, theirs)


def test_manual_optimization_clips_by_itself() -> None:
    with pytest.raises(ValueError, match=r"clip='after' needs automatic optimization; .* step\(\) before you clip"):
        trainer(BNPCallback(clip="after")).fit(ByHand(), data())


class Rivals(ByHand):
    """Two optimizers that take turns on two networks, and one for a number that is no layer's."""

    def __init__(self) -> None:
        super().__init__()
        self.other = network(seed=1)
        self.temperature = nn.Parameter(torch.ones(()))

    def training_step(self, batch: Any, batch_idx: int) -> None:
        for optimizer, loss in zip(self.optimizers(), self.losses(batch), strict=True):
            optimizer.zero_grad()
            self.manual_backward(loss())
            optimizer.step()

    def losses(self, batch: Any) -> Any:
        """Those of the second network go through the first, as in a GAN."""
        x = batch[0]
        return (
            lambda: loss_of(self.net, batch),
            lambda: loss_of(lambda x: self.net(x) + self.temperature * self.other(x), batch),
            lambda: self.temperature * self.other(x).detach().square().mean(),
        )

    def configure_optimizers(self) -> Any:
        return [helpers.sgd(self.net), helpers.sgd(self.other), torch.optim.SGD([self.temperature], lr=0.01)]


def test_two_optimizers() -> None:
    ours, theirs = Rivals(), Rivals()
    callback = BNPCallback()
    trainer(callback).fit(ours, data())
    assert len(callback.bnps) == 2

    optimizers = theirs.configure_optimizers()
    for optimizer in optimizers[:2]:
        trimtab.BNP(theirs).attach(optimizer)
    for batch in batches():
        for optimizer, loss in zip(optimizers, theirs.losses(batch), strict=True):
            optimizer.zero_grad()
            loss().backward()
            optimizer.step()
    assert_same_weights(ours, theirs)


def test_nothing_to_do_is_an_error() -> None:
    class Number(Classifier):
        def configure_optimizers(self) -> Any:
            return torch.optim.SGD([nn.Parameter(torch.ones(()))], lr=0.1)

    with pytest.raises(ValueError, match="The optimizer holds the weight of none of this model's layers"):
        trainer(BNPCallback()).fit(Number(), data())


class Resumable:
    """Batches that go on where a checkpoint was saved, as Lightning asks for it in the middle of an epoch."""

    def __init__(self) -> None:
        self.done = 0

    def __iter__(self) -> Iterator[Any]:
        self.done %= helpers.STEPS
        for batch in batches()[self.done :]:
            self.done += 1
            yield batch

    def __len__(self) -> int:
        return helpers.STEPS

    def state_dict(self) -> dict[str, int]:
        return {"done": self.done}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.done = state["done"]


class StopsAt(Callback):
    """Ends a training by an error, after some steps."""

    def __init__(self, step: int) -> None:
        self.step = step

    def on_train_batch_end(self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
        if trainer.global_step == self.step:
            assert hooks(pl_module)
            raise RuntimeError("stop here")


def hooks(module: nn.Module) -> int:
    return sum(len(m._forward_hooks) + len(m._forward_pre_hooks) for m in module.modules())


@pytest.mark.parametrize("clip", ["before", "after"])
@pytest.mark.parametrize("saved", [8, 11], ids=["between epochs", "within an epoch"])
def test_resumed_from_a_checkpoint(tmp_path: Path, saved: int, clip: Any) -> None:
    """With another callback, module and trainer."""
    settings: dict[str, Any] = {"max_epochs": 2, "gradient_clip_val": helpers.CLIP}
    straight, reference = Classifier(), BNPCallback(clip=clip)
    trainer(reference, **settings).fit(straight, Resumable())

    keep = ModelCheckpoint(tmp_path, filename="{step}", every_n_train_steps=saved, save_top_k=-1)
    interrupted = trainer(BNPCallback(clip=clip), keep, StopsAt(13), **settings, enable_checkpointing=True)
    with pytest.raises(RuntimeError, match="stop here"):
        interrupted.fit(Classifier(), Resumable())
    resumed, callback = Classifier(seed=5), BNPCallback(clip=clip)
    trainer(callback, **settings).fit(resumed, Resumable(), ckpt_path=str(tmp_path / f"step={saved}.ckpt"))
    assert_same_weights(resumed.net, straight.net)
    assert_same_state(callback.bnps[0], reference.bnps[0])


def test_a_checkpoint_without_bnp_is_said(tmp_path: Path) -> None:
    first = trainer()
    first.fit(Classifier(), data())
    first.save_checkpoint(tmp_path / "plain.ckpt")
    with pytest.warns(trimtab.TrimtabWarning, match="saved without BNPCallback: BNP begins with new statistics"):
        trainer(BNPCallback(), max_epochs=2).fit(Classifier(), data(), ckpt_path=str(tmp_path / "plain.ckpt"))


def test_another_number_of_optimizers_is_refused(tmp_path: Path) -> None:
    callback = BNPCallback()
    callback.load_state_dict({"bnps": [{}, {}]})
    with pytest.raises(ValueError, match="has the state of BNP for 2 optimizers with layers, and there are 1"):
        trainer(callback).fit(ours := Classifier(), data())
    assert hooks(ours) == 0


def test_warnings_show_the_users_line() -> None:
    model = Classifier()
    model.tied = nn.Linear(12, 3)
    model.tied.weight = model.net[4].weight
    with pytest.warns(trimtab.TrimtabWarning, match="BNP leaves these layers alone") as said:
        trainer(BNPCallback()).fit(model, data())
    assert [each.filename for each in said if each.category is trimtab.TrimtabWarning] == [__file__]


def test_a_second_fit_goes_on(tmp_path: Path) -> None:
    ours, theirs = Classifier(), network()
    callback = BNPCallback()
    trainer(callback).fit(ours, data())
    trainer(callback).fit(ours, data())
    state = plain_loop(theirs).state_dict()
    optimizer, bnp = helpers.sgd(theirs), trimtab.BNP(theirs)
    bnp.attach(optimizer).load_state_dict(state)
    for batch in batches():
        optimizer.zero_grad()
        loss_of(theirs, batch).backward()
        optimizer.step()
    assert_same_weights(ours.net, theirs)

    trainer(callback).fit(other := Classifier(), data())  # another module begins anew
    plain_loop(theirs := network())
    assert_same_weights(other.net, theirs)


def test_detached_at_the_end() -> None:
    for stopped in False, True:
        ours, callback = Classifier(), BNPCallback()
        if stopped:
            with pytest.raises(RuntimeError, match="stop here"):
                trainer(callback, StopsAt(3)).fit(ours, data())
        else:
            trainer(callback).fit(ours, data())
        assert hooks(ours) == 0 and callback.bnps[0].report().detached
        (report,) = callback.reports
        assert not report.detached and {layer.steps for layer in report.layers} == {3 if stopped else helpers.STEPS}


def test_options_are_checked_at_once() -> None:
    with pytest.raises(TypeError, match="BNP has no option 'roh'; the options are rho, eps1"):
        BNPCallback(roh=0.9)
    with pytest.raises(ValueError, match="clip must be 'before' or 'after', not 'never'"):
        BNPCallback(clip="never")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="probes must be probes"):
        MonitorCallback([3])  # type: ignore[list-item]
    with pytest.raises(ValueError, match="every must be a whole number"):
        MonitorCallback(lambda optimizer: [], every=0)


class Remembers(lightning.pytorch.loggers.Logger):
    """A logger that keeps what it gets."""

    name, version = "memory", 0

    def __init__(self) -> None:
        super().__init__()
        self.metrics: list[tuple[int, dict[str, float]]] = []

    def log_hyperparams(self, *_: Any, **__: Any) -> None: ...

    def log_metrics(self, metrics: dict[str, float], step: int | None = None) -> None:
        self.metrics.append((step or 0, dict(metrics)))


def test_the_monitor_changes_nothing_and_logs(tmp_path: Path) -> None:
    ours, theirs, logger = Classifier(), network(), Remembers()
    monitor = MonitorCallback(
        lambda optimizer: [Landscape(optimizer=optimizer), CovariateShift(optimizer=optimizer), Activations()],
        every=3,
        log=tmp_path / "probes.jsonl",
    )
    trainer(BNPCallback(), monitor, logger=logger, log_every_n_steps=1).fit(ours, data())
    plain_loop(theirs)
    assert_same_weights(ours.net, theirs)
    assert [step for step, found in logger.metrics if "landscape/smoothness" in found] == [0, 3, 6]
    losses = [found["loss"] for _, found in logger.metrics if "loss" in found]
    assert len(losses) == helpers.STEPS  # training_step's own logging: once for each step, not for each probe
    measured = [found["landscape/loss"] for _, found in logger.metrics if "landscape/loss" in found]
    assert measured == pytest.approx(losses[::3])
    assert monitor.results["shift"].problem is None and monitor.results["activations"].problem is None
    steps = [event.step for event in read_events(tmp_path / "probes.jsonl") if event.probe == "landscape"]
    assert steps == [0, 3, 6]
    assert "log" not in vars(ours)


def test_probes_of_the_update_are_told_of_a_bnp_that_comes_before_clipping() -> None:
    found = []
    for clip in "before", "after":
        bnp = BNPCallback(clip=clip)  # type: ignore[arg-type]
        monitor = MonitorCallback(
            lambda optimizer, bnp=bnp: [CovariateShift(optimizer=optimizer, bnp=bnp.bnps[0])], every=4
        )
        trainer(bnp, monitor).fit(Classifier(), data())
        found.append(monitor.results["shift"].to_dict())
    assert found[0]["problem"] is None and found[0] == found[1]


def test_the_monitor_measures_once_in_a_step_and_goes_on(tmp_path: Path) -> None:
    settings: dict[str, Any] = {"accumulate_grad_batches": 2, "log_every_n_steps": 1, "precision": "bf16-mixed"}
    logger = Remembers()
    first = trainer(MonitorCallback([Landscape(step_size=0.1)], every=3), logger=logger, **settings)
    first.fit(Classifier(), data())
    first.save_checkpoint(tmp_path / "4.ckpt")
    again = trainer(MonitorCallback([Landscape(step_size=0.1)], every=3), logger=logger, max_epochs=2, **settings)
    again.fit(Classifier(), data(), ckpt_path=str(tmp_path / "4.ckpt"))
    assert [step for step, found in logger.metrics if "landscape/loss" in found] == [0, 3, 6]


def test_the_monitor_in_manual_optimization() -> None:
    with pytest.raises(ValueError, match="MonitorCallback needs a loss_fn in manual optimization"):
        trainer(MonitorCallback([Spectrum()])).fit(ByHand(), data())
    ours, theirs = ByHand(), network()
    monitor = MonitorCallback([Spectrum()], every=5, loss_fn=lambda module, batch: loss_of(module.net, batch))
    trainer(BNPCallback(), monitor).fit(ours, data())
    plain_loop(theirs, clip="before")
    assert_same_weights(ours.net, theirs)
    assert monitor.results["spectrum"].problem is None


@pytest.mark.parametrize("made", ["before", "after"])
@pytest.mark.parametrize("precision", ["32-true", "bf16-mixed"])
def test_fabric(tmp_path: Path, made: str, precision: Any) -> None:
    """Without a callback: attach takes what Fabric hands out, and Fabric saves a BNP like any other object."""
    straight = network()
    mixed = precision == "bf16-mixed"  # Fabric casts the inputs of a model, too
    plain_loop(straight, autocast=mixed, data=[(x.bfloat16() if mixed else x, y) for x, y in batches()])

    def begin(seed: int) -> tuple[Any, Any, trimtab.BNP, Any]:
        model = network(seed)
        fabric = lightning.Fabric(accelerator="cpu", devices=1, precision=precision)
        bnp = trimtab.BNP(model) if made == "before" else None
        wrapped, optimizer = fabric.setup(model, helpers.sgd(model))
        bnp = (bnp or trimtab.BNP(wrapped)).attach(optimizer)
        return fabric, wrapped, bnp, optimizer

    def train(fabric: Any, model: Any, optimizer: Any, data: Any) -> None:
        for batch in data:
            optimizer.zero_grad()
            fabric.backward(loss_of(model, batch))
            optimizer.step()

    fabric, model, bnp, optimizer = begin(0)
    train(fabric, model, optimizer, batches()[:5])
    fabric.save(tmp_path / "state.ckpt", {"model": model, "optimizer": optimizer, "bnp": bnp})
    fabric, model, bnp, optimizer = begin(7)
    fabric.load(tmp_path / "state.ckpt", {"model": model, "optimizer": optimizer, "bnp": bnp})
    train(fabric, model, optimizer, batches()[5:])
    assert_same_weights(model, straight)
    gc.collect()


@pytest.mark.slow
def test_the_trainer_of_pytorch_lightning() -> None:
    """The same code under its former name, with classes of its own."""
    pytorch_lightning = pytest.importorskip("pytorch_lightning")
    former: Any = type("Former", (pytorch_lightning.LightningModule,), {
        name: vars(Classifier)[name] for name in ("training_step", "configure_optimizers")
    })  # fmt: skip
    ours, theirs = former(), network()
    ours.net = network()
    pytorch_lightning.Trainer(
        max_epochs=1, accelerator="cpu", logger=False, enable_progress_bar=False, enable_model_summary=False,
        enable_checkpointing=False, callbacks=[BNPCallback()],
    ).fit(ours, data())  # fmt: skip
    plain_loop(theirs)
    assert_same_weights(ours.net, theirs)
