"""Checks the arguments by which perseus.run.run asks for an elastic job."""

from __future__ import annotations

from typing import Literal, get_args

from perseus.elastic.options import (
    ARGUMENTS,
    BlacklistBy,
    ElasticOptions,
    Join,
    check,
    elastic_timeout,
)

__all__ = ["elastic_arguments"]


def elastic_arguments(
    *,
    size: int,
    least: int | None,
    most: int | None,
    script: str | None,
    slots_per_host: int | None,
    timeout: int | None,
    reset_limit: int | None,
    cooldown_range: tuple[int, int] | None,
    blacklist_by: BlacklistBy | None,
    join: Join | None,
    names_hosts: Literal["hosts", "hostfile"] | None,
    mpi: bool,
) -> ElasticOptions | None:
    """Returns what the arguments of `run` ask for, or None for a job that is not elastic.

    A job is elastic if a discovery script, or the least or most ranks are given, as in Horovod.
    Raises ValueError for what does not go together.
    """
    for name, value, choices in (
        ("blacklist_by", blacklist_by, get_args(BlacklistBy)),
        ("join", join, get_args(Join)),
    ):
        if value is not None and value not in choices:
            first, second = map(repr, choices)
            raise ValueError(f"{name} is {value!r}; it must be {first} or {second}")
    if script is None and least is None and most is None:
        for name, given in (
            (ARGUMENTS["slots_per_host"], slots_per_host),
            (ARGUMENTS["timeout"], timeout),
            (ARGUMENTS["reset_limit"], reset_limit),
            (ARGUMENTS["cooldown_range"], cooldown_range),
            ("blacklist_by", blacklist_by),
            ("join", join),
        ):
            if given is not None:
                raise ValueError(
                    f"{name} is {given}; it must be left out unless "
                    "host_discovery_script, min_num_proc or max_num_proc is given"
                )
        return None
    options = ElasticOptions(
        least=least or size,
        most=most,
        script=script,
        slots_per_host=slots_per_host,
        timeout=elastic_timeout(timeout),
        reset_limit=reset_limit,
        cooldown_range=cooldown_range,
        blacklist_by=blacklist_by or "host",
        join=join or "background",
    )
    check(
        options,
        size=size,
        names_hosts=names_hosts if script is not None else None,
        mpi=mpi,
        names=ARGUMENTS,
    )
    return options
