"""Turns a list of layer descriptions into the graph of operations that mean field computes with."""

from collections.abc import Iterable, Iterator, Sequence
from typing import Literal

import numpy as np

from trimtab.theory.mean_field.activations import Activation
from trimtab.theory.mean_field.graph import Node, Operation
from trimtab.theory.mean_field.layers import Conv, Dense, Layer, MaxPool, Pool, Residual, pair
from trimtab.theory.mean_field.operations import Activate, Add, Affine, Flatten, MeanPool, Normalize
from trimtab.theory.mean_field.pooling import ActivatedMaxPool
from trimtab.theory.mean_field.positions import Sites, Window

LARGEST = 1e150  # the square of more is not finite

# What still has to happen before a layer may read a value: normalization and activation, the activation alone, nothing.
Pending = Literal["norm", "activation", "nothing"]


def assemble(
    layers: Sequence[Layer],
    *,
    sigma_w2: float | Sequence[float],
    sigma_b2: float | Sequence[float],
    gamma: float | Sequence[float] | None,
    activation: Activation,
    frozen: bool = True,
) -> "Assembly":
    """The graph of a list of layers; see `mean_field` for the arguments. Without a γ there is no normalization.

    Raises:
        ValueError: If layers do not fit to each other, or numbers to the layers.
    """
    layers = tuple(layers) if isinstance(layers, Iterable) else ()
    if not layers or not all(isinstance(layer, Dense | Conv | Pool | Residual) for layer in layers):
        raise ValueError("layers must be a list of one or more of Dense, Conv, Pool, MaxPool and Residual.")
    if not isinstance(layers[-1], Dense | Conv):
        raise ValueError("layers must end with the linear output layer, a Dense or a Conv.")
    affine = len(list(_affine(layers)))
    start, image = _start(layers)
    what = "dense and convolutional layers"
    weights, biases = (
        _numbers(name, value, affine, what) for name, value in (("sigma_w2", sigma_w2), ("sigma_b2", sigma_b2))
    )
    counter = Assembly(weights, biases, None, activation, frozen, start, image)
    counter.add(layers)
    if gamma is None:
        return counter
    gammas = _numbers("gamma", gamma, counter.places, "places of a normalization", negative=True)
    assembly = Assembly(weights, biases, gammas, activation, frozen, start, image)
    assembly.add(layers)
    return assembly


class Assembly:
    """Builds the nodes, layer by layer, and keeps track of the shape."""

    def __init__(
        self,
        sigma_w2: Sequence[float],
        sigma_b2: Sequence[float],
        gamma: Sequence[float] | None,
        activation: Activation,
        frozen: bool,
        start: tuple[int, int, int],
        image: bool,
    ) -> None:
        self.start = start
        self.nodes: list[Node] = []
        self.places = 0
        self.padded = False
        self.max_positions = 1
        self._numbers: Iterator[tuple[int, float, float]] = iter(
            [(number, w, b) for number, (w, b) in enumerate(zip(sigma_w2, sigma_b2, strict=True), start=1)]
        )
        self._gamma = gamma
        self._activation = activation
        self._frozen = frozen
        self._last = -1
        self._channels, self._size = start[0], (start[1], start[2])
        self._pending: Pending = "nothing"
        self.image = image
        self._image = image

    def add(self, layers: Sequence[Layer]) -> None:
        """Add all layers in order. The last one gets no normalization and no activation: the output is linear."""
        for layer in layers:
            if isinstance(layer, Residual):
                self._residual(layer)
            elif isinstance(layer, Pool):
                self._pool(layer)
            else:
                self._activate()
                self._layer(layer)

    def _residual(self, block: Residual) -> None:
        if not block.preactivation:
            self._activate()
        raw = (self._last, self._channels, self._size, self._pending)
        self._activate()
        activated = (self._last, self._channels, self._size, self._pending)
        for number, layer in enumerate(block.branch):
            if number:
                self._activate()
            self._layer(layer)
        if not block.preactivation:
            self._normalize()
        branch, shape = self._last, (self._channels, self._size)
        if block.shortcut is None:
            skip = raw
        else:
            self._last, self._channels, self._size, self._pending = activated
            self._layer(block.shortcut)
            if not block.preactivation:
                self._normalize()
            skip = (self._last, self._channels, self._size, self._pending)
        if skip[1:3] != shape:
            raise ValueError(
                f"the branch of a Residual ends with {_shape(*shape)} and its skip with {_shape(*skip[1:3])}; "
                "give it a shortcut that fits."
            )
        self._append(Add(), branch, skip[0])
        self._channels, self._size = shape
        self._pending = "norm" if block.preactivation else "activation"

    def _pool(self, pool: Pool) -> None:
        window = pool.window(self._size)
        if isinstance(pool, MaxPool) and self._pending != "nothing":
            if _falls(self._activation):
                raise ValueError("activation must not fall anywhere if a MaxPool follows it: its largest is not known.")
            self._normalize()
            self._append(ActivatedMaxPool(self._activation, window), self._last)
            self._pending = "nothing"
        elif isinstance(pool, MaxPool):
            raise ValueError("a MaxPool must stand directly after a Dense, Conv or Residual layer.")
        else:
            self._activate()
            self._append(MeanPool(window), self._last)
        self._resize(window, "kernel of a pooling")

    def _layer(self, layer: Dense | Conv) -> None:
        number, sigma_w2, sigma_b2 = next(self._numbers)
        name = f"layer {number}"
        inputs = layer.width_in if isinstance(layer, Dense) else layer.channels_in
        if isinstance(layer, Dense):
            if self._image:
                self._image = False
                self._append(Flatten(), self._last)
                self._channels, self._size = self._channels * self._size[0] * self._size[1], (1, 1)
            window, outputs = Window((1, 1)), layer.width_out
        else:
            if not self._image:
                raise ValueError(f"{name} is a Conv, but what comes to it is no image.")
            window, outputs = layer.window, layer.channels_out
            if layer.size is not None and pair(layer.size, "size") != self._size:
                raise ValueError(f"{name} has size {layer.size}, but {_shape(self._channels, self._size)} come to it.")
        if inputs != self._channels:
            raise ValueError(f"{name} reads {inputs} channels, but {self._channels} come to it.")
        operation = Affine(name, outputs, inputs * window.sites, sigma_w2, sigma_b2, window)
        self._append(operation, self._last)
        self._channels = outputs
        self._resize(window, f"kernel of {name}")
        self._pending = "norm"

    def _resize(self, window: Window, what: str) -> None:
        size = window.output(self._size)
        if min(size) < 1:
            raise ValueError(f"the {what} does not fit into {self._size[0]}×{self._size[1]} positions.")
        self.padded |= any(window.padding)
        self.max_positions = max(self.max_positions, self._size[0] * self._size[1])
        self._size = size

    def _normalize(self) -> None:
        if self._pending != "norm":
            return
        if self._gamma is not None:
            gamma = self._gamma[self.places]
            self._append(Normalize(f"norm {self.places + 1}", gamma**2, frozen=self._frozen), self._last)
        self.places += 1
        self._pending = "activation"

    def _activate(self) -> None:
        self._normalize()
        if self._pending == "activation":
            self._append(Activate(self._activation), self._last)
        self._pending = "nothing"

    def _append(self, operation: Operation, *inputs: int) -> None:
        self.nodes.append(Node(operation, inputs))
        self._last = len(self.nodes) - 1


def _affine(layers: Sequence[Layer]) -> Iterator[Dense | Conv]:
    for layer in layers:
        if isinstance(layer, Residual):
            yield from layer.branch
            if layer.shortcut is not None:
                yield layer.shortcut
        elif not isinstance(layer, Pool):
            yield layer


def _start(layers: Sequence[Layer]) -> tuple[tuple[int, int, int], bool]:
    """Channels, height and width of the input, and whether it is an image."""
    first: Layer | None = layers[0]
    while isinstance(first, Residual):
        first = first.branch[0]
    if isinstance(first, Dense):
        return (first.width_in, 1, 1), False
    if isinstance(first, Conv) and first.size is not None:
        return (first.channels_in, *pair(first.size, "size")), True
    raise ValueError("layers must begin with a Dense, or with a Conv that says the size of its input.")


def _shape(channels: int, size: Sites) -> str:
    return f"{channels} channels of {size[0]}×{size[1]} positions"


def refuse_gamma(gamma: float | Sequence[float], places: int) -> None:
    """Refuse a γ that is not 1 where there is no normalization."""
    if any(value != 1 for value in _numbers("gamma", gamma, places, "places of a normalization", negative=True)):
        raise ValueError("gamma is that of a normalization, and norm is None: leave it out.")


def check_activation(phi: Activation, given: object) -> None:
    """Refuse a function that does not work on arrays, or not on all numbers.

    Raises:
        ValueError: If it does not.
    """
    x = np.linspace(-6.0, 6.0, 241)
    try:
        with np.errstate(all="ignore"):
            values = [np.asarray(function(x), dtype=float) for function in (phi.phi, phi.prime)]
    except Exception as error:  # a function of one's own may raise anything
        raise ValueError(
            f"activation must work on numpy arrays, but {given!r} raises {type(error).__name__}: {error}"
        ) from error
    if any(value.shape != x.shape for value in values):
        raise ValueError(f"activation must return an array of the shape that it gets, and {given!r} does not.")
    if not np.isfinite(values).all():
        raise ValueError(f"activation must be finite for all numbers, and {given!r} is not.")


def _falls(phi: Activation) -> bool:
    with np.errstate(all="ignore"):
        values = np.asarray(phi.phi(np.linspace(-30.0, 30.0, 6001)), dtype=float)
    return bool((np.diff(values) < -1e-12 * np.nanmax(np.abs(values))).any())


def _numbers(name: str, given: float | Sequence[float], count: int, what: str, negative: bool = False) -> list[float]:
    try:
        raw = np.asarray(given)
        values = raw.astype(float) if raw.dtype.kind not in "US" else None
    except (TypeError, ValueError):  # ragged, or of things that are no numbers
        values = None
    if values is None:
        raise ValueError(f"{name} must be one number or {count}, one for each of the {what}, not {given!r}.")
    if values.ndim == 0:
        values = np.full(count, float(values))
    if values.shape != (count,):
        raise ValueError(f"{name} must be one number or {count}, one for each of the {what}, not {values.size}.")
    if not np.isfinite(values).all() or (not negative and (values < 0).any()):
        raise ValueError(f"{name} must be finite{'' if negative else ' and 0 or larger'}, not {given!r}.")
    if (np.abs(values) > LARGEST).any():
        raise ValueError(f"{name} must be at most {LARGEST:g} in size, not {given!r}.")
    return [float(value) for value in values]
