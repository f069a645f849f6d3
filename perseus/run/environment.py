"""The environment that ranks are started with."""

from __future__ import annotations

import re
from collections.abc import Mapping

from perseus.run.hosts import Slot

#: Seconds; the defaults of PERSEUS_START_TIMEOUT and PERSEUS_PEER_TIMEOUT in the table of settings.
#: The table is the library's, which the launcher does not load.
DEFAULT_START_TIMEOUT = 30
DEFAULT_PEER_TIMEOUT = 30
# Variables that describe the machine or session they were read on, and would be wrong on another.
_HOST_SPECIFIC = re.compile(
    r"_|PWD|OLDPWD|SHLVL|HOST|HOSTNAME|HOSTTYPE|MACHTYPE|HOME|USER|LOGNAME|SHELL|MAIL|TERM|TERMCAP"
    r"|DISPLAY|XAUTHORITY|TMPDIR|LS_COLORS|(SSH|XDG|DBUS|BASH_FUNC|TMUX|STY|WINDOWID)\w*.*"
)


def exported(environment: Mapping[str, str]) -> dict[str, str]:
    """Returns the variables of an environment that make sense on another host."""
    return {
        name: value for name, value in environment.items() if not _HOST_SPECIFIC.fullmatch(name)
    }


def first_set(environment: Mapping[str, str], *names: str) -> str:
    """Returns the value of the first of these variables that has one; "" if none has."""
    return next((environment[name] for name in names if environment.get(name)), "")


def start_timeout(environment: Mapping[str, str]) -> int:
    """Returns the seconds in which all ranks must start and meet; ValueError if malformed."""
    names = ("PERSEUS_START_TIMEOUT", "HOROVOD_START_TIMEOUT", "HOROVOD_GLOO_TIMEOUT_SECONDS")
    text = first_set(environment, *names) or str(DEFAULT_START_TIMEOUT)
    if not text.isdecimal() or int(text) < 1:
        raise ValueError(f"the start time-out (PERSEUS_START_TIMEOUT) is '{text}', not seconds")
    return int(text)


def peer_timeout(environment: Mapping[str, str]) -> int:
    """Returns the seconds of silence after which a rank counts as lost.

    The setting has been checked before.
    """
    return int(first_set(environment, "PERSEUS_PEER_TIMEOUT") or DEFAULT_PEER_TIMEOUT)


def job_environment(secret: str) -> dict[str, str]:
    """Returns the variables that are the same for all ranks of a job."""
    # Output goes through a pipe, for which Python would buffer many lines.
    return {"PERSEUS_SECRET": secret, "PYTHONUNBUFFERED": "1"}


def rank_environment(slot: Slot) -> dict[str, str]:
    """Returns a rank's place in the job, under our names, Horovod's and torch.distributed's."""
    place = {
        "RANK": slot.rank,
        "SIZE": slot.size,
        "LOCAL_RANK": slot.local_rank,
        "LOCAL_SIZE": slot.local_size,
        "CROSS_RANK": slot.cross_rank,
        "CROSS_SIZE": slot.cross_size,
        "HOSTNAME": slot.host,
    }
    named = {
        f"{prefix}_{name}": str(value)
        for prefix in ("PERSEUS", "HOROVOD")
        for name, value in place.items()
    }
    return named | torch_environment(slot.rank, slot.size, slot.local_rank, slot.local_size)


def torch_environment(rank: int, size: int, local_rank: int, local_size: int) -> dict[str, str]:
    """Returns a rank's place in the job, in the variables that torchrun sets."""
    return {
        "RANK": str(rank),
        "WORLD_SIZE": str(size),
        "LOCAL_RANK": str(local_rank),
        "LOCAL_WORLD_SIZE": str(local_size),
        # Otherwise, if torchrun has started perseusrun, rank 0 would look for a store of torchrun.
        "TORCHELASTIC_USE_AGENT_STORE": "False",
    }
