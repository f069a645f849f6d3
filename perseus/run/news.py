"""What a rank's engine reports on others: "2 3 lost", "3 left", or "met 0 1 2", each after the name
of its world."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Met:
    """These ranks are in a world that has begun, and that only its engines know by this name."""

    world: str
    members: Sequence[int]


@dataclass(frozen=True)
class Accusation:
    """Operations fail in a world because of these ranks, which are lost, or else have left."""

    world: str
    culprits: Sequence[int]
    is_lost: bool


def parse_news(message: bytes, speaker: int, size: int) -> Met | Accusation | None:
    """Returns None for what makes no sense, such as the words of another program.

    Args:
      speaker: the rank that says it.
      size: of the job.
    """
    ranks = {str(rank).encode(): rank for rank in range(size)}
    name, *words = message.split() or [b""]
    if not name.isascii():
        return None
    world = name.decode()
    if words[:1] == [b"met"]:
        members = [ranks[word] for word in words[1:] if word in ranks]
        is_whole = len(members) == len(words) - 1 and speaker in members
        return Met(world, members) if is_whole else None
    if len(words) < 2 or words[-1] not in (b"lost", b"left"):
        return None
    culprits = [ranks.get(word, speaker) for word in words[:-1]]
    is_lost = words[-1] == b"lost"
    return None if speaker in culprits else Accusation(world, culprits, is_lost)
