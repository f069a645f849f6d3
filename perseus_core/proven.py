"""Bytes that their receivers act on, such as pickles: first it is proven which rank has sent them.

A network may let others change what passes. So each rank's bytes carry a proof, a MAC under a key
that only the ranks of this world have. It covers the bytes, the sender, the process set, what the
bytes are for, and the number of an operation that all ranks of the set have just done together.
That number never comes again, so older bytes cannot take the place of these. The length of the
bytes comes first, with a proof of its own, so nobody can make a rank take more memory than some
rank of this world has asked for in such a call.

A rank that finds a wrong proof ends the work of all ranks: each gets AbortedError, with the same
message. Any thread may call these functions.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from perseus_core import _engine, refusals, submission
from perseus_core.arrays import dtype_number, from_result
from perseus_core.constants import OperationKind
from perseus_core.errors import MismatchError

__all__ = ["PROOF_BYTES", "Call"]

Bytes: TypeAlias = npt.NDArray[np.uint8]

#: The bytes of a proof, for which a payload has room at its end.
PROOF_BYTES = _engine.PROOF_BYTES

_UINT8 = dtype_number(np.dtype(np.uint8))
_NUMBER = np.dtype(np.int64).itemsize


@dataclass(frozen=True)
class Call:
    """A call of such a function, on one rank. It takes two operations, of the same kind."""

    function: str  #: such as "broadcast_object": the bytes of one are not taken for another's
    name: str | None  #: what ranks match the call by; None for the order of their calls
    process_set: int

    @property
    def length_name(self) -> str | None:
        """The name of the first operation, which tells the length."""
        return None if self.name is None else f"{self.name}.sz"

    @property
    def data_name(self) -> str | None:
        """The name of the second operation, which moves the bytes."""
        return None if self.name is None else f"{self.name}.t"

    @property
    def _title(self) -> str:
        return self.function if self.name is None else f"{self.function} '{self.name}'"

    @property
    def _length_title(self) -> str:
        return f"the length of {self._title}"

    def broadcast(self, payload: Bytes | None, root: int) -> Bytes:
        """Returns the root's bytes, without the room for the proof.

        Args:
          payload: on the root, the bytes and PROOF_BYTES more, which this fills; elsewhere None.
          root: a rank of the world, in the set.
        """
        header = np.zeros(_NUMBER + PROOF_BYTES, np.uint8)
        if payload is not None:
            header[:_NUMBER].view(np.int64)[0] = payload.size - PROOF_BYTES
            self._prove(self._length_title, 0, header)
        sequence = self._broadcast(header, root, self.length_name)
        if payload is not None:
            self._prove(self._title, sequence, payload)
            self._broadcast_data(payload, root, header)
            return payload[:-PROOF_BYTES]
        self._check(self._length_title, 0, root, header)
        kind = OperationKind.BROADCAST
        with refusals.refusing(kind, "broadcast", self.data_name, self.process_set):
            received = np.empty(int(header[:_NUMBER].view(np.int64)[0]) + PROOF_BYTES, np.uint8)
        self._broadcast_data(received, root, header)
        return self._check(self._title, sequence, root, received)

    def _broadcast_data(self, array: Bytes, root: int, header: Bytes) -> None:
        """Gives every rank the root's array in `array`, as long as the root's header says.

        The proof of a length does not say which call it is from. So an older one may have come in
        its place, and then the ranks' arrays differ.
        """
        try:
            self._broadcast(array, root, self.data_name)
        except MismatchError as error:
            if "every rank must submit the same" in str(error):
                self._check(self._length_title, 0, root, np.invert(header))
            raise

    def allgather(self, payload: Bytes) -> list[Bytes]:
        """Returns the bytes of all ranks of the set that have not joined, in the order of ranks.

        Args:
          payload: this rank's bytes and PROOF_BYTES more, which this fills.
        """
        rank = _engine.rank()
        header = np.zeros((1, 2 * _NUMBER + PROOF_BYTES), np.uint8)
        header[0, : 2 * _NUMBER].view(np.int64)[:] = rank, payload.size - PROOF_BYTES
        self._prove(self._length_title, 0, header[0])
        headers, sequence = self._allgather(header, self.length_name)
        senders = self._senders(headers)
        self._prove(self._title, sequence, payload)
        gathered, _ = self._allgather(payload, self.data_name)
        lengths = [int(row[: 2 * _NUMBER].view(np.int64)[1]) + PROOF_BYTES for row in headers]
        parts = np.split(gathered, np.cumsum(lengths)[:-1])
        return [
            payload[:-PROOF_BYTES]
            if sender == rank
            else self._check(self._title, sequence, sender, part)
            for sender, part in zip(senders, parts, strict=True)
        ]

    def _senders(self, headers: Bytes) -> list[int]:
        """Returns which rank has sent each header, and proves it.

        Ranks that have joined have sent none.
        """
        expected = _engine.process_set_ranks(self.process_set)
        senders: list[int] = []
        for header in headers:
            named = int(header[: 2 * _NUMBER].view(np.int64)[0])
            # Each rank has one header at most, so those of the ranks before are not taken again.
            # If the rank is a wrong one, so is the proof, which covers it.
            if not expected:  # one too many, which may be a copy of a proven one
                self._check(self._length_title, 0, senders[-1], np.invert(header))
            sender = named if named in expected else expected[0]
            self._check(self._length_title, 0, sender, header)
            expected = [rank for rank in expected if rank > sender]
            senders.append(sender)
        return senders

    def _prove(self, title: str, sequence: int, proven: Bytes) -> None:
        """Fills the end of `proven` with the proof of the bytes before."""
        data = proven[:-PROOF_BYTES]
        proof = _engine.prove(self.process_set, _engine.rank(), title, sequence, data)
        proven[-PROOF_BYTES:] = np.frombuffer(proof, np.uint8)

    def _check(self, title: str, sequence: int, sender: int, proven: Bytes) -> Bytes:
        """Returns the bytes before the proof; raises AbortedError if it is wrong."""
        data, proof = proven[:-PROOF_BYTES], proven[-PROOF_BYTES:]
        _engine.check_proof(self.process_set, sender, title, sequence, data, proof)
        return data

    def _broadcast(self, array: Bytes, root: int, name: str | None) -> int:
        """Gives every rank the root's array in `array`; returns the operation's number."""
        address = _engine.array_address(array)
        handle = self._submit(
            OperationKind.BROADCAST, "broadcast", name, array, (address, address), root=root
        )
        try:
            _engine.wait(handle)
            return _engine.sequence(handle)
        finally:
            _engine.release(handle)

    def _allgather(self, array: Bytes, name: str | None) -> tuple[Bytes, int]:
        """Returns the rows of all ranks, and the operation's number."""
        addresses = _engine.array_address(array), 0
        handle = self._submit(OperationKind.ALLGATHER, "allgather", name, array, addresses)
        try:
            _engine.wait(handle)
            return from_result(_engine.Result(handle), array.dtype), _engine.sequence(handle)
        finally:
            _engine.release(handle)

    def _submit(
        self,
        kind: OperationKind,
        prefix: str,
        name: str | None,
        array: Bytes,
        addresses: tuple[int, int],
        root: int = 0,
    ) -> int:
        operands = [(*addresses, array.shape, _UINT8)]
        return submission.submit(
            kind, prefix, name, self.process_set, array, _engine.submit, operands, root=root
        )
