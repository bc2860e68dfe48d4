"""The spectrum of the Fisher matrix of a real network on real data, through its Jacobian.

For the mean over samples of ½‖f(x) − y‖² the Fisher matrix (and the Gauss–Newton matrix) is JᵀJ/m, where J has a row
for each sample and output and a column for each parameter. Its nonzero eigenvalues are those of JJᵀ/m, which is as
large as the outputs are. The matrix of all parameters is never formed.
"""

from collections.abc import Callable
from copy import deepcopy
from typing import Literal

import torch
from torch import Tensor, nn

from trimtab.norms import FourThingsBatchNorm, GhostBatchNorm, NoisyBatchNorm, RunningNorm
from trimtab.norms.base import dims_but_channel, per_channel

Statistics = Literal["frozen", "train", "eval"]
Outputs = Literal["all", "sum"] | int

GRAM_ROWS = 32  # up to so many rows each is computed by itself; above, Lanczos needs fewer products
_DROPOUT = (nn.Dropout, nn.Dropout1d, nn.Dropout2d, nn.Dropout3d, nn.AlphaDropout, nn.FeatureAlphaDropout)
_TORCHS = nn.modules.batchnorm._BatchNorm


class Jacobian:
    """The derivative J of a network's outputs with respect to its parameters, at one batch, as a linear map.

    The network is copied: no parameter, buffer, gradient, mode, hook or generator of it is touched. Dropout is off.

    Args:
        model: Any module that maps inputs to a tensor whose first dimension is that of the samples.
        inputs: The batch.
        statistics: How layers that normalize by the batch are taken. `frozen`: by the statistics of this batch, but
            without a gradient through them, as mean field assumes. `train`: with it, as in training. `eval`: by their
            running averages.
        outputs: `all` of them, the one with that number, or the `sum` of all.

    Attributes:
        rows: Samples times outputs.
        samples: How many samples the batch has.
    """

    def __init__(
        self, model: nn.Module, inputs: Tensor, *, statistics: Statistics = "frozen", outputs: Outputs = "all"
    ) -> None:
        """Run the network once.

        Raises:
            ValueError: If an argument makes no sense, or nothing in the model is trained.
        """
        if statistics not in ("frozen", "train", "eval"):
            raise ValueError(f"statistics must be 'frozen', 'train' or 'eval', not {statistics!r}.")
        if not isinstance(inputs, Tensor) or inputs.ndim < 1 or not len(inputs):
            raise ValueError("inputs must be a tensor of one sample or more.")
        copy = _prepared(model, statistics)
        self._parameters = [p for p in copy.parameters() if p.requires_grad]
        if not self._parameters:
            raise ValueError("The model has no parameter that is trained, so that there is no Jacobian.")
        devices = [inputs.device] if inputs.device.type == "cuda" else []
        with torch.random.fork_rng(devices=devices), torch.enable_grad():
            values = copy(inputs.detach().clone())
        self._y = _chosen(values, outputs, len(inputs))
        self.samples = len(inputs)
        self.rows = self._y.numel()
        # Linear in u, so that its derivative with respect to u is the product with J, and no forward mode is needed.
        self._u = torch.zeros_like(self._y, requires_grad=True)
        self._gradient = self._backward(self._u, create_graph=True)

    def transposed(self, u: Tensor) -> list[Tensor]:
        """Jᵀu, one tensor for each parameter."""
        return self._backward(u.reshape(self._y.shape))

    def times(self, v: list[Tensor]) -> Tensor:
        """Jv, one number for each row."""
        used = [(g, t) for g, t in zip(self._gradient, v, strict=True) if g.requires_grad]
        (result,) = torch.autograd.grad(
            [g for g, _ in used], self._u, [t for _, t in used], retain_graph=True, materialize_grads=True
        )
        return result.detach().flatten()

    def gram_times(self, u: Tensor) -> Tensor:
        """JJᵀu/m."""
        return self.times(self.transposed(u)) / self.samples

    def gram(self) -> Tensor:
        """JJᵀ/m, row by row."""
        eye = torch.eye(self.rows, dtype=self._y.dtype, device=self._y.device)
        gram = torch.stack([self.gram_times(row) for row in eye])
        return (gram + gram.T) / 2

    def start(self) -> Tensor:
        """A vector to begin iterations with: near that of all ones, which mean field takes, and something of others."""
        generator = torch.Generator().manual_seed(0)
        noise = torch.randn(self.rows, generator=generator, dtype=self._y.dtype)
        return (1 + 0.3 * noise).to(self._y.device)

    def _backward(self, u: Tensor, create_graph: bool = False) -> list[Tensor]:
        return list(
            torch.autograd.grad(
                self._y, self._parameters, u, retain_graph=True, create_graph=create_graph, materialize_grads=True
            )
        )


def fisher_lambda_max(
    model: nn.Module,
    inputs: Tensor,
    *,
    statistics: Statistics = "frozen",
    outputs: Outputs = "all",
    method: Literal["auto", "gram", "lanczos"] = "auto",
    tolerance: float = 1e-4,
) -> float:
    """The largest eigenvalue of the Fisher matrix of the mean over samples of ½‖f(x) − y‖² (meanfield, eqs. 10, 150).

    Args:
        model: See `Jacobian`; nothing of it is changed.
        inputs: The batch.
        statistics: See `Jacobian`.
        outputs: See `Jacobian`; the mean-field paper takes one.
        method: `gram` forms JJᵀ/m, `lanczos` multiplies with it; `auto` chooses by the number of rows.
        tolerance: How far Lanczos' value may be from an eigenvalue, as a share of it.

    Raises:
        ValueError: If an argument makes no sense.
    """
    if method not in ("auto", "gram", "lanczos"):
        raise ValueError(f"method must be 'auto', 'gram' or 'lanczos', not {method!r}.")
    jacobian = Jacobian(model, inputs, statistics=statistics, outputs=outputs)
    if method == "gram" or (method == "auto" and jacobian.rows <= GRAM_ROWS):
        return float(torch.linalg.eigvalsh(jacobian.gram().double())[-1])
    return lanczos_max(jacobian.gram_times, jacobian.start(), tolerance=tolerance)


def lanczos_max(
    product: Callable[[Tensor], Tensor], start: Tensor, *, tolerance: float = 1e-4, most: int = 200
) -> float:
    """The largest eigenvalue of a symmetric matrix that is known by its products, by Lanczos' method.

    Args:
        product: The product of the matrix with a vector.
        start: A vector that is not orthogonal to the eigenvector.
        tolerance: It ends when the residual, which bounds the distance to an eigenvalue, is below this share of it.
        most: It ends after so many products at the latest.
    """
    basis = [start / start.norm()]
    diagonal: list[Tensor] = []
    beside: list[Tensor] = []
    value = 0.0
    for _ in range(min(most, start.numel())):
        vector = product(basis[-1])
        diagonal.append(vector @ basis[-1])
        for _ in range(2):  # twice is enough to stay orthogonal in floating point
            for old in basis:
                vector = vector - (vector @ old) * old
        length = vector.norm()
        small = torch.diag(torch.stack(diagonal).double())
        if beside:
            off = torch.stack(beside).double()
            small = small + torch.diag(off, 1) + torch.diag(off, -1)
        values, vectors = torch.linalg.eigh(small)
        value = float(values[-1])
        if float(length) * abs(float(vectors[-1, -1])) <= tolerance * abs(value):
            break
        basis.append(vector / length)
        beside.append(length)
    return value


def _chosen(values: object, outputs: Outputs, samples: int) -> Tensor:
    """The outputs asked for, a row for each sample."""
    if not isinstance(values, Tensor) or values.ndim < 1 or len(values) != samples:
        raise ValueError("The model must return one tensor with a row for each sample.")
    flat = values.flatten(1) if values.ndim > 1 else values.unsqueeze(1)
    if outputs == "all":
        return flat
    if outputs == "sum":
        return flat.sum(1, keepdim=True)
    if isinstance(outputs, bool) or not isinstance(outputs, int) or not 0 <= outputs < flat.shape[1]:
        raise ValueError(f"outputs must be 'all', 'sum' or a number from 0 to {flat.shape[1] - 1}, not {outputs!r}.")
    return flat[:, outputs : outputs + 1]


def _prepared(model: nn.Module, statistics: Statistics) -> nn.Module:
    """A copy in the mode asked for."""
    copy = deepcopy(model)
    copy.train(statistics != "eval")
    for name, module in copy.named_modules():
        if isinstance(module, _DROPOUT):
            module.eval()
        elif statistics == "frozen":
            _freeze(name, module)
    return copy


def _freeze(name: str, module: nn.Module) -> None:
    """Let no gradient pass through the statistics of the batch; values stay as they are."""
    if isinstance(module, GhostBatchNorm | FourThingsBatchNorm | NoisyBatchNorm):
        kind = type(module).__name__
        raise ValueError(f"Layer {name!r}: frozen statistics are not defined for {kind}; take statistics='train'.")
    if isinstance(module, RunningNorm):
        inner = module._by_batch
        module._by_batch = lambda x: _constant_affine(x, inner(x.detach()))  # type: ignore[method-assign]
    elif isinstance(module, _TORCHS) and module.training:
        torchs = module

        def forward(x: Tensor) -> Tensor:
            plain = nn.functional.batch_norm(x.detach(), None, None, training=True, eps=torchs.eps)
            y = _constant_affine(x, plain)
            weight, bias = torchs.weight, torchs.bias
            y = y if weight is None else y * per_channel(weight, x)
            return y if bias is None else y + per_channel(bias, x)

        module.forward = forward  # type: ignore[method-assign, assignment]


def _constant_affine(x: Tensor, y: Tensor) -> Tensor:
    """The values y as a function of x whose derivative is the slope of y over x in each channel."""
    dims = dims_but_channel(x)
    spread = x.detach() - x.detach().mean(dims, keepdim=True)
    square = spread.square().sum(dims)
    slope = (spread * y).sum(dims) / square.clamp(min=torch.finfo(x.dtype).tiny)
    return y + per_channel(slope, x) * (x - x.detach())
