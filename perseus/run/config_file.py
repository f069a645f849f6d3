"""`--config-file`, settings in a YAML file under the names that horovodrun gives them."""

from __future__ import annotations

import errno
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

# From section and name in the file to the flag. A switch has two flags, the second one for false.
_FLAGS: dict[tuple[str, str], tuple[str, ...]] = {
    ("params", "fusion_threshold_mb"): ("--fusion-threshold-mb",),
    ("params", "cycle_time_ms"): ("--cycle-time-ms",),
    ("params", "cache_capacity"): ("--cache-capacity",),
    ("params", "hierarchical_allreduce"): (
        "--hierarchical-allreduce",
        "--no-hierarchical-allreduce",
    ),
    ("params", "hierarchical_allgather"): (
        "--hierarchical-allgather",
        "--no-hierarchical-allgather",
    ),
    ("params", "torus_allreduce"): ("--torus-allreduce", "--no-torus-allreduce"),
    ("autotune", "enabled"): ("--autotune", "--no-autotune"),
    ("autotune", "log_file"): ("--autotune-log-file",),
    ("autotune", "warmup_samples"): ("--autotune-warmup-samples",),
    ("autotune", "steps_per_sample"): ("--autotune-steps-per-sample",),
    ("autotune", "bayes_opt_max_samples"): ("--autotune-bayes-opt-max-samples",),
    ("autotune", "gaussian_process_noise"): ("--autotune-gaussian-process-noise",),
    ("timeline", "filename"): ("--timeline-filename",),
    ("timeline", "mark_cycles"): ("--timeline-mark-cycles", "--no-timeline-mark-cycles"),
    ("stall_check", "enabled"): ("--stall-check", "--no-stall-check"),
    ("stall_check", "warning_time_seconds"): ("--stall-check-warning-time-seconds",),
    ("stall_check", "shutdown_time_seconds"): ("--stall-check-shutdown-time-seconds",),
    ("library_options", "mpi_threads_disable"): (
        "--mpi-threads-disable",
        "--no-mpi-threads-disable",
    ),
    ("library_options", "num_nccl_streams"): ("--num-nccl-streams",),
    ("library_options", "thread_affinity"): ("--thread-affinity",),
    ("library_options", "gloo_timeout_seconds"): ("--gloo-timeout-seconds",),
    ("logging", "level"): ("--log-level",),
    ("logging", "with_timestamp"): ("--log-with-timestamp", "--log-without-timestamp"),
}
_SECTIONS = {section for section, _ in _FLAGS}


@dataclass
class Config:
    arguments: list[str] = field(default_factory=list)  # flags of perseusrun with the same meaning
    mpi: bool = False
    notes: list[str] = field(default_factory=list)


def read_config(path: str) -> Config:
    """Reads a file; raises ValueError if it cannot be read, or horovodrun would not accept it."""
    content = _load(path)
    config = Config()
    _require_mapping(path, "the file", content)
    for section, values in content.items():
        if section == "controller":
            config.mpi = _is_mpi(path, values)
        elif section not in _SECTIONS:
            config.notes.append(f"{path}: {section} changes nothing: there is no such section")
        elif values is not None:
            _require_mapping(path, section, values)
            config.notes += [
                f"{path}: {section}.{name} changes nothing: there is no such setting"
                for name in values
                if (section, name) not in _FLAGS
            ]
    for (section, name), flags in _FLAGS.items():
        value = (content.get(section) or {}).get(name)
        if value is not None:
            config.arguments += _arguments(f"{path}: {section}.{name}", flags, value)
    return config


def _load(path: str) -> Any:
    if not os.path.exists(path):
        raise ValueError(f"cannot read config file '{path}': {os.strerror(errno.ENOENT)}")
    try:
        import yaml
    except ModuleNotFoundError:
        raise ValueError(
            "--config-file: the file is in YAML, and PyYAML is not installed: pip install pyyaml; "
            "or give each setting as a flag"
        ) from None
    try:
        with open(path) as file:
            return yaml.safe_load(file) or {}
    except OSError as error:
        raise ValueError(f"cannot read config file '{path}': {error.strerror}") from None
    except UnicodeDecodeError:
        raise ValueError(f"config file {path} is not a text file in YAML") from None
    except yaml.YAMLError as error:
        raise ValueError(f"config file {path} is not YAML: {error}") from None
    except RecursionError:
        raise ValueError(f"config file {path} is nested too deeply") from None


def _require_mapping(path: str, what: str, value: Any) -> None:
    if not isinstance(value, Mapping):
        raise ValueError(f"{path}: {what} holds {value!r}, not settings by name")


def _is_mpi(path: str, controller: Any) -> bool:
    if str(controller).lower() not in ("gloo", "mpi"):
        raise ValueError(f"{path}: controller is {controller!r}; it takes gloo or mpi")
    return str(controller).lower() == "mpi"


def _arguments(where: str, flags: tuple[str, ...], value: Any) -> list[str]:
    if len(flags) == 2:
        if not isinstance(value, bool):
            raise ValueError(f"{where} is {value!r}; it takes true or false")
        return [flags[0] if value else flags[1]]
    if isinstance(value, (bool, list, dict)):
        raise ValueError(f"{where} is {value!r}; it takes one value")
    return [f"{flags[0]}={value}"]
