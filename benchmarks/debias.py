"""What `debias=True` does to the start of training: python benchmarks/debias.py (half a minute).

Validation accuracy of the demo's networks at batch size 64, after 1 to 8 epochs of 15 steps, mean of 5 seeds, over
learning rates.
"""

from statistics import fmean

import torch

from trimtab.records import machine
from trimtab.training.demo import VALIDATION, run_one
from trimtab.training.settings import Settings

METHODS = ("bnp", "bnp-debias")


def accuracy(network: str, method: str, epochs: int, lr: float) -> float:
    """Validation accuracy in %, the mean of 5 seeds."""
    told = {"network": f"small-{network}", "method": method, "batch_size": 64, "epochs": epochs, "lr": lr}
    outcomes = [run_one(Settings(**told, validation=VALIDATION, seed=seed)) for seed in range(5)]  # type: ignore[arg-type]
    return 100 * fmean(outcome.accuracy or 0.0 if outcome else 0.0 for outcome in outcomes)


def main() -> None:
    """Print one table per network."""
    torch.set_num_threads(1)
    print(f"Validation accuracy in %, batch size 64, mean of 5 seeds; 'bnp → bnp-debias'. {machine()}.")
    for network in ("cnn", "mlp"):
        print(f"\n{network:>8}" + "".join(f"{f'lr {lr:g}':>16}" for lr in (0.1, 0.3, 1.0, 3.0)))
        for epochs in (1, 2, 4, 8):
            row = ""
            for lr in (0.1, 0.3, 1.0, 3.0):
                means = [accuracy(network, method, epochs, lr) for method in METHODS]
                row += f"{f'{means[0]:.1f} → {means[1]:.1f}':>16}"
            print(f"{f'epoch {epochs}':>8}{row}")


if __name__ == "__main__":
    main()
