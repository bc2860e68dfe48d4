"""The Trainer of transformers: every row is the plain loop, to the last bit."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import trimtab
from tests.integrations import helpers
from tests.integrations.gpt2 import gpt2, words
from tests.integrations.helpers import assert_same_state, assert_same_weights, network, plain_loop
from trimtab.probes import Activations, CovariateShift, Landscape
from trimtab.records import read_events

transformers = pytest.importorskip("transformers", reason="transformers is not installed; it is in the dev extra")
pytest.importorskip("accelerate", reason="accelerate is not installed; it is in the dev extra")
from transformers import Trainer, TrainerCallback, TrainingArguments  # noqa: E402

from trimtab.integrations.transformers import BNPCallback, MonitorCallback  # noqa: E402

pytestmark = [
    pytest.mark.slow,
    pytest.mark.filterwarnings(
        "ignore:'pin_memory' argument is set as true but no accelerator is found",
    ),
]


class Classifier(nn.Module):
    """A network that computes its loss, as the models of transformers do."""

    def __init__(self, seed: int = 0) -> None:
        super().__init__()
        self.net = network(seed)

    def forward(self, x: Tensor, labels: Tensor | None = None) -> dict[str, Tensor]:
        logits = self.net(x)
        if labels is None:
            return {"logits": logits}
        return {"loss": nn.functional.cross_entropy(logits, labels), "logits": logits}


class Collator:
    """Makes batches and keeps them: the Trainer shuffles."""

    def __init__(self) -> None:
        self.batches: list[tuple[Tensor, Tensor]] = []

    def __call__(self, samples: list[tuple[Tensor, Tensor]]) -> dict[str, Tensor]:
        x, y = (torch.stack(tensors) for tensors in zip(*samples, strict=True))
        self.batches.append((x, y))
        return {"x": x, "labels": y}


def trainer(model: nn.Module, folder: Path, *callbacks: Any, collator: Any = None, **settings: Any) -> Trainer:
    settings = {
        "max_grad_norm": 0.0, "num_train_epochs": 1, "save_strategy": "no", "lr_scheduler_type": "constant",
        "logging_steps": 1, **settings,
    }  # fmt: skip
    args = TrainingArguments(
        str(folder), per_device_train_batch_size=helpers.SIZE, use_cpu=True, report_to="none", disable_tqdm=True,
        **settings,
    )  # fmt: skip
    made = Trainer(
        model,
        args,
        train_dataset=list(zip(*helpers.samples(), strict=True)),
        data_collator=collator or Collator(),
        optimizers=(helpers.sgd(model), None),
        callbacks=list(callbacks),
    )
    made.remove_callback(transformers.PrinterCallback)
    return made


@pytest.mark.parametrize(
    ("settings", "plain"),
    [
        ({}, {}),
        ({}, {"debias": True, "rho": 0.5}),
        ({"gradient_accumulation_steps": 2}, {"accumulate": 2}),
        ({"bf16": True}, {"autocast": True}),
        ({"max_grad_norm": helpers.CLIP}, {"clip": "before"}),
        ({"max_grad_norm": helpers.CLIP}, {"clip": "after"}),
        ({"max_grad_norm": helpers.CLIP, "gradient_accumulation_steps": 4}, {"clip": "after", "accumulate": 4}),
    ],
    ids=["plain", "options", "accumulation", "bf16", "clip before", "clip after", "clip after accumulation"],
)
def test_the_same_as_the_plain_loop(tmp_path: Path, settings: dict[str, Any], plain: dict[str, Any]) -> None:
    ours, theirs, collator = Classifier(), network(), Collator()
    callback = BNPCallback(**{name: value for name, value in plain.items() if name in ("clip", "debias", "rho")})
    made = trainer(ours, tmp_path, callback, collator=collator, **settings)
    made.train()
    assert len(collator.batches) == helpers.STEPS
    expected = plain_loop(theirs, data=collator.batches, **plain)
    assert callback.bnp is not None and callback.bnp.report().detached
    assert callback.report is not None and not callback.report.detached
    assert_same_state(callback.bnp, expected)
    assert_same_weights(ours, theirs)
    assert made.args.max_grad_norm == settings.get("max_grad_norm", 0.0)


@pytest.mark.slow
def test_a_compiled_model(tmp_path: Path) -> None:
    ours, theirs, collator = Classifier(), network(), Collator()
    settings = {"torch_compile": True, "torch_compile_backend": "aot_eager"}
    trainer(ours, tmp_path, BNPCallback(), collator=collator, **settings).train()
    plain_loop(theirs, data=collator.batches)
    assert_same_weights(ours, theirs)


@pytest.mark.filterwarnings("ignore:BNP leaves these layers alone")
def test_gpt2(tmp_path: Path) -> None:
    ours, theirs = gpt2(), gpt2()
    data = [{"input_ids": row, "labels": row} for seed in range(4) for row in words(seed)]
    settings: dict[str, Any] = {"max_grad_norm": 0.0, "lr_scheduler_type": "constant", "save_strategy": "no"}
    args = TrainingArguments(
        str(tmp_path), per_device_train_batch_size=3, optim="sgd", learning_rate=0.1, use_cpu=True, report_to="none",
        disable_tqdm=True, num_train_epochs=1, **settings,
    )  # fmt: skip
    callback = BNPCallback(tokens="samples")
    seen: list[dict[str, Any]] = []
    made = Trainer(ours, args, train_dataset=data, callbacks=[callback])
    made.remove_callback(transformers.PrinterCallback)
    handle = ours.register_forward_pre_hook(lambda _, args, inputs: seen.append(dict(inputs)), with_kwargs=True)
    made.train()
    handle.remove()
    assert callback.report is not None and sum(layer.left_alone is None for layer in callback.report.layers) == 8

    optimizer = torch.optim.SGD(theirs.parameters(), lr=0.1)
    with trimtab.BNP(theirs, tokens="samples").attach(optimizer):
        for inputs in seen:
            optimizer.zero_grad()
            theirs(**inputs).loss.backward()
            optimizer.step()
    assert len(seen) == 4
    assert_same_weights(ours, theirs)


class StopsAt(TrainerCallback):  # type: ignore[misc]
    """Ends a training by an error, within a step."""

    def __init__(self, step: int) -> None:
        self.step = step

    def on_substep_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        if state.global_step == self.step:
            raise RuntimeError("stop here")


SAVING: dict[str, Any] = {
    "save_strategy": "steps",
    "save_steps": 3,
    "gradient_accumulation_steps": 2,
    "max_grad_norm": helpers.CLIP,
    "num_train_epochs": 2,
}


@pytest.fixture(scope="module", params=["before", "after"])
def interrupted(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[Any, Any, Path, Any]:
    """A training that was not interrupted, its callback, the folder of one that was after step 6 of 8, and `clip`."""
    folder = tmp_path_factory.mktemp("training")
    straight, reference = Classifier(), BNPCallback(clip=request.param)
    trainer(straight, folder / "straight", reference, **SAVING).train()
    stopped = trainer(Classifier(), folder / "stopped", BNPCallback(clip=request.param), StopsAt(6), **SAVING)
    with pytest.raises(RuntimeError, match="stop here"):
        stopped.train()
    return straight, reference, folder / "stopped", request.param


@pytest.mark.parametrize(
    ("how", "step"), [("last", 6), ("path", 3), ("elsewhere", 3), ("argument", 3), ("argument", 6)]
)
def test_resumed_from_a_checkpoint(interrupted: Any, how: str, step: int, tmp_path: Path) -> None:
    straight, reference, folder, clip = interrupted
    checkpoint = folder / f"checkpoint-{step}"
    assert (checkpoint / "bnp.pt").is_file()
    output = tmp_path if how == "elsewhere" else folder
    callback = BNPCallback(clip=clip, resume_from=checkpoint if how == "elsewhere" else None)
    resumed = Classifier(seed=5)
    settings = {**SAVING, "save_strategy": "no"}
    if how == "argument":  # as scripts have it; the other one, which is found by its history, is the last
        settings["resume_from_checkpoint"] = str(folder / "checkpoint-3")
    trainer(resumed, output, callback, **settings).train(
        resume_from_checkpoint=True if how == "last" else str(checkpoint)
    )
    assert_same_weights(resumed, straight)
    assert_same_state(callback.bnp, reference.bnp)  # type: ignore[arg-type]


@pytest.mark.slow
def test_what_cannot_be_resumed_is_said(interrupted: Any, tmp_path: Path) -> None:
    _, _, folder, clip = interrupted
    checkpoint = str(folder / "checkpoint-6")
    settings = {**SAVING, "save_strategy": "no"}
    with pytest.warns(trimtab.TrimtabWarning, match=r"at step 6, but BNP begins with new statistics: no bnp\.pt"):
        trainer(Classifier(), tmp_path, BNPCallback(clip=clip), **settings).train(resume_from_checkpoint=checkpoint)

    other = trainer(Classifier(seed=3), tmp_path, **SAVING)  # without BNP, but with the same names of folders
    other.train()
    with pytest.warns(trimtab.TrimtabWarning, match="found in the checkpoint, which is not in .*; name"):
        trainer(Classifier(), tmp_path, BNPCallback(clip=clip), **settings).train(resume_from_checkpoint=checkpoint)
    with pytest.warns(trimtab.TrimtabWarning, match=r"no bnp\.pt was found in .*checkpoint-6; name the folder"):
        trainer(Classifier(), tmp_path, BNPCallback(clip=clip), **settings).train(
            resume_from_checkpoint=str(tmp_path / "checkpoint-6")
        )


def test_the_same_callback_after_an_error(tmp_path: Path) -> None:
    ours, theirs, callback, collator = Classifier(), network(), BNPCallback(clip="after"), Collator()
    settings = {"max_grad_norm": helpers.CLIP, "gradient_accumulation_steps": 2}
    made = trainer(Classifier(), tmp_path, callback, StopsAt(2), **settings)
    with pytest.raises(RuntimeError, match="stop here"):
        made.train()
    trainer(ours, tmp_path, callback, collator=collator, **settings).train()
    assert made.args.max_grad_norm == helpers.CLIP
    plain_loop(theirs, data=collator.batches, clip="after", accumulate=2)
    assert_same_weights(ours, theirs)


def test_a_step_that_is_cut_short_takes_no_clipping_away(tmp_path: Path) -> None:
    callback, args = BNPCallback(clip="after"), TrainingArguments(str(tmp_path), max_grad_norm=0.5, use_cpu=True)
    for _ in range(2):
        callback.on_step_begin(args, None, None)
    assert args.max_grad_norm == 0
    callback.on_pre_optimizer_step(args, None, None)
    assert args.max_grad_norm == 0.5


def test_a_second_training_of_the_same_model_goes_on(tmp_path: Path) -> None:
    ours, theirs, callback, collator = Classifier(), network(), BNPCallback(), Collator()
    made = trainer(ours, tmp_path, callback, collator=collator)
    made.train()
    made.train()  # the Trainer keeps its optimizer
    assert len(collator.batches) == 2 * helpers.STEPS
    assert callback.bnp is not None
    assert_same_state(callback.bnp, plain_loop(theirs, data=collator.batches))
    assert_same_weights(ours, theirs)


def test_options_are_checked_at_once() -> None:
    with pytest.raises(TypeError, match="BNP has no option 'roh'"):
        BNPCallback(roh=0.9)
    with pytest.raises(ValueError, match="clip must be 'before' or 'after', not 'never'"):
        BNPCallback(clip="never")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="every must be a whole number"):
        MonitorCallback([], every=0)


@pytest.mark.parametrize("settings", [{}, {"bf16": True}], ids=["float32", "bf16"])
def test_the_monitor_changes_nothing(tmp_path: Path, settings: dict[str, Any]) -> None:
    ours, theirs, collator = Classifier(), network(), Collator()
    monitor = MonitorCallback(
        lambda optimizer: [Landscape(optimizer=optimizer), CovariateShift(optimizer=optimizer), Activations()],
        every=2,
        log=tmp_path / "probes.jsonl",
    )
    made = trainer(ours, tmp_path, BNPCallback(), monitor, collator=collator, gradient_accumulation_steps=2, **settings)
    made.train()
    plain_loop(theirs, data=collator.batches, accumulate=2, autocast="bf16" in settings)
    assert_same_weights(ours, theirs)
    events = [event for event in read_events(tmp_path / "probes.jsonl") if event.probe == "landscape"]
    assert [event.step for event in events] == [0, 2]
    assert all(result.problem is None for result in monitor.results.values()) and len(monitor.results) == 3
    if not settings:  # what it measured is the loss of the step's first batch
        assert events[0].result["loss"] == pytest.approx(Classifier()(*collator.batches[0])["loss"].item())
    assert not ours._forward_pre_hooks


def test_a_loss_of_ones_own_and_positional_inputs(tmp_path: Path) -> None:
    class Own(Trainer):  # type: ignore[misc]
        def compute_loss(self, model: Any, inputs: Any, return_outputs: bool = False, **_: Any) -> Any:
            return nn.functional.cross_entropy(model(inputs["x"])["logits"], inputs["labels"])

    seen = []

    def loss_fn(model: Any, inputs: dict[str, Any]) -> Tensor:
        seen.append(set(inputs))
        out: Tensor = model(**inputs)["logits"].square().mean()
        return out

    monitor = MonitorCallback([Landscape(step_size=0.1)], every=100, loss_fn=loss_fn)
    plain = trainer(Classifier(), tmp_path)
    made = Own(
        Classifier(), plain.args, train_dataset=plain.train_dataset, data_collator=Collator(), callbacks=[monitor]
    )
    made.remove_callback(transformers.PrinterCallback)
    made.train()
    assert monitor.results["landscape"].problem is None and seen[0] == {"x"}
