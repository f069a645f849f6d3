"""A long run at 4 ranks, in which memory, descriptors, threads and latency must not grow.

python tests/soak/soak.py [--small 1000000] [--minutes 120] [--ranks 4] [--json FILE]

1. Small allreduces, one after the other.
2. Mixed operations of random sizes and kinds, several under way, process sets that come and go: all
   ranks draw alike, and every result is checked.

Each part is cut into tenths. A rank's memory and descriptors at the end of the last tenth, and the
median latency within it, may exceed those of the second tenth only by ALLOWED.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

TENTHS = 10
#: Bytes that the allocators of Python, the C library and numpy may have kept meanwhile.
ALLOWED_BYTES = 8 << 20
#: How much a median latency may grow, on a machine that others use too.
ALLOWED_LATENCY = 1.25
MARK = "SOAK "


def state() -> dict[str, int]:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return {
        "bytes": pages * os.sysconf("SC_PAGE_SIZE"),
        "descriptors": len(os.listdir("/proc/self/fd")),
        "threads": len(os.listdir("/proc/self/task")),
    }


def small(core: Any, np: Any, count: int) -> None:
    values = np.ones(4, np.float32)
    result = np.empty_like(values)
    for tenth in range(TENTHS):
        times = np.empty(count // TENTHS)
        for i in range(len(times)):
            began = time.perf_counter()
            core.allreduce(values, core.ReduceOp.SUM, name="small", out=result)
            times[i] = time.perf_counter() - began
        assert (result == core.size()).all()
        tell(core, np, "small allreduces", tenth, times)


def mixed(core: Any, np: Any, seconds: float) -> None:
    chance = np.random.default_rng(7)
    began = time.monotonic()
    for tenth in range(TENTHS):
        times: list[float] = []
        while True:
            # All ranks go on, or none.
            here = float(time.monotonic() - began < seconds * (tenth + 1) / TENTHS)
            if core.allreduce(np.array([here]), core.ReduceOp.MIN, name="going")[0] == 0:
                break
            for _ in range(20):
                start = time.perf_counter()
                mix(core, np, chance)
                times.append(time.perf_counter() - start)
        tell(core, np, "mixed operations", tenth, np.array(times))


#: Operations under way, and the arrays that they must return.
Begun = tuple[Any, list[Any]]


def summed(core: Any, np: Any, chance: Any, name: str, i: int, elements: int) -> Begun:
    mine = np.full(elements, float(core.rank() + i), np.float32)
    handle = core.allreduce_async(mine, core.ReduceOp.SUM, name=name)
    return handle, [np.full(elements, total(core, i))]


def greatest(core: Any, np: Any, chance: Any, name: str, i: int, elements: int) -> Begun:
    mine = np.full(elements, float(core.rank() + i))
    handle = core.allreduce_async(mine, core.ReduceOp.MAX, name=name, out=mine)
    return handle, [np.full(elements, core.size() - 1 + i)]


def encoded(core: Any, np: Any, chance: Any, name: str, i: int, elements: int) -> Begun:
    mine = np.full(elements, float(core.rank() + i), np.float32)
    codec = core.find_codec("fp16")
    handle = core.allreduce_async(mine, core.ReduceOp.SUM, name=name, codec=codec)
    return handle, [np.full(elements, total(core, i))]


def grouped(core: Any, np: Any, chance: Any, name: str, i: int, elements: int) -> Begun:
    lengths = [elements, 1, elements // 3]
    mine = [np.full(length, core.rank() + i, np.int64) for length in lengths]
    handle = core.grouped_allreduce_async(mine, core.ReduceOp.SUM, name=name)
    return handle, [np.full(length, total(core, i)) for length in lengths]


def broadcast(core: Any, np: Any, chance: Any, name: str, i: int, elements: int) -> Begun:
    root = int(chance.integers(core.size()))
    mine = np.full(elements, core.rank() + i, np.int32)
    return core.broadcast_async(mine, root, name=name), [np.full(elements, root + i)]


def gathered(core: Any, np: Any, chance: Any, name: str, i: int, elements: int) -> Begun:
    lengths = [min(elements, 1 + rank) for rank in range(core.size())]
    mine = np.full(lengths[core.rank()], core.rank() + i, np.float16)
    handle = core.allgather_async(mine, name=name)
    return handle, [np.repeat(np.arange(core.size()) + i, lengths)]


def scattered(core: Any, np: Any, chance: Any, name: str, i: int, elements: int) -> Begun:
    mine = np.full(elements, float(core.rank()), np.float32)
    handle = core.reducescatter_async(mine, core.ReduceOp.SUM, name=name)
    rows = elements // core.size() + (core.rank() < elements % core.size())
    return handle, [np.full(rows, total(core, 0))]


def exchanged(core: Any, np: Any, chance: Any, name: str, i: int, elements: int) -> Begun:
    """Rank r sends rank s r + s + 1 rows."""
    rank, size = core.rank(), core.size()
    splits = [rank + to + 1 for to in range(size)]
    mine = np.full((sum(splits), 1 + elements // 1000), rank + i, np.float32)
    expected = np.repeat(np.arange(size) + i, splits)
    columns = np.broadcast_to(expected[:, None], (len(expected), mine.shape[1]))
    return core.alltoall_async(mine, splits, name=name), [columns, splits]


KINDS = (summed, greatest, encoded, grouped, broadcast, gathered, scattered, exchanged)


def total(core: Any, i: int) -> int:
    """The sum of rank + i over all ranks."""
    return sum(range(core.size())) + core.size() * i


def mix(core: Any, np: Any, chance: Any) -> None:
    """Runs a few operations at once; all ranks run the same ones."""
    begun = []
    for i in range(int(chance.integers(1, 12))):
        kind = KINDS[int(chance.integers(len(KINDS)))]
        elements = int(2 ** chance.uniform(0, 18))
        name = f"mixed.{i}.{kind.__name__}"
        begun.append((kind, *kind(core, np, chance, name, i, elements)))
    for kind, handle, expected in begun:
        result = handle.wait()
        found = result if kind in (grouped, exchanged) else [result]
        for one, right in zip(found, expected, strict=True):
            np.testing.assert_array_equal(one, right, kind.__name__)
    if chance.random() < 0.002 and core.size() > 2:
        use_a_set(core, np)


def use_a_set(core: Any, np: Any) -> None:
    """Makes a process set, reduces within it, and removes it."""
    ends = [0, core.size() - 1]
    some = core.add_process_set(ends)
    if core.rank() in ends:
        within = core.allreduce(np.ones(3), core.ReduceOp.SUM, name="within", process_set=some)
        assert (within == 2).all()
    core.remove_process_set(some)


def tell(core: Any, np: Any, part: str, tenth: int, times: Any) -> None:
    median, last = np.percentile(times, [50, 99])
    row = {
        "part": part,
        "tenth": tenth,
        "rank": core.rank(),
        "operations": len(times),
        "median_us": round(1e6 * float(median), 1),
        "p99_us": round(1e6 * float(last), 1),
        **state(),
    }
    print(MARK + json.dumps(row), flush=True)


def work(args: argparse.Namespace) -> None:
    """One rank."""
    import numpy as np

    import perseus_core as core

    core.init()
    if args.small:
        small(core, np, args.small)
    if args.minutes:
        mixed(core, np, 60 * args.minutes)
    core.barrier()
    core.shutdown()


def growth(rows: list[dict[str, Any]]) -> list[str]:
    """Describes what has grown."""
    found = []
    for part in dict.fromkeys(row["part"] for row in rows):
        for rank in sorted({row["rank"] for row in rows}):
            of_rank = [row for row in rows if row["part"] == part and row["rank"] == rank]
            early, late = of_rank[1], of_rank[-1]
            where = f"{part}, rank {rank}"
            if late["bytes"] > early["bytes"] + ALLOWED_BYTES:
                found.append(f"{where}: memory, {early['bytes']} to {late['bytes']} bytes")
            for what in ("descriptors", "threads"):
                if late[what] > early[what]:
                    found.append(f"{where}: {what}, {early[what]} to {late[what]}")
            medians = sorted(row["median_us"] for row in of_rank[1:4])
            if late["median_us"] > ALLOWED_LATENCY * medians[len(medians) // 2]:
                found.append(f"{where}: latency, {medians} to {late['median_us']} us")
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--small", type=int, default=1_000_000, help="allreduces of 16 bytes")
    parser.add_argument("--minutes", type=float, default=120, help="minutes of mixed operations")
    parser.add_argument("--ranks", type=int, default=4)
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures there")
    args = parser.parse_args()
    if "PERSEUS_RANK" in os.environ:
        work(args)
        return 0
    command = [sys.executable, "-m", "perseus.run", "-np", str(args.ranks), sys.executable]
    command += [__file__, "--small", str(args.small), "--minutes", str(args.minutes)]
    environment = {**os.environ, "PERSEUS_DYNAMIC_PROCESS_SETS": "1", "OMP_NUM_THREADS": "1"}
    rows: list[dict[str, Any]] = []
    with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True) as job:
        assert job.stdout
        for line in job.stdout:
            text = line.partition(">:")[2]
            if not text.startswith(MARK):
                print(line, end="", flush=True)
                continue
            row = json.loads(text.removeprefix(MARK))
            rows.append(row)
            if row["rank"] == 0:
                print(
                    f"{row['part']:17} {row['tenth'] + 1:>2}/{TENTHS} {row['operations']:>8} in "
                    f"tenth, median {row['median_us']:>8.1f} us, p99 {row['p99_us']:>9.1f} us, "
                    f"{row['bytes'] / 2**20:6.1f} MiB, {row['descriptors']} descriptors, "
                    f"{row['threads']} threads",
                    flush=True,
                )
    if args.json:
        args.json.write_text(json.dumps(rows, indent=1) + "\n")
    problems = growth(rows) if job.returncode == 0 else [f"the job ended with {job.returncode}"]
    for problem in problems:
        print(f"GREW: {problem}")
    print("nothing has grown" if not problems else f"{len(problems)} problems")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
