#include "engine/nccl_run.h"

#include <algorithm>
#include <numeric>

#include "collectives/message.h"
#include "device/cpu/kernels.h"
#include "device/cuda/cuda_error.h"
#include "engine/finite_check.h"
#include "engine/gpu_copies.h"
#include "engine/nccl_group.h"
#include "engine/results.h"
#include "engine/row_swap.h"
#include "engine/trace.h"

namespace perseus {
namespace {

constexpr int kOnlyNccl = 1;  // of PERSEUS_GPU_OPERATIONS

double factor_of(const Description& description, int set_size) {
  return description.prescale * result_factor(description, set_size);
}

CuPointer address(const void* pointer) { return reinterpret_cast<CuPointer>(pointer); }

// What the calls of one shard on one communicator have in common. GPU's thread.
class LaneCalls {
 public:
  LaneCalls(Gpu& gpu, NcclLane& lane, NcclComm& comm) : gpu_(gpu), lane_(lane), comm_(comm) {}

  // The same for the communicator of this host's ranks, or that between hosts.
  LaneCalls inside_host() const { return {gpu_, lane_, lane_.local()}; }
  LaneCalls between_hosts() const { return {gpu_, lane_, lane_.across()}; }

  CuStream stream() const { return lane_.stream(); }
  // Memory for what this shard queues on the lane, which the next shard there will have as well.
  Result<std::byte*> take_memory(uint64_t bytes) const { return lane_.take_memory(bytes); }

  // By a kernel or, where there is none, one copy each.
  Status move(std::span<const Move> moves, DataType dtype) const {
    if (const MoveKernels* kernels = gpu_.kernels(); kernels != nullptr && moves.size() > 1) {
      return kernels->launch(moves, dtype, dtype, 1.0, nullptr, stream());
    }
    for (const Move& move : moves) {
      if (move.elements == 0 || move.source == move.target) continue;
      const CuResult copied = gpu_.driver().copy_on_device(
          address(move.target), address(move.source), move.elements * size_of(dtype), stream());
      PERSEUS_RETURN_IF_ERROR(cuda_status(gpu_.driver(), copied, "copying on the GPU"));
    }
    return {};
  }

  // Sums of floating types are of values times `factor`.
  Status all_reduce(const void* source, void* target, uint64_t elements, DataType dtype,
                    ReduceOp op, double factor) const {
    return with_op(op, dtype, factor, [&](int number) {
      return finish(table().all_reduce(source, target, elements, *nccl_type(dtype), number,
                                       handle(), stream()),
                    "ncclAllReduce");
    });
  }
  Status reduce_scatter(const void* source, void* target, uint64_t elements_of_each, DataType dtype,
                        ReduceOp op, double factor) const {
    return with_op(op, dtype, factor, [&](int number) {
      return finish(table().reduce_scatter(source, target, elements_of_each, *nccl_type(dtype),
                                           number, handle(), stream()),
                    "ncclReduceScatter");
    });
  }
  Status all_gather(const void* source, void* target, uint64_t bytes_of_each) const {
    return finish(table().all_gather(source, target, bytes_of_each, kNcclUint8, handle(), stream()),
                  "ncclAllGather");
  }
  Status broadcast(const void* source, void* target, uint64_t bytes, int root) const {
    return finish(table().broadcast(source, target, bytes, kNcclUint8, root, handle(), stream()),
                  "ncclBroadcast");
  }

  const Nccl& table() const { return comm_.nccl(); }
  NcclHandle handle() const { return comm_.get(); }
  // Several calls of the table as one.
  template <typename Calls>
  Status grouped(const char* what, Calls calls) const {
    PERSEUS_RETURN_IF_ERROR(nccl_status(table(), table().group_start(), what));
    const NcclResult within = calls();
    const NcclResult ended = table().group_end();
    PERSEUS_RETURN_IF_ERROR(nccl_status(table(), within, what));
    return finish(ended, what);
  }

 private:
  // Calls reduce(NCCL's number of the reduction).
  template <typename Reduce>
  Status with_op(ReduceOp op, DataType dtype, double factor, Reduce reduce) const {
    if (factor == 1.0) return reduce(*nccl_op(op));
    alignas(8) std::byte scalar[8];
    scale_convert(scalar, dtype, &factor, DataType::kFloat64, 1, 1.0);
    int scaled = 0;
    const NcclResult made = table().create_premul_sum(&scaled, scalar, *nccl_type(dtype),
                                                      kNcclScalarOfHost, comm_.get());
    PERSEUS_RETURN_IF_ERROR(nccl_status(table(), made, "making a scaled sum"));
    const Status status = reduce(scaled);
    table().destroy_op(scaled, comm_.get());
    return status;
  }
  Status finish(NcclResult result, const char* what) const {
    return comm_.finish_call(result, what);
  }

  Gpu& gpu_;
  NcclLane& lane_;
  NcclComm& comm_;
};

// Runs `queue(LaneCalls&)` on the GPU's thread, on the shard's lane, and waits for the end of what
// it has queued. is_last: the shard queues nothing after that.
template <typename Queue>
auto on_lane(ShardRun& run, const GpuLaunches& launches, std::span<const CuEvent> ready,
             bool is_last, Queue queue) {
  NcclGroup& nccl = *run.batch->set->nccl;
  const int number = static_cast<int>(run.turn.number % static_cast<uint64_t>(nccl.lanes()));
  const NcclGroup* const world = launches.nccl_of_world();
  const auto launch = [&nccl, number, world, ready, queue](CuStream& stream) -> Status {
    const auto lane = nccl.lane(number, world);
    if (!lane.is_ok()) return lane.status();
    const LaneCalls calls(nccl.gpu(), *lane.value(), lane.value()->all());
    stream = calls.stream();
    PERSEUS_RETURN_IF_ERROR(wait_until_ready(nccl.gpu(), ready, stream));
    return queue(calls);
  };
  return GpuWork(nccl.thread(), nullptr, launch, [&run, is_last](const GpuEvent& until) {
    if (!is_last) return;
    for_each_operation(
        run.shard, [&](uint32_t index) { run.batch->operations[index]->shard_launched(until); });
  });
}

// The moves between the pieces of the shard and a buffer whose place is not known yet: from 0 on.
struct Pieces {
  ScratchArray<Move> pack, unpack;
  ScratchArray<CuEvent> ready;

  Pieces(const ShardRun& run, RunContext& context)
      : pack(context.buffers, run.shard.pieces.size()),
        unpack(context.buffers, run.shard.pieces.size()),
        ready(context.buffers, run.shard.pieces.size()) {
    if (!pack || !unpack || !ready) return;
    uintptr_t offset = 0;
    uint32_t last = UINT32_MAX;
    for (const Piece& piece : run.shard.pieces) {
      const Segment segment = segment_of(run, piece);
      auto* place = reinterpret_cast<std::byte*>(offset);
      pack.emplace(Move{segment.source, place, segment.elements, 0});
      unpack.emplace(Move{place, segment.target, segment.elements, 0});
      if (piece.operation != last) {
        ready.emplace(run.batch->operations[piece.operation]->ready.get());
      }
      last = piece.operation;
      offset += segment.elements * size_of(run.shard.dtype);
    }
  }
  bool is_ready() const { return static_cast<bool>(pack) && unpack && ready; }
  void place_at(std::byte* buffer) {
    for (Move& move : pack.span()) {
      move.target = buffer + reinterpret_cast<uintptr_t>(move.target);
    }
    for (Move& move : unpack.span()) {
      move.source = buffer + reinterpret_cast<uintptr_t>(move.source);
    }
  }
};

// Allreduce or broadcast: `collective(calls, source, target)` on one tensor's memory, or on that of
// all, packed. `packs`: whether this rank's tensors are read.
template <typename Collective>
Task run_pieces(ShardRun& run, RunContext context, const GpuLaunches& launches, bool packs,
                Collective collective) {
  Pieces pieces(run, context);
  if (!pieces.is_ready()) co_return out_of_scratch(run.shard.pieces.size() * sizeof(Move));
  const DataType dtype = run.shard.dtype;
  const auto queue = [&](const LaneCalls& calls) -> Status {
    if (pieces.pack.size() == 1) {
      return collective(calls, pieces.pack[0].source, pieces.unpack[0].target);
    }
    const auto memory = calls.take_memory(run.shard.bytes);
    PERSEUS_RETURN_IF_ERROR(memory.status());
    pieces.place_at(memory.value());
    if (packs) PERSEUS_RETURN_IF_ERROR(calls.move(pieces.pack.span(), dtype));
    PERSEUS_RETURN_IF_ERROR(collective(calls, memory.value(), memory.value()));
    return calls.move(pieces.unpack.span(), dtype);
  };
  auto work = on_lane(run, launches, pieces.ready.span(), /*is_last=*/true, queue);
  const Status status = co_await work;
  co_return status;
}

Task run_allreduce(ShardRun& run, RunContext context, const GpuLaunches& launches) {
  const Description& description = run.description();
  const double factor = factor_of(description, run.batch->set->group.size);
  Task task = run_pieces(run, context, launches, /*packs=*/true,
                         [&](const LaneCalls& calls, const void* source, void* target) {
                           return calls.all_reduce(source, target, run.shard.elements(),
                                                   run.shard.dtype, description.reduce_op, factor);
                         });
  const Status status = co_await std::move(task);
  co_return status;
}

// Of the shard, each rank of a host reduces a part with its like on the other hosts. The parts are
// of one length, so there may be something behind the last element.
Task run_halves(ShardRun& run, RunContext context, GpuLaunches& launches) {
  const Description& description = run.description();
  const DataType dtype = run.shard.dtype;
  const Group& local = run.batch->set->group.by_host->local;
  const double factor = factor_of(description, run.batch->set->group.size);
  const uint64_t elements = run.shard.elements();
  const uint64_t part = (elements + local.size - 1) / local.size;
  const uint64_t part_bytes = part * size_of(dtype);
  Pieces pieces(run, context);
  if (!pieces.is_ready()) co_return out_of_scratch(run.shard.pieces.size() * sizeof(Move));
  const bool is_packed = pieces.pack.size() > 1 || elements != part * local.size;

  // GPU's thread, which launches both.
  std::byte* whole = nullptr;
  std::byte* own = nullptr;
  Status upper_launched = Status::aborted("the upper half has not been launched");
  const auto queue_upper = [&](const LaneCalls& calls) -> Status {
    const void* source = pieces.pack[0].source;
    whole = static_cast<std::byte*>(pieces.unpack[0].target);
    if (is_packed) {
      const auto memory = calls.take_memory(part_bytes * local.size);
      PERSEUS_RETURN_IF_ERROR(memory.status());
      whole = memory.value();
      pieces.place_at(whole);
      PERSEUS_RETURN_IF_ERROR(calls.move(pieces.pack.span(), dtype));
      source = whole;
    }
    own = whole + part_bytes * local.index;
    PERSEUS_RETURN_IF_ERROR(calls.inside_host().reduce_scatter(source, own, part, dtype,
                                                               description.reduce_op, factor));
    return calls.between_hosts().all_reduce(own, own, part, dtype, description.reduce_op, 1.0);
  };
  const auto queue_lower = [&](const LaneCalls& calls) -> Status {
    PERSEUS_RETURN_IF_ERROR(upper_launched);
    PERSEUS_RETURN_IF_ERROR(calls.inside_host().all_gather(own, whole, part_bytes));
    return is_packed ? calls.move(pieces.unpack.span(), dtype) : Status::ok();
  };

  auto upper = on_lane(run, launches, pieces.ready.span(), /*is_last=*/false,
                       [&](const LaneCalls& calls) { return upper_launched = queue_upper(calls); });
  auto lower = on_lane(run, launches, {}, /*is_last=*/true, queue_lower);
  upper.begin();
  const Status turn = co_await launches.turn(run);
  if (turn.is_ok()) lower.begin();
  Status upper_status;
  {
    const TracedStep traced(context.timeline, run, "UPPER");
    upper_status = co_await upper;
  }
  PERSEUS_CO_RETURN_IF_ERROR(turn);
  const TracedStep traced(context.timeline, run, "LOWER");
  const Status lower_status = co_await lower;
  PERSEUS_CO_RETURN_IF_ERROR(upper_status);
  co_return lower_status;
}

Task run_broadcast(ShardRun& run, RunContext context, const GpuLaunches& launches) {
  const ProcessSet& set = *run.batch->set;
  const int root = set.index_of(run.description().root);
  Task task = run_pieces(run, context, launches, /*packs=*/root == set.index,
                         [&](const LaneCalls& calls, const void* source, void* target) {
                           return calls.broadcast(source, target, run.shard.bytes, root);
                         });
  const Status status = co_await std::move(task);
  co_return status;
}

// What falls to each rank is as long on all: rows are laid out for the longest, where they differ.
Task run_reduce_scatter(ShardRun& run, const GpuLaunches& launches) {
  const Group& group = run.batch->set->group;
  const Description& description = run.description();
  Operation& operation = *run.batch->operations[run.shard.operation];
  const double factor = factor_of(description, group.size);
  const CuEvent ready = operation.ready.get();

  const auto scatter = [&](const LaneCalls& calls, size_t t) -> Status {
    const TensorDescription& tensor = description.tensors[t];
    const int64_t rows = tensor.shape[0];
    const uint64_t row = row_bytes(tensor);
    const int64_t longest = rows_of(rows, group.size, 0);
    const uint64_t block = static_cast<uint64_t>(longest) * row;
    if (block == 0) return {};
    const std::byte* input = operation.tensors[t].input;
    std::byte* output = operation.tensors[t].output;
    const auto reduce = [&](const std::byte* source, std::byte* target) {
      return calls.reduce_scatter(source, target, block / size_of(tensor.dtype), tensor.dtype,
                                  description.reduce_op, factor);
    };
    if (rows % group.size == 0) return reduce(input, output);
    const auto memory = calls.take_memory(block * group.size);
    PERSEUS_RETURN_IF_ERROR(memory.status());
    std::byte* place = memory.value();
    for (int r = 0; r < group.size; ++r, place += block) {
      const uint64_t bytes = static_cast<uint64_t>(rows_of(rows, group.size, r)) * row;
      const Move move{input, place, bytes / size_of(tensor.dtype), 0};
      PERSEUS_RETURN_IF_ERROR(calls.move({&move, 1}, tensor.dtype));
      input += bytes;
    }
    std::byte* own = memory.value() + static_cast<uint64_t>(group.index) * block;
    PERSEUS_RETURN_IF_ERROR(reduce(memory.value(), own));
    const uint64_t own_bytes = static_cast<uint64_t>(rows_of(rows, group.size, group.index)) * row;
    const Move move{own, output, own_bytes / size_of(tensor.dtype), 0};
    return calls.move({&move, 1}, tensor.dtype);
  };

  const auto queue = [&](const LaneCalls& calls) -> Status {
    for (size_t t = 0; t < description.tensors.size(); ++t) {
      PERSEUS_RETURN_IF_ERROR(scatter(calls, t));
    }
    return {};
  };
  auto work = on_lane(run, launches, {&ready, 1}, /*is_last=*/true, queue);
  const Status status = co_await work;
  co_return status;
}

// Memory for results whose sizes are known by now.
Task allocate_results(NcclGroup& nccl, Operation& operation, std::span<const uint64_t> bytes_of) {
  GpuWork work(nccl.thread(), nullptr, [&]() -> Status {
    for (size_t t = 0; t < operation.tensors.size(); ++t) {
      PERSEUS_RETURN_IF_ERROR(allocate_output(operation.tensors[t], bytes_of[t], nccl.gpu()));
    }
    return {};
  });
  const Status status = co_await work;
  co_return status;
}

Task run_allgather(ShardRun& run, RunContext context, GpuLaunches& launches) {
  NcclGroup& nccl = *run.batch->set->nccl;
  const Group& group = run.batch->set->group;
  const std::vector<TensorDescription>& agreed = run.description().tensors;
  Operation& operation = *run.batch->operations[run.shard.operation];
  const size_t tensors = agreed.size();
  ScratchArray<int64_t> rows(context.buffers, tensors * group.size, 0);
  ScratchArray<uint64_t> bytes_of(context.buffers, tensors, uint64_t{0});
  if (!rows || !bytes_of) co_return out_of_scratch(rows.size() * sizeof(int64_t));
  Status status = co_await swap_rows(run, context, rows.span());
  PERSEUS_CO_RETURN_IF_ERROR(status);
  for (size_t t = 0; t < tensors; ++t) {
    int64_t total = 0;
    for (int r = 0; r < group.size; ++r) total += rows[r * tensors + t];
    set_result_rows(operation.tensors[t], agreed[t], total);
    bytes_of[t] = static_cast<uint64_t>(total) * row_bytes(agreed[t]);
  }
  status = co_await allocate_results(nccl, operation, bytes_of.span());
  PERSEUS_CO_RETURN_IF_ERROR(status);
  status = co_await launches.turn(run);
  PERSEUS_CO_RETURN_IF_ERROR(status);

  const TracedShard traced(context.timeline, run);
  const auto gather = [&](const LaneCalls& calls, size_t t) -> Status {
    const uint64_t row = row_bytes(agreed[t]);
    const std::byte* input = operation.tensors[t].input;
    std::byte* place = operation.tensors[t].output;
    const auto bytes_from = [&](int r) {
      return static_cast<uint64_t>(rows[r * tensors + t]) * row;
    };
    bool is_even = true;
    for (int r = 1; r < group.size; ++r) is_even &= bytes_from(r) == bytes_from(0);
    if (is_even) {
      if (bytes_from(0) == 0) return {};
      return calls.all_gather(input, place, bytes_from(0));
    }
    return calls.grouped("an allgather", [&] {
      NcclResult first = kNcclSuccess;
      for (int r = 0; r < group.size; ++r) {
        const uint64_t bytes = bytes_from(r);
        if (bytes == 0) continue;
        const NcclResult result =
            calls.table().broadcast(r == group.index ? input : place, place, bytes, kNcclUint8, r,
                                    calls.handle(), calls.stream());
        if (first == kNcclSuccess) first = result;
        place += bytes;
      }
      return first;
    });
  };
  const CuEvent ready = operation.ready.get();
  const auto queue = [&](const LaneCalls& calls) -> Status {
    for (size_t t = 0; t < tensors; ++t) PERSEUS_RETURN_IF_ERROR(gather(calls, t));
    return {};
  };
  auto work = on_lane(run, launches, {&ready, 1}, /*is_last=*/true, queue);
  status = co_await work;
  co_return status;
}

Task run_alltoall(ShardRun& run, RunContext context, GpuLaunches& launches) {
  NcclGroup& nccl = *run.batch->set->nccl;
  const Group& group = run.batch->set->group;
  const TensorDescription& agreed = run.description().tensors.front();
  Operation& operation = *run.batch->operations[run.shard.operation];
  ScratchArray<int64_t> send_rows(context.buffers, group.size, 0);
  ScratchArray<int64_t> receive_rows(context.buffers, group.size, 0);
  if (!send_rows || !receive_rows) co_return out_of_scratch(group.size * sizeof(int64_t));
  Status status = co_await swap_splits(run, context, send_rows.span(), receive_rows.span());
  PERSEUS_CO_RETURN_IF_ERROR(status);
  const int64_t total =
      std::accumulate(receive_rows.data(), receive_rows.data() + group.size, int64_t{0});
  const uint64_t row = row_bytes(agreed);
  const uint64_t bytes = static_cast<uint64_t>(total) * row;
  set_result_rows(operation.tensors.front(), agreed, total);
  operation.received_splits.assign(receive_rows.span().begin(), receive_rows.span().end());
  status = co_await allocate_results(nccl, operation, {&bytes, 1});
  PERSEUS_CO_RETURN_IF_ERROR(status);
  status = co_await launches.turn(run);
  PERSEUS_CO_RETURN_IF_ERROR(status);

  const TracedShard traced(context.timeline, run);
  const CuEvent ready = operation.ready.get();
  const auto queue = [&](const LaneCalls& calls) -> Status {
    const std::byte* input = operation.tensors.front().input;
    std::byte* output = operation.tensors.front().output;
    return calls.grouped("an alltoall", [&] {
      NcclResult first = kNcclSuccess;
      const auto keep = [&](NcclResult result) {
        if (first == kNcclSuccess) first = result;
      };
      for (int r = 0; r < group.size; ++r) {
        const uint64_t sent = static_cast<uint64_t>(send_rows[r]) * row;
        const uint64_t received = static_cast<uint64_t>(receive_rows[r]) * row;
        if (sent > 0) {
          keep(calls.table().send(input, sent, kNcclUint8, r, calls.handle(), calls.stream()));
        }
        if (received > 0) {
          keep(calls.table().receive(output, received, kNcclUint8, r, calls.handle(),
                                     calls.stream()));
        }
        input += sent;
        output += received;
      }
      return first;
    });
  };
  auto work = on_lane(run, launches, {&ready, 1}, /*is_last=*/true, queue);
  status = co_await work;
  co_return status;
}

// What needs nothing of the other ranks before its turn.
Task run_even(ShardRun& run, RunContext context, GpuLaunches& launches) {
  Status status = co_await launches.turn(run);
  PERSEUS_CO_RETURN_IF_ERROR(status);
  const TracedShard traced(context.timeline, run);
  if (run.turn.has_halves) {
    status = co_await run_halves(run, context, launches);
  } else if (run.description().kind == OperationKind::kAllreduce) {
    status = co_await run_allreduce(run, context, launches);
  } else if (run.description().kind == OperationKind::kBroadcast) {
    status = co_await run_broadcast(run, context, launches);
  } else {
    status = co_await run_reduce_scatter(run, launches);
  }
  co_return status;
}

Task run_staged(ShardRun& run, RunContext context, GpuLaunches& launches) {
  Status status = co_await launches.turn(run);
  // By way of the host nothing is halved.
  if (status.is_ok() && run.turn.has_halves) status = co_await launches.turn(run);
  PERSEUS_CO_RETURN_IF_ERROR(status);
  const TracedShard traced(context.timeline, run);
  status = co_await run_shard(run, context);
  co_return status;
}

Status check_gpus(const ShardRun& run, const NcclGroup& nccl) {
  Status status;
  for_each_operation(run.shard, [&](uint32_t index) {
    if (status.is_ok()) status = nccl.check(*run.batch->operations[index]);
  });
  return status;
}

}  // namespace

bool has_nccl_way(const Description& description, const Settings& settings) {
  if (description.tensors.empty()) return false;
  if (!is_reduction(description.kind)) return true;
  const DataType dtype = description.tensors.front().dtype;
  const bool is_same_type = std::ranges::all_of(
      description.tensors, [&](const TensorDescription& tensor) { return tensor.dtype == dtype; });
  // A set of one divides by one; the others cannot know better here.
  const bool is_scaled = description.prescale != 1.0 || description.postscale != 1.0 ||
                         description.reduce_op == ReduceOp::kAverage;
  const bool is_sum =
      description.reduce_op == ReduceOp::kSum || description.reduce_op == ReduceOp::kAverage;
  const bool is_coded = description.kind == OperationKind::kAllreduce &&
                        codec_for(description, dtype, settings) != nullptr;
  return is_same_type && nccl_type(dtype) && nccl_op(description.reduce_op) && !is_coded &&
         (!is_scaled || (is_sum && is_floating(dtype))) && !FiniteCheck::is_on(settings);
}

bool has_halves(const ShardRun& run, const Settings& settings) {
  return run.description().kind == OperationKind::kAllreduce &&
         wanted_algorithm(settings) == AllreduceAlgorithm::kHierarchical &&
         can_be_hierarchical(run.batch->set->group);
}

Task run_in_turn(ShardRun& run, RunContext context, GpuLaunches& launches) {
  NcclGroup& nccl = *run.batch->set->nccl;
  Status status = co_await nccl.met();
  if (status.is_ok()) status = check_gpus(run, nccl);
  if (status.is_ok() && !nccl.why_not().empty() && context.settings.gpu_operations == kOnlyNccl) {
    status = Status::unsupported("PERSEUS_GPU_OPERATIONS is nccl, but " + nccl.why_not());
  }
  PERSEUS_CO_RETURN_IF_ERROR(status);
  const OperationKind kind = run.description().kind;
  if (!nccl.why_not().empty()) {
    status = co_await run_staged(run, context, launches);
  } else if (kind == OperationKind::kAllgather) {
    status = co_await run_allgather(run, context, launches);
  } else if (kind == OperationKind::kAlltoall) {
    status = co_await run_alltoall(run, context, launches);
  } else {
    status = co_await run_even(run, context, launches);
  }
  co_return status;
}

}  // namespace perseus
