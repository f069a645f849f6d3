"""The hosts of an elastic job: which are known, in what order, and which slots may be used."""

from __future__ import annotations

import enum
import random
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from perseus.elastic.cooldown import Cooldowns
from perseus.run.hosts import Host

__all__ = ["Change", "HostTable"]


class Change(enum.IntFlag):
    """How the hosts have changed, with the numbers of Horovod's HostUpdateResult."""

    NO_UPDATE = 0
    REMOVED = 1
    ADDED = 2
    MIXED = 3


class HostTable:
    """The hosts that have been found, without those that have failed.

    A host that is found again keeps its place, and a new one comes last, so that rank 0 stays on
    the oldest host that is left. A host that has failed loses its place; when its cooldown is over,
    it counts as new. What is drained is kept out until it is no longer found, and counts as new
    when it is found once more. Only `update` and `refresh` let anything in again, so that between
    two of them what is usable only ever shrinks.

    Not thread-safe: the owner locks.

    Args:
      cooldown_range: the least and the most seconds for which what has failed is kept out; without
        it, that is for ever. ValueError if it is not within 1 and 3600.
      clock, uniform: for tests: the time in seconds, and a random number from 0 to 1.
    """

    def __init__(
        self,
        cooldown_range: tuple[float, float] | None = None,
        clock: Callable[[], float] = time.monotonic,
        uniform: Callable[[], float] = random.random,
    ) -> None:
        # Holds names of hosts, and pairs of a name and the number of a slot.
        self._cooldowns = Cooldowns(cooldown_range, clock, uniform)
        self._drained: set[str | tuple[str, int]] = set()  # likewise
        self._found: dict[str, int] = {}
        self._order: list[str] = []  # of the usable hosts

    def update(self, found: Sequence[Host]) -> Change:
        """Takes over a list of hosts with distinct names, and lets in what is out of cooldown.

        Returns whether slots that could be used are gone, and whether there are new ones. Those of
        hosts that are blacklisted count only once they are out of cooldown.
        """
        before = self._usable_slots()
        self._found = {host.name: host.slots for host in found}
        self._cooldowns.release()
        self._drained = {what for what in self._drained if self._is_found(what)}
        self._settle()
        after = self._usable_slots()
        change = Change.NO_UPDATE
        if before - after:
            change |= Change.REMOVED
        if after - before:
            change |= Change.ADDED
        return change

    def refresh(self) -> Change:
        """Lets in what is out of cooldown. Call it when `next_deadline` has come."""
        return self.update(self.known)

    @property
    def known(self) -> list[Host]:
        """The hosts of the last update, as they were found, the blacklisted ones too."""
        return [Host(name, slots) for name, slots in self._found.items()]

    @property
    def usable(self) -> list[Host]:
        """The hosts to use, in order, with the number of their slots that may be used.

        `slots_of` has the numbers of these slots, which are not the first ones if one has failed.
        """
        return [Host(name, len(self.slots_of(name))) for name in self._order]

    def slots_of(self, host: str) -> list[int]:
        """Returns the numbers of the slots of a host that may be used, in rising order."""
        if self._keeps_out(host):
            return []
        return [
            number
            for number in range(self._found.get(host, 0))
            if not self._keeps_out((host, number))
        ]

    def count_usable_slots(self) -> int:
        return sum(host.slots for host in self.usable)

    def blacklist(self, host: str) -> float:
        """Keeps out a host, which need not be known; returns for how many seconds, or infinity.

        A host that is kept out already is so no longer, as when several of its ranks fail at once.
        """
        seconds = self._cooldowns.keep_out(host)
        self._settle()
        return seconds

    def fail_slot(self, host: str, slot: int) -> float:
        """Keeps out one slot of a host, as `blacklist` does a host; its other slots stay usable."""
        seconds = self._cooldowns.keep_out((host, slot))
        self._settle()
        return seconds

    def drain(self, host: str) -> None:
        """Keeps out a host, which has not failed, until an update is without it."""
        self._drained.add(host)
        self._settle()

    def drain_slot(self, host: str, slot: int) -> None:
        """Keeps out one slot of a host, as `drain` does a host; its other slots stay usable."""
        self._drained.add((host, slot))
        self._settle()

    def is_blacklisted(self, host: str) -> bool:
        """Returns whether the host as a whole is kept out, known or not."""
        return self._cooldowns.holds(host)

    def next_deadline(self) -> float | None:
        """Returns when, by the clock, something is out of cooldown; None if nothing will be."""
        return self._cooldowns.next_end()

    def saved(self) -> dict[str, Any]:
        """Returns what another table has to know, on this machine; as JSON has it."""
        return {
            "found": self._found,
            "order": self._order,
            "drained": list(self._drained),
            "cooldowns": self._cooldowns.saved(),
        }

    def restore(self, saved: Mapping[str, Any]) -> None:
        self._found = dict(saved["found"])
        self._drained = set(map(_hashable, saved["drained"]))
        self._cooldowns.restore(
            (_hashable(what), times, end) for what, times, end in saved["cooldowns"]
        )
        self._order = list(saved["order"])
        self._settle()

    def _keeps_out(self, what: str | tuple[str, int]) -> bool:
        return self._cooldowns.holds(what) or what in self._drained

    def _is_found(self, what: str | tuple[str, int]) -> bool:
        host, slot = (what, 0) if isinstance(what, str) else what
        return slot < self._found.get(host, 0)

    def _usable_slots(self) -> set[tuple[str, int]]:
        return {(name, slot) for name in self._order for slot in self.slots_of(name)}

    def _settle(self) -> None:
        """Has the order hold the hosts with a slot that may be used, and only those."""
        usable = {name: None for name in self._found if self.slots_of(name)}
        kept = {name: None for name in self._order if name in usable}
        self._order = list(kept | usable)


def _hashable(what: Any) -> str | tuple[str, int]:
    """Returns a host, or a slot of one, which JSON has as a list."""
    return what if isinstance(what, str) else tuple(what)
