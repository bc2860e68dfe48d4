"""Points on a line through the parameters, and the random directions that such a line can have."""

from collections.abc import Iterable

import torch
from torch import Tensor, nn

from trimtab import _torch
from trimtab.bnp.algorithm.moments import at_least_float32
from trimtab.bnp.layers import layer_type
from trimtab.probes.isolation import Point
from trimtab.probes.result import by_layer

_BLOCK = 1024


def distance_between(a: Point, b: Point) -> Tensor:
    """The Euclidean distance ‖a − b‖ of two points, as `total_norm` gives it."""
    pairs = [(value, b[name]) for name, value in a.items()]
    if _on_cpu(value for value, _ in pairs):
        # One by one, since a difference may stay in the cache.
        return _norm_of_norms(_block_norms(x - y) for x, y in pairs)
    return total_norm(_torch.subtract_all([x for x, _ in pairs], [y for _, y in pairs]))


def total_norm(tensors: Iterable[Tensor]) -> Tensor:
    """The Euclidean norm of all entries together, as a number in float64 on the device of the first tensor."""
    tensors = list(tensors)
    if _on_cpu(tensors):
        return _norm_of_norms(map(_block_norms, tensors))
    return _norm_of_norms(_torch.norms(tensors))


def _on_cpu(tensors: Iterable[Tensor]) -> bool:
    return all(tensor.device.type == "cpu" for tensor in tensors)


def _block_norms(x: Tensor) -> Tensor:
    """The norms of blocks of entries.

    On a CPU torch's float32 norm adds the squares one to the other, and that of 10⁸ equal numbers is wrong in the
    second digit. Its float64 norm takes ten times as long. Blocks are fast, and right to six digits.
    """
    x = at_least_float32(x).flatten()
    whole = x.numel() - x.numel() % _BLOCK
    blocks = torch.linalg.vector_norm(x[:whole].view(-1, _BLOCK), dim=1)
    return torch.cat([blocks, torch.linalg.vector_norm(x[whole:]).reshape(1)])


def _norm_of_norms(norms: Iterable[Tensor]) -> Tensor:
    flat = [norm.double().flatten() for norm in norms]
    total: Tensor = torch.linalg.vector_norm(torch.cat([norm.to(flat[0].device) for norm in flat]))
    return total


def filter_normalized(model: nn.Module, here: Point, seed: int) -> dict[str, Tensor]:
    """A Gaussian direction whose filters are as long as those of the weights (Li et al. 2018, Sec. 4).

    A filter is what leads to one output: a row of a dense weight, an output channel of a convolution, a row of any
    other matrix. Parameters of fewer than two dimensions (biases, scales and shifts of normalizations) have none, and
    the direction is zero there. Drawn on the CPU, so that it is the same on all devices.

    Args:
        model: Whose layers say what a filter is.
        here: The parameters.
        seed: Two calls with the same seed draw the same numbers; torch's own generators are not touched.
    """
    generator = torch.Generator().manual_seed(seed)
    owners = {name: layer for layer, names in by_layer(here).items() for name in names}
    direction = {name: torch.zeros_like(value) for name, value in here.items()}
    for name, value in here.items():
        if value.ndim >= 2:
            layer = model.get_submodule(owners[name])
            noise = _scaled_noise(value, layer if _is_weight(name) else nn.Identity(), generator)
            direction[name] = noise.to(value.dtype)
    return direction


def _scaled_noise(value: Tensor, layer: nn.Module, generator: torch.Generator) -> Tensor:
    dtype = torch.promote_types(value.dtype, torch.float32)
    noise = torch.randn(value.shape, generator=generator, dtype=dtype).to(value.device)
    value = value.to(dtype).contiguous()
    wanted, drawn = (torch.linalg.vector_norm(_filters(t, layer), dim=(2, 3), keepdim=True) for t in (value, noise))
    _filters(noise, layer).mul_(wanted / drawn.clamp(min=torch.finfo(dtype).tiny))
    return noise


def _filters(weight: Tensor, layer: nn.Module) -> Tensor:
    """A view of a weight as (groups, outputs, inputs, sites); each output of each group has a filter."""
    kind = layer_type(layer)
    return weight.view(1, len(weight), 1, -1) if kind is None else kind.view(layer, weight)


def _is_weight(name: str) -> bool:
    """Whether a parameter is its layer's weight, or what weight norm or another parametrization makes it from."""
    own = name.rpartition(".")[2]
    return own in ("weight", "weight_v", "weight_g") or ".weight.original" in name
