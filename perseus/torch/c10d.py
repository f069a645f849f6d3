"""The backend "perseus" of torch.distributed, for DistributedDataParallel and FSDP over the engine.

    import torch.distributed as dist
    import perseus.torch                    # registers it

    dist.init_process_group("perseus")
    model = torch.nn.parallel.DistributedDataParallel(model)

The ranks are those that torch.distributed knows. perseusrun and torchrun set the variables that it
needs (RANK, WORLD_SIZE, MASTER_ADDR, MASTER_PORT). Otherwise, pass rank and world_size, and an
init_method or a store, to init_process_group. See perseus.torch.numbered_ranks.

The tensors of a call are all in CPU memory or all on one CUDA device. The host waits for a work on
CUDA tensors: it is complete when the GPU has finished. The only time-out is that of the group: if a
rank is lost, operations in flight fail with HorovodInternalError. A call that is wrong on one rank
fails on the others, too.

Messages with the same sender, receiver and tag are received in the order in which they were sent. A
send is complete when its tensor may be used again; see perseus_core.messages.
"""

from __future__ import annotations

import collections
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any, TypeAlias

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import Work

import perseus_core
from perseus.torch import c10d_messages, c10d_sets, c10d_sparse, c10d_timeouts, c10d_world
from perseus.torch import c10d_overloads as forms
from perseus.torch.c10d_bytes import check_types, deal, movable
from perseus.torch.c10d_errors import InvalidArgumentError, Refusing
from perseus.torch.c10d_memory import ResultPlace, joined, span_of
from perseus.torch.c10d_overloads import also_as
from perseus.torch.c10d_reductions import reduction_of
from perseus.torch.c10d_work import (
    Operations,
    SubmitArguments,
    run,
    start,
    submit_arguments,
    submit_bytes,
    wait_for_all,
)
from perseus.torch.horovod.eager import eager
from perseus.torch.horovod.tensors import take_result
from perseus.torch.row_major import row_major
from perseus_core import OperationKind, names, opened_sets

__all__ = ["NAME", "PerseusProcessGroup", "register"]

NAME = "perseus"

Tensors: TypeAlias = Sequence[torch.Tensor]

# Ranks agree by one bit on a collective whose name they know with the same shape. So there are few
# names, and a number of them that many steps' numbers of collectives divide.
_NAMES = 120
# A work whose result has at most this many elements is kept alive for longer.
_SMALL = 4096


def register() -> None:
    """Registers the backend with torch.distributed."""
    for kind in OperationKind:
        names.set_round(_prefix(kind), _NAMES)
    if not hasattr(dist.Backend, NAME.upper()):
        dist.Backend.register_backend(NAME, _create, extended_api=True, devices=["cpu", "cuda"])


class PerseusProcessGroup(dist.ProcessGroup):
    """A group of ranks with a process set of its own.

    Its ranks must make the same calls in the same order.
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
        # The methods of the same names take longer, as they are PyTorch's.
        self._rank = rank
        self._size = size
        self._owns_engine = owns_engine
        self._set = process_set
        self._ranks = ranks  # of the world
        self._store = store
        self._timeout = timeout
        # DDP holds some works in C++ only, such as that of a counter until backward ends. Then the
        # Python object would be freed, and the work could not wait without it.
        self._last_works: collections.deque[Work] = collections.deque(maxlen=4)
        self._last_small_works: collections.deque[Work] = collections.deque(maxlen=64)
        self._unfinished: set[Operations] = set()  # of its collectives
        self._group_name = ""
        self._group_desc = ""

    # ---- Properties of a group for torch.distributed.

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

    def get_group_store(self) -> dist.Store:
        return self._store

    @property
    def _device_types(self) -> list[torch.device]:
        # From PyTorch 2.15 on, it asks while it makes the group, and attaches a recorder, which
        # needs a backend in C++, unless there are none.
        if self not in dist.distributed_c10d._world.pg_map:
            return []
        return [torch.device("cpu"), torch.device("cuda")]

    # Tells PyTorch that it must not start a batch of messages as one.
    supports_coalescing = False
    # split_group attaches a recorder to what it makes, which needs a backend in C++.
    supports_splitting = False

    def _get_backend(self, device: torch.device) -> PerseusProcessGroup:
        """Returns the backend for a kind of device: this group itself, for every device."""
        return self

    get_backend = _get_backend

    def set_timeout(self, timeout: timedelta) -> None:
        """Sets the limit of works that begin from now on."""
        self._timeout = timeout

    _set_default_timeout = set_timeout

    def shutdown(self) -> None:
        self._last_works.clear()
        self._last_small_works.clear()
        self._unfinished.clear()
        if self._owns_engine:
            c10d_world.end()
        elif perseus_core.is_initialized() and opened_sets.is_opened(self._set):
            opened_sets.close_set(self._set)
            c10d_world.leave()

    # ---- Reductions.

    @also_as(forms.ALLREDUCE)
    def allreduce(self, tensors: Tensors, opts: Any) -> Work | None:
        if len(tensors) == 1 and c10d_sparse.is_sparse(tensors[0]):
            return self._reduce_sparse(tensors[0], opts)
        return self._reduce(list(tensors), opts)

    @eager
    def allreduce_coalesced(self, tensors: Tensors, opts: Any = None) -> Work | None:
        return self._reduce(list(tensors), opts)

    @also_as(forms.REDUCE)
    def reduce(self, tensors: Tensors, opts: Any = None) -> Work | None:
        (tensor,) = tensors
        if self._rank == opts.rootRank:
            return self._reduce([tensor], opts)
        # Only the root's tensor may change.
        return self._reduce([tensor.clone()], opts, result=[tensor])

    @eager
    def _reduce_scatter_base(
        self, output: torch.Tensor, input: torch.Tensor, opts: Any = None
    ) -> Work | None:
        return self._reduce_scatter([output], [input], opts)

    @eager
    def reduce_scatter_tensor_coalesced(
        self, outputs: Tensors, inputs: Tensors, opts: Any = None
    ) -> Work | None:
        return self._reduce_scatter(list(outputs), list(inputs), opts)

    @also_as(forms.REDUCE_SCATTER)
    def reduce_scatter(
        self, outputs: Tensors, inputs: Sequence[Tensors], opts: Any = None
    ) -> Work | None:
        (output,), (parts,) = outputs, inputs
        if all(part.shape == output.shape for part in parts):
            return self._reduce_scatter([output], [torch.stack(list(parts))], opts)
        # Parts of different sizes: reduce everything on all ranks, and take this rank's part.
        flat = torch.cat([part.reshape(-1) for part in parts])
        begin = sum(part.numel() for part in parts[: self._rank])

        def finish() -> None:
            output.copy_(flat[begin : begin + output.numel()].view_as(output))

        return self._reduce([flat], opts, result=[output], finish=finish)

    # ---- Movements.

    @also_as(forms.BROADCAST)
    def broadcast(self, tensors: Tensors, opts: Any = None) -> Work | None:
        (tensor,) = tensors
        with self._refusing(OperationKind.BROADCAST):
            root = self._world_rank(opts.rootRank)
            buffer = row_major(tensor)
            data = movable(buffer)
            call = submit_arguments([(data, data)], root=root)
        return self._start(
            OperationKind.BROADCAST,
            [call],
            lambda _: _copy_back([tensor], [buffer]),
            [tensor],
            opts,
        )

    @also_as(forms.ALLGATHER)
    def allgather(
        self, outputs: Sequence[Tensors], inputs: Tensors, opts: Any = None
    ) -> Work | None:
        ((input,), (parts,)) = inputs, outputs
        return self._gather([input], lambda: [self._one_for_each_rank(parts)], list(parts), opts)

    @eager
    def _allgather_base(
        self, output: torch.Tensor, input: torch.Tensor, opts: Any = None
    ) -> Work | None:
        return self._gather([input], lambda: [self._whole(output)], [output], opts)

    @eager
    def allgather_into_tensor_coalesced(
        self, outputs: Tensors, inputs: Tensors, opts: Any = None
    ) -> Work | None:
        return self._gather(
            list(inputs),
            lambda: [self._whole(output) for output in outputs],
            list(outputs),
            opts,
        )

    @eager
    def allgather_coalesced(
        self, output_lists: Sequence[Tensors], inputs: Tensors, opts: Any = None
    ) -> Work | None:
        # output_lists[rank][tensor]
        parts = [[of_rank[i] for of_rank in output_lists] for i in range(len(inputs))]
        return self._gather(
            list(inputs),
            lambda: [self._one_for_each_rank(row) for row in parts],
            [part for row in parts for part in row],
            opts,
        )

    @also_as(forms.GATHER)
    def gather(self, outputs: Sequence[Tensors], inputs: Tensors, opts: Any = None) -> Work | None:
        (input,) = inputs
        parts = list(outputs[0]) if self._rank == opts.rootRank else []
        return self._exchange(lambda: self._to_root(input, opts), parts, lambda: parts, opts)

    @eager
    def gather_single(self, output: torch.Tensor, input: torch.Tensor, opts: Any) -> Work | None:
        """PyTorch has it from 2.15 on. Only the root's output is used."""
        outputs = [output] if self._rank == opts.rootRank else []

        def parts() -> list[torch.Tensor]:
            if outputs and output.numel() != self._size * input.numel():
                raise ValueError(
                    f"the output has {output.numel()} elements; it must have {self._size} times "
                    f"the {input.numel()} of the input"
                )
            return outputs

        return self._exchange(lambda: self._to_root(input, opts), outputs, parts, opts)

    gather_into_tensor = gather_single

    def _to_root(self, input: torch.Tensor, opts: Any) -> list[torch.Tensor]:
        """Returns what this rank sends to each: the input to the root, and nothing to others."""
        nothing = input.new_empty(0)
        return [input if rank == opts.rootRank else nothing for rank in range(self._size)]

    @also_as(forms.SCATTER)
    def scatter(self, outputs: Tensors, inputs: Sequence[Tensors], opts: Any = None) -> Work | None:
        (output,) = outputs
        if self._rank == opts.rootRank:
            parts = list(inputs[0])
        else:
            parts = [output.new_empty(0)] * self._size
        return self._exchange(lambda: parts, [output], lambda: [output], opts)

    @also_as(forms.ALLTOALL)
    def alltoall(self, outputs: Tensors, inputs: Tensors, opts: Any = None) -> Work | None:
        return self._exchange(lambda: list(inputs), list(outputs), lambda: list(outputs), opts)

    @also_as(forms.ALLTOALL_SINGLE)
    def alltoall_base(
        self,
        output: torch.Tensor,
        input: torch.Tensor,
        output_splits: Sequence[int],
        input_splits: Sequence[int],
        opts: Any = None,
    ) -> Work | None:
        def parts(tensor: torch.Tensor, splits: Sequence[int]) -> list[torch.Tensor]:
            return list(tensor.split(list(splits))) if splits else self._whole(tensor)

        return self._exchange(
            lambda: parts(input, input_splits),
            [output],
            lambda: parts(output, output_splits),
            opts,
            is_dealt=not input_splits,
        )

    @also_as(forms.BARRIER)
    def barrier(self, opts: Any = None) -> Work | None:
        """As with Gloo, the collectives that began before it have ended, too, when it ends."""
        kind = OperationKind.BARRIER
        before, limit = list(self._unfinished), self._timeout

        def finish(_: list[int]) -> None:
            wait_for_all(before, _prefix(kind), limit)

        return self._start(kind, [SubmitArguments([], {})], finish, [], opts)

    # ---- Messages.

    @eager
    def send(self, tensors: Tensors, destination: int, tag: int) -> Work:
        (tensor,) = tensors
        peer = self._peer(destination)
        return c10d_messages.send(tensor, self._set, peer, tag, self._timeout, self._rank)

    @eager
    def recv(self, tensors: Tensors, source: int, tag: int) -> Work:
        (tensor,) = tensors
        peer = self._peer(source)
        return c10d_messages.receive(tensor, self._set, peer, tag, self._timeout, self._ranks.index)

    @eager
    def recv_anysource(self, tensors: Tensors, tag: int) -> Work:
        (tensor,) = tensors
        return c10d_messages.receive(tensor, self._set, None, tag, self._timeout, self._ranks.index)

    # ---- Other names for some of them, from PyTorch 2.13 on.

    all_gather_single = _allgather_base
    all_gather_single_coalesced = allgather_into_tensor_coalesced
    reduce_scatter_single = _reduce_scatter_base
    reduce_scatter_single_coalesced = reduce_scatter_tensor_coalesced
    all_to_all_single = alltoall_base

    # ---- Implementation.

    def _reduce(
        self,
        tensors: list[torch.Tensor],
        opts: Any,
        result: list[torch.Tensor] | None = None,
        finish: Callable[[], None] | None = None,
    ) -> Work | None:
        submissions = []
        with self._refusing(OperationKind.ALLREDUCE, min(len(tensors), 1)):
            reduction = reduction_of(opts)
            buffers = [reduction.input(row_major(tensor)) for tensor in tensors]
            if tensors:
                known = [reduction.known(buffer) for buffer in buffers]
                # As with Gloo, a number on one rank and a vector of one on another go together.
                known = [one.view(1) if one.dim() == 0 else one for one in known]
                submissions.append(
                    submit_arguments(
                        list(zip(known, known, strict=True)),
                        reduce_op=reduction.op,
                        prescale=reduction.prescale,
                    )
                )

        def done(_: list[int]) -> None:
            _copy_back(tensors, buffers)
            if finish is not None:
                finish()

        return self._start(
            OperationKind.ALLREDUCE, submissions, done, tensors if result is None else result, opts
        )

    def _reduce_sparse(self, tensor: torch.Tensor, opts: Any) -> Work | None:
        with self._refusing(OperationKind.ALLGATHER, c10d_sparse.GATHERS):
            gathering = c10d_sparse.prepare(tensor, reduction_of(opts), self._size)
        return self._start(
            OperationKind.ALLGATHER, gathering.submissions, gathering.finish, [tensor], opts
        )

    def _reduce_scatter(
        self, outputs: list[torch.Tensor], inputs: list[torch.Tensor], opts: Any
    ) -> Work | None:
        submissions, sources, targets = [], [], []
        with self._refusing(OperationKind.REDUCESCATTER, len(outputs)):
            reduction = reduction_of(opts)
            for output, input in zip(outputs, inputs, strict=True):
                check_types([input], [output])
                if input.numel() != output.numel() * self._size:
                    raise ValueError(
                        f"the input has {input.numel()} elements; it takes the output's "
                        f"{output.numel()} for each of {self._size} ranks"
                    )
                source, target = reduction.input(row_major(input)), row_major(output)
                pair = (reduction.known(source).view(-1), reduction.known(target))
                submissions.append(
                    submit_arguments([pair], reduce_op=reduction.op, prescale=reduction.prescale)
                )
                sources.append(source)
                targets.append(target)

        def finish(_: list[int]) -> None:
            sources.clear()
            _copy_back(outputs, targets)

        return self._start(OperationKind.REDUCESCATTER, submissions, finish, outputs, opts)

    def _gather(
        self,
        inputs: list[torch.Tensor],
        parts_of: Callable[[], list[list[torch.Tensor]]],
        result: list[torch.Tensor],
        opts: Any,
    ) -> Work | None:
        """parts_of()[i] has the outputs for all ranks' inputs i, one after the other."""
        with self._refusing(OperationKind.ALLGATHER, len(inputs)):
            sources = [row_major(input) for input in inputs]
            parts = parts_of()
            for input, targets in zip(inputs, parts, strict=True):
                check_types([input], targets)
            spans = [span_of(source) for source in sources]
            # In place, an input is this rank's part of its output.
            places = [
                ResultPlace(targets, span, may_overlap=True)
                for span, targets in zip(spans, parts, strict=True)
            ]
            submissions = [
                submit_bytes(span, offered=place.offer())
                for span, place in zip(spans, places, strict=True)
            ]
        spans.clear()

        def finish(handles: list[int]) -> None:
            sources.clear()
            for handle, place, targets in zip(handles, places, parts, strict=True):
                if not place.has_result(handle):
                    deal(take_result(handle), targets)

        return self._start(OperationKind.ALLGATHER, submissions, finish, result, opts)

    def _exchange(
        self,
        inputs_of: Callable[[], list[torch.Tensor]],
        result: list[torch.Tensor],
        outputs_of: Callable[[], list[torch.Tensor]],
        opts: Any,
        is_dealt: bool = False,
    ) -> Work | None:
        """Sends inputs_of()[i] to rank i, or if `is_dealt`, an equal part of the only input to each
        rank. Writes what the ranks send here, one after the other, to outputs_of()."""
        with self._refusing(OperationKind.ALLTOALL):
            inputs, targets = inputs_of(), outputs_of()
            check_types(inputs, targets)
            pieces = [row_major(input) for input in inputs]
            source = joined(pieces)
            place = ResultPlace(targets, source)
            if is_dealt:
                sizes = [source.nbytes // self._size] * self._size
            else:
                sizes = [piece.nbytes for piece in pieces]
            call = submit_bytes(source, splits=sizes, offered=place.offer())
        sent = [*pieces, source.owner]

        def finish(handles: list[int]) -> None:
            sent.clear()  # which had to live until now
            if targets and not place.has_result(handles[0]):
                deal(take_result(handles[0]), targets)

        return self._start(OperationKind.ALLTOALL, [call], finish, result, opts)

    def _one_for_each_rank(self, outputs: Tensors) -> list[torch.Tensor]:
        if len(outputs) != self._size:
            raise ValueError(
                f"there are {len(outputs)} outputs; there must be one for each of the "
                f"{self._size} ranks"
            )
        return list(outputs)

    def _whole(self, tensor: torch.Tensor) -> list[torch.Tensor]:
        """Returns a tensor that has an equal part for each rank."""
        if tensor.numel() % self._size:
            raise ValueError(
                f"{tensor.numel()} elements cannot be divided among {self._size} ranks"
            )
        return [tensor]

    def _peer(self, rank: int) -> int:
        """Returns the rank of the world that a message goes to or comes from."""
        if rank == self._rank:
            raise InvalidArgumentError(f"rank {rank} cannot send to itself")
        return self._world_rank(rank)

    def _world_rank(self, rank: int) -> int:
        if not 0 <= rank < len(self._ranks):
            raise InvalidArgumentError(
                f"the rank is {rank}; it must be one of the group's {len(self._ranks)}"
            )
        return self._ranks[rank]

    def _refusing(self, kind: OperationKind, count: int = 1) -> Refusing:
        """Wraps the preparation of `count` operations: an error makes all fail, on all ranks."""
        return Refusing(kind, _prefix(kind), count, self._set)

    def _start(
        self,
        kind: OperationKind,
        submissions: list[SubmitArguments],
        finish: Callable[[list[int]], None],
        result: list[torch.Tensor],
        opts: Any,
    ) -> Work | None:
        if not getattr(opts, "asyncOp", True):  # PyTorch 2.6 does not say that the caller waits
            run(kind, _prefix(kind), self._set, submissions, finish, result, self._timeout)
            return None
        work = start(
            kind,
            _prefix(kind),
            self._set,
            submissions,
            finish,
            result,
            self._timeout,
            self._unfinished,
        )
        self._last_works.append(work)
        few = sum([tensor.numel() for tensor in result]) if len(result) != 1 else result[0].numel()
        if few <= _SMALL:
            self._last_small_works.append(work)
        return work


_PREFIXES = {kind: f"c10d.{kind.name.lower()}" for kind in OperationKind}
_prefix = _PREFIXES.__getitem__


def _create(options: Any, _: Any) -> PerseusProcessGroup:
    """Creates the group for init_process_group or new_group; its members call it."""
    rank, size = options.group_rank, options.group_size
    if options.global_ranks_in_group:
        ranks = c10d_world.ranks_in_world(options)
        return PerseusProcessGroup(
            rank, size, c10d_sets.open_set(options, ranks), ranks, options.store, options.timeout
        )
    owns_engine = c10d_world.join(options)
    return PerseusProcessGroup(
        rank,
        size,
        perseus_core.WORLD,
        list(range(size)),
        options.store,
        options.timeout,
        owns_engine,
    )


def _copy_back(tensors: Tensors, buffers: Tensors) -> None:
    for tensor, buffer in zip(tensors, buffers, strict=True):
        if buffer.data_ptr() != tensor.data_ptr():
            tensor.detach().copy_(buffer)


register()
c10d_timeouts.serve(PerseusProcessGroup)
