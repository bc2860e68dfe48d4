"""One training that every framework has to repeat to the last bit: the plain loop with BNP."""

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor, nn

import trimtab

STEPS, SIZE = 8, 4
CLIP = 0.02
"""A norm that clipping has to bring gradients down to, before BNP and after it."""


def network(seed: int = 0) -> nn.Sequential:
    """A convolution, one without bias, a dense layer: no random numbers while it trains."""
    torch.manual_seed(seed)
    return nn.Sequential(
        nn.Conv2d(1, 3, 3, padding=1),
        nn.ReLU(),
        nn.Conv2d(3, 3, 3, stride=2, bias=False),
        nn.Flatten(),
        nn.Linear(3 * 2 * 2, 3),
    )


def samples(count: int = STEPS * SIZE) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(1)
    return 2 + torch.randn(count, 1, 6, 6, generator=generator), torch.randint(3, (count,), generator=generator)


def batches(count: int = STEPS) -> list[tuple[Tensor, Tensor]]:
    x, y = samples(count * SIZE)
    return list(zip(x.split(SIZE), y.split(SIZE), strict=True))


def loss_of(model: Callable[[Tensor], Tensor], batch: tuple[Tensor, Tensor]) -> Tensor:
    return nn.functional.cross_entropy(model(batch[0]), batch[1])


def sgd(model: nn.Module) -> torch.optim.SGD:
    return torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)


def plain_loop(
    model: nn.Module,
    *,
    accumulate: int = 1,
    clip: str | None = None,
    autocast: bool = False,
    data: Iterable[tuple[Tensor, Tensor]] | None = None,
    **options: Any,
) -> trimtab.BNP:
    """BNP as its documentation says, in a loop that is written out; `clip` is before BNP or after it."""
    optimizer = sgd(model)
    bnp = trimtab.BNP(model, **options)
    if clip != "after":
        bnp.attach(optimizer)
    for number, batch in enumerate(batches() if data is None else data):
        with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
            loss = loss_of(model, batch)
        (loss / accumulate).backward()
        if (number + 1) % accumulate:
            continue
        if clip == "after":
            bnp.step()
        if clip is not None:
            norm = nn.utils.clip_grad_norm_(model.parameters(), CLIP)
            assert norm > CLIP, "a test of clipping where nothing is clipped"
        optimizer.step()
        optimizer.zero_grad()
    bnp.detach()
    return bnp


def assert_same_weights(ours: nn.Module, theirs: nn.Module) -> None:
    """To the last bit."""
    pairs = list(zip(ours.parameters(), theirs.parameters(), strict=True))
    assert pairs and all(torch.equal(mine, other) for mine, other in pairs)


def assert_same_state(ours: trimtab.BNP, theirs: trimtab.BNP) -> None:
    """To the last bit; names may differ by those of the modules around."""
    pairs = list(zip(ours.state_dict()["layers"].values(), theirs.state_dict()["layers"].values(), strict=True))
    assert pairs
    for mine, other in pairs:
        for name, value in other["running"].items():
            assert torch.equal(torch.as_tensor(mine["running"][name]), torch.as_tensor(value)), name
