"""Functions that make variables and objects the same on all ranks."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import tensorflow as tf

from perseus.common import objects
from perseus.common.exceptions import HorovodInternalError
from perseus.common.process_sets import ProcessSet, global_process_set
from perseus.common.saved_arrays import saved_copies, saved_copy
from perseus.tensorflow.horovod.mpi_ops import assign_values_of_root, checked_variables
from perseus.tensorflow.horovod.op_arguments import short_name
from perseus.tensorflow.horovod.util import tensorflow_variable
from perseus_core import NotInitializedError

__all__ = [
    "BroadcastGlobalVariablesHook",
    "allgather_object",
    "assign",
    "broadcast_each",
    "broadcast_global_variables",
    "broadcast_object",
    "broadcast_object_fn",
    "broadcast_variables",
    "saved_values",
    "values_of",
]

#: A tensor, or an array.
SavedValue: TypeAlias = Any


def broadcast_variables(
    variables: Iterable[Any],
    root_rank: int,
    process_set: ProcessSet = global_process_set,
    inplace: bool = False,
) -> Any:
    """Assigns the root's values to variables.

    Args:
      variables: variables of TensorFlow or Keras. Their number, order, shapes and types must be the
        same on all ranks.
      root_rank: a rank of the world.
      inplace: not needed, because results are assigned without a copy; Horovod has the argument.

    Returns None in eager mode, otherwise the operation that does it. Raises ValueError if one is
    not a variable.
    """
    assigned = broadcast_each(variables, root_rank, process_set)
    return None if tf.executing_eagerly() else tf.group(*assigned)


def broadcast_each(
    variables: Iterable[Any], root_rank: int, process_set: ProcessSet = global_process_set
) -> list[Any]:
    """Does what broadcast_variables does; in a graph, returns an operation for each variable."""
    variables = checked_variables("broadcast_variables", variables)
    if not variables:
        return []
    names = tuple(f"{i}_{short_name(each)}" for i, each in enumerate(variables))
    _, assigned = assign_values_of_root(variables, names, root_rank, process_set)
    return [] if tf.executing_eagerly() else [tf.group(each) for each in assigned]


def broadcast_global_variables(root_rank: int) -> Any:
    """Returns the operation that gives all global variables of the graph the root's values.

    Raises RuntimeError in eager mode, which has no graph; then use broadcast_variables.
    """
    if tf.executing_eagerly():
        raise RuntimeError(
            "hvd.broadcast_global_variables() does not support eager execution. "
            "Please use `hvd.broadcast_variables(<model/optimizer variables>)` instead."
        )
    return broadcast_variables(tf.compat.v1.global_variables(), root_rank)


def values_of(variables: Sequence[Any], session: Any = None) -> list[npt.NDArray[Any]]:
    """Returns the values of variables, which may be in the variables' own memory and read-only.

    Args:
      session: has the variables of a v1 graph; None in eager mode.
    """
    held = [tensorflow_variable(each) for each in variables]
    if session is not None:
        values: list[npt.NDArray[Any]] = session.run(held)
        return values
    return [np.asarray(each.value()) for each in held]


def saved_values(
    variables: Sequence[Any], last: Sequence[SavedValue], session: Any = None
) -> list[SavedValue]:
    """Returns what `assign` brings the present values back with.

    A tensor never changes: TensorFlow gives a variable new memory when it is written to while a
    tensor has the old one. So what is in CPU memory is not copied. Copies of other values are in
    the memory of those that were saved last where that fits.
    """
    if session is not None:
        copies: Any = last
        return [*saved_copies(values_of(variables, session), copies)]
    # read_value does the same in three times as long.
    tensors = [tensorflow_variable(each).value() for each in variables]
    return [_saved(each, last[i] if i < len(last) else None) for i, each in enumerate(tensors)]


def _saved(tensor: tf.Tensor, last: SavedValue | None) -> SavedValue:
    if "device:CPU:" in tensor.backing_device:
        return tensor
    # Memory of a GPU is scarce.
    return saved_copy(np.asarray(tensor), last if isinstance(last, np.ndarray) else None)


def assign(variables: Sequence[Any], values: Sequence[SavedValue], session: Any = None) -> None:
    """Assigns values, which are copied if they are arrays; `session` is as for values_of."""
    for variable, saved in zip(variables, values, strict=True):
        # TensorFlow may take over the memory of an array that it is given.
        value = np.array(saved) if isinstance(saved, np.ndarray) else saved
        held = tensorflow_variable(variable)
        if session is None:
            held.assign(value)
        else:  # this adds nothing to the graph, which may be final
            session.run(held.initializer, {held.initializer.inputs[1]: value})


class BroadcastGlobalVariablesHook(tf.compat.v1.train.SessionRunHook):
    """Gives all ranks the root's global variables when a MonitoredSession has been created.

    The variables may come from initializers or from a checkpoint.

    Args:
      root_rank: a rank of the world.
      device: the device of the operations, as for tf.device.
    """

    def __init__(self, root_rank: int, device: str = "") -> None:
        super().__init__()
        self.root_rank = root_rank
        self.device = device
        self.bcast_op: Any = None

    def begin(self) -> None:
        graph = tf.compat.v1.get_default_graph()
        if self.bcast_op is None or self.bcast_op.graph is not graph:
            with tf.device(self.device):
                self.bcast_op = broadcast_global_variables(self.root_rank)

    def after_create_session(self, session: Any, coord: Any) -> None:
        session.run(self.bcast_op)


def broadcast_object(
    obj: Any,
    root_rank: int = 0,
    session: Any = None,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> Any:
    """Returns the root's object on every rank; on other ranks a copy made by cloudpickle.

    Args:
      root_rank: a rank of the world.
      session: not needed, because no graph is used; Horovod has the argument.
      name: what ranks match the call by; None for the order of their calls.
    """
    with _errors_of_tensorflow():
        return objects.broadcast_object(obj, root_rank, name, process_set)


def broadcast_object_fn(
    root_rank: int = 0,
    session: Any = None,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> Callable[[Any], Any]:
    """Returns broadcast_object as a function of the object alone."""
    return lambda obj: broadcast_object(obj, root_rank, session, name, process_set)


def allgather_object(
    obj: Any,
    session: Any = None,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> list[Any]:
    """Returns copies of the ranks' objects, made by cloudpickle, in the order of the ranks.

    The arguments are those of broadcast_object.
    """
    with _errors_of_tensorflow():
        return objects.allgather_object(obj, name, process_set)


@contextlib.contextmanager
def _errors_of_tensorflow() -> Iterator[None]:
    """Converts errors into those that operations of TensorFlow raise."""
    try:
        yield
    except NotInitializedError as error:
        raise tf.errors.FailedPreconditionError(None, None, str(error)) from error
    except HorovodInternalError as error:
        message = f"{HorovodInternalError.__name__}: {error}"
        raise tf.errors.UnknownError(None, None, message) from error
