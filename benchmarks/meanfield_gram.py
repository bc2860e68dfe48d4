"""λ_max of a network by its Gram matrix, with nothing of trimtab in it: used by meanfield_cross.py.

J has a row for each sample and output, and JJᵀ/n has the eigenvalues of the Gauss–Newton matrix. JJᵀ is a sum over
layers, each of which needs the gradients with respect to its outputs only: those with respect to its parameters are
products of these with its inputs.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import scipy.linalg
import torch
import torch.nn.functional as F
from torch import Tensor, nn

NORMS = (nn.BatchNorm1d, nn.BatchNorm2d, nn.LayerNorm, nn.GroupNorm)
TARGETS = ("one", "all", "ce")


@dataclass(frozen=True)
class Eigenvalues:
    """Of one draw of the weights.

    Attributes:
        each: For each single output and ½(f − y)².
        all: For all outputs and ½‖f − y‖².
        ce: For all outputs and cross-entropy.
    """

    each: tuple[float, ...]
    all: float
    ce: float

    @property
    def one(self) -> float:
        """For one output: the mean over all, which has the same expectation as the first and differs less."""
        return float(np.mean(self.each))


def eigenvalues(model: nn.Module, x: Tensor, *, frozen: bool, memory: float = 2e9) -> Eigenvalues:
    """The largest eigenvalues of the Gauss–Newton matrices of the mean loss over these samples.

    Args:
        model: A network of linear layers, convolutions and norms; it is in training mode afterwards.
        x: The samples, one batch.
        frozen: Whether BatchNorm's statistics of this batch are constants; otherwise the gradient passes through them.
        memory: Bytes that the gradients of a chunk of rows may take.
    """
    gram, f = gram_matrix(model, x, frozen=frozen, memory=memory)
    n, c = f.shape
    k = (gram.double() / n).cpu().numpy().reshape(n, c, n, c)
    blocks = np.einsum("iaja->aij", k)
    each = tuple(np.linalg.eigvalsh(blocks)[:, -1].tolist())
    p = F.softmax(f.double(), 1).cpu().numpy()
    values, vectors = np.linalg.eigh(p[:, :, None] * np.eye(c) - p[:, :, None] * p[:, None, :])
    root = (vectors * np.sqrt(np.maximum(values, 0))[:, None, :]) @ vectors.transpose(0, 2, 1)
    seen = np.matmul(k.reshape(n * c, n, 1, c), root).reshape(n, c, n * c)
    seen = np.matmul(root, seen).reshape(n * c, n * c)
    return Eigenvalues(each, _largest(k.reshape(n * c, n * c)), _largest(seen))


def _largest(matrix: np.ndarray) -> float:
    last = len(matrix) - 1
    found = scipy.linalg.eigh((matrix + matrix.T) / 2, eigvals_only=True, subset_by_index=[last, last])
    return float(found[0])


def gram_matrix(model: nn.Module, x: Tensor, *, frozen: bool, memory: float = 2e9) -> tuple[Tensor, Tensor]:
    """JJᵀ, with rows in the order of samples and then outputs, and the outputs (samples, outputs)."""
    model.train()
    layers = [module for module in model.modules() if next(module.parameters(recurse=False), None) is not None]
    seen: dict[nn.Module, tuple[Tensor, Tensor]] = {}

    def keep(module: nn.Module, inputs: tuple[Tensor, ...], output: Tensor) -> None:
        assert module not in seen, "a layer that is used twice has no one input"
        seen[module] = (inputs[0].detach(), output)

    batch_norms = [one for one in layers if isinstance(one, nn.BatchNorm1d | nn.BatchNorm2d)]
    hooks = [layer.register_forward_hook(keep) for layer in layers]
    try:
        for norm in batch_norms if frozen else ():
            norm.forward = _frozen(norm)  # type: ignore[method-assign, assignment]
        f = model(x)
    finally:
        for hook in hooks:
            hook.remove()
        for norm in batch_norms if frozen else ():
            del norm.forward
    n, c = f.shape
    coupled = bool(batch_norms) and not frozen
    # Without coupling a sum over samples has each sample's own gradient in that sample's part.
    rows = torch.eye(n * c).reshape(n * c, n, c) if coupled else torch.eye(c)[:, None, :].expand(c, n, c)
    rows = rows.to(f)
    each = sum(output.numel() for _, output in seen.values()) * f.element_size()
    chunk = max(1, min(len(rows), int(memory / (3 * each))))
    parts: list[list[Tensor]] = [[] for _ in layers]
    outputs = [seen[layer][1] for layer in layers]
    prepared = [_prepare(layer, seen[layer][0], coupled) for layer in layers]
    for some in rows.split(chunk):
        gradients = torch.autograd.grad(f, outputs, some, is_grads_batched=True, retain_graph=True)
        for number, (layer, gradient) in enumerate(zip(layers, gradients, strict=True)):
            parts[number].append(_parameters(layer, prepared[number], outputs[number].detach(), gradient, coupled))
    gram = torch.zeros(n * c, n * c, device=x.device, dtype=x.dtype)
    with torch.no_grad():
        for number, layer in enumerate(layers):
            j = torch.cat(parts[number])
            parts[number] = []
            if not coupled:
                j = j.transpose(0, 1)  # (outputs, samples, …) before
            flat = j.reshape(n * c, -1)
            if isinstance(layer, nn.Linear) and not coupled:
                inner = prepared[number] @ prepared[number].T
                gram += (flat @ flat.T) * inner.repeat_interleave(c, 0).repeat_interleave(c, 1)
            else:
                gram.addmm_(flat, flat.T)
    return gram, f.detach()


def _frozen(layer: nn.BatchNorm1d | nn.BatchNorm2d) -> Callable[[Tensor], Tensor]:
    def forward(x: Tensor) -> Tensor:
        over = [d for d in range(x.ndim) if d != 1]
        shape = [1, -1] + [1] * (x.ndim - 2)
        mean, variance = x.detach().mean(over), x.detach().var(over, correction=0)
        normalized = (x - mean.view(shape)) / (variance + layer.eps).sqrt().view(shape)
        return normalized * layer.weight.view(shape) + layer.bias.view(shape)

    return forward


def _prepare(layer: nn.Module, x: Tensor, coupled: bool) -> Tensor:
    """The inputs of a layer as its parameters see them."""
    if isinstance(layer, nn.Linear):
        assert x.ndim == 2
        x = x if layer.bias is None else torch.cat([x, torch.ones_like(x[:, :1])], 1)
        # Δᵀx = ΔᵀRQ, and rows of Q are orthonormal: ΔᵀR has the same inner products.
        return torch.linalg.qr(x.T.double())[1].T.to(x) if coupled and x.shape[1] > len(x) else x
    if isinstance(layer, nn.Conv2d):
        assert layer.groups == 1 and layer.padding_mode == "zeros" and not isinstance(layer.padding, str)
        windows = F.unfold(x, layer.kernel_size, layer.dilation, layer.padding, layer.stride)
        windows = windows.transpose(1, 2)
        return windows if layer.bias is None else torch.cat([windows, torch.ones_like(windows[..., :1])], 2)
    if not isinstance(layer, NORMS):
        raise TypeError(f"{type(layer).__name__} has parameters, and is not known here.")
    return x


def _parameters(layer: nn.Module, x: Tensor, output: Tensor, gradient: Tensor, coupled: bool) -> Tensor:
    """Gradients with respect to parameters: (rows, …) if coupled, else (outputs, samples, …) for each sample.

    Those of linear layers without coupling are left as products to be taken with the inputs.
    """
    rows, n = gradient.shape[:2]
    if isinstance(layer, nn.Linear):
        return (gradient.transpose(1, 2) @ x).flatten(1) if coupled else gradient
    if isinstance(layer, nn.Conv2d):
        flat = gradient.flatten(3)  # rows, samples, channels, positions
        if coupled:
            return (flat.transpose(1, 2).flatten(2) @ x.flatten(0, 1)).flatten(1)
        flat = flat.transpose(0, 1).reshape(n, -1, flat.shape[3])
        return (flat @ x).reshape(n, rows, -1).transpose(0, 1)
    shape = [1, -1] + [1] * (output.ndim - 2)
    assert isinstance(layer, NORMS) and layer.weight is not None and layer.bias is not None
    if isinstance(layer, nn.LayerNorm):
        assert output.ndim == 2
    normalized = (output - layer.bias.detach().view(shape)) / layer.weight.detach().view(shape)
    gamma = (gradient * normalized).flatten(3).sum(3) if output.ndim > 2 else gradient * normalized
    beta = gradient.flatten(3).sum(3) if output.ndim > 2 else gradient
    both = torch.cat([gamma, beta], 2)
    return both.sum(1) if coupled else both
