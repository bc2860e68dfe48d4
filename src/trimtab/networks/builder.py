"""Makes layers with their normalization. Only this file decides about biases, dropout and weight norm."""

from collections.abc import Callable, Collection

from torch import nn

from trimtab.networks.activations import make_activation
from trimtab.norms import Norm

Layer = nn.Conv2d | nn.Linear


class Builder:
    """Makes the layers of one network, in forward order, and counts its places for a normalization.

    Every convolution and every dense layer that is not `plain` leads to a place: the next one that is made. The place
    decides whether the layer has a bias and whether its weight is normalized.

    Attributes:
        network: The network's name, for messages.
        places: How many places were made so far.
    """

    def __init__(
        self,
        network: str,
        norm: Norm,
        *,
        norm_layers: Collection[int] | None = None,
        conv_bias: bool | None = None,
        spare_biases: bool = False,
        dropout: float = 0.0,
        dropout_before: bool = False,
        activation: str = "relu",
    ) -> None:
        """Prepare the first layer.

        Args:
            network: The network's name.
            norm: What stands at the places.
            norm_layers: The places that get it; None: all.
            conv_bias: Whether convolutions have biases; None: all of them, but see `spare_biases`.
            spare_biases: Whether a convolution goes without the bias that the next normalization would take away.
            dropout: The share dropped after each normalization.
            dropout_before: Whether it is dropped before the normalization instead.
            activation: The activation function, by name.
        """
        self.network = network
        self.places = 0
        self._norm = norm
        self._norm_layers = None if norm_layers is None else frozenset(norm_layers)
        self._conv_bias = conv_bias
        self._spare_biases = spare_biases
        self._dropout = dropout
        self._dropout_before = dropout_before
        self._activation = activation
        self._layers: list[Layer] = []
        self._normalized: list[Layer] = []

    def conv(self, inputs: int, outputs: int, kernel: int, *, stride: int = 1, padding: int = 0) -> nn.Conv2d:
        """A convolution that leads to the next place."""
        bias = self._conv_bias
        if bias is None:
            bias = not (self._spare_biases and self._chosen() and not self._norm.bias)
        layer = nn.Conv2d(inputs, outputs, kernel, stride=stride, padding=padding, bias=bias)
        self._remember(layer)
        return layer

    def dense(self, inputs: int, outputs: int, *, bias: bool = True) -> nn.Linear:
        """A dense layer that leads to the next place."""
        layer = nn.Linear(inputs, outputs, bias=bias)
        self._remember(layer)
        return layer

    def plain(self, inputs: int, outputs: int, *, bias: bool = True) -> nn.Linear:
        """A dense layer that leads to no place, as the output does."""
        layer = nn.Linear(inputs, outputs, bias=bias)
        self._layers.append(layer)
        return layer

    def norm(self, width: int, space: int) -> nn.Module:
        """The normalization at the next place; the identity where there is none."""
        layer = self._norm_layer(width, space) if self._chosen() else nn.Identity()
        self.places += 1
        return layer

    def activation(self) -> nn.Module:
        """A module of the network's activation function."""
        return make_activation(self._activation)

    def hidden(self, layer: Layer, *, activation: bool = True) -> list[nn.Module]:
        """A layer with its activation, its normalization before or after that, and dropout beside the normalization."""
        drop = [nn.Dropout(self._dropout)] if self._dropout and self._chosen() else []
        norm = self.norm(*_width_and_space(layer))
        normalized: list[nn.Module] = [] if isinstance(norm, nn.Identity) else [norm]
        normalized = [*drop, *normalized] if self._dropout_before else [*normalized, *drop]
        activated = [self.activation()] if activation else []
        return [layer, *normalized, *activated] if self._norm.before_activation else [layer, *activated, *normalized]

    def finish(self, initialize: Callable[[Layer], None]) -> None:
        """Draw the weights in the order in which the layers were made, then put the chosen ones under weight norm.

        In this order, since weight norm takes its directions and lengths from the weights it finds.

        Raises:
            ValueError: If `norm_layers` names a place that the network does not have.
        """
        self._check_places()
        for layer in self._layers:
            initialize(layer)
        for layer in self._normalized:
            self._norm.weight(layer)

    def _chosen(self) -> bool:
        return self._norm_layers is None or self.places in self._norm_layers

    def _remember(self, layer: Layer) -> None:
        self._layers.append(layer)
        if self._chosen():
            self._normalized.append(layer)

    def _norm_layer(self, width: int, space: int) -> nn.Module:
        try:
            return self._norm.layer(width, space)
        except ValueError as error:
            raise ValueError(
                f"The norm {self._norm.name!r} makes no sense at place {self.places} of {self.network}; "
                f"take another norm, or other places by norm_layers. ({error})"
            ) from error

    def _check_places(self) -> None:
        missing = sorted((self._norm_layers or frozenset()) - frozenset(range(self.places)))
        if missing:
            raise ValueError(
                f"norm_layers has {', '.join(map(repr, missing))}, but the places of {self.network} "
                f"for a normalization are 0 to {self.places - 1}."
            )


def _width_and_space(layer: Layer) -> tuple[int, int]:
    if isinstance(layer, nn.Conv2d):
        return layer.out_channels, 2
    return layer.out_features, 0
