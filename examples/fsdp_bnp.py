"""BNP with sharded weights (FSDP2): torchrun --nproc-per-node 2 examples/fsdp_bnp.py.

A small network on scikit-learn's digits. Each process holds some rows of each weight and preconditions these; only
statistics travel. Half-way, model and BNP are saved by torch.distributed.checkpoint and taken up by new ones.
"""

import shutil
import tempfile

import torch
import torch.distributed.checkpoint as dcp
from sklearn.datasets import load_digits
from torch import Tensor, distributed, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

import trimtab


def train(images: Tensor, labels: Tensor, batches: Tensor, load: str | None, save: str | None) -> nn.Module:
    """Train a sharded model with batches of which each process takes its part."""
    model = nn.Sequential(nn.Linear(64, 50), nn.ReLU(), nn.Linear(50, 10))
    fully_shard(model, mesh=init_device_mesh("cpu", (distributed.get_world_size(),)))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.3)
    bnp = trimtab.BNP(model).attach(optimizer)
    state = {"model": model.state_dict(), "bnp": bnp}
    if load is not None:
        dcp.load(state, checkpoint_id=load)
    for rows in batches:
        mine = rows[distributed.get_rank() :: distributed.get_world_size()]
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(images[mine]), labels[mine]).backward()
        optimizer.step()
    if save is not None:
        dcp.save(state, checkpoint_id=save)
    return model


def main() -> None:
    """Train, save, take up what was saved, and test."""
    distributed.init_process_group("gloo")
    torch.manual_seed(0)  # the same batches in all processes
    digits = load_digits()
    images, labels = torch.tensor(digits.data, dtype=torch.float32), torch.tensor(digits.target)
    first, second = torch.randint(1500, (400, 8)).split(200)
    folder = [tempfile.mkdtemp()]
    distributed.broadcast_object_list(folder)
    train(images, labels, first, load=None, save=folder[0])
    model = train(images, labels, second, load=folder[0], save=None)
    held = len(model[0].weight.to_local())
    right = (model(images[1500:]).argmax(1) == labels[1500:]).float().mean()
    if distributed.get_rank() == 0:
        print(f"accuracy: {right:.3f}; this process holds {held} of {len(model[0].weight)} rows of the first weight")
        shutil.rmtree(folder[0])
    distributed.destroy_process_group()


if __name__ == "__main__":
    main()
