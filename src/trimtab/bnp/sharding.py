"""Weights of which each process holds some rows (`fully_shard`): each process makes the step of its own rows.

The rows of a weight are independent of each other in PPᵀ, and its statistics are those of all processes anyway. So what
travels beside them is little: that a gradient is not finite; and, for layers whose rows are inputs (ConvTranspose), the
whole gradient of the bias, and after the step what each process adds to it.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch import distributed as dist

from trimtab.bnp.algorithm import transform
from trimtab.bnp.algorithm.moments import Rows, at_least_float32
from trimtab.bnp.algorithm.step import LayerStep, all_finite, scaling
from trimtab.bnp.layer_shapes import is_sharded
from trimtab.bnp.layers import input_first, output_first
from trimtab.bnp.options import Options
from trimtab.bnp.row_sums import COUNTS
from trimtab.bnp.rows.layer import ObservedLayer


@dataclass(frozen=True, slots=True)
class Shard:
    """The rows of a tensor that this process holds.

    Attributes:
        local: These rows.
        begin: The first of them, counted in the whole tensor.
        mesh: The processes that hold the tensor.
        dim: The dimension of the mesh along which it is sharded; along all others each process has the same rows.
    """

    local: Tensor
    begin: int
    mesh: Any
    dim: int

    @property
    def end(self) -> int:
        """The row after the last of them."""
        return self.begin + len(self.local)

    @property
    def is_first_copy(self) -> bool:
        """Whether no process before this one has the same rows."""
        coordinate = self.mesh.get_coordinate()
        return all(at == 0 for i, at in enumerate(coordinate) if i != self.dim)

    @property
    def is_whole(self) -> bool:
        """Whether each process holds all rows."""
        return bool(self.mesh.size(self.dim) == 1)


def shard_of(tensor: Any) -> Shard | None:
    """The part of a DTensor that this process holds; None if it is not one of rows, in the order of the processes."""
    from torch.distributed.tensor import Replicate
    from torch.distributed.tensor import Shard as Sharded

    mesh, placements = tensor.device_mesh, tensor.placements
    sharded = [dim for dim, placement in enumerate(placements) if type(placement) is not Replicate]
    if len(sharded) != 1 or type(placements[sharded[0]]) is not Sharded or placements[sharded[0]].dim != 0:
        return None
    (dim,) = sharded
    with torch.no_grad():
        local = tensor.to_local()
    rows = len(tensor)
    each = -(-rows // mesh.size(dim))  # as torch.chunk
    begin = min(mesh.get_local_rank(dim) * each, rows)
    return Shard(local, begin, mesh, dim) if len(local) == min(each, rows - begin) else None


class _InputRows:
    """The step of a layer whose rows are inputs: each row needs the whole bias, whose new gradient needs all rows.

    Attributes:
        whole_bias: Its gradient; None if the layer has none to precondition.
        added: What the rows of this process add to the new gradient of the bias, and what all add to it.
    """

    def __init__(self, weight: Shard, bias: Shard | None, outputs: int) -> None:
        """Of these gradients, for a layer with so many outputs."""
        self._weight, self._bias = weight, bias
        self.whole_bias: Tensor | None = None
        if bias is not None:
            self.whole_bias = weight.local.new_zeros(outputs, dtype=torch.float64)
            if bias.is_first_copy:
                self.whole_bias[bias.begin : bias.end] = bias.local
        self.added: Tensor | None = None
        self._old: Tensor | None = None
        self._seen: Tensor | None = None

    def replace(
        self, step: LayerStep, rows: Rows, mean: Tensor, variance: Tensor, seen: Tensor, options: Options
    ) -> Tensor:
        """Replace the gradients of these rows; that of the bias is left to `finish`."""
        groups, outputs, inputs, sites = step.shape
        mean, scale, q2 = scaling(step, rows, mean, variance, options)
        begin, end, local = self._weight.begin, self._weight.end, self._weight.local
        # Each row is a group of one input here.
        mean, scale = (each.transpose(1, 2).flatten(0, 1)[begin:end].unsqueeze(1) for each in (mean, scale))
        weight = at_least_float32(local).reshape(end - begin, outputs, 1, sites)
        group = torch.arange(begin, end, device=local.device) // inputs
        bias = None
        if self.whole_bias is not None:
            whole = self.whole_bias.to(weight.dtype).view(groups, outputs)
            bias = whole[group].view(-1, outputs, 1, 1)
        new, _ = transform.precondition(weight, bias, mean, scale, q2)
        if self.whole_bias is not None:
            parts = (mean * new).sum((2, 3)).double()
            self.added = parts.new_zeros(groups, outputs).index_add(0, group, parts).flatten()
            self._old, self._seen = self.whole_bias / q2, seen
        local.copy_(torch.where(seen, new, weight).view(local.shape))
        return torch.ones_like(seen)

    def finish(self, added: Tensor) -> None:
        """Replace the gradient of the bias, with what the rows of all processes add to it."""
        assert self._bias is not None and self._old is not None and self._seen is not None
        local, new = self._bias.local, (self._old - added)[self._bias.begin : self._bias.end]
        local.copy_(torch.where(self._seen, new, local.double()))


def _replace_output_rows(
    begin: int, step: LayerStep, rows: Rows, mean: Tensor, variance: Tensor, seen: Tensor, options: Options
) -> Tensor:
    """Replace the gradients of some outputs of a grouped layer, which may be a part of those of a group."""
    _, outputs, inputs, sites = step.shape
    mean, scale, q2 = scaling(step, rows, mean, variance, options)
    count = len(step.weight)
    group = torch.arange(begin, begin + count, device=step.weight.device) // outputs
    weight = at_least_float32(step.weight).reshape(count, 1, inputs, sites)  # each row is a group of one output
    bias = None if step.bias is None else at_least_float32(step.bias).view(count, 1, 1, 1)
    new_weight, new_bias = transform.precondition(weight, bias, mean[group], scale[group], q2)
    step.weight.copy_(torch.where(seen, new_weight, weight).view(step.weight.shape))
    if step.bias is not None and bias is not None and new_bias is not None:
        step.bias.copy_(torch.where(seen, new_bias, bias).view(count))
    return torch.ones_like(seen)


class ShardedStep:
    """What is special about one step of the sharded layers of a model.

    Attributes:
        mesh: The processes that hold the layers.
    """

    def __init__(self, layers: Sequence[ObservedLayer], parameters: set[int] | None) -> None:
        """Look at the gradients of layers; those whose weight is not among the parameters (None: all) are left out.

        Raises:
            ValueError: If a layer is sharded in a way in which its step cannot be made.
        """
        self._shards: dict[ObservedLayer, tuple[Shard, Shard | None]] = {}
        self._input_rows: dict[ObservedLayer, _InputRows] = {}
        self.mesh: Any = None
        for layer in layers:
            weight = layer.weight
            if weight is None or weight.grad is None or not weight.requires_grad:
                continue
            if parameters is not None and id(weight) not in parameters:
                continue
            bias = layer.trained_bias(parameters)
            shards = _shards_of(layer, weight.grad, None if bias is None else bias.grad)
            if self.mesh is not None and shards[0].mesh != self.mesh:
                raise _refusal(layer, "another layer is sharded over other processes")
            self.mesh = shards[0].mesh
            self._shards[layer] = shards
            if layer.kind.view is input_first and not shards[0].is_whole:
                outputs = 0 if bias is None else bias.numel()
                self._input_rows[layer] = _InputRows(*shards, outputs)

    def is_over(self, group: Any) -> bool:
        """Whether the layers are held by the processes of a group, and no others; true if there are none to look at."""
        return self.mesh is None or set(self.mesh.mesh.flatten().tolist()) == set(dist.get_process_group_ranks(group))

    def mark_not_finite(self, layer: ObservedLayer, sums: Tensor) -> None:
        """Let all processes know by the sums of a layer's rows if its gradient is not finite in this one."""
        if layer in self._shards:
            for shard in self._shards[layer]:
                if shard is not None:
                    sums[COUNTS:] += torch.where(all_finite(shard.local), 0.0, torch.nan)

    def message(self) -> Tensor | None:
        """What is to be added up over all processes beside the sums of rows; None if nothing is."""
        parts = [each.whole_bias for each in self._input_rows.values() if each.whole_bias is not None]
        return torch.cat(parts) if parts else None

    def receive(self, message: Tensor) -> None:
        """Take the sum over all processes of what `message` has given."""
        with_bias = [each for each in self._input_rows.values() if each.whole_bias is not None]
        sizes = [len(each.whole_bias) for each in with_bias if each.whole_bias is not None]
        for each, part in zip(with_bias, message.split(sizes), strict=True):
            each.whole_bias = part

    def localized(self, layer: ObservedLayer, step: LayerStep) -> LayerStep:
        """The step of a layer as that of the rows which this process holds."""
        weight, bias = self._shards[layer]
        groups, _, inputs, sites = step.shape
        step = replace(step, weight=weight.local, bias=None if bias is None else bias.local)
        if weight.is_whole:
            return step
        if layer in self._input_rows:
            step.by_output, step.replace = False, self._input_rows[layer].replace
        elif groups > 1:
            step.by_output, step.replace = False, partial(_replace_output_rows, weight.begin)
        else:
            if not len(weight.local):  # one row of zeros, so that the averages move by the same kernel as elsewhere
                step.weight = weight.local.new_zeros(1, *weight.local.shape[1:])
                step.bias = None if bias is None else bias.local.new_zeros(1)
            step.shape = 1, len(step.weight), inputs, sites
            step.view = partial(_as_one_group, step.shape)
        return step

    def finish(self) -> None:
        """Replace the gradients of biases that need all rows of their weights: one more exchange for all of them."""
        waiting = {layer: each for layer, each in self._input_rows.items() if each.added is not None}
        if not waiting:
            return
        added = torch.cat([each.added for each in waiting.values() if each.added is not None])
        shard = self._shards[next(iter(waiting))][0]
        dist.all_reduce(added, group=shard.mesh.get_group(shard.dim))
        sizes = [len(each.added) for each in waiting.values() if each.added is not None]
        for each, part in zip(waiting.values(), added.split(sizes), strict=True):
            each.finish(part)


def _as_one_group(shape: Sequence[int], tensor: Tensor) -> Tensor:
    return tensor.view(*shape)


def _shards_of(layer: ObservedLayer, weight: Tensor, bias: Tensor | None) -> tuple[Shard, Shard | None]:
    """The rows of a layer's gradients that this process holds.

    Raises:
        ValueError: If its step cannot be made with these.
    """
    if layer.problem is not None:
        raise _refusal(layer, layer.problem)
    if layer.kind.view is not output_first and layer.kind.view is not input_first:
        raise _refusal(layer, "it is laid out in another way than the weights of PyTorch's layers")
    shard = shard_of(weight) if is_sharded(weight) else None
    if shard is None:
        raise _refusal(layer, "it is not sharded in rows, as fully_shard does it by default")
    if bias is None:
        return shard, None
    bias_shard = shard_of(bias) if is_sharded(bias) else None
    if bias_shard is None or bias_shard.mesh != shard.mesh:
        raise _refusal(layer, "its bias is not sharded in the same way")
    return shard, bias_shard


def _refusal(layer: ObservedLayer, why: str) -> ValueError:
    return ValueError(
        f"BNP cannot precondition layer {layer.name!r}, whose weight is sharded over several processes (a DTensor): "
        f"{why}; name the layer in skip."
    )
