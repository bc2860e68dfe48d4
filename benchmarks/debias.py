"""What `debias=True` does to the start of training: python benchmarks/debias.py (half a minute).

Validation accuracy of the demo's networks at batch size 64, after 1 to 8 epochs of 15 steps, mean of 5 seeds, over
learning rates.
"""

from statistics import fmean

import torch

from trimtab.data import digits
from trimtab.records import machine
from trimtab.training.loop import Method, Settings, run

METHODS: tuple[Method, ...] = ("bnp", "bnp-debias")


def main() -> None:
    """Print one table per network."""
    torch.set_num_threads(1)
    data = digits()
    print(f"Validation accuracy in %, batch size 64, mean of 5 seeds; 'bnp → bnp-debias'. {machine()}.")
    for network in ("cnn", "mlp"):
        print(f"\n{network:>8}" + "".join(f"{f'lr {lr:g}':>16}" for lr in (0.1, 0.3, 1.0, 3.0)))
        for epochs in (1, 2, 4, 8):
            row = []
            for lr in (0.1, 0.3, 1.0, 3.0):
                means = [
                    fmean(
                        100
                        * run(
                            Settings(network, method, 64, epochs, lr, seed), data["train"], data["validation"]
                        ).accuracy
                        for seed in range(5)
                    )
                    for method in METHODS
                ]
                row.append(f"{means[0]:.1f} → {means[1]:.1f}")
            print(f"{f'epoch {epochs}':>8}" + "".join(f"{cell:>16}" for cell in row))


if __name__ == "__main__":
    main()
