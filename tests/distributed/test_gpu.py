"""Exchange and sharded weights on a GPU: one process, with a group of its own by NCCL."""

from collections.abc import Iterator
from contextlib import nullcontext
from typing import Any
from unittest import mock

import pytest
import torch
from torch import Tensor, distributed, nn
from torch.distributed.device_mesh import init_device_mesh

import trimtab
from tests.bnp.test_gpu import no_synchronization
from trimtab.bnp.sync import Exchange

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")]


@pytest.fixture(scope="module")
def group(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    store = tmp_path_factory.mktemp("group") / "store"
    distributed.init_process_group("nccl", init_method=f"file://{store}", rank=0, world_size=1)
    yield
    distributed.destroy_process_group()


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.images = nn.Sequential(
            *(nn.Conv2d(3, 8, 3), nn.Tanh(), nn.Conv2d(8, 8, 3, groups=2), nn.Tanh(), nn.ConvTranspose2d(8, 4, 2))
        )
        self.rows = nn.Sequential(nn.Tanh(), nn.Flatten(), nn.Linear(100, 20), nn.Tanh(), nn.Linear(20, 5, bias=False))

    def forward(self, x: Tensor) -> Tensor:
        return self.rows(self.images(x))  # type: ignore[no-any-return]


def trained(how: str, **options: Any) -> dict[str, Tensor]:
    """Weights and averages after some steps, of a plain model or of one that is sharded, with the exchange or not."""
    torch.manual_seed(0)
    model: nn.Module = Net().cuda()
    if "sharded" in how:
        from torch.distributed.fsdp import fully_shard

        mesh = init_device_mesh("cuda", (1,))
        fully_shard(model.rows, mesh=mesh)
        fully_shard(model, mesh=mesh)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    bnp = trimtab.BNP(model, **options).attach(optimizer)
    with mock.patch.object(Exchange, "processes", 2 if "exchanged" in how else 1):
        for step in range(6):
            optimizer.zero_grad()
            for part in (0, 1):
                generator = torch.Generator("cuda").manual_seed(2 * step + part)
                x = torch.randn(8, 3, 8, 8, device="cuda", generator=generator) + 0.5
                model(x).square().mean().backward()
            optimizer.step()
    found = {
        name: (value.full_tensor() if hasattr(value, "full_tensor") else value).clone()
        for name, value in model.state_dict().items()
    }
    for name in ("images.0", "images.2", "images.4", "rows.2", "rows.4"):
        mean, variance = bnp.statistics(name)  # type: ignore[misc]
        found |= {f"{name} mean": mean, f"{name} variance": variance}
    return found


@pytest.mark.parametrize("how", ["exchanged", "sharded", "sharded and exchanged"])
@pytest.mark.parametrize("fast", [True, False])
def test_as_without_a_group(how: str, fast: bool, group: None) -> None:
    expected = trained("plain", fast=fast)
    found = trained(how, fast=fast)
    assert found.keys() == expected.keys()
    for name, value in expected.items():
        torch.testing.assert_close(found[name], value, rtol=1e-4, atol=1e-5, msg=name)


def test_nothing_waits_for_the_gpu_in_a_sharded_step(group: None) -> None:
    from torch.distributed.fsdp import fully_shard

    model: nn.Module = Net().cuda()
    fully_shard(model, mesh=init_device_mesh("cuda", (1,)))
    bnp = trimtab.BNP(model)
    with mock.patch.object(Exchange, "processes", 2):
        for step in range(12):
            model.zero_grad()
            model(torch.randn(8, 3, 8, 8, device="cuda")).square().mean().backward()
            with no_synchronization() if step > 2 else nullcontext():
                bnp.step()
