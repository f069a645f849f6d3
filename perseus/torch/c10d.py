"""The backend "perseus" of torch.distributed: DistributedDataParallel and FSDP over the engine.

    import torch.distributed as dist
    import perseus.torch                    # registers it

    dist.init_process_group("perseus")
    model = torch.nn.parallel.DistributedDataParallel(model)

The processes are those of the job that Perseus runs in, however it was launched. What
torch.distributed itself asks for (RANK, WORLD_SIZE, MASTER_ADDR, MASTER_PORT) is set by torchrun;
elsewhere init_process_group takes init_method, rank and world_size.

Tensors must be in CPU memory. There is no point-to-point send, and no time-out but the group's:
a lost rank ends what is under way with HorovodInternalError.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, TypeAlias

import numpy as np
import torch
import torch.distributed as dist
from torch._C._distributed_c10d import Work

import perseus_core
from perseus.torch.horovod.tensors import described, take_result
from perseus_core import OperationKind, ReduceOp, _engine, callbacks, names
from perseus_core.errors import from_status

__all__ = ["NAME", "Call", "PerseusProcessGroup", "PerseusWork", "register", "start"]

NAME = "perseus"

Tensors: TypeAlias = Sequence[torch.Tensor]

_OPS = {
    dist.ReduceOp.SUM: ReduceOp.SUM,
    dist.ReduceOp.AVG: ReduceOp.AVERAGE,
    dist.ReduceOp.MIN: ReduceOp.MIN,
    dist.ReduceOp.MAX: ReduceOp.MAX,
    dist.ReduceOp.PRODUCT: ReduceOp.PRODUCT,
}


def register() -> None:
    """Makes the backend known to torch.distributed."""
    if not hasattr(dist.Backend, NAME.upper()):
        dist.Backend.register_backend(NAME, _create, extended_api=True, devices=["cpu"])


class PerseusWork(Work):
    """One operation of a group, or several that were begun together. Any thread."""

    def __init__(
        self,
        operations: int,
        finish: Callable[[list[int]], None],
        result: list[torch.Tensor],
        timeout: timedelta,
    ) -> None:
        """`finish` puts results where they belong: it runs once, with the engine's handles, when
        all operations have succeeded. Until then it keeps alive what they work on."""
        super().__init__()
        self._handles = [0] * operations
        self._left = operations
        self._finish: Callable[[list[int]], None] | None = finish
        self._result = result
        self._timeout = timeout
        self._lock = threading.Lock()
        self._done = threading.Event()
        self._error: Exception | None = None
        self._future: torch.futures.Future[list[torch.Tensor]] = torch.futures.Future()
        if operations == 0:
            self._complete()

    def ended(self, index: int, handle: int, status: int, message: str) -> None:
        """The callback of each operation; on Perseus's thread for them."""
        with self._lock:
            self._handles[index] = handle
            if status != 0 and self._error is None:
                self._error = from_status(status, message)
            self._left -= 1
            if self._left > 0:
                return
        self._complete()

    def _complete(self) -> None:
        finish, self._finish = self._finish, None
        try:
            if self._error is None and finish is not None:
                finish(self._handles)
        except Exception as error:
            self._error = error
        for handle in self._handles:
            _engine.release(handle)
        self._done.set()
        if self._error is None:
            self._future.set_result(self._result)
        else:
            self._future.set_exception(self._error)

    def wait(self, timeout: timedelta | None = None) -> bool:
        limit = timeout if timeout is not None and timeout > timedelta() else self._timeout
        if not self._done.wait(limit.total_seconds()):
            raise RuntimeError(f"the operation is not complete after {limit}")
        if self._error is not None:
            raise self._error
        return True

    def is_completed(self) -> bool:
        return self._done.is_set()

    def is_success(self) -> bool:
        return self._done.is_set() and self._error is None

    def exception(self) -> Exception | None:
        return self._error

    def result(self) -> list[torch.Tensor]:
        return self._result

    def get_future(self) -> torch.futures.Future[list[torch.Tensor]]:
        return self._future


@dataclass(frozen=True)
class Call:
    """What _engine.submit takes."""

    tensors: list[tuple[int, int, tuple[int, ...], int]]
    options: dict[str, Any]


def start(
    kind: OperationKind,
    prefix: str,
    process_set: int,
    calls: Sequence[Call],
    finish: Callable[[list[int]], None],
    result: list[torch.Tensor],
    timeout: timedelta,
) -> PerseusWork:
    """Begins unnamed operations, to be waited for as one; see PerseusWork."""
    callbacks.start()
    work = PerseusWork(len(calls), finish, result, timeout)
    for index, call in enumerate(calls):
        ended = functools.partial(work.ended, index)
        names.submit(
            kind,
            f"{prefix}.{kind.name.lower()}",
            None,
            process_set,
            lambda id, call=call, ended=ended: _engine.submit(
                id, call.tensors, **call.options, callback=ended
            ),
        )
    return work


class PerseusProcessGroup(dist.ProcessGroup):
    """A group of ranks, on a process set of its own.

    Its ranks make the same calls in the same order.
    """

    def __init__(
        self,
        rank: int,
        size: int,
        process_set: int,
        ranks: list[int],
        timeout: timedelta,
        owns_engine: bool = False,
    ) -> None:
        super().__init__(rank, size)
        self._owns_engine = owns_engine
        self._set = process_set
        self._ranks = ranks  # of the world
        self._timeout = timeout
        self._group_name = ""
        self._group_desc = ""

    # ---- What torch.distributed asks a group for.

    def getBackendName(self) -> str:
        return NAME

    def setGroupName(self, name: str) -> None:
        self._group_name = name

    def getGroupName(self) -> str:
        return self._group_name

    def setGroupDesc(self, description: str) -> None:
        self._group_desc = description

    def getGroupDesc(self) -> str:
        return self._group_desc

    def shutdown(self) -> None:
        if self._owns_engine:
            perseus_core.shutdown()
        elif self._set >= _engine.FIRST_OPENED_SET and _engine.is_initialized():
            _engine.close_process_set(self._set)

    # ---- Reductions.

    def allreduce(self, tensors: Tensors, opts: Any = None) -> Work:
        return self._reduce(list(tensors), _op_of(opts))

    allreduce_coalesced = allreduce

    def reduce(self, tensors: Tensors, opts: Any = None) -> Work:
        (tensor,) = tensors
        if self.rank() == opts.rootRank:
            return self._reduce([tensor], _op_of(opts))
        # Only the root's tensor may change.
        return self._reduce([tensor.clone()], _op_of(opts), result=[tensor])

    def _reduce_scatter_base(
        self, output: torch.Tensor, input: torch.Tensor, opts: Any = None
    ) -> Work:
        return self._reduce_scatter([output], [input], opts)

    def reduce_scatter_tensor_coalesced(
        self, outputs: Tensors, inputs: Tensors, opts: Any = None
    ) -> Work:
        return self._reduce_scatter(list(outputs), list(inputs), opts)

    def reduce_scatter(self, outputs: Tensors, inputs: Sequence[Tensors], opts: Any = None) -> Work:
        (output,), (parts,) = outputs, inputs
        if all(part.shape == output.shape for part in parts):
            return self._reduce_scatter([output], [torch.stack(list(parts))], opts)
        # Parts of different sizes: everybody needs what follows from the sizes of all.
        flat = torch.cat([part.reshape(-1) for part in parts])
        begin = sum(part.numel() for part in parts[: self.rank()])

        def finish() -> None:
            output.copy_(flat[begin : begin + output.numel()].view_as(output))

        return self._reduce([flat], _op_of(opts), result=[output], finish=finish)

    # ---- Movements.

    def broadcast(self, tensors: Tensors, opts: Any = None) -> Work:
        (tensor,) = tensors
        root = self._ranks[opts.rootRank]
        buffer = tensor.detach().contiguous()
        return self._start(
            OperationKind.BROADCAST,
            [Call([described(buffer, buffer)], {"root": root})],
            lambda _: _copy_back([tensor], [buffer]),
            [tensor],
        )

    def allgather(self, outputs: Sequence[Tensors], inputs: Tensors, opts: Any = None) -> Work:
        ((input,), (parts,)) = inputs, outputs
        return self._gather([input], [list(parts)], list(parts))

    def _allgather_base(self, output: torch.Tensor, input: torch.Tensor, opts: Any = None) -> Work:
        return self._gather([input], [_rows(output, self.size())], [output])

    def allgather_into_tensor_coalesced(
        self, outputs: Tensors, inputs: Tensors, opts: Any = None
    ) -> Work:
        parts = [_rows(output, self.size()) for output in outputs]
        return self._gather(list(inputs), parts, list(outputs))

    def allgather_coalesced(
        self, output_lists: Sequence[Tensors], inputs: Tensors, opts: Any = None
    ) -> Work:
        # output_lists[rank][tensor]
        parts = [[of_rank[i] for of_rank in output_lists] for i in range(len(inputs))]
        return self._gather(list(inputs), parts, [part for row in parts for part in row])

    def gather(self, outputs: Sequence[Tensors], inputs: Tensors, opts: Any = None) -> Work:
        (input,) = inputs
        parts = list(outputs[0]) if self.rank() == opts.rootRank else []
        return self._gather([input], [parts], parts)

    def scatter(self, outputs: Tensors, inputs: Sequence[Tensors], opts: Any = None) -> Work:
        (output,) = outputs
        if self.rank() == opts.rootRank:
            parts = list(inputs[0])
        else:
            parts = [output.new_empty(0)] * self.size()
        return self._exchange(parts, [output], {opts.rootRank: output})

    def alltoall(self, outputs: Tensors, inputs: Tensors, opts: Any = None) -> Work:
        return self._exchange(list(inputs), list(outputs), dict(enumerate(outputs)))

    def alltoall_base(
        self,
        output: torch.Tensor,
        input: torch.Tensor,
        output_splits: Sequence[int],
        input_splits: Sequence[int],
        opts: Any = None,
    ) -> Work:
        def cut(tensor: torch.Tensor, splits: Sequence[int]) -> list[torch.Tensor]:
            if splits:
                return list(tensor.split(list(splits)))
            return _rows(tensor, self.size())

        outputs = cut(output, output_splits)
        return self._exchange(cut(input, input_splits), [output], dict(enumerate(outputs)))

    def barrier(self, opts: Any = None) -> Work:
        return self._start(OperationKind.BARRIER, [Call([], {})], lambda _: None, [])

    def send(self, tensors: Tensors, destination: int, tag: int) -> Work:
        raise RuntimeError(_NO_SENDS)

    def recv(self, tensors: Tensors, source: int, tag: int) -> Work:
        raise RuntimeError(_NO_SENDS)

    def recv_anysource(self, tensors: Tensors, tag: int) -> Work:
        raise RuntimeError(_NO_SENDS)

    # ---- The names that PyTorch has for some of them from 2.13 on.

    all_gather_single = _allgather_base
    all_gather_single_coalesced = allgather_into_tensor_coalesced
    reduce_scatter_single = _reduce_scatter_base
    reduce_scatter_single_coalesced = reduce_scatter_tensor_coalesced
    all_to_all_single = alltoall_base

    # ---- How they are done.

    def _reduce(
        self,
        tensors: list[torch.Tensor],
        op: ReduceOp,
        result: list[torch.Tensor] | None = None,
        finish: Callable[[], None] | None = None,
    ) -> Work:
        buffers = [_real(tensor, op).detach().contiguous() for tensor in tensors]

        def done(_: list[int]) -> None:
            _copy_back([_real(tensor, op) for tensor in tensors], buffers)
            if finish is not None:
                finish()

        call = Call([described(buffer, buffer) for buffer in buffers], {"reduce_op": op})
        return self._start(
            OperationKind.ALLREDUCE,
            [call] if tensors else [],
            done,
            tensors if result is None else result,
        )

    def _reduce_scatter(
        self, outputs: list[torch.Tensor], inputs: list[torch.Tensor], opts: Any
    ) -> Work:
        op = _op_of(opts)
        calls, sources, targets = [], [], []
        for output, input in zip(outputs, inputs, strict=True):
            if input.numel() != output.numel() * self.size():
                raise ValueError(
                    f"the input has {input.numel()} elements; it takes the output's "
                    f"{output.numel()} for each of {self.size()} ranks"
                )
            source = _real(input, op).detach().contiguous().view(-1)
            target = _real(output, op).detach().contiguous()
            calls.append(Call([described(source, target)], {"reduce_op": op}))
            sources.append(source)
            targets.append(target)

        def finish(_: list[int]) -> None:
            sources.clear()
            _copy_back([_real(output, op) for output in outputs], targets)

        return self._start(OperationKind.REDUCESCATTER, calls, finish, outputs)

    def _gather(
        self,
        inputs: list[torch.Tensor],
        parts: list[list[torch.Tensor]],
        result: list[torch.Tensor],
    ) -> Work:
        """parts[i]: where each rank's input i goes, or none."""
        sources = [_bytes_of(input) for input in inputs]

        def finish(handles: list[int]) -> None:
            sources.clear()
            for handle, targets in zip(handles, parts, strict=True):
                if targets:
                    _deal(take_result(handle), targets)

        calls = [Call([described(source)], {}) for source in sources]
        return self._start(OperationKind.ALLGATHER, calls, finish, result)

    def _exchange(
        self,
        inputs: list[torch.Tensor],
        result: list[torch.Tensor],
        outputs: dict[int, torch.Tensor],
    ) -> Work:
        """inputs[i] goes to rank i; what rank i sends here goes to outputs[i]."""
        pieces = [_bytes_of(input) for input in inputs]
        source = torch.cat(pieces)
        call = Call([described(source)], {"splits": [piece.numel() for piece in pieces]})

        def finish(handles: list[int], _: torch.Tensor = source) -> None:
            _deal(take_result(handles[0]), [outputs[rank] for rank in sorted(outputs)])

        return self._start(OperationKind.ALLTOALL, [call], finish, result)

    def _start(
        self,
        kind: OperationKind,
        calls: list[Call],
        finish: Callable[[list[int]], None],
        result: list[torch.Tensor],
    ) -> Work:
        return start(kind, "c10d", self._set, calls, finish, result, self._timeout)


_NO_SENDS = "the backend perseus has no point-to-point sends; use a collective, or another backend"


def _create(options: Any, _: Any) -> PerseusProcessGroup:
    """The group that init_process_group or new_group asks for; called by its members."""
    rank, size = options.group_rank, options.group_size
    ranks = list(options.global_ranks_in_group)
    if ranks:
        return PerseusProcessGroup(rank, size, _open_set(options, ranks), ranks, options.timeout)
    owns_engine = not perseus_core.is_initialized()
    perseus_core.init()
    if (perseus_core.rank(), perseus_core.size()) != (rank, size):
        raise ValueError(
            f"torch.distributed says rank {rank} of {size}, Perseus {perseus_core.rank()} of "
            f"{perseus_core.size()}; start the job so that both say the same, for instance with "
            "perseusrun or torchrun"
        )
    # Groups of an earlier init_process_group have used numbers that must not come again.
    global _last_set_before
    used = perseus_core.allreduce(np.array([_last_set]), ReduceOp.MAX, name="c10d.last_set")
    _last_set_before = int(used[0])
    return PerseusProcessGroup(
        rank, size, perseus_core.WORLD, list(range(size)), options.timeout, owns_engine
    )


# Keys in the store: how many sets there are in all, and the number of a group's own.
_SETS = "perseus/sets"
_SET = "perseus/set"
# The highest number that this process has opened a set by, and that any had at the last
# init_process_group.
_last_set = 0
_last_set_before = 0


def _open_set(options: Any, ranks: list[int]) -> int:
    """Opens a process set of a number that all members have from the group's first rank."""
    global _last_set
    if options.group_rank == 0:
        world = dist.distributed_c10d._get_default_store()
        options.store.set(_SET, str(_last_set_before + world.add(_SETS, 1)))
    number = int(options.store.get(_SET))
    _last_set = max(_last_set, number)
    process_set = _engine.FIRST_OPENED_SET + number
    _engine.open_process_set(process_set, ranks)
    names.restart_set(process_set)
    return process_set


def _op_of(options: Any) -> ReduceOp:
    op = dist.ReduceOp.SUM if options is None else options.reduceOp
    for theirs, ours in _OPS.items():
        if op == theirs:
            return ours
    kinds = dist.ReduceOp.RedOpType.__members__
    asked = next((name for name, kind in kinds.items() if op == kind), str(op))
    served = ", ".join(name for name, kind in kinds.items() if kind in _OPS)
    raise ValueError(f"ReduceOp.{asked} is not supported; it takes one of {served}")


def _real(tensor: torch.Tensor, op: ReduceOp) -> torch.Tensor:
    """Complex numbers as pairs, where that comes to the same."""
    if not tensor.is_complex():
        return tensor
    if op not in (ReduceOp.SUM, ReduceOp.AVERAGE):
        raise ValueError(f"complex numbers cannot be reduced by {op.name.lower()}")
    return torch.view_as_real(tensor)


def _rows(tensor: torch.Tensor, count: int) -> list[torch.Tensor]:
    """A contiguous tensor in `count` equal parts."""
    if tensor.numel() % count:
        raise ValueError(f"{tensor.numel()} elements cannot be parted among {count} ranks")
    return list(tensor.view(-1).chunk(count)) if tensor.numel() else [tensor.view(-1)] * count


def _bytes_of(tensor: torch.Tensor) -> torch.Tensor:
    """What is only moved needs no type that the engine can reduce."""
    if not tensor.is_cpu:
        raise ValueError(f"the tensor is on {tensor.device}; the backend {NAME} moves CPU tensors")
    return tensor.detach().contiguous().view(-1).view(torch.uint8)


def _deal(data: torch.Tensor, targets: Tensors) -> None:
    """Bytes to tensors, one after the other."""
    wanted = sum(target.numel() * target.element_size() for target in targets)
    if wanted != data.numel():
        raise ValueError(f"{data.numel()} bytes came for outputs of {wanted}")
    begin = 0
    for target in targets:
        end = begin + target.numel() * target.element_size()
        if end > begin:
            target.detach().copy_(data[begin:end].view(target.dtype).view(target.shape))
        begin = end


def _copy_back(tensors: Tensors, buffers: Tensors) -> None:
    for tensor, buffer in zip(tensors, buffers, strict=True):
        if buffer.data_ptr() != tensor.data_ptr():
            tensor.detach().copy_(buffer)


register()
