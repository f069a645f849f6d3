"""The numbers of perseus.h: element types, reductions, operations."""

from __future__ import annotations

from enum import IntEnum

__all__ = ["WORLD", "DataType", "OperationKind", "ReduceOp"]

#: The process set of all ranks.
WORLD = 0


class DataType(IntEnum):
    """Element types, with the numbers of perseus.h."""

    UINT8 = 0
    INT8 = 1
    UINT16 = 2
    INT16 = 3
    INT32 = 4
    INT64 = 5
    FLOAT16 = 6
    FLOAT32 = 7
    FLOAT64 = 8
    BOOL = 9
    BFLOAT16 = 10


class ReduceOp(IntEnum):
    """How tensors are reduced. The numbers are those of Horovod, which has none for bits.

    The operations on bits take integers and bool.
    """

    AVERAGE = 0
    SUM = 1
    ADASUM = 2
    MIN = 3
    MAX = 4
    PRODUCT = 5
    BITWISE_AND = 6
    BITWISE_OR = 7
    BITWISE_XOR = 8


class OperationKind(IntEnum):
    """Kinds of operation, with the numbers of perseus.h."""

    ALLREDUCE = 0
    BROADCAST = 1
    ALLGATHER = 2
    ALLTOALL = 3
    REDUCESCATTER = 4
    BARRIER = 5
    JOIN = 6
