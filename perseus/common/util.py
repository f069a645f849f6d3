"""Functions that users of Horovod import: what is built in, versions, lists, the environment."""

from __future__ import annotations

import functools
import importlib.metadata
import importlib.util
import itertools
import os
import re
import sysconfig
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, TypeVar

from perseus.common.exceptions import (
    HorovodVersionMismatchError,
    get_version_mismatch_message,
)
from perseus.common.process import basics as _basics
from perseus_core.observe import extension_path

T = TypeVar("T")

# From the name of each adapter to the package that it needs.
_FRAMEWORKS = {"mxnet": "mxnet", "tensorflow": "tensorflow", "torch": "torch"}


def get_ext_suffix() -> str:
    """Returns the suffix of the file names of extension modules."""
    return str(sysconfig.get_config_var("EXT_SUFFIX"))


def get_extension_full_path(pkg_path: str, *args: str) -> str:
    """Returns the file of the engine's extension module, the same for every framework."""
    return extension_path()


def check_extension(ext_name: str, ext_env_var: str, pkg_path: str, *args: str) -> None:
    """Raises ImportError unless the adapter can be used. `ext_name` is such as "horovod.torch"."""
    name = ext_name.rpartition(".")[2]
    if not extension_available(name):
        raise ImportError(
            f"{ext_name} cannot be used: Perseus has no adapter for {name}"
            if name not in _FRAMEWORKS
            else f"{ext_name} cannot be used: {_FRAMEWORKS[name]} is not installed"
        )


def check_installed_version(
    name: str, version: str, exception: BaseException | None = None
) -> None:
    """Raises HorovodVersionMismatchError if another version of the framework is installed."""
    installed = importlib.metadata.version(name)
    if installed != version:
        raise HorovodVersionMismatchError(name, version, installed) from exception


@functools.cache
def extension_available(ext_base_name: str, verbose: bool = False) -> bool:
    """Returns whether there is an adapter for a framework such as "torch", and the framework."""
    needed = _FRAMEWORKS.get(ext_base_name)
    found = needed is not None and importlib.util.find_spec(needed) is not None
    if verbose:
        print(f"{ext_base_name}: {'available' if found else 'not available'}")
    return found


@functools.cache
def _torch_has_gpu() -> bool:
    # This asks the driver's management library. CUDA is not initialized, so the process may fork.
    with env(PYTORCH_NVML_BASED_CUDA_CHECK="1"):
        import torch

        return bool(torch.cuda.is_available())


def _tensorflow_has_gpu() -> bool:
    import tensorflow as tf

    return bool(tf.config.list_physical_devices("GPU"))


def _mxnet_has_gpu() -> bool:
    import mxnet as mx

    return bool(mx.context.num_gpus())


_HAS_GPU: dict[str, Callable[[], bool]] = {
    "mxnet": _mxnet_has_gpu,
    "tensorflow": _tensorflow_has_gpu,
    "torch": _torch_has_gpu,
}


def gpu_available(ext_base_name: str, verbose: bool = False) -> bool:
    """Returns whether the framework sees a GPU."""
    if ext_base_name not in _FRAMEWORKS or not extension_available(ext_base_name):
        return False
    found = _HAS_GPU[ext_base_name]()
    if verbose:
        print(f"{ext_base_name} sees {'a' if found else 'no'} GPU")
    return found


def mpi_built(verbose: bool = False) -> bool:
    return _basics.mpi_built()


def gloo_built(verbose: bool = False) -> bool:
    return _basics.gloo_built()


def nccl_built(verbose: bool = False) -> bool:
    return bool(_basics.nccl_built())


def ddl_built(verbose: bool = False) -> bool:
    return _basics.ddl_built()


def ccl_built(verbose: bool = False) -> bool:
    return _basics.ccl_built()


@contextmanager
def env(**kwargs: str | None) -> Iterator[None]:
    """Sets environment variables, or with None removes them, and restores them at the end."""
    before = {name: os.environ.get(name) for name in kwargs}
    try:
        _set_environment(kwargs)
        yield
    finally:
        _set_environment(before)


def _set_environment(values: dict[str, str | None]) -> None:
    for name, value in values.items():
        if value is None:
            os.environ.pop(name, None)
        else:
            os.environ[name] = value


def split_list(l: Sequence[T], n: int) -> list[Sequence[T]]:  # noqa: E741 (Horovod's name)
    """Splits a list into `n` parts of nearly equal length; the first ones may have one more."""
    least, longer = divmod(len(l), n)
    ends = [least * i + min(i, longer) for i in range(n + 1)]
    return [l[begin:end] for begin, end in itertools.pairwise(ends)]


def num_rank_is_power_2(num_rank: int) -> bool:
    return num_rank > 0 and num_rank & (num_rank - 1) == 0


def is_iterable(x: Any) -> bool:
    return isinstance(x, Iterable)


def _cache(f: Callable[..., T]) -> Callable[..., T]:
    """Returns the function with a memory of its results, by its arguments."""
    return functools.cache(f)


def is_version_greater_equal_than(ver: str, target: str) -> bool:
    """Compares versions of the form 1.2.3, ignoring what follows the three numbers.

    Raises ValueError for another form.
    """
    return _three_numbers(ver) >= _three_numbers(target)


def _three_numbers(version: str) -> tuple[int, ...]:
    found = re.match(r"(\d+)\.(\d+)\.(\d+)", version) if isinstance(version, str) else None
    if found is None:
        raise ValueError(f"{version!r} is not a version of the form x.y.z")
    return tuple(map(int, found.groups()))


def get_average_backwards_compatibility_fun(reduce_ops: Any) -> Callable[[Any, Any], Any]:
    """Returns a function that selects a reduction by a call's `op` or its deprecated `average`."""

    def resolve(op: Any, average: Any) -> Any:
        if op is not None:
            if average is not None:
                raise ValueError("The op parameter supersedes average; give only one of them.")
            return op
        return reduce_ops.Average if average is None or average else reduce_ops.Sum

    return resolve


__all__ = [
    "ccl_built",
    "check_extension",
    "check_installed_version",
    "ddl_built",
    "env",
    "extension_available",
    "get_average_backwards_compatibility_fun",
    "get_ext_suffix",
    "get_extension_full_path",
    "get_version_mismatch_message",
    "gloo_built",
    "gpu_available",
    "is_iterable",
    "is_version_greater_equal_than",
    "mpi_built",
    "nccl_built",
    "num_rank_is_power_2",
    "split_list",
]
