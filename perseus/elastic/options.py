"""What the user asks of an elastic job, checked."""

from __future__ import annotations

import argparse
import os
import shlex
import shutil
import signal
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, overload

from perseus.elastic.cooldown import check_cooldown_range
from perseus.elastic.discovery import HostSource
from perseus.elastic.slurm import SlurmSource
from perseus.elastic.sources import FixedSource, HostsFileSource, ScriptSource
from perseus.run.elastic_flags import DEST
from perseus.run.hosts import Host, assign, hosts_of

__all__ = [
    "ARGUMENTS",
    "FLAGS",
    "TIMEOUT_VARIABLE",
    "ElasticOptions",
    "check",
    "default_blacklist_by",
    "elastic_options",
    "elastic_timeout",
    "host_source",
    "notes_about_elastic",
]

#: Seconds to wait for enough slots.
DEFAULT_TIMEOUT = 600
TIMEOUT_VARIABLE = "HOROVOD_ELASTIC_TIMEOUT"

#: Names for errors: the flags of perseusrun, and the arguments of perseus.run.run.
FLAGS = {
    "size": "-np",
    "least": "--min-np",
    "most": "--max-np",
    "script": "--host-discovery-script",
    "watched_hostfile": "--watch-hostfile",
    "slots_per_host": "--slots-per-host",
    "timeout": "--elastic-timeout",
    "reset_limit": "--reset-limit",
    "cooldown_range": "--blacklist-cooldown-range",
    "hosts": "-H",
    "hostfile": "--hostfile",
    "mpi": "--mpi",
}
ARGUMENTS = {
    "size": "num_proc",
    "least": "min_num_proc",
    "most": "max_num_proc",
    "script": "host_discovery_script",
    "watched_hostfile": "watched_hostfile",
    "slots_per_host": "slots",
    "timeout": "elastic_timeout",
    "reset_limit": "reset_limit",
    "cooldown_range": "cooldown_range",
    "hosts": "hosts",
    "hostfile": "hostfile",
    "mpi": "use_mpi",
}

BlacklistBy = Literal["host", "slot"]
Join = Literal["background", "at_once"]


@dataclass(frozen=True)
class ElasticOptions:
    least: int  # the job waits while there are fewer slots
    most: int | None = None  # None: as many ranks as there are slots
    script: str | None = None
    watched_hostfile: str | None = None
    slots_per_host: int | None = None
    timeout: int = DEFAULT_TIMEOUT  # seconds to wait for `least` slots
    reset_limit: int | None = None  # None: none
    cooldown_range: tuple[int, int] | None = None  # None: what has failed is left out for ever
    blacklist_by: BlacklistBy = "host"
    join: Join = "background"
    drain_signal: signal.Signals | None = None  # upon which perseusrun drains the whole job


@overload
def elastic_options(
    parsed: argparse.Namespace,
    environment: Mapping[str, str] = os.environ,
    *,
    always: Literal[True],
) -> ElasticOptions: ...


@overload
def elastic_options(
    parsed: argparse.Namespace, environment: Mapping[str, str] = os.environ, *, always: bool = False
) -> ElasticOptions | None: ...


def elastic_options(
    parsed: argparse.Namespace, environment: Mapping[str, str] = os.environ, *, always: bool = False
) -> ElasticOptions | None:
    """Returns what perseusrun's arguments ask for, or None for a job that is not elastic.

    A job is elastic if a discovery script, a hosts file to watch, --min-np or --max-np is given, or
    `always`.

    Raises ValueError for what does not go together.
    """
    if not always and not _is_elastic(parsed):
        return None
    least = parsed.least or parsed.num_proc
    if least is None:
        raise ValueError("say how many ranks to start: -np N")
    sources = (parsed.discovery_script, parsed.watched_hostfile)
    options = ElasticOptions(
        least=least,
        most=parsed.most,
        script=parsed.discovery_script,
        watched_hostfile=parsed.watched_hostfile,
        slots_per_host=parsed.slots_per_host,
        timeout=elastic_timeout(parsed.elastic_timeout, environment),
        reset_limit=parsed.reset_limit,
        cooldown_range=tuple(parsed.cooldown_range) if parsed.cooldown_range else None,
        blacklist_by=parsed.blacklist_by or default_blacklist_by(parsed.most, sources),
        join="at_once" if parsed.join == "at-once" else "background",
        drain_signal=signal.Signals[parsed.drain_signal] if parsed.drain_signal else None,
    )
    check(
        options,
        size=parsed.num_proc,
        names_hosts="hosts" if parsed.hosts else "hostfile" if parsed.hostfile else None,
        mpi=parsed.mpi,
        names=FLAGS,
    )
    return options


def _is_elastic(parsed: argparse.Namespace) -> bool:
    asked = (parsed.discovery_script, parsed.watched_hostfile, parsed.least, parsed.most)
    return any(value is not None for value in asked)


def default_blacklist_by(most: int | None, sources: Sequence[str | None]) -> BlacklistBy:
    """Returns what a failed rank costs: its slot, if no other slot can ever take its place.

    Args:
      sources: of hosts that may change.
    """
    is_fixed = most is None and not any(source is not None for source in sources)
    return "slot" if is_fixed else "host"


def notes_about_elastic(parsed: argparse.Namespace) -> list[str]:
    """Returns notes on flags that only have an effect in an elastic job."""
    if not _is_elastic(parsed):
        ways = "--host-discovery-script, --watch-hostfile, --min-np or --max-np"
        given = [flag for flag in getattr(parsed, DEST) if flag != "--slots-per-host"]
        notes = [f"{flag} changes nothing without {ways}" for flag in given]
    else:
        notes = []
    if parsed.slots_per_host and not (parsed.discovery_script or parsed.watched_hostfile):
        ways = "--host-discovery-script or --watch-hostfile"
        notes.append(f"--slots-per-host changes nothing without {ways}")
    return notes


def elastic_timeout(given: int | None, environment: Mapping[str, str] = os.environ) -> int:
    """Returns the seconds to wait for enough slots: those given, else those of the variable."""
    if given is not None:
        return given
    text = environment.get(TIMEOUT_VARIABLE) or str(DEFAULT_TIMEOUT)
    if not text.isdecimal() or int(text) < 1:
        raise ValueError(
            f"{TIMEOUT_VARIABLE} is '{text}'; it must be a whole number of seconds, 1 or more"
        )
    return int(text)


def check(
    options: ElasticOptions,
    *,
    size: int | None,
    names_hosts: Literal["hosts", "hostfile"] | None = None,
    mpi: bool = False,
    names: Mapping[str, str] = FLAGS,
) -> None:
    """Raises ValueError, which speaks of `names`, for options that cannot be met.

    Args:
      size: the ranks to start with, if that is given.
      names_hosts: the option that names hosts which do not change, if one is given.
    """
    given = [name for name in ("script", "watched_hostfile") if getattr(options, name) is not None]
    given += [names_hosts] if names_hosts else []
    if len(given) > 1:
        raise ValueError(f"{names[given[0]]} and {names[given[1]]} both name the hosts; give one")
    if mpi:
        raise ValueError(
            f"{names['mpi']}: mpirun ends a job when one of its ranks fails, and adds none; leave "
            "it out"
        )
    for name, lowest in (
        *(("least", 1), ("most", 1), ("slots_per_host", 1)),
        *(("timeout", 1), ("reset_limit", 0)),
    ):
        value = getattr(options, name)
        if value is not None and value < lowest:
            raise ValueError(f"{names[name]} is {value}; it must be at least {lowest}")
    # The least may be the size; then the first of these names what is given.
    _check_order(size, "size", options.most, "most", names)
    _check_order(options.least, "least", size, "size", names)
    _check_order(options.least, "least", options.most, "most", names)
    if options.cooldown_range is not None:
        check_cooldown_range(options.cooldown_range, names["cooldown_range"])
    if options.script is not None and (fault := _fault_of_script(options.script)):
        raise ValueError(f"{names['script']} is '{options.script}'; {fault}")
    if options.watched_hostfile is not None and not os.path.isfile(options.watched_hostfile):
        is_folder = os.path.isdir(options.watched_hostfile)
        fault = "it must be a file, and is a folder" if is_folder else "there is no such file"
        raise ValueError(f"{names['watched_hostfile']} is '{options.watched_hostfile}'; {fault}")


def _check_order(
    lower: int | None, lower_name: str, upper: int | None, upper_name: str, names: Mapping[str, str]
) -> None:
    if lower is not None and upper is not None and lower > upper:
        raise ValueError(
            f"{names[lower_name]} is {lower}; it must be at most {names[upper_name]}, which is "
            f"{upper}"
        )


def _fault_of_script(script: str) -> str | None:
    """Returns why a discovery script cannot be run, as far as that shows before it is run."""
    if os.path.isfile(script):
        if not os.access(script, os.X_OK):
            return "it must be executable: chmod +x"
        return _fault_of_interpreter(script)
    if os.path.isdir(script):
        return "it must be a program, and not a folder"
    if not script.strip():
        return "it must be a program, or a command of the shell"
    try:
        first, *rest = shlex.split(script)
    except ValueError as error:
        return f"it must be a program, or a command of the shell: {error}"
    # The first word of a longer command may be one that only the shell knows.
    if (rest and "/" not in first) or shlex.quote(first) != first or "=" in first:
        return None
    if shutil.which(first):
        return None
    return f"{first} is a folder" if os.path.isdir(first) else f"there is no program {first}"


def _fault_of_interpreter(script: str) -> str | None:
    """Returns what is amiss with the program that a script's first line names, if it names one.

    The shell would say that the script itself is not there.
    """
    try:
        with open(script, "rb") as file:
            line = file.readline(4096)
    except OSError:  # it may be run, but not read
        return None
    named = line[2:].split() if line.startswith(b"#!") else []
    if not named or os.access(named[0], os.X_OK):
        return None
    return f"its first line names {os.fsdecode(named[0])}, which cannot be run"


def host_source(
    options: ElasticOptions,
    hosts: Sequence[Host],
    size: int,
    environment: Mapping[str, str] = os.environ,
) -> HostSource:
    """Returns where the hosts of an elastic job come from.

    That is the script or the file of the options, else the hosts that the user has named, else the
    allocation of the Slurm job that this is part of, else this host with as many slots as the job
    may have ranks. `size` is the number of ranks that it starts with. Without a number of most
    ranks, hosts that stay the same have no more slots than that.

    Raises ValueError if hosts that stay the same have too few slots.
    """
    if options.script is not None:
        return ScriptSource(options.script, options.slots_per_host)
    if options.watched_hostfile is not None:
        return HostsFileSource(options.watched_hostfile, options.slots_per_host or 1)
    if not hosts and options.most is not None and environment.get("SLURM_JOB_NODELIST"):
        return SlurmSource(environment, options.slots_per_host)
    named = hosts or [Host("localhost", options.most or size)]
    used = assign(named, max(size, options.least))
    return FixedSource(named if options.most is not None else hosts_of(used))
