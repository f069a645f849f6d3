"""Collectives on NumPy arrays, without a framework.

perseusrun -np 4 python examples/numpy/allreduce.py
"""

import sys

import numpy as np

import perseus_core as perseus
from perseus_core import ReduceOp

perseus.init()
rank, size = perseus.rank(), perseus.size()

# The sum of the ranks' arrays, on every rank.
total = perseus.allreduce(np.full(4, rank, np.float32), ReduceOp.SUM)

# In place, while other work is done.
gradient = np.linspace(0, rank, 1_000_000)
handle = perseus.allreduce_async(gradient, out=gradient, name="gradient")
rows = perseus.allgather(np.arange(rank + 1))  # rank r has r + 1
handle.wait()

# Rank 0's table, on every rank.
table = perseus.broadcast(np.arange(6).reshape(2, 3) * (rank + 1), root=0)

if rank == 0:
    print(f"{size} ranks; their sum is {total}")
    print(f"the mean gradient ends with {gradient[-1]}")
    print(f"rows of all ranks: {rows}")
    print(f"rank 0's table: {table.tolist()}")
as_expected = [
    (total == size * (size - 1) / 2).all(),
    np.allclose(gradient, np.linspace(0, (size - 1) / 2, 1_000_000)),
    rows.tolist() == [i for r in range(size) for i in range(r + 1)],
    table.tolist() == [[0, 1, 2], [3, 4, 5]],
]
perseus.shutdown()
if not all(as_expected):
    sys.exit(f"rank {rank}: wrong results: {as_expected}")
