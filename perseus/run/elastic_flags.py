"""The flags of elastic jobs, in which hosts and ranks come and go. Each is None if it is not given.

perseus.elastic.options checks what they say together.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from typing import Any

from perseus.run.flag_values import whole_number

#: The attribute that has the flags of elastic jobs that are given, as they are spelled.
DEST = "elastic_flags"


def _from(low: int) -> Callable[[str], int]:
    check = whole_number(low)
    return lambda text: int(check(text))


_FLAGS: tuple[tuple[tuple[str, ...], dict[str, Any]], ...] = (
    (
        ("--max-np", "--max-num-proc"),
        dict(dest="most", type=_from(1), metavar="N", help="add ranks while there are fewer"),
    ),
    (
        ("--host-discovery-script",),
        dict(
            dest="discovery_script",
            metavar="SCRIPT",
            help="run this each second; it prints the hosts, each in a line, host or host:slots",
        ),
    ),
    (
        ("--watch-hostfile",),
        dict(dest="watched_hostfile", metavar="FILE", help="a hosts file that is read each second"),
    ),
    (
        ("--slots-per-host",),
        dict(
            dest="slots_per_host",
            type=_from(1),
            metavar="N",
            help="slots of hosts for which the script or the file names none",
        ),
    ),
    (
        ("--elastic-timeout",),
        dict(
            dest="elastic_timeout",
            type=_from(1),
            metavar="S",
            help="seconds to wait for --min-np slots (HOROVOD_ELASTIC_TIMEOUT, else 600)",
        ),
    ),
    (
        ("--reset-limit",),
        dict(
            dest="reset_limit",
            type=_from(0),
            metavar="N",
            help="end the job when its ranks have changed more than N times",
        ),
    ),
    (
        ("--blacklist-cooldown-range",),
        dict(
            dest="cooldown_range",
            type=_from(1),
            nargs=2,
            metavar=("MIN", "MAX"),
            help="seconds for which hosts that have failed are left out; for ever by default",
        ),
    ),
    (
        ("--blacklist-by",),
        dict(
            dest="blacklist_by",
            choices=("host", "slot"),
            help="leave out the whole host of a rank that has failed, or its slot; slot by default "
            "with --min-np alone, else host",
        ),
    ),
    (
        ("--join",),
        dict(
            dest="join",
            choices=("background", "at-once"),
            help="start new ranks beside the others (the default), or have those wait for them",
        ),
    ),
    (
        ("--if-killed",),
        dict(
            dest="if_killed",
            choices=("go-on", "end"),
            help="what ranks do if perseusrun is killed (PERSEUSRUN_IF_KILLED, else go-on)",
        ),
    ),
    (
        ("--drain-signal",),
        dict(
            dest="drain_signal",
            choices=("SIGUSR1", "SIGUSR2"),
            help="on this signal to perseusrun or a rank, ranks finish their step and leave",
        ),
    ),
)

#: The flags, every spelling.
ELASTIC_FLAGS = tuple(flag for flags, _ in _FLAGS for flag in flags)


class _Note(argparse.Action):
    """Stores the value, and that the flag is given."""

    def __call__(
        self,
        parser: argparse.ArgumentParser,
        namespace: argparse.Namespace,
        values: object,
        option_string: str | None = None,
    ) -> None:
        setattr(namespace, self.dest, values)
        setattr(namespace, DEST, (*getattr(namespace, DEST), option_string))


def add_elastic_flags(parser: argparse.ArgumentParser, level: str) -> None:
    """Adds the flags. At the level "common" they have no help text."""
    parser.set_defaults(**{DEST: ()})
    # A group without a description is left out where none of its flags has a help text.
    why = None if level == "common" else "whose ranks come and go; see docs/elastic.md"
    group = parser.add_argument_group("elastic jobs", why)
    for flags, how in _FLAGS:
        text = argparse.SUPPRESS if level == "common" else how["help"]
        group.add_argument(*flags, action=_Note, **{**how, "help": text})
