"""The backend "perseus" of torch.distributed: DistributedDataParallel and FSDP over the engine.

    import torch.distributed as dist
    import perseus.torch                    # registers it

    dist.init_process_group("perseus")
    model = torch.nn.parallel.DistributedDataParallel(model)

The processes are those of the job that Perseus runs in, however it was launched. What
torch.distributed itself asks for (RANK, WORLD_SIZE, MASTER_ADDR, MASTER_PORT) is set by perseusrun
and torchrun; under mpirun and srun, init_process_group takes init_method, rank and world_size.

Tensors are in CPU memory or on a CUDA device, those of one call all in the same. A work on CUDA
tensors is waited for by the host: it is complete when the GPU is done. There is no time-out but the
group's: a lost rank ends what is under way with HorovodInternalError. A call that is wrong on one
rank fails on the others too.

A send is a broadcast in a process set of its two ranks, which opens with their first message. Like
NCCL's it is complete when the receiver has taken it. Messages of one sender, receiver and tag are
received in the order in which they were sent.
"""

from __future__ import annotations

import collections
import contextlib
from collections.abc import Callable, Iterator, Sequence
from datetime import timedelta
from typing import Any, TypeAlias

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import Work

import perseus_core
from perseus.torch import c10d_sets
from perseus.torch.c10d_work import SubmitArguments, callback_threads, start, submit_arguments
from perseus.torch.horovod.tensors import take_result
from perseus_core import OperationKind, ReduceOp, opened_sets, refusals

__all__ = ["NAME", "PerseusProcessGroup", "register"]

NAME = "perseus"

Tensors: TypeAlias = Sequence[torch.Tensor]

# Elements of a result that may be kept for a while, so that its work is.
_SMALL = 4096

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
        dist.Backend.register_backend(NAME, _create, extended_api=True, devices=["cpu", "cuda"])


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
        store: dist.Store,
        timeout: timedelta,
        owns_engine: bool = False,
    ) -> None:
        super().__init__(rank, size)
        self._owns_engine = owns_engine
        self._set = process_set
        self._ranks = ranks  # of the world
        self._pairs = c10d_sets.Pairs(process_set, ranks, store)
        self._timeout = timeout
        # Where DDP holds a work in C++ alone, as that of a counter until backward ends, the Python
        # object is not kept, and without it the work has forgotten how to wait.
        self._last_works: collections.deque[Work] = collections.deque(maxlen=4)
        self._last_small_works: collections.deque[Work] = collections.deque(maxlen=64)
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

    # PyTorch asks whether a batch of messages may be begun as one.
    supports_coalescing = False

    def _get_backend(self, device: torch.device) -> PerseusProcessGroup:
        """A group may have one backend for each kind of device; this one is its own for all."""
        return self

    def shutdown(self) -> None:
        self._last_works.clear()
        self._last_small_works.clear()
        if self._owns_engine:
            perseus_core.shutdown()
            callback_threads.end_idle()
        elif perseus_core.is_initialized():
            self._pairs.close()
            if opened_sets.is_opened(self._set):
                opened_sets.close_set(self._set)

    # ---- Reductions.

    def allreduce(self, tensors: Tensors, opts: Any = None) -> Work:
        return self._reduce(list(tensors), opts)

    allreduce_coalesced = allreduce

    def reduce(self, tensors: Tensors, opts: Any = None) -> Work:
        (tensor,) = tensors
        if self.rank() == opts.rootRank:
            return self._reduce([tensor], opts)
        # Only the root's tensor may change.
        return self._reduce([tensor.clone()], opts, result=[tensor])

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

        return self._reduce([flat], opts, result=[output], finish=finish)

    # ---- Movements.

    def broadcast(self, tensors: Tensors, opts: Any = None) -> Work:
        (tensor,) = tensors
        root = self._ranks[opts.rootRank]
        with self._refusing(OperationKind.BROADCAST):
            buffer = tensor.detach().contiguous()
            call = submit_arguments([(buffer, buffer)], root=root)
        return self._start(
            OperationKind.BROADCAST, [call], lambda _: _copy_back([tensor], [buffer]), [tensor]
        )

    def allgather(self, outputs: Sequence[Tensors], inputs: Tensors, opts: Any = None) -> Work:
        ((input,), (parts,)) = inputs, outputs
        return self._gather([input], lambda: [list(parts)], list(parts))

    def _allgather_base(self, output: torch.Tensor, input: torch.Tensor, opts: Any = None) -> Work:
        return self._gather([input], lambda: [_rows(output, self.size())], [output])

    def allgather_into_tensor_coalesced(
        self, outputs: Tensors, inputs: Tensors, opts: Any = None
    ) -> Work:
        return self._gather(
            list(inputs),
            lambda: [_rows(output, self.size()) for output in outputs],
            list(outputs),
        )

    def allgather_coalesced(
        self, output_lists: Sequence[Tensors], inputs: Tensors, opts: Any = None
    ) -> Work:
        # output_lists[rank][tensor]
        parts = [[of_rank[i] for of_rank in output_lists] for i in range(len(inputs))]
        return self._gather(list(inputs), lambda: parts, [part for row in parts for part in row])

    def gather(self, outputs: Sequence[Tensors], inputs: Tensors, opts: Any = None) -> Work:
        (input,) = inputs
        parts = list(outputs[0]) if self.rank() == opts.rootRank else []
        return self._gather([input], lambda: [parts], parts)

    def scatter(self, outputs: Tensors, inputs: Sequence[Tensors], opts: Any = None) -> Work:
        (output,) = outputs
        if self.rank() == opts.rootRank:
            parts = list(inputs[0])
        else:
            parts = [output.new_empty(0)] * self.size()
        return self._exchange(lambda: parts, [output], lambda: {opts.rootRank: output})

    def alltoall(self, outputs: Tensors, inputs: Tensors, opts: Any = None) -> Work:
        return self._exchange(lambda: list(inputs), list(outputs), lambda: dict(enumerate(outputs)))

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

        return self._exchange(
            lambda: cut(input, input_splits),
            [output],
            lambda: dict(enumerate(cut(output, output_splits))),
        )

    def barrier(self, opts: Any = None) -> Work:
        return self._start(OperationKind.BARRIER, [SubmitArguments([], {})], lambda _: None, [])

    # ---- Messages.

    def send(self, tensors: Tensors, destination: int, tag: int) -> Work:
        return self._message(tensors, self.rank(), destination, tag)

    def recv(self, tensors: Tensors, source: int, tag: int) -> Work:
        return self._message(tensors, source, self.rank(), tag)

    def recv_anysource(self, tensors: Tensors, tag: int) -> Work:
        raise RuntimeError(
            "the backend perseus cannot receive from any rank: a message is agreed on by its two "
            "ranks; give src"
        )

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
        opts: Any,
        result: list[torch.Tensor] | None = None,
        finish: Callable[[], None] | None = None,
    ) -> Work:
        submissions = []
        with self._refusing(OperationKind.ALLREDUCE, min(len(tensors), 1)):
            op = _op_of(opts)
            buffers = [_real(tensor, op).detach().contiguous() for tensor in tensors]
            if tensors:
                pairs = [(buffer, buffer) for buffer in buffers]
                submissions.append(submit_arguments(pairs, reduce_op=op))

        def done(_: list[int]) -> None:
            _copy_back([_real(tensor, op) for tensor in tensors], buffers)
            if finish is not None:
                finish()

        return self._start(
            OperationKind.ALLREDUCE, submissions, done, tensors if result is None else result
        )

    def _reduce_scatter(
        self, outputs: list[torch.Tensor], inputs: list[torch.Tensor], opts: Any
    ) -> Work:
        submissions, sources, targets = [], [], []
        with self._refusing(OperationKind.REDUCESCATTER, len(outputs)):
            op = _op_of(opts)
            for output, input in zip(outputs, inputs, strict=True):
                if input.numel() != output.numel() * self.size():
                    raise ValueError(
                        f"the input has {input.numel()} elements; it takes the output's "
                        f"{output.numel()} for each of {self.size()} ranks"
                    )
                source = _real(input, op).detach().contiguous().view(-1)
                target = _real(output, op).detach().contiguous()
                submissions.append(submit_arguments([(source, target)], reduce_op=op))
                sources.append(source)
                targets.append(target)

        def finish(_: list[int]) -> None:
            sources.clear()
            _copy_back([_real(output, op) for output in outputs], targets)

        return self._start(OperationKind.REDUCESCATTER, submissions, finish, outputs)

    def _gather(
        self,
        inputs: list[torch.Tensor],
        parts_of: Callable[[], list[list[torch.Tensor]]],
        result: list[torch.Tensor],
    ) -> Work:
        """parts_of()[i]: where each rank's input i goes, or none."""
        with self._refusing(OperationKind.ALLGATHER, len(inputs)):
            sources = [_bytes_of(input) for input in inputs]
            parts = parts_of()
            submissions = [submit_arguments([(source, None)]) for source in sources]

        def finish(handles: list[int]) -> None:
            sources.clear()
            for handle, targets in zip(handles, parts, strict=True):
                if targets:
                    _deal(take_result(handle), targets)

        return self._start(OperationKind.ALLGATHER, submissions, finish, result)

    def _exchange(
        self,
        inputs_of: Callable[[], list[torch.Tensor]],
        result: list[torch.Tensor],
        outputs_of: Callable[[], dict[int, torch.Tensor]],
    ) -> Work:
        """inputs_of()[i] goes to rank i; what rank i sends here goes to outputs_of()[i]."""
        with self._refusing(OperationKind.ALLTOALL):
            pieces = [_bytes_of(input) for input in inputs_of()]
            outputs = outputs_of()
            source = torch.cat(pieces)
            call = submit_arguments([(source, None)], splits=[piece.numel() for piece in pieces])

        def finish(handles: list[int], _: torch.Tensor = source) -> None:
            _deal(take_result(handles[0]), [outputs[rank] for rank in sorted(outputs)])

        return self._start(OperationKind.ALLTOALL, [call], finish, result)

    def _message(self, tensors: Tensors, source: int, destination: int, tag: int) -> Work:
        """A broadcast of the message's bytes from its sender."""
        (tensor,) = tensors
        if source == destination:
            raise ValueError(f"rank {source} cannot send to itself")
        process_set = self._pairs.set_of(source, destination)
        prefix = f"c10d.message.{source}.{tag}"
        try:
            buffer = _bytes_of(tensor)
            call = submit_arguments([(buffer, buffer)], root=self._ranks[source])
        except Exception as error:
            refusals.refuse_unnamed(OperationKind.BROADCAST, prefix, 1, process_set, error)
            raise

        def finish(_: list[int]) -> None:
            if self.rank() == destination:
                _deal(buffer, [tensor])

        return start(
            OperationKind.BROADCAST, prefix, process_set, [call], finish, [tensor], self._timeout
        )

    @contextlib.contextmanager
    def _refusing(self, kind: OperationKind, count: int = 1) -> Iterator[None]:
        """Around what prepares `count` operations: an error stands for all, on the others too."""
        try:
            yield
        except Exception as error:
            refusals.refuse_unnamed(kind, _prefix(kind), count, self._set, error)
            raise

    def _start(
        self,
        kind: OperationKind,
        submissions: list[SubmitArguments],
        finish: Callable[[list[int]], None],
        result: list[torch.Tensor],
    ) -> Work:
        work = start(kind, _prefix(kind), self._set, submissions, finish, result, self._timeout)
        self._last_works.append(work)
        if sum(tensor.numel() for tensor in result) <= _SMALL:
            self._last_small_works.append(work)
        return work


def _prefix(kind: OperationKind) -> str:
    return f"c10d.{kind.name.lower()}"


def _create(options: Any, _: Any) -> PerseusProcessGroup:
    """The group that init_process_group or new_group asks for; called by its members."""
    rank, size = options.group_rank, options.group_size
    ranks = list(options.global_ranks_in_group)
    if ranks:
        return PerseusProcessGroup(
            rank, size, c10d_sets.open_set(options, ranks), ranks, options.store, options.timeout
        )
    owns_engine = not perseus_core.is_initialized()
    perseus_core.init()
    if (perseus_core.rank(), perseus_core.size()) != (rank, size):
        raise ValueError(
            f"torch.distributed says rank {rank} of {size}, Perseus {perseus_core.rank()} of "
            f"{perseus_core.size()}; start the job so that both say the same, for instance with "
            "perseusrun or torchrun"
        )
    c10d_sets.agree_on_used_numbers()
    return PerseusProcessGroup(
        rank,
        size,
        perseus_core.WORLD,
        list(range(size)),
        options.store,
        options.timeout,
        owns_engine,
    )


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
