"""horovodrun's tunable flags: from a configuration file to attributes, and on to variables.

`args` is any object with horovodrun's flags as attributes, such as a HorovodArgs.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Mapping, MutableMapping
from dataclasses import dataclass
from typing import Any

__all__ = ["set_args_from_config", "set_env_from_args", "validate_config_args"]


def _as_is(value: Any) -> str:
    return str(value)


def _flag(value: Any) -> str:
    return "1" if value else "0"


def _opposite(value: Any) -> str:
    return "0" if value else "1"


def _bytes(mebibytes: Any) -> str:
    return str(mebibytes * 1024 * 1024)


@dataclass(frozen=True)
class _Tunable:
    section: str  # of the file
    key: str
    argument: str
    variable: str
    as_text: Callable[[Any], str] = _as_is
    only_with: str = ""  # an argument without which this one has no effect


_TUNABLES = (
    _Tunable("params", "fusion_threshold_mb", "fusion_threshold_mb", "HOROVOD_FUSION_THRESHOLD",
             _bytes),
    _Tunable("params", "cycle_time_ms", "cycle_time_ms", "HOROVOD_CYCLE_TIME"),
    _Tunable("params", "cache_capacity", "cache_capacity", "HOROVOD_CACHE_CAPACITY"),
    _Tunable("params", "hierarchical_allreduce", "hierarchical_allreduce",
             "HOROVOD_HIERARCHICAL_ALLREDUCE", _flag),
    _Tunable("params", "hierarchical_allgather", "hierarchical_allgather",
             "HOROVOD_HIERARCHICAL_ALLGATHER", _flag),
    _Tunable("params", "torus_allreduce", "torus_allreduce", "HOROVOD_TORUS_ALLREDUCE", _flag),
    _Tunable("autotune", "enabled", "autotune", "HOROVOD_AUTOTUNE", _flag, "autotune"),
    _Tunable("autotune", "log_file", "autotune_log_file", "HOROVOD_AUTOTUNE_LOG", _as_is,
             "autotune"),
    _Tunable("autotune", "warmup_samples", "autotune_warmup_samples",
             "HOROVOD_AUTOTUNE_WARMUP_SAMPLES", _as_is, "autotune"),
    _Tunable("autotune", "steps_per_sample", "autotune_steps_per_sample",
             "HOROVOD_AUTOTUNE_STEPS_PER_SAMPLE", _as_is, "autotune"),
    _Tunable("autotune", "bayes_opt_max_samples", "autotune_bayes_opt_max_samples",
             "HOROVOD_AUTOTUNE_BAYES_OPT_MAX_SAMPLES", _as_is, "autotune"),
    _Tunable("autotune", "gaussian_process_noise", "autotune_gaussian_process_noise",
             "HOROVOD_AUTOTUNE_GAUSSIAN_PROCESS_NOISE", _as_is, "autotune"),
    _Tunable("timeline", "filename", "timeline_filename", "HOROVOD_TIMELINE", _as_is,
             "timeline_filename"),
    _Tunable("timeline", "mark_cycles", "timeline_mark_cycles", "HOROVOD_TIMELINE_MARK_CYCLES",
             _flag, "timeline_filename"),
    _Tunable("stall_check", "warning_time_seconds", "stall_check_warning_time_seconds",
             "HOROVOD_STALL_CHECK_TIME_SECONDS"),
    _Tunable("stall_check", "shutdown_time_seconds", "stall_check_shutdown_time_seconds",
             "HOROVOD_STALL_SHUTDOWN_TIME_SECONDS"),
    _Tunable("library_options", "mpi_threads_disable", "mpi_threads_disable",
             "HOROVOD_MPI_THREADS_DISABLE", _flag),
    _Tunable("library_options", "num_nccl_streams", "num_nccl_streams",
             "HOROVOD_NUM_NCCL_STREAMS"),
    _Tunable("library_options", "thread_affinity", "thread_affinity", "HOROVOD_THREAD_AFFINITY"),
    _Tunable("library_options", "gloo_timeout_seconds", "gloo_timeout_seconds",
             "HOROVOD_GLOO_TIMEOUT_SECONDS"),
    _Tunable("logging", "level", "log_level", "HOROVOD_LOG_LEVEL"),
    _Tunable("logging", "with_timestamp", "log_with_timestamp", "HOROVOD_LOG_HIDE_TIME",
             _opposite),
)  # fmt: skip

_AT_LEAST_0 = (
    *("fusion_threshold_mb", "cycle_time_ms", "cache_capacity", "autotune_warmup_samples"),
    *("autotune_steps_per_sample", "autotune_bayes_opt_max_samples"),
    *("stall_check_warning_time_seconds", "stall_check_shutdown_time_seconds"),
    *("num_nccl_streams", "thread_affinity", "gloo_timeout_seconds"),
)


def set_args_from_config(
    args: Any, config: Mapping[str, Any], override_args: Container[str]
) -> None:
    """Sets the attributes that a configuration has values for, but for those in `override_args`.

    ValueError for a controller other than gloo and mpi.
    """
    controller = config.get("controller")
    if controller and not args.use_gloo and not args.use_mpi:
        if controller.lower() not in ("gloo", "mpi"):
            raise ValueError(f"controller is {controller}; it must be gloo or mpi")
        setattr(args, f"use_{controller.lower()}", True)
    for each in _TUNABLES:
        value = (config.get(each.section) or {}).get(each.key)
        if value is not None and each.argument not in override_args:
            setattr(args, each.argument, value)
    is_checked = (config.get("stall_check") or {}).get("enabled")
    if is_checked is not None and "no_stall_check" not in override_args:
        args.no_stall_check = not is_checked


def validate_config_args(args: Any) -> None:
    """Raises ValueError for a number that is out of range."""
    for name in _AT_LEAST_0:
        value = getattr(args, name)
        if value is not None and value < 0:
            raise ValueError(f"{name} is {value}; it must be at least 0")
    noise = args.autotune_gaussian_process_noise
    if noise is not None and not 0 <= noise <= 1:
        raise ValueError(f"autotune_gaussian_process_noise is {noise}; it must be from 0 to 1")


def set_env_from_args(env: MutableMapping[str, str], args: Any) -> MutableMapping[str, str]:
    """Sets Horovod's variables for the attributes that are not None; returns `env`."""
    for each in _TUNABLES:
        value = getattr(args, each.argument)
        if value is not None and (not each.only_with or getattr(args, each.only_with)):
            env[each.variable] = each.as_text(value)
    if args.no_stall_check is not None:
        env["HOROVOD_STALL_CHECK_DISABLE"] = _flag(args.no_stall_check)
    if args.tcp_flag:
        env["NCCL_IB_DISABLE"] = "1"
    return env
