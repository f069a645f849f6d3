#include "execution/gpu/nccl_run.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "base/settings.h"
#include "collectives/scratch_array.h"
#include "device/cpu/kernels.h"
#include "device/cuda/gpu_copies.h"
#include "device/cuda/lane_calls.h"
#include "execution/finite_check.h"
#include "execution/gpu/gpu_search.h"
#include "execution/gpu/nccl_group.h"
#include "execution/results.h"
#include "execution/run_options.h"
#include "execution/shard_run.h"
#include "execution/size_exchange.h"
#include "execution/trace.h"

namespace perseus {
namespace {

// Where a sum is multiplied by its factor. Best before anything is added, so that no partial sum is
// out of range if the result is not. NCCL does that, but takes the factor in the elements' type. In
// 16 bits that may be far from the exact factor. Then NCCL takes the power of two below it, which
// is exact, and the kernel that unpacks multiplies by the rest.
struct Factors {
  double in_sum = 1.0;
  double in_unpack = 1.0;
};

bool can_hold(DataType dtype, double factor) {
  if (factor == 0.0) return true;
  alignas(8) std::byte held[8];
  double back = 0.0;
  scale_convert(held, dtype, &factor, DataType::kFloat64, 1, 1.0);
  convert(&back, DataType::kFloat64, held, dtype, 1);
  return size_of(dtype) > 2 ? std::isfinite(back) && back != 0.0 : back == factor;
}

Factors factors_of(const ShardRun& run) {
  const Description& description = run.description();
  const DataType dtype = description.tensors.front().dtype;
  const double factor =
      description.prescale * result_factor(description, run.batch->set->group.size);
  if (factor == 1.0 || can_hold(dtype, factor)) return {factor, 1.0};
  const bool is_half = dtype == DataType::kFloat16;
  const int exponent = std::clamp(std::ilogb(factor), is_half ? -14 : -126, is_half ? 15 : 127);
  const double in_sum = std::ldexp(1.0, exponent);
  return {in_sum, factor / in_sum};
}

// Runs `queue(LaneCalls&)` on the GPU's thread, on the shard's lane. Awaiting the result waits for
// the end of what it has queued. is_last: the shard queues nothing after that.
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
  return AwaitableGpuWork(nccl.thread(), nullptr, launch, [&run, is_last](const GpuEvent& until) {
    if (!is_last) return;
    for_each_operation(
        run.shard, [&](uint32_t index) { run.batch->operations[index]->shard_launched(until); });
  });
}

// The pieces of a shard, and where a collective finds their values: in the memory of the only
// tensor, or packed in a buffer. The kernels that move the values also search them for NaN.
class Pieces {
 public:
  // factor: multiplies what is unpacked. search: null if nothing is searched.
  Pieces(const ShardRun& run, RunContext& context, double factor, GpuSearch* search)
      : run_(run),
        factor_(factor),
        search_(search),
        pack_(context.buffers, run.shard.pieces.size()),
        unpack_(context.buffers, run.shard.pieces.size()),
        ready_(context.buffers, run.shard.pieces.size()) {
    if (!pack_ || !unpack_ || !ready_) return;
    uintptr_t offset = 0;
    uint32_t index = 0, last = UINT32_MAX;
    for (const Piece& piece : run.shard.pieces) {
      const Segment segment = segment_of(run, piece);
      auto* place = reinterpret_cast<std::byte*>(offset);  // relative to a buffer not yet known
      pack_.emplace(Move{segment.source, place, segment.elements, index});
      unpack_.emplace(Move{place, segment.target, segment.elements, index});
      if (piece.operation != last) {
        ready_.emplace(run.batch->operations[piece.operation]->ready.get());
      }
      ++index;
      last = piece.operation;
      offset += segment.elements * size_of(run.shard.dtype);
    }
  }
  Status status() const {
    if (pack_ && unpack_ && ready_) return {};
    return out_of_scratch(run_.shard.pieces.size() * sizeof(Move));
  }
  std::span<const CuEvent> ready() { return ready_.span(); }

  // GPU's thread.
  struct Buffers {
    const void* source;
    std::byte* target;
  };
  // Returns where the collective is to read and to write `room` bytes, which may be more than the
  // pieces have. packs: whether this rank's values are needed.
  Result<Buffers> pack_tensors(const LaneCalls& calls, uint64_t room, bool packs) {
    const bool fits = pack_.size() == 1 && room == run_.shard.bytes;
    const bool is_searched = search_ != nullptr && search_->is_on();
    auto* buffer = static_cast<std::byte*>(unpack_[0].target);
    if (fits && !is_searched && factor_ == 1.0) return Buffers{pack_[0].source, buffer};
    if (is_searched) PERSEUS_RETURN_IF_ERROR(search_->prepare(calls.gpu()));
    if (!fits) {
      const auto memory = calls.take_memory(room);
      PERSEUS_RETURN_IF_ERROR(memory.status());
      buffer = memory.value();
    }
    for (Move& move : pack_.span()) move.target = buffer + reinterpret_cast<uintptr_t>(move.target);
    for (Move& move : unpack_.span()) {
      move.source = buffer + reinterpret_cast<uintptr_t>(move.source);
    }
    if (packs) {
      PERSEUS_RETURN_IF_ERROR(
          calls.move(pack_.span(), run_.shard.dtype, 1.0, search(FiniteCheck::kInput)));
    }
    buffer_ = buffer;
    return Buffers{buffer, buffer};
  }
  // Copies what the collective has written to the tensors.
  Status unpack_tensors(const LaneCalls& calls) {
    if (buffer_ == nullptr) return {};
    return calls.unpack(buffer_, run_.shard.elements(), unpack_.span(), run_.shard.dtype, factor_,
                        search(FiniteCheck::kResult));
  }

 private:
  NonFiniteSearch search(FiniteCheck::Side side) const {
    return search_ != nullptr ? search_->of(side) : NonFiniteSearch{};
  }

  const ShardRun& run_;
  const double factor_;
  GpuSearch* const search_;
  ScratchArray<Move> pack_, unpack_;
  ScratchArray<CuEvent> ready_;
  std::byte* buffer_ = nullptr;  // in which the values are packed; null: they are in the tensor
};

// The search for NaN and infinity in the pieces that a shard reduces, if it is on.
struct PiecesCheck {
  PiecesCheck(ShardRun& run, RunContext& context)
      : check(run, context, run.shard.pieces),
        search(check, run.shard.dtype, run.shard.pieces.size(), run.shard.pieces.size()),
        pieces(run.shard.pieces.size()) {}

  FiniteCheck check;
  GpuSearch search;
  const size_t pieces;

  // Call once all is done on the GPU.
  Task conclude() {
    for (const auto side : {FiniteCheck::kInput, FiniteCheck::kResult}) {
      for (size_t i = 0; i < pieces; ++i) {
        const auto found = search.found(side, i);
        if (found) check.found_on_gpu(side, i, found->element, found->is_infinity);
      }
    }
    if (!check.has_to_conclude(/*is_shared=*/true)) co_return Status::ok();
    const Status status = co_await check.conclude(/*is_shared=*/true);
    co_return status;
  }
};

Task run_allreduce(ShardRun& run, RunContext context, const GpuLaunches& launches) {
  const Description& description = run.description();
  const Factors factors = factors_of(run);
  PiecesCheck checked(run, context);
  PERSEUS_CO_RETURN_IF_ERROR(checked.check.ready());
  Pieces pieces(run, context, factors.in_unpack, &checked.search);
  PERSEUS_CO_RETURN_IF_ERROR(pieces.status());
  const auto queue = [&](const LaneCalls& calls) -> Status {
    const auto buffers = pieces.pack_tensors(calls, run.shard.bytes, /*packs=*/true);
    PERSEUS_RETURN_IF_ERROR(buffers.status());
    PERSEUS_RETURN_IF_ERROR(calls.all_reduce(buffers.value().source, buffers.value().target,
                                             run.shard.elements(), run.shard.dtype,
                                             description.reduce_op, factors.in_sum));
    return pieces.unpack_tensors(calls);
  };
  auto work = on_lane(run, launches, pieces.ready(), /*is_last=*/true, queue);
  Status status = co_await work;
  checked.search.note_use(work.take_event());
  if (status.is_ok() && checked.search.is_on()) status = co_await checked.conclude();
  co_return status;
}

// Each rank of a host reduces a part of the shard with the ranks at its position on the other
// hosts. All parts have the same length, so the last one may be longer than what is left of the
// shard.
Task run_halves(ShardRun& run, RunContext context, GpuLaunches& launches) {
  const Description& description = run.description();
  const DataType dtype = run.shard.dtype;
  const Group& local = run.batch->set->group.by_host->local;
  const Factors factors = factors_of(run);
  const uint64_t part = (run.shard.elements() + local.size - 1) / local.size;
  const uint64_t part_bytes = part * size_of(dtype);
  PiecesCheck checked(run, context);
  PERSEUS_CO_RETURN_IF_ERROR(checked.check.ready());
  Pieces pieces(run, context, factors.in_unpack, &checked.search);
  PERSEUS_CO_RETURN_IF_ERROR(pieces.status());

  // These belong to the GPU's thread, which launches both halves.
  std::byte* whole = nullptr;
  std::byte* own = nullptr;
  Status upper_launched = Status::aborted("the upper half has not been launched");
  const auto queue_upper = [&](const LaneCalls& calls) -> Status {
    const auto buffers = pieces.pack_tensors(calls, part_bytes * local.size, /*packs=*/true);
    PERSEUS_RETURN_IF_ERROR(buffers.status());
    whole = buffers.value().target;
    own = whole + part_bytes * local.index;
    PERSEUS_RETURN_IF_ERROR(calls.inside_host().reduce_scatter(
        buffers.value().source, own, part, dtype, description.reduce_op, factors.in_sum));
    return calls.between_hosts().all_reduce(own, own, part, dtype, description.reduce_op, 1.0);
  };
  const auto queue_lower = [&](const LaneCalls& calls) -> Status {
    PERSEUS_RETURN_IF_ERROR(upper_launched);
    PERSEUS_RETURN_IF_ERROR(calls.inside_host().all_gather(own, whole, part_bytes));
    return pieces.unpack_tensors(calls);
  };

  auto upper = on_lane(run, launches, pieces.ready(), /*is_last=*/false,
                       [&](const LaneCalls& calls) { return upper_launched = queue_upper(calls); });
  auto lower = on_lane(run, launches, {}, /*is_last=*/true, queue_lower);
  upper.begin();
  const Status turn = co_await launches.turn(run);
  if (turn.is_ok()) lower.begin();
  Status status;
  {
    const TracedStep traced(context.timeline, run, "UPPER");
    status = co_await upper;
    checked.search.note_use(upper.take_event());
  }
  PERSEUS_CO_RETURN_IF_ERROR(turn);
  const TracedStep traced(context.timeline, run, "LOWER");
  const Status lower_status = co_await lower;
  checked.search.note_use(lower.take_event());
  if (status.is_ok()) status = lower_status;
  if (status.is_ok() && checked.search.is_on()) status = co_await checked.conclude();
  co_return status;
}

Task run_broadcast(ShardRun& run, RunContext context, const GpuLaunches& launches) {
  const ProcessSet& set = *run.batch->set;
  const int root = set.index_of(run.description().root);
  Pieces pieces(run, context, /*factor=*/1.0, /*search=*/nullptr);
  PERSEUS_CO_RETURN_IF_ERROR(pieces.status());
  const auto queue = [&](const LaneCalls& calls) -> Status {
    const auto buffers = pieces.pack_tensors(calls, run.shard.bytes, /*packs=*/root == set.index);
    PERSEUS_RETURN_IF_ERROR(buffers.status());
    PERSEUS_RETURN_IF_ERROR(
        calls.broadcast(buffers.value().source, buffers.value().target, run.shard.bytes, root));
    return pieces.unpack_tensors(calls);
  };
  auto work = on_lane(run, launches, pieces.ready(), /*is_last=*/true, queue);
  const Status status = co_await work;
  co_return status;
}

// NCCL gives each rank equally many elements. If the ranks' rows differ, if they are searched or
// multiplied, they are copied to blocks of the longest length first.
Task run_reduce_scatter(ShardRun& run, RunContext context, const GpuLaunches& launches) {
  const Group& group = run.batch->set->group;
  const Description& description = run.description();
  Operation& operation = *run.batch->operations[run.shard.operation];
  const Factors factors = factors_of(run);
  const CuEvent ready = operation.ready.get();
  const size_t tensors = description.tensors.size();
  const DataType dtype = description.tensors.front().dtype;

  ScratchArray<Piece> pieces(context.buffers, tensors);
  ScratchArray<Move> moves(context.buffers, group.size, Move{});
  if (!pieces || !moves) co_return out_of_scratch(tensors * sizeof(Piece));
  for (uint32_t t = 0; t < tensors; ++t) {
    const auto elements = static_cast<uint64_t>(description.tensors[t].elements());
    pieces.emplace(Piece{run.shard.operation, t, 0, elements});
  }
  FiniteCheck check(run, context, pieces.span());
  PERSEUS_CO_RETURN_IF_ERROR(check.ready());
  // A move for each rank's part of each tensor, and one for each result.
  GpuSearch search(check, dtype, tensors * group.size, tensors);
  const auto elements_of = [&](size_t t, int rank) {
    const TensorDescription& tensor = description.tensors[t];
    return static_cast<uint64_t>(rows_of(tensor.shape[0], group.size, rank)) * row_bytes(tensor) /
           size_of(dtype);
  };

  const auto scatter = [&](const LaneCalls& calls, uint32_t t) -> Status {
    const uint64_t block = elements_of(t, 0);  // the longest
    if (block == 0) return {};
    const std::byte* input = operation.tensors[t].input;
    std::byte* output = operation.tensors[t].output;
    const auto reduce = [&](const std::byte* source, std::byte* target) {
      return calls.reduce_scatter(source, target, block, dtype, description.reduce_op,
                                  factors.in_sum);
    };
    const bool is_even = elements_of(t, group.size - 1) == block;
    if (is_even && !search.is_on() && factors.in_unpack == 1.0) return reduce(input, output);
    const uint64_t block_bytes = block * size_of(dtype);
    const auto memory = calls.take_memory(block_bytes * group.size);
    PERSEUS_RETURN_IF_ERROR(memory.status());
    std::byte* place = memory.value();
    for (int r = 0; r < group.size; ++r, place += block_bytes) {
      const uint64_t elements = elements_of(t, r);
      moves[r] = {input, place, elements, t * group.size + r};
      input += elements * size_of(dtype);
    }
    PERSEUS_RETURN_IF_ERROR(calls.move(moves.span(), dtype, 1.0, search.of(FiniteCheck::kInput)));
    std::byte* own = memory.value() + static_cast<uint64_t>(group.index) * block_bytes;
    PERSEUS_RETURN_IF_ERROR(reduce(memory.value(), own));
    const Move move{own, output, elements_of(t, group.index), t};
    return calls.unpack(own, move.elements, {&move, 1}, dtype, factors.in_unpack,
                        search.of(FiniteCheck::kResult));
  };

  const auto queue = [&](const LaneCalls& calls) -> Status {
    PERSEUS_RETURN_IF_ERROR(search.prepare(calls.gpu()));
    for (uint32_t t = 0; t < tensors; ++t) PERSEUS_RETURN_IF_ERROR(scatter(calls, t));
    return {};
  };
  auto work = on_lane(run, launches, {&ready, 1}, /*is_last=*/true, queue);
  Status status = co_await work;
  search.note_use(work.take_event());
  PERSEUS_CO_RETURN_IF_ERROR(status);

  for (size_t t = 0; t < tensors && search.is_on(); ++t) {
    uint64_t before = 0;
    bool is_told = false;
    for (int r = 0; r < group.size; ++r) {
      if (r == group.index) {
        if (const auto made = search.found(FiniteCheck::kResult, t)) {
          check.found_on_gpu(FiniteCheck::kResult, t, before + made->element, made->is_infinity);
        }
      }
      const auto given = search.found(FiniteCheck::kInput, t * group.size + r);
      if (given && !is_told) {
        check.found_on_gpu(FiniteCheck::kInput, t, before + given->element, given->is_infinity);
        is_told = true;
      }
      before += elements_of(t, r);
    }
  }
  if (check.has_to_conclude(/*is_shared=*/false)) status = co_await check.conclude(false);
  co_return status;
}

// Allocates results whose sizes have become known.
Task allocate_results(NcclGroup& nccl, Operation& operation, std::span<const uint64_t> bytes_of) {
  AwaitableGpuWork work(nccl.thread(), nullptr, [&]() -> Status {
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
  Status status = co_await exchange_row_counts(run, context, rows.span());
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
  const auto gather_tensor = [&](const LaneCalls& calls, size_t t) -> Status {
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
    for (size_t t = 0; t < tensors; ++t) PERSEUS_RETURN_IF_ERROR(gather_tensor(calls, t));
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
  Status status = co_await exchange_splits(run, context, send_rows.span(), receive_rows.span());
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

// Runs an operation that needs nothing from the other ranks before its turn.
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
    status = co_await run_reduce_scatter(run, context, launches);
  }
  co_return status;
}

Task run_staged(ShardRun& run, RunContext context, GpuLaunches& launches) {
  Status status = co_await launches.turn(run);
  // A staged shard has no halves, but must take both turns.
  if (status.is_ok() && run.turn.has_halves) status = co_await launches.turn(run);
  PERSEUS_CO_RETURN_IF_ERROR(status);
  const TracedShard traced(context.timeline, run);
  status = co_await run_shard(run, context);
  co_return status;
}

// Returns why the shard is staged through the host's memory; empty if it goes by NCCL. The same on
// all ranks.
std::string staging_reason(const ShardRun& run, const NcclGroup& nccl) {
  if (!nccl.staging_reason().empty() || nccl.has_kernels()) return nccl.staging_reason();
  const bool takes_kernels =
      is_reduction(run.description().kind) && factors_of(run).in_unpack != 1.0;
  return takes_kernels ? "a rank lacks the CUDA kernels that scale 16-bit tensors" : "";
}

Status check_gpus(const ShardRun& run, const NcclGroup& nccl) {
  Status status;
  for_each_operation(run.shard, [&](uint32_t index) {
    if (status.is_ok()) status = nccl.check(*run.batch->operations[index]);
  });
  return status;
}

}  // namespace

bool nccl_supports(const Description& description, const Settings& settings) {
  if (description.tensors.empty()) return false;
  if (!is_reduction(description.kind)) return true;
  const DataType dtype = description.tensors.front().dtype;
  const bool is_same_type = std::ranges::all_of(
      description.tensors, [&](const TensorDescription& tensor) { return tensor.dtype == dtype; });
  // The size of the set is not known here, so an average counts as scaled even in a set of one.
  const bool is_scaled = description.prescale != 1.0 || description.postscale != 1.0 ||
                         description.reduce_op == ReduceOp::kAverage;
  const bool is_sum =
      description.reduce_op == ReduceOp::kSum || description.reduce_op == ReduceOp::kAverage;
  const bool is_coded = description.kind == OperationKind::kAllreduce &&
                        codec_for(description, dtype, settings) != nullptr;
  return is_same_type && nccl_type(dtype) && nccl_op(description.reduce_op) && !is_coded &&
         (!is_scaled || (is_sum && is_floating(dtype)));
}

bool has_halves(const ShardRun& run, const Settings& settings) {
  return run.description().kind == OperationKind::kAllreduce &&
         wanted_algorithm(settings) == AllreduceAlgorithm::kHierarchical &&
         can_be_hierarchical_over_hosts(run.batch->set->group);
}

Task run_in_turn(ShardRun& run, RunContext context, GpuLaunches& launches) {
  NcclGroup& nccl = *run.batch->set->nccl;
  Status status = co_await nccl.ready();
  if (status.is_ok()) status = check_gpus(run, nccl);
  const std::string why = staging_reason(run, nccl);
  if (status.is_ok() && !why.empty() && context.settings.gpu_operations == GpuOperations::kNccl) {
    status = Status::unsupported("PERSEUS_GPU_OPERATIONS is nccl, but " + why);
  }
  PERSEUS_CO_RETURN_IF_ERROR(status);
  const OperationKind kind = run.description().kind;
  if (!why.empty()) {
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
