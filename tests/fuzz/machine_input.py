"""An input of a fuzzer in Python, taken as the steps of a state machine."""

from __future__ import annotations


class Input:
    def __init__(self, data: bytes):
        self.rest = data

    def number(self) -> int:
        taken, self.rest = self.rest[:1], self.rest[1:]
        return taken[0] if taken else 0

    def bytes(self, count: int) -> bytes:
        taken, self.rest = self.rest[:count], self.rest[count:]
        return taken
