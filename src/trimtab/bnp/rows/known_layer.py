"""A layer as it is: its parameters, its shape, and what speaks against preconditioning it."""

from typing import Any

import torch
from torch import Tensor, nn

from trimtab import _torch
from trimtab.bnp.algorithm.moments import compute_dtype
from trimtab.bnp.algorithm.step import Shape
from trimtab.bnp.layer_shapes import column_shapes, has_each_once, misfit
from trimtab.bnp.layers import LayerType
from trimtab.bnp.rows.layer_hooks import CallHooks

KnownShape = tuple[torch.Size, Any, Shape, list[tuple[int, ...]]]
"""The shape of a weight, the layer's `groups`, the shape of the view that belongs to them, and the shapes that the
layer's statistics may have then."""


class KnownLayer:
    """What is known of a layer, seen from outside.

    Attributes:
        name: The layer's name in the model.
        module: The layer.
        kind: What is known of its type.
        parameters: Its own parameters, by name, as they are now.
        hooks: The hooks on its calls.
    """

    hooks: CallHooks

    def __init__(self, name: str, module: nn.Module, kind: LayerType) -> None:
        """Know the layer."""
        self.name = name
        self.module = module
        self.kind = kind
        self._look_again()

    def _look_again(self) -> None:
        """Know nothing that has come out since."""
        self.parameters = _torch.parameters_of(self.module)
        self._shape: KnownShape | None = None
        # Why the layer is left alone, if that has come out when it ran, and what it was like then
        self._problem: str | None = None
        self._problem_is_for: tuple[Any, ...] = ()
        self._looked_at_values = False  # of what a registered function has returned

    @property
    def weight(self) -> nn.Parameter | None:
        """The layer's weight, if it is a parameter of its own (and not computed from others)."""
        weight = self.parameters.get("weight")
        return weight if isinstance(weight, nn.Parameter) else None

    @property
    def device(self) -> torch.device:
        """Where the layer is."""
        return torch.device("cpu") if (weight := self.weight) is None else weight.device

    @property
    def dtype(self) -> torch.dtype:
        """The type that is computed in."""
        return torch.float32 if (weight := self.weight) is None else compute_dtype(weight)

    @property
    def adds_bias(self) -> bool:
        """Whether the layer adds its bias, if it has one, where it multiplies its weight."""
        return self.hooks.own_forward is None or self.hooks.own_forward.adds_bias

    def trained_bias(self, parameters: set[int] | None) -> nn.Parameter | None:
        """The layer's bias, if it has one that is trained and among the parameters (None: all)."""
        bias = self.parameters.get("bias")
        if bias is None or not bias.requires_grad or not isinstance(bias, nn.Parameter):
            return None
        if self.hooks.own_forward is not None and not self.adds_bias:
            return None
        return bias if parameters is None or id(bias) in parameters else None

    @property
    def problem(self) -> str | None:
        """Why the layer is left alone, in a few words, if that has come out when it ran; until the layer changes."""
        own_forward = self.hooks.own_forward
        if own_forward is not None and own_forward.problem is not None:
            self._has(own_forward.problem)
            own_forward.problem = None
        if self._problem is not None and self._problem_is_for != self._likeness():
            self._problem = None
        return self._problem

    def _has(self, problem: str) -> None:
        """Leave the layer alone for this reason, as long as it is as it is now."""
        self._problem, self._problem_is_for = problem, self._likeness()

    def _likeness(self) -> tuple[Any, ...]:
        """What can be changed about a layer so that it has no problem any longer."""
        weight = self.weight
        about = () if weight is None else (weight.shape, weight.dtype, weight.device)
        return (*about, getattr(self.module, "groups", 1), *self.kind.implementations(self.module))

    def view(self, weight: Tensor) -> Tensor:
        """A tensor of the weight's shape as (groups, outputs, inputs, sites)."""
        return self.kind.view(self.module, weight)

    def shape(self, weight: Tensor) -> Shape | None:
        """The shape of the view that `view` gives; None, and a problem, if it gives none."""
        weight_shape, own_groups = weight.shape, self.module.__dict__.get("groups")
        if self._shape is None or self._shape[0] != weight_shape or self._shape[1] != own_groups:
            like = torch.empty(weight.shape, device="meta")
            try:
                view = self.view(like)
                groups, outputs, inputs, sites = view.shape
            except Exception:  # it may be a user's function
                view = None
            if view is None or not _torch.is_view_of(view, like) or not has_each_once(view, like):
                self._has(f"a weight of shape {tuple(weight.shape)} is not laid out as the view of its type says")
                return None
            shape = groups, outputs, inputs, sites
            self._shape = weight_shape, own_groups, shape, column_shapes(weight, shape)
        return self._shape[2]

    def _fits(self, rows: Any, weight: nn.Parameter) -> bool:
        """Whether rows can be those of the layer; else that is its problem."""
        shape = self.shape(weight)
        if shape is None:
            return False
        problem = misfit(rows, weight, shape)
        if problem is None and (weight.is_cpu or not self._looked_at_values):  # once, for which a GPU is waited for
            self._looked_at_values = True
            if not weight.is_meta and bool((rows.moments.variance < 0).any()):
                problem = "its rows have negative variances"
        if problem is not None:
            self._has(problem)
        return problem is None
