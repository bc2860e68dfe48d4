"""BNP in Lightning: small batches of scikit-learn's digits, with a checkpoint to go on from, and probes in the logs.

It needs `pip install '.[lab,lightning]'`, and is run by `python examples/lightning_bnp.py`.
"""

import torch
from lightning.pytorch import LightningModule, Trainer, seed_everything
from lightning.pytorch.loggers import CSVLogger
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import DataLoader, TensorDataset, random_split

from trimtab.integrations.lightning import BNPCallback, MonitorCallback
from trimtab.probes import Landscape


class Digits(LightningModule):
    """A small network without normalization layers."""

    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.Linear(64, 100), nn.ReLU(), nn.Linear(100, 100), nn.ReLU(), nn.Linear(100, 10))

    def training_step(self, batch, batch_idx):
        loss = nn.functional.cross_entropy(self.net(batch[0]), batch[1])
        self.log("loss", loss)
        return loss

    def validation_step(self, batch, batch_idx):
        self.log("accuracy", (self.net(batch[0]).argmax(1) == batch[1]).float().mean(), prog_bar=True)

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.1)


def train(loaders, epochs, **resume):
    """Train to this epoch, and return the trainer and its callbacks."""
    bnp = BNPCallback(clip="after")  # after BNP: the step is limited, not the gradient
    monitor = MonitorCallback(lambda optimizer: [Landscape(optimizer=optimizer)], every=200)
    quiet = {"enable_progress_bar": False, "enable_model_summary": False, "logger": CSVLogger("logs")}
    trainer = Trainer(max_epochs=epochs, gradient_clip_val=1.0, accelerator="cpu", callbacks=[bnp, monitor], **quiet)
    trainer.fit(Digits(), *loaders, **resume)
    return trainer, bnp, monitor


if __name__ == "__main__":
    seed_everything(0)
    x, y = load_digits(return_X_y=True)
    data = random_split(TensorDataset(torch.tensor(x, dtype=torch.float32), torch.tensor(y)), [0.8, 0.2])
    loaders = DataLoader(data[0], batch_size=4, shuffle=True, drop_last=True), DataLoader(data[1], batch_size=360)

    trainer, _, _ = train(loaders, epochs=1)
    trainer.save_checkpoint("digits.ckpt")  # with the statistics of BNP
    trainer, bnp, monitor = train(loaders, epochs=2, ckpt_path="digits.ckpt")
    print(bnp.reports[0])
    found = monitor.results["landscape"]
    edge = ", an edge of the range" if found.smoothness_at_edge else ""
    print(f"smoothness {found.smoothness:.3g}, {found.smoothness_multiple:g} steps away{edge}")
    print(f"accuracy {trainer.callback_metrics['accuracy']:.3f}")
