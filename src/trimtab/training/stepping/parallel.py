"""A model whose gradients are the means over several processes."""

import torch
from torch import Tensor, nn
from torch import distributed as dist
from torch.nn.parallel import DistributedDataParallel


def parallel(module: nn.Module, device: torch.device) -> DistributedDataParallel:
    """A module wrapped by DistributedDataParallel.

    On the CPU the gradients are added up in the order of the parameters. DistributedDataParallel changes their places
    after the first step, and with it the order in which three processes or more are added: a run that is resumed would
    be rounded differently in its next step.
    """
    if device.type == "cuda":
        return DistributedDataParallel(module, device_ids=[device])
    wrapped = DistributedDataParallel(module, bucket_cap_mb=_NO_LIMIT_MB)
    wrapped.register_comm_hook([p for p in module.parameters() if p.requires_grad], _add_in_order)
    return wrapped


_NO_LIMIT_MB = 2**30
"""All gradients are in one bucket."""


def _add_in_order(
    parameters: list[nn.Parameter],
    bucket: dist.GradBucket,  # type: ignore[name-defined]
) -> torch.futures.Future[Tensor]:
    """The means of all gradients, added up in the order of these parameters.

    Args:
        parameters: Those that are trained.
        bucket: The gradients of all of them.
    """
    gradients = dict(zip(map(id, bucket.parameters()), bucket.gradients(), strict=True))
    ordered = [gradients[id(parameter)] for parameter in parameters]
    flat = torch.cat([gradient.flatten() for gradient in ordered])
    dist.all_reduce(flat)
    flat /= dist.get_world_size()
    for gradient, mean in zip(ordered, flat.split([gradient.numel() for gradient in ordered]), strict=True):
        gradient.copy_(mean.view_as(gradient))
    done: torch.futures.Future[Tensor] = torch.futures.Future()
    done.set_result(bucket.buffer())
    return done
