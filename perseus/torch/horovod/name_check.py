"""Checks that all ranks reduce parameters with the same names.

The engine matches operations by name. If an operation has the gradients of several parameters, the
engine knows the name of the first one only, and would match the others by their positions.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence

import torch

from perseus.common.process_sets import ProcessSet
from perseus.common.reduce_ops import Min
from perseus.torch.horovod import handles
from perseus.torch.horovod.allreduce import allreduce_async_
from perseus.torch.horovod.functions import allgather_object
from perseus_core import MismatchError, rank

#: How many names that some rank lacks are shown in the error.
MOST_TOLD = 5


class NameCheck:
    """Compares the names with those of the other ranks once, during the first step."""

    def __init__(self, names: Sequence[str], process_set: ProcessSet) -> None:
        self._names = sorted(names)
        self._process_set = process_set
        self._least: torch.Tensor | None = None
        self._handle: int | None = None

    def start(self) -> None:
        """Starts the comparison unless it has been started; call it before the first reduction."""
        if self._least is not None:
            return
        number = _number_of(self._names)
        # The smallest number, and the negative of the greatest.
        self._least = torch.tensor([number, -number], dtype=torch.int64, device="cpu")
        name = f"names.with.{self._names[0]}"
        self._handle = allreduce_async_(
            self._least, name=name, op=Min, process_set=self._process_set
        )

    def check(self) -> None:
        """Waits for the comparison, if it is in flight; raises MismatchError if ranks differ."""
        if self._handle is None:
            return
        handle, self._handle = self._handle, None
        handles.finish(handle)
        assert self._least is not None
        least, negative_of_greatest = self._least.tolist()
        if least != -negative_of_greatest:
            mine = (rank(), self._names)
            everybodys = dict(allgather_object(mine, "names.of.all", self._process_set))
            raise MismatchError(_difference(everybodys))


def _number_of(names: Sequence[str]) -> int:
    """Returns a 62-bit hash of the names."""
    digest = hashlib.blake2b("\0".join(names).encode("utf-8", "surrogatepass"), digest_size=8)
    return int.from_bytes(digest.digest(), "little") >> 2


def _difference(everybodys: Mapping[int, Sequence[str]]) -> str:
    """Describes how the ranks' names differ, in the same words on every rank."""
    holders: dict[str, list[int]] = {}
    for of_rank, names in everybodys.items():
        for name in names:
            holders.setdefault(name, []).append(of_rank)
    partly = {name: of for name, of in sorted(holders.items()) if len(of) < len(everybodys)}
    told = [f"'{name}' is on rank {_listed(of)} only" for name, of in partly.items()][:MOST_TOLD]
    more = f", and {len(partly) - len(told)} more" if len(partly) > len(told) else ""
    return (
        f"ranks reduce different parameters: {'; '.join(told)}{more}. All ranks must pass "
        "parameters with the same names to the optimizer; a parameter that a rank does not use may "
        "have no gradient there"
    )


def _listed(ranks: Sequence[int]) -> str:
    return ", ".join(map(str, ranks))
