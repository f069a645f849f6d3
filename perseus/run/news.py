"""What a rank's engine reports on others: "2 3 lost", "3 left", or "met 0 1 2"."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Met:
    """These ranks are in a world that has begun."""

    members: list[int]


@dataclass(frozen=True)
class Accusation:
    """Operations fail because of these ranks, which are lost, or else have left."""

    culprits: list[int]
    is_lost: bool


def parse_news(message: bytes, speaker: int, size: int) -> Met | Accusation | None:
    """Returns None for what makes no sense, such as the words of another program.

    Args:
      speaker: the rank that says it.
      size: of the job.
    """
    ranks = {str(rank).encode(): rank for rank in range(size)}
    words = message.split()
    if words[:1] == [b"met"]:
        members = [ranks[word] for word in words[1:] if word in ranks]
        is_whole = len(members) == len(words) - 1 and speaker in members
        return Met(members) if is_whole else None
    if len(words) < 2 or words[-1] not in (b"lost", b"left"):
        return None
    culprits = [ranks.get(word, speaker) for word in words[:-1]]
    return None if speaker in culprits else Accusation(culprits, words[-1] == b"lost")
