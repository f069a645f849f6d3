"""Checks in every step that all ranks reduce parameters with the same names.

The engine matches operations by name. A rank that reduces a parameter which another rank does not
reduce would wait for ever. If an operation has the gradients of several parameters, the engine
knows the name of the first one only, and would match the others by their positions.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
from array import array
from collections.abc import Iterable, Mapping, Sequence

import torch

from perseus.common.process_sets import ProcessSet, set_id
from perseus.torch.horovod import handles
from perseus.torch.horovod.allgather import allgather_async
from perseus_core import DataType, MismatchError, OperationKind, ReduceOp, engine, names, rank

#: How many names that some rank lacks are shown in the error.
MOST_TOLD = 5
#: What a word begins with that says which optimizer it is, if its parameters have no names.
OPTIMIZER = "optimizer "
#: How long a rank waits for the names of the others, to show them in the error. They may be in a
#: collective of something else, which waits for this rank.
NAMES_TIME_OUT_MS = 10_000


# The checks that are in flight, by the id of their operation. A check waits for another one of the
# same name, which an optimizer that defers its updates may have left in flight.
_in_flight: dict[int, NameCheck] = {}


class Names:
    """The names of the parameters that this rank reduces, or other words to compare."""

    def __init__(self, words: Iterable[str]) -> None:
        self.words = sorted(words)
        text = "\0".join(self.words).encode("utf-8", "surrogatepass")
        digest = hashlib.blake2b(text, digest_size=8).digest()
        #: a 62-bit hash
        self.number = int.from_bytes(digest, "little") >> 2


class NameCheck:
    """Compares names with those of the other ranks by a small operation.

    In each step every rank calls start() and then finish().

    Args:
      name: of the operation, the same on all ranks.
      first_name: its name the first time after init; several checks may have the same.
    """

    def __init__(self, name: str, first_name: str, process_set: ProcessSet) -> None:
        self._process_set = process_set
        self._operations = [
            (
                engine.register(set_id(process_set), OperationKind.ALLREDUCE, f"allreduce.{text}"),
                text,
            )
            for text in (name, first_name)
        ]
        # What is being compared
        self._names: Names | None = None
        # A number and its negative: the least of both are the least and the greatest number.
        self._mine = array("q", [0, 0])
        self._least = array("q", [0, 0])
        self._handle: int | None = None
        self._id, self._name = self._operations[0]
        self._error: MismatchError | None = None
        # Counted by init: when the comparison in flight was started, and the last one succeeded.
        self._started_at = self._agreed_at = 0

    def is_new(self) -> bool:
        """Returns whether the names have not been found the same yet, since the last init."""
        return self._agreed_at != names.times_restarted()

    def start(self, mine: Names) -> None:
        """Starts the comparison of a step, unless it is in flight."""
        now = names.times_restarted()
        if self._names is not None and self._started_at == now:
            return
        self._mine[0], self._mine[1] = mine.number, -mine.number
        id, text = self._operations[self.is_new()]
        if id in _in_flight:
            _in_flight[id]._wait()
        self._handle = engine.submit_allreduce(
            id,
            (self._mine, self._least),
            self._mine.buffer_info()[0],
            self._least.buffer_info()[0],
            (2,),
            DataType.INT64,
            ReduceOp.MIN,
        )
        handles.track(self._handle, self._least)
        self._names, self._started_at, self._error = mine, now, None
        self._id, self._name = id, text
        _in_flight[id] = self

    def finish(self) -> None:
        """Waits for the comparison, if it is in flight; raises MismatchError if ranks differ.

        If the very first comparison has failed, each call raises its error.
        """
        if self._error is not None and self.is_new():
            raise self._error
        if self._names is None:
            return
        try:
            self._wait()
        finally:
            mine, self._names = self._names, None
        if self._started_at != names.times_restarted():
            return  # the engine that had it is gone
        if self._least[0] != -self._least[1]:
            self._error = MismatchError(self._difference(mine))
            raise self._error
        self._agreed_at = self._started_at

    def _wait(self) -> None:
        """Waits for the operation, if it is in flight."""
        handle, self._handle = self._handle, None
        if handle is not None:
            if _in_flight.get(self._id) is self:
                del _in_flight[self._id]
            handles.finish(handle)

    def _difference(self, mine: Names) -> str:
        """Asks all ranks for their names, and describes how they differ."""
        # Somebody between the hosts may have changed what comes, so nothing is unpickled.
        message = json.dumps([rank(), mine.words]).encode() + b"\n"
        handle = allgather_async(
            torch.frombuffer(bytearray(message), dtype=torch.uint8),
            f"{self._name}.of.all",
            self._process_set,
        )
        if not engine.wait(handle, NAMES_TIME_OUT_MS):
            return (
                f"ranks reduce different parameters; rank {rank()} reduces "
                f"{_shown(mine.words)}, and some rank has not said what it reduces. "
                f"{_ADVICE}"
            )
        return _difference_of(_read(handles.finish(handle).numpy().tobytes()))


def _read(gathered: bytes) -> dict[int, list[str]]:
    """Returns the words of each rank, without those that no rank says."""
    everybodys = {}
    for line in gathered.splitlines():
        with contextlib.suppress(ValueError, TypeError, RecursionError):
            of_rank, words = json.loads(line)
            everybodys[int(of_rank)] = [str(word) for word in words]
    return everybodys


_ADVICE = (
    "All ranks must have the same parameters in the optimizer, with the same names, and those that "
    "require gradients must do so on all ranks; a parameter that a rank does not use may have no "
    "gradient there"
)


def _difference_of(everybodys: Mapping[int, Sequence[str]]) -> str:
    """Describes how the ranks' names differ, in the same words on every rank."""
    holders: dict[str, list[int]] = {}
    for of_rank, words in everybodys.items():
        for word in words:
            holders.setdefault(word, []).append(of_rank)
    partly = {word: of for word, of in sorted(holders.items()) if len(of) < len(everybodys)}
    if not partly:
        return (
            "the ranks have the same parameters to reduce, but something between the hosts has "
            "changed what they told each other of them; PERSEUS_WIRE=authenticated prevents that"
        )
    told = [f"'{word}' is on rank {_listed(of)} only" for word, of in partly.items()][:MOST_TOLD]
    more = f", and {len(partly) - len(told)} more" if len(partly) > len(told) else ""
    advice = _ADVICE
    if any(word.startswith(OPTIMIZER) for word in partly):
        advice += ". Optimizers without named_parameters must be made in the same order"
    return f"ranks reduce different parameters: {'; '.join(told)}{more}. {advice}"


def _shown(words: Sequence[str]) -> str:
    more = f" and {len(words) - MOST_TOLD} more" if len(words) > MOST_TOLD else ""
    return ", ".join(f"'{word}'" for word in words[:MOST_TOLD]) + more


def _listed(ranks: Sequence[int]) -> str:
    return ", ".join(map(str, ranks))
