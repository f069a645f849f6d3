"""Checks the arguments by which perseus.run.run asks for an elastic job."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal, get_args

from perseus.elastic.options import (
    ARGUMENTS,
    BlacklistBy,
    ElasticOptions,
    Join,
    check,
    default_blacklist_by,
    elastic_timeout,
)

__all__ = ["ElasticArguments"]

#: Each of these makes a job elastic, as in Horovod.
_MAKE_ELASTIC = ("script", "least", "most")
_CHOICES = {"blacklist_by": get_args(BlacklistBy), "join": get_args(Join)}


@dataclass(frozen=True)
class ElasticArguments:
    """The arguments of `run`; None for those not given. The names are those of ElasticOptions."""

    least: int | None = None
    most: int | None = None
    script: str | None = None
    slots_per_host: int | None = None
    timeout: int | None = None
    reset_limit: int | None = None
    cooldown_range: tuple[int, int] | None = None
    blacklist_by: BlacklistBy | None = None
    join: Join | None = None

    def options(
        self, *, size: int, names_hosts: Literal["hosts", "hostfile"] | None, mpi: bool
    ) -> ElasticOptions | None:
        """Returns what the arguments ask for, or None for a job that is not elastic.

        Raises ValueError for what does not go together.
        """
        given: dict[str, Any] = {k: value for k, value in vars(self).items() if value is not None}
        for name, choices in _CHOICES.items():
            if name in given and given[name] not in choices:
                first, second = map(repr, choices)
                raise ValueError(f"{name} is {given[name]!r}; it must be {first} or {second}")
        if given.keys().isdisjoint(_MAKE_ELASTIC):
            for name, value in given.items():
                raise ValueError(
                    f"{ARGUMENTS.get(name, name)} is {value}; it must be left out unless "
                    "host_discovery_script, min_num_proc or max_num_proc is given"
                )
            return None
        defaults = {
            "least": size,
            "blacklist_by": default_blacklist_by(self.most, [self.script]),
        }
        options = ElasticOptions(**{**defaults, **given, "timeout": elastic_timeout(self.timeout)})
        check(
            options,
            size=size,
            names_hosts=names_hosts if self.script is not None else None,
            mpi=mpi,
            names=ARGUMENTS,
        )
        return options
