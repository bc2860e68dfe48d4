"""BNP in several processes: torchrun --nproc-per-node 2 examples/ddp_bnp.py.

A small network on scikit-learn's digits, each process with its own part of each batch. BNP adds up what all processes
have seen, so that they make the steps of one process with whole batches: the weights are equal to the bit at the end.
"""

import torch
from sklearn.datasets import load_digits
from torch import distributed, nn
from torch.nn.parallel import DistributedDataParallel

import trimtab


def main() -> None:
    """Train, and compare the weights of the processes."""
    distributed.init_process_group("gloo")
    rank, processes = distributed.get_rank(), distributed.get_world_size()
    digits = load_digits()
    images, labels = torch.tensor(digits.data, dtype=torch.float32), torch.tensor(digits.target)
    torch.manual_seed(0)
    model = DistributedDataParallel(nn.Sequential(nn.Linear(64, 50), nn.ReLU(), nn.Linear(50, 10)))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.3)
    bnp = trimtab.BNP(model).attach(optimizer)
    for rows in torch.randint(1500, (400, 8)):  # the same batches in all processes
        mine = rows[rank::processes]
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(images[mine]), labels[mine]).backward()
        optimizer.step()
    weights = torch.cat([parameter.detach().flatten() for parameter in model.parameters()])
    every = [torch.empty_like(weights) for _ in range(processes)]
    distributed.all_gather(every, weights)
    if rank == 0:
        right = (model.module(images[1500:]).argmax(1) == labels[1500:]).float().mean()
        print(bnp.report())
        print(f"accuracy: {right:.3f}; equal weights in all processes: {all(map(weights.equal, every))}")
    distributed.destroy_process_group()


if __name__ == "__main__":
    main()
