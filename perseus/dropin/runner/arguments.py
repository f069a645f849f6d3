"""horovodrun's flags as the attributes of an object, which some programs fill in and launch."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from typing import Any

from perseus.dropin import HOROVOD_VERSION

__all__ = ["HorovodArgs", "command_line", "parse_args"]

#: The flags of horovodrun that have a value, by their attributes.
_WITH_VALUE = {
    "num_proc": "--num-proc",
    "min_num_proc": "--min-num-proc",
    "max_num_proc": "--max-num-proc",
    "slots": "--slots-per-host",
    "reset_limit": "--reset-limit",
    "hosts": "--hosts",
    "hostfile": "--hostfile",
    "host_discovery_script": "--host-discovery-script",
    "start_timeout": "--start-timeout",
    "elastic_timeout": "--elastic-timeout",
    "ssh_port": "--ssh-port",
    "ssh_identity_file": "--ssh-identity-file",
    "output_filename": "--output-filename",
    "config_file": "--config-file",
    "mpi_args": "--mpi-args",
    "binding_args": "--binding-args",
    "fusion_threshold_mb": "--fusion-threshold-mb",
    "cycle_time_ms": "--cycle-time-ms",
    "cache_capacity": "--cache-capacity",
    "autotune_log_file": "--autotune-log-file",
    "autotune_warmup_samples": "--autotune-warmup-samples",
    "autotune_steps_per_sample": "--autotune-steps-per-sample",
    "autotune_bayes_opt_max_samples": "--autotune-bayes-opt-max-samples",
    "autotune_gaussian_process_noise": "--autotune-gaussian-process-noise",
    "timeline_filename": "--timeline-filename",
    "stall_check_warning_time_seconds": "--stall-check-warning-time-seconds",
    "stall_check_shutdown_time_seconds": "--stall-check-shutdown-time-seconds",
    "num_nccl_streams": "--num-nccl-streams",
    "thread_affinity": "--thread-affinity",
    "gloo_timeout_seconds": "--gloo-timeout-seconds",
    "log_level": "--log-level",
}

#: Those that have none.
_SWITCHES = {
    "disable_cache": "--disable-cache",
    "verbose": "--verbose",
    "use_gloo": "--gloo",
    "use_mpi": "--mpi",
    "use_jsrun": "--jsrun",
    "tcp_flag": "--tcp",
    "hierarchical_allreduce": "--hierarchical-allreduce",
    "hierarchical_allgather": "--hierarchical-allgather",
    "torus_allreduce": "--torus-allreduce",
    "autotune": "--autotune",
    "timeline_mark_cycles": "--timeline-mark-cycles",
    "no_stall_check": "--no-stall-check",
    "mpi_threads_disable": "--mpi-threads-disable",
    "log_with_timestamp": "--log-with-timestamp",
    "prefix_output_with_timestamp": "--prefix-output-with-timestamp",
}

#: Other spellings, also those that switch off.
_ALIASES = {
    "num_proc": "-np",
    "min_num_proc": "--min-np",
    "max_num_proc": "--max-np",
    "hosts": "-H",
    "hostfile": "-hostfile",
    "ssh_port": "-p",
    "ssh_identity_file": "-i",
    "prefix_output_with_timestamp": "-prefix-timestamp",
}
_OFF = {
    "hierarchical_allreduce": "--no-hierarchical-allreduce",
    "hierarchical_allgather": "--no-hierarchical-allgather",
    "torus_allreduce": "--no-torus-allreduce",
    "autotune": "--no-autotune",
    "timeline_mark_cycles": "--no-timeline-mark-cycles",
    "no_stall_check": "--stall-check",
    "mpi_threads_disable": "--no-mpi-threads-disable",
    "log_with_timestamp": "--log-without-timestamp",
}
#: The values that are no whole numbers.
_REAL = ("cycle_time_ms", "autotune_gaussian_process_noise")
_TEXTS = (
    *("hosts", "hostfile", "host_discovery_script", "ssh_identity_file", "output_filename"),
    *("config_file", "mpi_args", "binding_args", "autotune_log_file", "timeline_filename"),
    *("log_level",),
)


class HorovodArgs:
    """The arguments of one launch: None or False for flags that are not given.

    `run_func`, a function without arguments, runs on the ranks in place of `command`, in the Python
    `executable`.
    """

    def __init__(self) -> None:
        self.command: list[str] | None = None
        self.run_func: Callable[[], Any] | None = None
        self.executable: str | None = None
        self.nics: Any = None
        self.cooldown_range: tuple[int, int] | None = None
        for name in _WITH_VALUE:
            setattr(self, name, None)
        for name in _SWITCHES:
            setattr(self, name, None)
        self.num_proc = 1


def command_line(args: Any) -> list[str]:
    """Returns horovodrun's arguments, without the command. `args` may be any object with the
    attributes of HorovodArgs; those that it lacks are not given."""
    given: list[str] = []
    for name, flag in _WITH_VALUE.items():
        if (value := getattr(args, name, None)) is not None:
            given.append(f"{flag}={value}")
    for name, flag in _SWITCHES.items():
        if getattr(args, name, None):
            given.append(flag)
    if nics := getattr(args, "nics", None):
        names = nics if isinstance(nics, str) else ",".join(sorted(nics))
        given.append(f"--network-interfaces={names}")
    if cooldown := getattr(args, "cooldown_range", None):
        given += ["--blacklist-cooldown-range", *map(str, cooldown)]
    return given


def parse_args() -> HorovodArgs:
    """Reads this program's arguments as those of horovodrun; ends it if they are none.

    A configuration file's values are not among the attributes; it is read when the job starts.
    """
    parser = argparse.ArgumentParser(prog="horovodrun", allow_abbrev=False)
    parser.add_argument("-v", "--version", action="version", version=HOROVOD_VERSION)
    for name, flag in _WITH_VALUE.items():
        kind = str if name in _TEXTS else float if name in _REAL else int
        parser.add_argument(*_spellings(name, flag), dest=name, type=kind)
    for name, flag in _SWITCHES.items():
        # None, and not False: only what is given overrides the variables of the environment.
        parser.add_argument(*_spellings(name, flag), dest=name, action="store_true", default=None)
        if name in _OFF:
            parser.add_argument(_OFF[name], dest=name, action="store_false", default=None)
    parser.add_argument("--network-interfaces", "--network-interface", dest="nics")
    parser.add_argument("--blacklist-cooldown-range", dest="cooldown_range", type=int, nargs=2)
    parser.add_argument("command", nargs=argparse.REMAINDER)
    args = HorovodArgs()
    args.__dict__.update(vars(parser.parse_args(sys.argv[1:])))
    return args


def _spellings(name: str, flag: str) -> list[str]:
    return [_ALIASES[name], flag] if name in _ALIASES else [flag]
