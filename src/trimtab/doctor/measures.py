"""What a look takes from tensors.

On a GPU each operation is a launch, whatever it computes, and who waits for a number waits for all that was launched
before. So a look takes from a large tensor a few numbers for each output or channel, sends those of all layers to the
host together, and does the rest there, once they have arrived.
"""

import math
from collections.abc import Hashable, Mapping
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

import numpy as np
import torch
from torch import Tensor, nn

from trimtab import _torch
from trimtab.bnp.algorithm.moments import at_least_float32, compute_dtype
from trimtab.bnp.layers import layer_type
from trimtab.doctor.record import InputLook

Array = np.ndarray[Any, np.dtype[np.float64]]
Key = TypeVar("Key", bound=Hashable)


class Packed(Generic[Key]):
    """Tensors as they are now, on their way to the host, those of one type and device in one piece.

    On a GPU nobody waits for them: whoever asks for them a step later finds them there.
    """

    @torch.no_grad()
    def __init__(self, tensors: Mapping[Key, Tensor]) -> None:
        groups: dict[tuple[torch.dtype, torch.device], dict[Key, Tensor]] = {}
        for key, tensor in tensors.items():
            groups.setdefault((tensor.dtype, tensor.device), {})[key] = tensor
        self._pieces = [
            (list(group), [each.numel() for each in group.values()], _sent(group)) for group in groups.values()
        ]
        self._arrived = [
            torch.cuda.current_stream(device).record_event() for _, device in groups if device.type == "cuda"
        ]

    def __getstate__(self) -> dict[str, Any]:
        """For copies, which wait for nothing."""
        self._wait()
        return vars(self)

    def _wait(self) -> None:
        for event in self._arrived:
            event.synchronize()
        self._arrived = []

    def arrays(self) -> dict[Key, Array]:
        """All of them, flat and in float64."""
        self._wait()
        found: dict[Key, Array] = {}
        for keys, sizes, values in self._pieces:
            numbers, begin = values.cpu().double().numpy(), 0
            for key, size in zip(keys, sizes, strict=True):
                found[key] = numbers[begin : begin + size]
                begin += size
        return found


def _sent(tensors: Mapping[Any, Tensor]) -> Tensor:
    """All of them in one, on the way to the host if they are on an NVIDIA GPU."""
    if any(tensor.ndim for tensor in tensors.values()):
        whole = torch.cat([tensor if tensor.ndim == 1 else tensor.reshape(-1) for tensor in tensors.values()])
    else:
        whole = torch.stack(list(tensors.values()))
    return whole.to("cpu", non_blocking=True) if whole.is_cuda else whole


@dataclass(frozen=True)
class Signal:
    """The input and the output of a layer in one call.

    Attributes:
        sizes: The norm of each feature or channel of the input.
        entries: How many numbers the input has.
        output: The norm of the output.
        outputs: How many numbers the output has.
        variances: The variance over samples of each entry of the input, and of the output; None for a single sample.
        channels: Variance and mean of each feature or channel, if the input is one of the network; None in it.
    """

    sizes: Tensor
    entries: int
    output: Tensor
    outputs: int
    variances: tuple[Tensor, Tensor] | None
    channels: tuple[Tensor, Tensor] | None


def signal_of(layer: nn.Module, x: Tensor, output: Tensor) -> Signal:
    """Look at a call of a layer."""
    inner = x.requires_grad
    x, output = at_least_float32(x.detach()), at_least_float32(output.detach())
    others = _all_but_channel(layer, x)
    channels = None
    if not inner:
        channels = torch.var_mean(x, others, correction=0) if others else (torch.zeros_like(x), x)
    return Signal(
        sizes=torch.linalg.vector_norm(x, dim=others) if others else x.abs(),
        entries=x.numel(),
        output=torch.linalg.vector_norm(output),
        outputs=max(output.numel(), 1),
        variances=(x.var(0, correction=0), output.var(0, correction=0)) if len(x) > 1 and len(output) > 1 else None,
        channels=channels,
    )


def tensors_of(signals: Mapping[str, Signal]) -> dict[tuple[str, str], Tensor]:
    """What is brought to the host of the signals of layers, by what it is and the layer's name."""
    found = {("sizes", name): signal.sizes for name, signal in signals.items()}
    found.update({("output", name): signal.output for name, signal in signals.items()})
    variances = {
        (f"{what} variance", name): signal.variances[i]
        for name, signal in signals.items()
        if signal.variances is not None
        for i, what in enumerate(("input", "output"))
    }
    found.update(norms_of(variances, 1))
    for name, signal in signals.items():
        if signal.channels is not None:
            found["variances", name], found["means", name] = signal.channels
    return found


def activations(name: str, signal: Signal, arrays: Mapping[tuple[str, str], Array]) -> dict[str, float]:
    """The fields of a `LayerLook` that tell of activations."""
    sizes = arrays["sizes", name]
    found = {
        "input_rms": math.sqrt(np.square(sizes).sum() / signal.entries),
        "output_rms": arrays["output", name].item() / math.sqrt(signal.outputs),
    }
    if signal.variances is not None:
        for i, what in enumerate(("input", "output")):
            entries = max(signal.variances[i].numel(), 1)
            found[f"{what}_spread"] = math.sqrt(arrays[f"{what} variance", name].item() / entries)
    if signal.channels is None:
        lower, upper = _ends(sizes, 0.25, 0.75)
        found["columns"] = upper / lower
    return found


def input_look(name: str, signal: Signal, arrays: Mapping[tuple[str, str], Array]) -> InputLook:
    """The look at an input of the network."""
    variances, means = arrays["variances", name], arrays["means", name]
    smallest, largest = _ends(np.sqrt(variances), 0.1, 0.9)
    offset = math.nan  # a single value of each feature has no deviation
    if signal.entries > len(means):
        with np.errstate(divide="ignore", invalid="ignore"):
            offset = float(np.sqrt(np.square(means).mean() / variances.mean()))
    return InputLook(
        layer=name,
        rms=math.sqrt(np.square(arrays["sizes", name]).sum() / signal.entries),
        offset=offset,
        smallest=smallest,
        largest=largest,
    )


def _ends(values: Array, lower: float, upper: float) -> tuple[float, float]:
    """Two quantiles of those that are positive; NaN if none is."""
    positive = values[values > 0]
    if not len(positive):
        return math.nan, math.nan
    low, high = np.quantile(positive, [lower, upper]).tolist()
    return low, high


def _all_but_channel(layer: nn.Module, x: Tensor) -> list[int]:
    """The dimensions of a layer's input beside that of its features or channels."""
    channel = 1 if x.ndim > 2 and not isinstance(layer, nn.Linear) else x.ndim - 1
    return [dim for dim in range(x.ndim) if dim != channel]


RUNNING = ("running_mean", "running_var", "num_batches_tracked")


def running_tensors(norms: Mapping[str, Any]) -> dict[tuple[str, str], Tensor]:
    """The running statistics of layers, and how many batches they have seen, by what they are and the layer's name."""
    return {(what, name): getattr(norm, what) for name, norm in norms.items() for what in RUNNING}


def batch_beside_running(
    name: str,
    share: float,
    epsilon: float,
    before: Mapping[tuple[str, str], Array],
    after: Mapping[tuple[str, str], Array],
) -> tuple[float, float]:
    """What the running statistics of a layer say of the batch that has moved them, which needs no second look at it.

    Args:
        name: The layer's.
        share: Of the batch in them, the layer's momentum.
        epsilon: The layer's.
        before: Its `running_tensors` before the batch.
        after: And after it.

    Returns:
        The mean over channels of how far the batch's mean is from the running one, squared, in variances, and the
        median of the batch's variance over the running one; NaN if it was not one batch.
    """
    (mean, variance, count), (new_mean, new_variance, new_count) = (
        [arrays[what, name] for what in RUNNING] for arrays in (before, after)
    )
    if new_count.item() - count.item() != 1:
        return math.nan, math.nan
    scale = variance + epsilon
    shift = np.square((new_mean - mean) / share) / scale
    ratio = np.sort((variance + (new_variance - variance) / share) / scale)
    middle = math.nan if math.isnan(ratio[-1]) else float(ratio[(len(ratio) - 1) // 2])  # NaN comes last
    return float(shift.sum()) / len(shift), middle


def gradients_of_outputs(layers: Mapping[str, Any]) -> dict[tuple[str, str], Tensor]:
    """For each output of layers how many of its weights have a gradient that is not 0, and the gradient of its bias."""
    found: dict[tuple[str, str], Tensor] = {}
    for name, layer in layers.items():
        kind, bias = layer_type(layer), _torch.parameters_of(layer).get("bias")
        assert kind is not None
        rows = kind.view(layer, layer.weight.grad)
        counts = torch.linalg.vector_norm(rows, ord=0, dim=(2, 3), dtype=compute_dtype(rows))
        found["weights", name] = counts
        if bias is not None and bias.grad is not None and bias.grad.numel() == counts.numel():
            found["bias", name] = bias.grad
    return found


def norms_of(tensors: Mapping[Key, Tensor], order: float = 2) -> dict[Key, Tensor]:
    """The norm of each tensor, by its key."""
    if not tensors:
        return {}
    return dict(zip(tensors, _torch.norms([tensor.detach() for tensor in tensors.values()], order), strict=True))
