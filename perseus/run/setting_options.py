"""The flags of horovodrun: those that are settings of Perseus, and those without effect."""

from __future__ import annotations

import argparse
from dataclasses import dataclass

from perseus.run.flag_values import Check, number, one_of, some_text, whole_number

DEST = "settings"


@dataclass(frozen=True)
class SettingOption:
    """A flag that sets an environment variable of the ranks."""

    flags: tuple[str, ...]
    setting: str
    help: str
    # The value that the flag sets; None if the flag takes a value.
    value: str | None = None
    metavar: str = "N"
    # Refuses a wrong value before ranks start.
    check: Check = some_text
    # Horovod's name for the setting, if its flag takes numbers that ours does not. The engine moves
    # those into its range.
    alias: str | None = None
    repeats: bool = False  # whether values of several flags are joined by commas


SETTING_OPTIONS = (
    SettingOption(
        ("--network-interfaces", "--network-interface"),
        "PERSEUS_INTERFACES",
        "interfaces the ranks talk over, separated by commas",
        metavar="NAMES",
        repeats=True,
    ),
    SettingOption(
        ("--fusion-threshold-mb",),
        "PERSEUS_ALLREDUCE_FUSION",
        "merging granularity in MiB",
        check=number(0, 4096),
    ),
    SettingOption(
        ("--cache-capacity",),
        "PERSEUS_CACHE_CAPACITY",
        "number of names that ranks agree on with one bit each",
        check=whole_number(),
        alias="HOROVOD_CACHE_CAPACITY",
    ),
    SettingOption(
        ("--num-nccl-streams", "--streams"),
        "PERSEUS_ALLREDUCE_STREAMS",
        "number of streams",
        check=whole_number(1, 64),
    ),
    SettingOption(
        ("--hierarchical-allreduce", "--torus-allreduce"),
        "PERSEUS_ALLREDUCE_MODE",
        "allreduce inside the hosts first, then between them",
        "hierarchical",
    ),
    SettingOption(
        ("--no-hierarchical-allreduce",),
        "PERSEUS_ALLREDUCE_MODE",
        "all ranks in one allreduce",
        "flat",
    ),
    SettingOption(
        ("--autotune",),
        "PERSEUS_ALLREDUCE_DISABLE_STREAM_TUNING",
        "find the best streams and granularities in the first steps, as is done by default",
        "0",
    ),
    SettingOption(
        ("--no-autotune",),
        "PERSEUS_ALLREDUCE_DISABLE_STREAM_TUNING",
        "do not tune",
        "1",
    ),
    SettingOption(
        ("--autotune-log-file",),
        "PERSEUS_TUNING_LOG",
        "CSV file for what the tuner tries",
        metavar="FILE",
    ),
    SettingOption(
        ("--autotune-warmup-samples",),
        "PERSEUS_TUNING_WARM_UP",
        "training steps before the tuner's first trial",
        check=whole_number(),
        alias="HOROVOD_AUTOTUNE_WARMUP_SAMPLES",
    ),
    SettingOption(
        ("--autotune-steps-per-sample",),
        "PERSEUS_TUNING_STEPS",
        "training steps in each trial",
        check=whole_number(),
        alias="HOROVOD_AUTOTUNE_STEPS_PER_SAMPLE",
    ),
    SettingOption(
        ("--autotune-bayes-opt-max-samples",),
        "PERSEUS_TUNING_TRIALS",
        "the most values that the tuner tries",
        check=whole_number(),
        alias="HOROVOD_AUTOTUNE_BAYES_OPT_MAX_SAMPLES",
    ),
    SettingOption(
        ("--timeline-filename",),
        "PERSEUS_TIMELINE",
        "write a Chrome-trace timeline",
        metavar="FILE",
    ),
    SettingOption(
        ("--timeline-mark-cycles",),
        "PERSEUS_TIMELINE_MARK_CYCLES",
        "mark each agreement in it",
        "1",
    ),
    SettingOption(
        ("--no-timeline-mark-cycles",), "PERSEUS_TIMELINE_MARK_CYCLES", "do not mark them", "0"
    ),
    SettingOption(("--no-stall-check",), "PERSEUS_STALL_CHECK_DISABLE", "no stall reports", "1"),
    SettingOption(("--stall-check",), "PERSEUS_STALL_CHECK_DISABLE", "stall reports", "0"),
    SettingOption(
        ("--stall-check-warning-time-seconds",),
        "PERSEUS_STALL_CHECK_TIME_SECONDS",
        "seconds until a tensor that waits for other ranks is reported",
        check=whole_number(),
        alias="HOROVOD_STALL_CHECK_TIME_SECONDS",
    ),
    SettingOption(
        ("--stall-check-shutdown-time-seconds",),
        "PERSEUS_STALL_SHUTDOWN_TIME_SECONDS",
        "seconds until a stalled tensor ends the job, or with --min-np has the ranks given up that "
        "take no part; 600 with --min-np",
        check=whole_number(0, 86400),
    ),
    SettingOption(
        ("--gloo-timeout-seconds",),
        "PERSEUS_START_TIMEOUT",
        "the same as --start-timeout, which counts if both are given",
        check=whole_number(),
        alias="HOROVOD_GLOO_TIMEOUT_SECONDS",
    ),
    SettingOption(
        ("--thread-affinity",),
        "PERSEUS_THREAD_AFFINITY",
        "processor for each local rank's engine's thread, separated by commas, or auto or none",
        metavar="LIST",
    ),
    SettingOption(
        ("--log-level",),
        "PERSEUS_LOG_LEVEL",
        "least severe message shown",
        metavar="LEVEL",
        check=one_of("trace", "debug", "info", "warning", "error", "fatal"),
    ),
    SettingOption(
        ("--log-with-timestamp", "--no-log-hide-timestamp"),
        "PERSEUS_LOG_HIDE_TIME",
        "log lines carry the time",
        "0",
    ),
    SettingOption(
        ("--log-without-timestamp", "--log-hide-timestamp"),
        "PERSEUS_LOG_HIDE_TIME",
        "log lines carry no time",
        "1",
    ),
)

#: Reasons why a flag, or an argument of `run`, changes nothing.
NO_CACHE = "nothing that is found out about hosts is kept between jobs"
NOT_FOR_MPIRUN = "it is for mpirun, which starts no ranks here"
_NO_CYCLE = "agreement is driven by events; there is no cycle to time"
_ALLGATHER = "allgather chooses its algorithm by itself"
_ONE_THREAD = "only the engine's one thread calls MPI"
_NO_NOISE = "the tuner compares times as they are; it models no noise"

# Each flag, the check of its value (None if it takes none), and the reason why it changes nothing.
WITHOUT_MEANING = (
    ("--cycle-time-ms", number(), _NO_CYCLE),
    ("--hierarchical-allgather", None, _ALLGATHER),
    ("--no-hierarchical-allgather", None, _ALLGATHER),
    ("--no-torus-allreduce", None, "there is no torus allreduce to turn off"),
    ("--autotune-gaussian-process-noise", number(0, 1), _NO_NOISE),
    ("--disable-cache", None, NO_CACHE),
    ("--mpi-threads-disable", None, _ONE_THREAD),
    ("--no-mpi-threads-disable", None, _ONE_THREAD),
)

# Each flag, how many values it takes, and the reason why the job cannot run as asked.
UNSUPPORTED = (("--jsrun", 0, "ranks are not started with jsrun; use -H, or --mpi with an mpirun"),)


class _Set(argparse.Action):
    """Collects an environment variable. The last flag that names it wins."""

    def __init__(self, *, option: SettingOption, **rest: object):
        super().__init__(nargs=None if option.value is None else 0, **rest)  # type: ignore[arg-type]
        self._option = option

    def __call__(
        self,
        parser: argparse.ArgumentParser,
        namespace: argparse.Namespace,
        values: object,
        option_string: str | None = None,
    ) -> None:
        option = self._option
        before = getattr(namespace, DEST)
        value = str(values) if option.value is None else option.value
        if option.repeats and option.setting in before:
            value = f"{before[option.setting]},{value}"
        # An empty number counts as unset, so that the alias has an effect.
        chosen = (
            {option.setting: "", option.alias: value} if option.alias else {option.setting: value}
        )
        setattr(namespace, DEST, {**before, **chosen})


class _Explain(argparse.Action):
    """Explains why a flag changes nothing, or is not supported."""

    def __init__(self, *, why: str, fatal: bool, **rest: object):
        super().__init__(**rest)  # type: ignore[arg-type]
        self._why = why
        self._fatal = fatal

    def __call__(
        self,
        parser: argparse.ArgumentParser,
        namespace: argparse.Namespace,
        values: object,
        option_string: str | None = None,
    ) -> None:
        if self._fatal:
            parser.error(f"{option_string}: {self._why}")
        note = f"{option_string} changes nothing: {self._why}"
        namespace.notes = [*namespace.notes, note]  # never changes the default list


def add_setting_options(parser: argparse.ArgumentParser, level: str = "effective") -> None:
    """Adds the flags. Only at the level "all", those without effect have a help text, too."""
    if level == "common":
        group: argparse._ActionsContainer = parser
    else:
        group = parser.add_argument_group("settings", "each sets the environment variable it names")
    for option in SETTING_OPTIONS:
        group.add_argument(
            *option.flags,
            action=_Set,
            dest=DEST,
            default={},
            option=option,
            metavar=option.metavar if option.value is None else None,
            type=option.check,
            help=argparse.SUPPRESS if level == "common" else f"{option.help} ({option.setting})",
        )
    group = parser.add_argument_group("flags of horovodrun that change nothing")
    for flag, check, why in WITHOUT_MEANING:
        group.add_argument(
            flag,
            action=_Explain,
            nargs=0 if check is None else 1,
            type=check or str,
            why=why,
            fatal=False,
            metavar=None if check is None else "N",
            help=why if level == "all" else argparse.SUPPRESS,
        )
    group = parser.add_argument_group("flags of horovodrun that are refused")
    for flag, count, why in UNSUPPORTED:
        group.add_argument(
            flag,
            action=_Explain,
            nargs=count,
            why=why,
            fatal=True,
            metavar="VALUE" if count else None,
            help=why if level == "all" else argparse.SUPPRESS,
        )
