"""The loss of a model on one batch as a function of its parameters."""

import copy
import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from trimtab import _torch
from trimtab.norms.statistics import Statistics
from trimtab.notice import warn_user
from trimtab.probes.isolation import IsolatedModel, Point
from trimtab.probes.result import CannotMeasure, LossFunction

T = TypeVar("T")


class Surface:
    """The loss of one batch as a function of the parameters; nothing of the model changes.

    Args:
        model: See `IsolatedModel`.
        loss_fn: Takes the model and the batch and returns a tensor of one number.
        batch: Whatever `loss_fn` takes.
        statistics: See `IsolatedModel`.

    Attributes:
        isolated: The model, isolated from what is computed.
        here: The point at which the model is: the values of its trained parameters.
    """

    def __init__(
        self, model: nn.Module, loss_fn: LossFunction, batch: Any, *, statistics: Statistics = "batch"
    ) -> None:
        self.isolated = IsolatedModel(model, statistics=statistics)
        self.here: Point = self.isolated.parameters
        self._loss_fn = loss_fn
        self._batch = batch
        self._graph_checked = False

    def on(self, batch: Any) -> "Surface":
        """The loss of another batch, with the same isolated model, so that one run can have both."""
        other = copy.copy(self)
        other._batch = batch
        return other

    def loss(self, point: Point | None = None) -> float:
        """The loss at a point (None: here).

        Raises:
            CannotMeasure: If it is not finite.
        """

        def work() -> Tensor:
            with torch.no_grad():
                return self.loss_in_graph()

        return _finite(self.isolated.run(work, point))

    def gradient(self, point: Point | None = None) -> tuple[float, dict[str, Tensor]]:
        """Loss and gradient at a point (None: here), by one forward and one backward.

        Raises:
            CannotMeasure: If one of them is not finite.
        """
        loss, gradient = self.inside(lambda loss, leaves: (loss.detach(), differentiate(loss, leaves)), point)
        return check_finite(loss, gradient), gradient

    def inside(self, work: Callable[[Tensor, dict[str, Tensor]], T], point: Point | None = None) -> T:
        """Call a function with the loss, in torch's graph, and the leaf tensors that it depends on."""
        leaves = self.isolated.leaves(point)
        return self.isolated.run(lambda: work(self.loss_in_graph(), leaves), leaves)

    def walk(
        self,
        direction: Point,
        distances: Iterable[float],
        look: Callable[[Tensor, dict[str, Tensor]], T],
        *,
        graph: bool = True,
    ) -> list[T]:
        """Call a function at several points on a line through `here`.

        It is `inside` at each of them, with one copy of the parameters for all, which is moved from point to point.

        Args:
            direction: Of the line, for all parameters.
            distances: From `here`, in lengths of the direction.
            look: Called with the loss, in torch's graph, and with the leaves that it depends on. It must not store
                them.
            graph: Whether the loss has its graph, so that it can be differentiated.
        """
        moving = MovingPoint(self.isolated)

        def work() -> list[T]:
            found = []
            for distance in distances:
                moving.move(self.here, direction, distance)
                with torch.set_grad_enabled(graph):
                    found.append(look(self.loss_in_graph(), moving.leaves))
            return found

        return self.isolated.run(work, moving.leaves)

    def moved(self, direction: Point, distance: float) -> dict[str, Tensor]:
        """The point at some distance from here along a direction; parameters that it does not name stay."""
        point = dict(zip(self.here, _torch.clone_all(list(self.here.values())), strict=True))
        moving = [name for name in point if name in direction]
        if moving:
            _torch.add_all_([point[name] for name in moving], [direction[name] for name in moving], alpha=distance)
        return point

    @property
    def still(self) -> IsolatedModel:
        """The former name of `isolated`."""
        warn_user("Surface.still is now Surface.isolated; the former name will go.", DeprecationWarning)
        return self.isolated

    def loss_in_graph(self) -> Tensor:
        """The loss with torch's graph, to be called within `isolated.run`.

        Raises:
            TypeError: If `loss_fn` does not return a tensor of one number.
            CannotMeasure: If the model uses reentrant checkpointing.
        """
        loss = self._loss_fn(self.isolated.model, copied_batch(self._batch))
        if not isinstance(loss, Tensor) or loss.numel() != 1 or not loss.is_floating_point():
            found = f"a tensor of shape {tuple(loss.shape)}" if isinstance(loss, Tensor) else type(loss).__name__
            raise TypeError(f"loss_fn must return a tensor of one number, not {found}.")
        if not self._graph_checked:
            self._graph_checked = True
            if _has_node(loss.grad_fn, "CheckpointFunctionBackward"):
                raise CannotMeasure(
                    "The model uses reentrant checkpointing, which hides what is in it; take use_reentrant=False."
                )
        return loss.reshape(())


class MovingPoint:
    """A copy of a model's parameters that goes from point to point, within one run of the isolated model.

    Attributes:
        leaves: The copy, by the names of the parameters; the run has to be with these.
    """

    def __init__(self, isolated: IsolatedModel) -> None:
        """Be where the model is."""
        self.leaves = isolated.leaves()
        self._isolated = isolated

    def move(self, to: Point, along: Point | None = None, distance: float = 0.0) -> None:
        """Be at a point, or at some distance from it along a direction; all else is as when the run began."""
        self._isolated.rewind()
        moving = list(self.leaves.values())
        with torch.no_grad():
            _torch.copy_all_(moving, [to[name] for name in self.leaves])
            if along is not None:
                _torch.add_all_(moving, [along[name] for name in self.leaves], alpha=distance)


def copied_batch(batch: Any) -> Any:
    """A copy, so that a loss function may remove something from the batch or change it in place."""
    try:
        return copy.deepcopy(batch)
    except Exception:  # what cannot be copied, for whatever reason of its own, is used as it is
        return batch


def differentiate(loss: Tensor, leaves: dict[str, Tensor], *, create_graph: bool = False) -> dict[str, Tensor]:
    """The gradient, with zeros for what the loss does not depend on.

    Raises:
        CannotMeasure: If it depends on nothing.
    """
    check_gradient(loss)
    gradients = _torch.gradients([loss], list(leaves.values()), create_graph=create_graph)
    return dict(zip(leaves, gradients, strict=True))


def check_gradient(loss: Tensor) -> None:
    """Refuse a loss that has no gradient.

    Raises:
        CannotMeasure: If it has none.
    """
    if not loss.requires_grad:
        raise CannotMeasure("The loss depends on no parameter that is trained, so that it has no gradient.")


def dense(gradient: Tensor) -> Tensor:
    """A gradient with all its zeros, which an embedding with sparse=True leaves out."""
    return gradient.to_dense() if gradient.is_sparse else gradient


def check_finite(loss: Tensor, gradient: Point) -> float:
    """The loss as a number.

    Raises:
        CannotMeasure: If it or something in the gradient is not finite.
    """
    return finite_loss(_finite(loss), ends_of(list(gradient.values())).tolist())


def finite_loss(loss: float, ends: Iterable[float]) -> float:
    """The loss, if it and the gradient are finite, whose `ends_of` these are.

    Raises:
        CannotMeasure: If one of them is not.
    """
    value = _finite(loss)
    if not all(map(math.isfinite, ends)):
        raise CannotMeasure("The gradient has entries that are not finite.")
    return value


def ends_of(tensors: Sequence[Tensor]) -> Tensor:
    """The smallest and the largest entry of each tensor or, on a GPU, the largest in size; NaN if there is one."""
    some = [tensor for tensor in tensors if tensor.numel()]
    if not some:
        return torch.zeros(0, device="cpu")
    if all(tensor.is_cpu for tensor in some):  # a twentieth of the time of the norm there
        ends: Sequence[Tensor] = [end for tensor in some for end in torch.aminmax(tensor)]
    else:
        ends = _torch.norms(some, math.inf)
    return torch.stack([end.to(some[0].device) for end in ends])


def _finite(loss: Tensor | float) -> float:
    value = float(loss)
    if not math.isfinite(value):
        raise CannotMeasure(f"The loss is {value}.")
    return value


def _has_node(root: Any, name: str) -> bool:
    """Whether the graph below has a function of that name."""
    seen: set[Any] = set()
    waiting = [root]
    while waiting:
        node = waiting.pop()
        if node is not None and node not in seen:
            if node.name() == name:
                return True
            seen.add(node)
            waiting.extend(function for function, _ in node.next_functions)
    return False
