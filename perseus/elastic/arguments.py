"""Checks the arguments by which perseus.run.run asks for an elastic job."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from numbers import Integral, Real
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

__all__ = ["ElasticArguments", "check_whole_number"]

#: Each of these makes a job elastic, as in Horovod.
_MAKE_ELASTIC = ("script", "least", "most")
_CHOICES = {"blacklist_by": get_args(BlacklistBy), "join": get_args(Join)}


_NUMBERS = ("least", "most", "slots_per_host", "timeout", "reset_limit")


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

        Raises ValueError for what does not go together, and TypeError for other types.
        """
        given: dict[str, Any] = {k: value for k, value in vars(self).items() if value is not None}
        _check_types(given)
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


def _check_types(given: Mapping[str, Any]) -> None:
    for name in _NUMBERS:
        if name in given:
            check_whole_number(ARGUMENTS.get(name, name), given[name])
    if not isinstance(given.get("script", ""), str):
        raise TypeError(f"{ARGUMENTS['script']} is {given['script']!r}; it must be a str")
    if "cooldown_range" in given:
        limits = given["cooldown_range"]
        if not isinstance(limits, Sequence) or [isinstance(x, Real) for x in limits] != [True] * 2:
            raise TypeError(f"cooldown_range is {limits!r}; it must be two numbers of seconds")


def check_whole_number(name: str, value: Any) -> None:
    """Raises TypeError if an argument is no whole number."""
    if not isinstance(value, Integral):
        raise TypeError(f"{name} is {value!r}; it must be a whole number")
