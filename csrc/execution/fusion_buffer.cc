#include "execution/fusion_buffer.h"

#include <algorithm>

#include "collectives/scratch_array.h"
#include "device/cpu/kernels.h"
#include "device/cpu/pack.h"
#include "device/cuda/gpu_copies.h"
#include "execution/run_options.h"
#include "execution/trace.h"

namespace perseus {
namespace {

Status no_memory() { return Status::out_of_memory("no memory for a fusion buffer"); }

// Calls visit(gpu) once for each GPU on which this rank has tensors of the shard. Usually that is
// one.
template <typename Visit>
void for_each_gpu(const ShardRun& run, Visit visit) {
  const auto& operations = run.batch->operations;
  const std::span<const Piece> pieces = run.shard.pieces;
  for (size_t i = 0; i < pieces.size(); ++i) {
    const OperationPtr& operation = operations[pieces[i].operation];
    if (operation == nullptr || operation->gpu == nullptr) continue;
    const bool is_new = std::none_of(pieces.begin(), pieces.begin() + i, [&](const Piece& earlier) {
      const OperationPtr& other = operations[earlier.operation];
      return other != nullptr && other->gpu == operation->gpu;
    });
    if (is_new) visit(*operation->gpu);
  }
}

}  // namespace

bool FusionBuffer::is_on_gpu() const {
  if (!run_.is_of_gpus()) return false;
  bool has_any = false;
  for_each_gpu(run_, [&](Gpu&) { has_any = true; });
  return has_any;
}

MaybeTask FusionBuffer::take() {
  if (is_on_gpu()) {
    Gpu* first = nullptr;
    for_each_gpu(run_, [&](Gpu& gpu) { first = first == nullptr ? &gpu : first; });
    const auto thread = context_.gpus.of(*first);
    if (!thread.is_ok()) return thread.status();
    return take_pinned(*thread.value(), run_.shard.bytes, pinned_);
  }
  memory_ = context_.buffers.take(run_.shard.bytes);
  return memory_ ? Status::ok() : no_memory();
}

MaybeTask FusionBuffer::pack(double factor, FiniteCheck* check) {
  if (pinned_) return pack_from_gpus(factor, check);
  pack_here(factor, check);
  return Status::ok();
}

MaybeTask FusionBuffer::unpack(double factor, FiniteCheck* check) {
  if (pinned_) return unpack_to_gpus(factor, check);
  unpack_here(factor, check);
  return Status::ok();
}

void FusionBuffer::pack_here(double factor, FiniteCheck* check) {
  const TracedStep step(context_.timeline, run_, "PACK");
  const DataType dtype = run_.shard.dtype;
  const bool is_checked = check != nullptr && check->is_on();
  std::byte* next = data();
  for (size_t i = 0; i < run_.shard.pieces.size(); ++i) {
    const Segment segment = segment_of(run_, run_.shard.pieces[i]);
    if (segment.source != nullptr) {
      const PackResult found = pack_segments({&segment, 1}, dtype, dtype, factor, next, is_checked);
      if (!found.is_finite) {
        check->found(FiniteCheck::kInput, i, static_cast<const std::byte*>(segment.source),
                     found.element, next, segment.elements);
      }
    } else {
      fill_identity(next, segment.elements, dtype, wire_op(run_.description()));
    }
    next += segment.elements * size_of(dtype);
  }
}

void FusionBuffer::unpack_here(double factor, FiniteCheck* check) {
  const TracedStep step(context_.timeline, run_, "UNPACK");
  const DataType dtype = run_.shard.dtype;
  const bool is_checked = check != nullptr && check->is_on();
  std::byte* next = data();
  if (is_checked && factor != 1.0) {
    // Unpacking searches the values that it reads, and the factor may make them infinite.
    scale(next, next, run_.shard.elements(), dtype, factor);
    factor = 1.0;
  }
  for (size_t i = 0; i < run_.shard.pieces.size(); ++i) {
    const Segment segment = segment_of(run_, run_.shard.pieces[i]);
    if (segment.target != nullptr) {
      const PackResult found =
          unpack_segments(next, dtype, {&segment, 1}, dtype, factor, is_checked);
      if (!found.is_finite) {
        check->found(FiniteCheck::kResult, i, next, found.element,
                     static_cast<std::byte*>(segment.target), segment.elements);
      }
    } else if (is_checked) {
      // This rank does not keep it, but must find what the others find, to take part in the
      // exchange.
      check->search(FiniteCheck::kResult, i, next, segment.elements);
    }
    next += segment.elements * size_of(dtype);
  }
}

Task FusionBuffer::move(Gpu& gpu, Direction direction, double factor) {
  const auto thread = context_.gpus.of(gpu);
  if (!thread.is_ok()) co_return thread.status();
  const DataType dtype = run_.shard.dtype;
  const std::span<const Piece> pieces = run_.shard.pieces;
  ScratchArray<Move> moves(context_.buffers, pieces.size());
  ScratchArray<CuEvent> ready(context_.buffers, pieces.size());
  if (!moves || !ready) co_return out_of_scratch(pieces.size() * sizeof(Move));
  std::byte* place = data();
  uint32_t last = UINT32_MAX;
  for (const Piece& piece : pieces) {
    const OperationPtr& operation = run_.batch->operations[piece.operation];
    if (operation != nullptr && operation->gpu == &gpu) {
      const Segment segment = segment_of(run_, piece);
      if (direction == Direction::kDown) {
        moves.emplace(Move{segment.source, place, segment.elements, 0});
      } else {
        moves.emplace(Move{place, segment.target, segment.elements, 0});
      }
      if (piece.operation != last) ready.emplace(operation->ready.get());
      last = piece.operation;
    }
    place += piece.elements * size_of(dtype);
  }
  const GpuCopies copies{moves.span(), ready.span(), dtype, factor};
  Task copying = direction == Direction::kDown ? copy_down(*thread.value(), copies, pinned_)
                                               : copy_up(*thread.value(), copies, pinned_);
  const Status status = co_await std::move(copying);
  co_return status;
}

Task FusionBuffer::pack_from_gpus(double factor, FiniteCheck* check) {
  const TracedStep step(context_.timeline, run_, "PACK");
  const DataType dtype = run_.shard.dtype;
  const bool is_checked = check != nullptr && check->is_on();
  ScratchArray<Task> tasks(context_.buffers, run_.shard.pieces.size());
  if (!tasks) co_return out_of_scratch(run_.shard.pieces.size() * sizeof(Task));
  // The check is of what the ranks submitted, not of what the factor made of it.
  const double factor_there = is_checked ? 1.0 : factor;
  for_each_gpu(run_, [&](Gpu& gpu) { tasks.emplace(move(gpu, Direction::kDown, factor_there)); });
  AllTasks all(tasks.span());
  const Status status = co_await all;
  PERSEUS_CO_RETURN_IF_ERROR(status);
  std::byte* next = data();
  for (size_t i = 0; i < run_.shard.pieces.size(); ++i) {
    const Segment segment = segment_of(run_, run_.shard.pieces[i]);
    if (segment.source == nullptr) {
      fill_identity(next, segment.elements, dtype, wire_op(run_.description()));
    } else if (is_checked) {
      check->search(FiniteCheck::kInput, i, next, segment.elements);
      if (factor != 1.0) scale(next, next, segment.elements, dtype, factor);
    }
    next += segment.elements * size_of(dtype);
  }
  co_return Status::ok();
}

Task FusionBuffer::unpack_to_gpus(double factor, FiniteCheck* check) {
  const TracedStep step(context_.timeline, run_, "UNPACK");
  const DataType dtype = run_.shard.dtype;
  if (check != nullptr && check->is_on()) {
    std::byte* next = data();
    if (factor != 1.0) scale(next, next, run_.shard.elements(), dtype, factor);
    factor = 1.0;
    for (size_t i = 0; i < run_.shard.pieces.size(); ++i) {
      const size_t elements = run_.shard.pieces[i].elements;
      check->search(FiniteCheck::kResult, i, next, elements);
      next += elements * size_of(dtype);
    }
  }
  ScratchArray<Task> tasks(context_.buffers, run_.shard.pieces.size());
  if (!tasks) co_return out_of_scratch(run_.shard.pieces.size() * sizeof(Task));
  for_each_gpu(run_, [&](Gpu& gpu) { tasks.emplace(move(gpu, Direction::kUp, factor)); });
  AllTasks all(tasks.span());
  const Status status = co_await all;
  co_return status;
}

}  // namespace perseus
