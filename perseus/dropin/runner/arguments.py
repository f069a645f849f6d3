"""horovodrun's flags as the attributes of an object, which some programs fill in and launch."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

__all__ = ["HorovodArgs", "command_line"]

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
