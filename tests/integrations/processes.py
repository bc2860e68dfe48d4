"""A training by a framework in several processes, then the plain loop with the same batches: for torchrun.

`torchrun --nproc-per-node 2 -m tests.integrations.processes FRAMEWORK FOLDER` ends with an error if weights or averages
differ in a bit, between the two or between processes.
"""

import os
import sys
import warnings
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, distributed, nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, TensorDataset

import trimtab
from tests.integrations import helpers
from tests.integrations.helpers import assert_same_state, assert_same_weights, loss_of, network

Batches = list[tuple[Tensor, Tensor]]
Trained = tuple[nn.Module, trimtab.BNP, Batches]
SIZE = int(os.environ.get("WORLD_SIZE", "1"))
STOP = helpers.STEPS // 2 // 2  # half of the steps that each of two processes makes


def plain(batches: Batches) -> tuple[nn.Module, trimtab.BNP]:
    """DistributedDataParallel and BNP, written out."""
    model = network()
    wrapped, optimizer = DistributedDataParallel(model), helpers.sgd(model)
    bnp = trimtab.BNP(wrapped).attach(optimizer)
    for batch in batches:
        optimizer.zero_grad()
        loss_of(wrapped, batch).backward()
        optimizer.step()
    bnp.detach()
    return model, bnp


def lightning(folder: str) -> Trained:
    """Stopped after an epoch, and taken up from the checkpoint for another."""
    from lightning.pytorch import LightningModule, Trainer

    from trimtab.integrations.lightning import BNPCallback

    seen: Batches = []

    class Module(LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.net = network()

        def training_step(self, batch: Any, batch_idx: int) -> Tensor:
            seen.append(tuple(each.clone() for each in batch))  # type: ignore[arg-type]
            return loss_of(self.net, batch)

        def configure_optimizers(self) -> Any:
            return helpers.sgd(self.net)

    for epochs, path in ((1, None), (2, f"{folder}/half.ckpt")):
        module, callback = Module(), BNPCallback()
        trainer = Trainer(
            accelerator="cpu", devices=SIZE, strategy="ddp", max_epochs=epochs, logger=False,
            enable_progress_bar=False, enable_model_summary=False, enable_checkpointing=False, callbacks=[callback],
        )  # fmt: skip
        data = DataLoader(TensorDataset(*helpers.samples()), batch_size=helpers.SIZE)
        trainer.fit(module, data, ckpt_path=path)
        if path is None:
            trainer.save_checkpoint(f"{folder}/half.ckpt")
    return module.net, callback.bnps[0], seen


def fabric(folder: str) -> Trained:
    """Without a callback."""
    import lightning

    seen: Batches = []
    made = lightning.Fabric(accelerator="cpu", devices=SIZE, strategy="ddp")
    made.launch()
    model = network()
    wrapped, optimizer = made.setup(model, helpers.sgd(model))
    bnp = trimtab.BNP(wrapped).attach(optimizer)
    for batch in made.setup_dataloaders(DataLoader(TensorDataset(*helpers.samples()), batch_size=helpers.SIZE)):
        seen.append(tuple(batch))
        optimizer.zero_grad()
        made.backward(loss_of(wrapped, batch))
        optimizer.step()
    return model, bnp, seen


def accelerate(folder: str) -> Trained:
    """By Accelerator.prepare."""
    from accelerate import Accelerator

    seen: Batches = []
    made = Accelerator(cpu=True)
    model = network()
    data = DataLoader(TensorDataset(*helpers.samples()), batch_size=helpers.SIZE)
    wrapped, optimizer, loader = made.prepare(model, helpers.sgd(model), data)
    bnp = trimtab.BNP(wrapped).attach(optimizer)
    for batch in loader:
        seen.append(tuple(batch))
        optimizer.zero_grad()
        made.backward(loss_of(wrapped, batch))
        optimizer.step()
    return model, bnp, seen


def transformers(folder: str) -> Trained:
    """Stopped after half of the steps, and resumed."""
    from tests.integrations.test_transformers import Classifier, Collator, trainer
    from trimtab.integrations.transformers import BNPCallback

    seen: Batches = []
    for steps in (STOP, 2 * STOP):
        model, callback, collator = Classifier(), BNPCallback(), Collator()
        settings = {"max_steps": steps, "save_strategy": "steps", "save_steps": STOP, "ddp_backend": "gloo"}
        made = trainer(model, folder, callback, collator=collator, **settings)  # type: ignore[arg-type]
        made.train(resume_from_checkpoint=steps > STOP)
        # One more than it needs is made ahead of time, and in the second training those that it skips.
        seen += collator.batches[:STOP] if steps == STOP else collator.batches[-STOP:]
    assert callback.bnp is not None
    return model.net, callback.bnp, seen


def main(framework: str, folder: str) -> None:
    """Train twice, and compare."""
    torch.set_num_threads(1)
    warnings.simplefilter("error", trimtab.TrimtabWarning)
    kinds: dict[str, Callable[[str], Trained]] = {
        "lightning": lightning,
        "fabric": fabric,
        "accelerate": accelerate,
        "transformers": transformers,
    }
    model, bnp, seen = kinds[framework](folder)
    epochs = 2 if framework == "lightning" else 1
    assert len(seen) == epochs * helpers.STEPS // SIZE, len(seen)
    assert distributed.get_world_size() == SIZE
    theirs, expected = plain(seen)
    assert_same_weights(model, theirs)
    assert_same_state(bnp, expected)
    weights = torch.cat([each.detach().flatten() for each in model.parameters()])
    every = [torch.empty_like(weights) for _ in range(SIZE)]
    distributed.all_gather(every, weights)
    assert all(map(weights.equal, every))
    firsts = [torch.empty_like(seen[0][0]) for _ in range(SIZE)]
    distributed.all_gather(firsts, seen[0][0])
    assert not torch.equal(firsts[0], firsts[1]), "the processes have the same data"
    print("equal to the last bit")  # noqa: T201
    distributed.destroy_process_group()


if __name__ == "__main__":
    main(*sys.argv[1:])
