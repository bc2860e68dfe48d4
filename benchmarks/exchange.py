"""What the exchange between processes adds to a step: python benchmarks/exchange.py (a GPU; torchvision).

ResNet-50 with BNP in one process with a group of its own: the vector of all layers is made, all_reduced by NCCL and
taken apart as with several processes, beside steps without it, in turns. The time that data takes to travel is not in
it: the size of the vector is printed beside that of the gradients.
"""

import argparse
import os
import statistics
import time
from unittest import mock

import torch
import torchvision
from torch import nn

import trimtab
from trimtab.bnp.sync import Exchange


def main() -> None:
    """Measure."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--batch", type=int, default=64)
    options = parser.parse_args()
    os.environ.setdefault("MASTER_ADDR", "127.0.0.1")
    os.environ.setdefault("MASTER_PORT", "29517")
    torch.distributed.init_process_group("nccl", rank=0, world_size=1)
    torch.manual_seed(0)
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = True
    model = torchvision.models.resnet50().cuda()
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-4, momentum=0.9)
    bnp = trimtab.BNP(model).attach(optimizer)
    x = torch.randn(options.batch, 3, 224, 224, device="cuda")
    y = torch.randint(1000, (options.batch,), device="cuda")
    loss, sizes = nn.CrossEntropyLoss(), []
    reduce = torch.distributed.all_reduce

    def counted(tensor: torch.Tensor, *args: object, **kwargs: object) -> object:
        sizes.append(tensor.numel() * tensor.element_size())
        return reduce(tensor, *args, **kwargs)

    def seconds(processes: int, steps: int = 10) -> float:
        with mock.patch.object(Exchange, "processes", processes), mock.patch("torch.distributed.all_reduce", counted):
            torch.cuda.synchronize()
            begin = time.perf_counter()
            for _ in range(steps):
                optimizer.zero_grad()
                loss(model(x), y).backward()
                optimizer.step()
            torch.cuda.synchronize()
        return time.perf_counter() - begin

    for processes in (1, 2):
        seconds(processes)
    times = [(seconds(1), seconds(2)) for _ in range(options.rounds)]
    low, median, high = statistics.quantiles([with_ / without for without, with_ in times], n=4)
    gradients = sum(p.numel() * p.element_size() for p in model.parameters())
    print(f"{torch.cuda.get_device_name()}, torch {torch.__version__}, ResNet-50, TF32, batch {options.batch}")
    print(f"a step with the exchange ÷ without: {median:.4f} ({low:.4f}–{high:.4f}) of {100 * times[0][0]:.1f} ms")
    print(f"{max(sizes)} bytes per step, {max(sizes) / gradients:.2%} of the gradients'")
    print(f"layers: {len(bnp.report().layers)}, numbers of all_reduces: {len(sizes)}")
    torch.distributed.destroy_process_group()


if __name__ == "__main__":
    main()
