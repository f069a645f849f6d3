"""Simulates the allreduces of ranks on one host whose processors sit under several caches.

Each rank is a thread that does one piece of work at a time, in the order in which messages come to
it, as the engine does. The costs of these pieces are a `Costs`; the schedules below are those of
csrc/collectives/.
"""

from __future__ import annotations

import heapq
import itertools
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

_LINE = 64
_SHARD = 512 << 10  # PERSEUS_ALLREDUCE_SHARD
_SHARDS_AT_ONCE = 4  # PERSEUS_ALLREDUCE_STREAMS
_CHUNK = 128 << 10  # kLocalChunkBytes of parts.cc, and the largest frame in shared memory
# Where choose_allreduce and allreduce_direct change over.
_LATENCY_BYTES = 64 << 10
_MOST_RANKS_AT_ONCE = 8
_ONE_HOP_BYTES = 16 << 10
_ONE_HOP_TOTAL_BYTES = 64 << 10

Step = Callable[[int], None]


@dataclass(frozen=True)
class Costs:
    """The costs of work in shared memory to a rank, in nanoseconds.

    near_line, far_line: until a written line has come to another processor, under the same cache or
        another one (perseusrun --core-distances).
    message: a rank's work for one message, at either end, without its bytes.
    message_lines: how many lines cross one after the other until a message has been taken up.
    cached_byte, memory_byte: copying a byte, or adding it up, in a rank's own cache and from
        memory; what a rank reads from a near rank costs as much.
    far_read_line: more than that for a line that is read from a far rank. Many are under way at
        once, so it is much less than far_line.
    cache: bytes of a last-level cache. The ranks under it have equal shares. A buffer of up to half
        a rank's share stays there, with what is handed over; of one half as large again as the
        share, everything comes from memory; in between a part does.
    call: from the call of an allreduce to its end, without what it moves.
    link: bytes that go from one socket to another in a nanosecond; 0: no limit.
    """

    near_line: float
    far_line: float
    message: float
    message_lines: float
    cached_byte: float
    memory_byte: float
    far_read_line: float
    cache: int
    call: float
    link: float = 0.0


#: Recorded on virtual machines of 2 processors, from allreduces of 4 bytes to 64 MiB at 2 ranks.
#: Newer processors fetch from afar much faster.
RECORDED = {
    # An allreduce of 64 MiB took 7 ms while the processors were near each other, and 33 ms while
    # they were far apart, at the same settings (summer of 2026).
    "slow": Costs(27.0, 155.0, 200.0, 3.0, 0.018, 0.05, 25.0, 32 << 20, 800.0),
    # AMD EPYC, family 26, with a cache of 32 MiB, on 28 and 29 November 2026. Near and far: 4 B
    # took 1.1 and 1.7 us, 16 KiB 2.5 and 4.3 us, 1 MiB 37 and 62 us, 8 MiB 0.36 and 0.56 ms, 16 MiB
    # 1.0 and 1.2 ms, 64 MiB 6.7 and 10 ms.
    "fast": Costs(27.0, 180.0, 200.0, 3.0, 0.018, 0.05, 1.8, 32 << 20, 800.0),
}


class Host:
    """The ranks of a host. `socket_of` tells under which cache each runs, and `processors` how many
    there are: ranks beyond these take turns on them.

    A line that one rank of a socket has read from another socket is then near to the others there.
    """

    def __init__(
        self, costs: Costs, socket_of: Sequence[int], processors: int, buffer_bytes: int
    ) -> None:
        self.costs = costs
        self.socket_of = socket_of
        self.far_lines = [0] * len(socket_of)
        self._byte = [self._byte_under(socket, buffer_bytes) for socket in socket_of]
        self._processors = [_Processor() for _ in range(processors)]
        self._link_free: dict[tuple[int, int], float] = {}
        self._order = itertools.count()
        self._agenda: list[tuple[float, int, int, Step | None]] = []

    @property
    def size(self) -> int:
        return len(self.socket_of)

    def _byte_under(self, socket: int, buffer_bytes: int) -> float:
        """Returns what a rank of the socket takes to copy a byte, or add it up."""
        share = self.costs.cache / self.socket_of.count(socket)
        spilled = 1.0 if share == 0 else min(max(buffer_bytes / share - 0.5, 0.0), 1.0)
        return self.costs.cached_byte + spilled * (self.costs.memory_byte - self.costs.cached_byte)

    def begin(self, rank: int, step: Step) -> None:
        """Lets the rank do this once it is free."""
        self._at(self._of(rank).free, rank, step)

    def run(self) -> float:
        """Returns the time at which the last rank is done."""
        while self._agenda:
            time, _, rank, step = heapq.heappop(self._agenda)
            processor = self._of(rank)
            if step is not None:
                processor.waiting.append((rank, step))
            if time < processor.free or not processor.waiting:
                continue
            processor.free = time
            rank, step = processor.waiting.popleft()
            step(rank)
            if processor.free == time:
                processor.free += 1e-3  # so that it looks again after this
            self._at(processor.free, rank, None)
        return max(processor.free for processor in self._processors)

    def touch(self, rank: int, count: int) -> None:
        """The rank copies so many bytes, or adds them up."""
        self._of(rank).free += count * self._byte[rank]

    def send(self, source: int, target: int, step: Step) -> None:
        """The rank tells another where a payload is; that one then does `step`."""
        sender = self._of(source)
        sender.free += self.costs.message
        is_far = self.socket_of[source] != self.socket_of[target]
        line = self.costs.far_line if is_far else self.costs.near_line
        self._at(sender.free + line * self.costs.message_lines, target, step)

    def read(self, source: int, target: int, count: int, seen: set[int] | None = None) -> None:
        """The target copies or adds up a payload. `seen`: the sockets that have it."""
        reader = self._of(target)
        reader.free += self.costs.message
        self.touch(target, count)
        here, there = self.socket_of[target], self.socket_of[source]
        if here == there or (seen is not None and here in seen):
            return
        if seen is not None:
            seen.add(here)
        lines = -(-count // _LINE)
        self.far_lines[target] += lines
        reader.free += lines * self.costs.far_read_line
        if self.costs.link:
            link = (there, here)
            taken = count / self.costs.link
            self._link_free[link] = max(self._link_free.get(link, 0.0), reader.free - taken) + taken
            reader.free = max(reader.free, self._link_free[link])

    def _of(self, rank: int) -> _Processor:
        return self._processors[rank % len(self._processors)]

    def _at(self, time: float, rank: int, step: Step | None) -> None:
        heapq.heappush(self._agenda, (time, next(self._order), rank, step))


@dataclass
class _Processor:
    free: float = 0.0
    waiting: deque[tuple[int, Step]] = field(default_factory=deque)


class _Countdown:
    """Calls `done` for each rank that has counted so many times."""

    def __init__(self, times: int, done: Step) -> None:
        self._times, self._done = times, done
        self._left: dict[int, int] = {}

    def count(self, rank: int) -> None:
        self._left[rank] = self._left.get(rank, self._times) - 1
        if self._left[rank] == 0:
            self._done(rank)


class _ReduceScatter:
    """Each rank gives every other one the part that this one adds up."""

    def __init__(self, host: Host, ranks: Sequence[int], part: int, done: Step) -> None:
        self._host, self._ranks, self._part = host, ranks, part
        self._arrived = _Countdown(len(ranks), done)

    def begin(self, rank: int) -> None:
        for other in _others(self._ranks, rank):
            self._host.touch(rank, self._part)
            self._host.send(rank, other, lambda at: self._receive(rank, at))
        self._arrived.count(rank)

    def _receive(self, source: int, rank: int) -> None:
        self._host.read(source, rank, self._part)
        self._arrived.count(rank)


class _Allgather:
    """Each rank writes its part once, and every other one reads it."""

    def __init__(self, host: Host, ranks: Sequence[int], part: int, done: Step) -> None:
        self._host, self._ranks, self._part = host, ranks, part
        self._arrived = _Countdown(len(ranks), done)

    def begin(self, rank: int) -> None:
        self._host.touch(rank, self._part)
        seen: set[int] = set()
        for other in _others(self._ranks, rank):
            self._host.send(rank, other, lambda at: self._receive(rank, at, seen))
        self._arrived.count(rank)

    def _receive(self, source: int, rank: int, seen: set[int]) -> None:
        self._host.read(source, rank, self._part, seen)
        self._arrived.count(rank)


class _OneHop:
    """Each rank writes its whole input for every other one, and adds up all inputs."""

    def __init__(self, host: Host, ranks: Sequence[int], size: int, done: Step) -> None:
        self._inner = _ReduceScatter(host, ranks, size, done)
        self.begin = self._inner.begin


class _Doubling:
    """log2 N exchanges of the whole input, with ranks 1, 2, 4 ... places away."""

    def __init__(self, host: Host, ranks: Sequence[int], size: int, done: Step) -> None:
        self._host, self._ranks, self._size, self._done = host, ranks, size, done
        self._hop = dict.fromkeys(ranks, 0)
        self._waiting: dict[int, set[int]] = {rank: set() for rank in ranks}

    def begin(self, rank: int) -> None:
        hop = self._hop[rank]
        if 1 << hop >= len(self._ranks):
            self._done(rank)
            return
        partner = self._ranks[self._ranks.index(rank) ^ (1 << hop)]
        self._host.touch(rank, self._size)
        self._host.send(rank, partner, lambda at: self._arrive(at, hop))
        self._go_on(rank)

    def _arrive(self, rank: int, hop: int) -> None:
        self._waiting[rank].add(hop)
        self._go_on(rank)

    def _go_on(self, rank: int) -> None:
        hop = self._hop[rank]
        if hop not in self._waiting[rank]:
            return
        self._waiting[rank].remove(hop)
        partner = self._ranks[self._ranks.index(rank) ^ (1 << hop)]
        self._host.read(partner, rank, self._size)
        self._hop[rank] += 1
        self.begin(rank)


def _others(ranks: Sequence[int], rank: int) -> list[int]:
    at = ranks.index(rank)
    return [*ranks[at + 1 :], *ranks[:at]]


def _flat(host: Host, ranks: Sequence[int], size: int, done: Step) -> Step:
    """The form that choose_allreduce takes where all ranks are equally far apart."""
    if len(ranks) == 1:
        return done
    if size <= _LATENCY_BYTES and len(ranks) > _MOST_RANKS_AT_ONCE:
        return _Doubling(host, ranks, size, done).begin
    if size <= _ONE_HOP_BYTES and size * (len(ranks) - 1) <= _ONE_HOP_TOTAL_BYTES:
        return _OneHop(host, ranks, size, done).begin
    part = -(-size // len(ranks))
    chunks = -(-part // _CHUNK)
    all_done = _Countdown(chunks, done)
    begins = []
    for _ in range(chunks):
        gather = _Allgather(host, ranks, part // chunks, all_done.count)
        begins.append(_ReduceScatter(host, ranks, part // chunks, gather.begin).begin)

    def begin(rank: int) -> None:
        for chunk in begins:
            chunk(rank)

    return begin


def _grouped(host: Host, ranks: Sequence[int], size: int, done: Step) -> Step:
    """The hierarchical allreduce, with sockets in the place of hosts."""
    by_socket = [
        [rank for rank in ranks if host.socket_of[rank] == socket]
        for socket in sorted(set(host.socket_of))
    ]
    part = -(-size // len(by_socket[0]))
    begin: dict[int, Step] = {}
    across: dict[int, Step] = {}
    gather: dict[int, Step] = {}
    for group in by_socket:
        gathering = _Allgather(host, group, part, done)
        scattering = _ReduceScatter(host, group, part, lambda rank: across[rank](rank))
        for rank in group:
            gather[rank], begin[rank] = gathering.begin, scattering.begin
    for column in zip(*by_socket, strict=True):
        step = _flat(host, column, part, lambda rank: gather[rank](rank))
        across.update(dict.fromkeys(column, step))
    return lambda rank: begin[rank](rank)


FORMS = {"flat": _flat, "grouped": _grouped}


def simulate(
    costs: Costs, socket_of: Sequence[int], size: int, form: str, processors: int | None = None
) -> tuple[float, int]:
    """Returns how many nanoseconds an allreduce of `size` bytes takes, without what every call
    costs, and the most lines that a rank reads from afar.

    processors: as many as ranks, unless it is given.
    """
    host = Host(costs, socket_of, processors or len(socket_of), size)
    ranks = range(host.size)
    shards = [_SHARD] * (size // _SHARD) + [size % _SHARD] * (size % _SHARD != 0)
    next_of = dict.fromkeys(ranks, _SHARDS_AT_ONCE)
    begins: list[Step] = []

    def start_next(rank: int) -> None:
        number = next_of[rank]
        next_of[rank] += 1
        if number < len(begins):
            host.begin(rank, begins[number])

    begins += [FORMS[form](host, ranks, shard, start_next) for shard in shards]
    for rank in ranks:
        for begin in begins[:_SHARDS_AT_ONCE]:
            host.begin(rank, begin)
    return host.run(), max(host.far_lines)
