"""Loads models from files, with distributed optimizers."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
import numpy.typing as npt

__all__ = ["load_model"]


def load_model(
    keras: Any,
    distribute: Callable[[Any], Any],
    filepath: Any,
    custom_optimizers: Iterable[type] | None,
    custom_objects: dict[str, Any] | None,
) -> Any:
    """Returns the model of keras.models.load_model, with the optimizer made by `distribute`.

    Args:
      keras: the package of the model.
      distribute: makes a distributed optimizer from the one in the file.
      custom_optimizers: classes whose names are in the file.
    """
    known = {each.__name__: each for each in custom_optimizers or ()}
    model = keras.models.load_model(filepath, custom_objects={**known, **(custom_objects or {})})
    optimizer = getattr(model, "optimizer", None)
    if optimizer is not None:
        if str(filepath).endswith((".h5", ".hdf5")) and _was_built_without_variables(optimizer):
            optimizer = _with_state_of(str(filepath), optimizer, model)
        model.optimizer = distribute(optimizer)
    return model


def _was_built_without_variables(optimizer: Any) -> bool:
    """Returns whether the optimizer was built for no variables, and without its state.

    Keras 3 builds the optimizer of an HDF5 file for the variables outside the model's layers only.
    """
    return hasattr(optimizer, "stateless_apply") and not optimizer._trainable_variables


def _with_state_of(file: str, optimizer: Any, model: Any) -> Any:
    optimizer = type(optimizer).from_config(optimizer.get_config())
    values = _optimizer_weights(file)
    if values and model.trainable_variables:
        optimizer.build(model.trainable_variables)
        if len(values) == len(optimizer.variables):
            for variable, value in zip(optimizer.variables, values, strict=True):
                variable.assign(value)
    return optimizer


def _optimizer_weights(file: str) -> list[npt.NDArray[Any]]:
    import h5py
    from keras.src.legacy.saving.legacy_h5_format import load_optimizer_weights_from_hdf5_group

    with h5py.File(file) as content:
        if "optimizer_weights" not in content:
            return []
        return [np.asarray(each) for each in load_optimizer_weights_from_hdf5_group(content)]
