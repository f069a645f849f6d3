#include "engine/shard_run.h"

#include <cstring>

#include "codec/codec.h"
#include "collectives/adasum.h"
#include "collectives/coded_allreduce.h"
#include "collectives/message.h"
#include "device/cpu/kernels.h"
#include "device/cpu/pack.h"
#include "engine/finite_check.h"
#include "engine/trace.h"

namespace perseus {
namespace {

constexpr int kSetShift = 40;  // of Tag::operation: process set above, series below

// The user's choice where the group allows it: hierarchical needs several hosts of as many ranks.
AllreduceAlgorithm algorithm_for(const RunContext& context, const Group& group, uint64_t bytes) {
  constexpr int kFlat = 1, kHierarchical = 2;
  auto wanted = static_cast<AllreduceAlgorithm>(context.settings.algorithm);
  if (wanted == AllreduceAlgorithm::kAuto && context.settings.mode == kHierarchical) {
    wanted = AllreduceAlgorithm::kHierarchical;
  }
  const bool can_be_hierarchical =
      group.by_host != nullptr && group.by_host->local.size > 1 && group.by_host->across.size > 1;
  if (wanted == AllreduceAlgorithm::kHierarchical && !can_be_hierarchical) {
    wanted = AllreduceAlgorithm::kAuto;
  }
  if (wanted != AllreduceAlgorithm::kAuto) return wanted;
  const AllreduceAlgorithm best = choose_allreduce(group, bytes);
  const bool must_be_flat = context.settings.mode == kFlat;
  return must_be_flat && best == AllreduceAlgorithm::kHierarchical ? AllreduceAlgorithm::kRing
                                                                   : best;
}

// Memory of a piece: none of an operation that this rank has not submitted.
Segment segment_of(const ShardRun& run, const Piece& piece) {
  Segment segment;
  segment.elements = piece.elements;
  if (const OperationPtr& operation = run.batch->operations[piece.operation]) {
    const OperationTensor& tensor = operation->tensors[piece.tensor];
    const size_t offset = piece.offset * size_of(run.shard.dtype);
    segment.source = tensor.input + offset;
    segment.target = tensor.output + offset;
  }
  return segment;
}

// The memory of a shard that is a part of one tensor, which so can move from and to it directly.
Segment only_segment_of(const ShardRun& run) {
  return run.shard.pieces.size() == 1 ? segment_of(run, run.shard.pieces.front()) : Segment{};
}

// Copies the pieces into the buffer; what this rank has not submitted becomes the reduction's
// neutral element.
void pack_pieces(const ShardRun& run, const RunContext& context, double factor, std::byte* buffer,
                 FiniteCheck* check = nullptr) {
  const TracedStep step(context.timeline, run, "PACK");
  const size_t element = size_of(run.shard.dtype);
  const bool is_checked = check != nullptr && check->is_on();
  for (size_t i = 0; i < run.shard.pieces.size(); ++i) {
    const Segment segment = segment_of(run, run.shard.pieces[i]);
    if (segment.source != nullptr) {
      const PackResult found = cpu_device().pack({&segment, 1}, run.shard.dtype, run.shard.dtype,
                                                 factor, buffer, is_checked);
      if (!found.is_finite) {
        check->found(FiniteCheck::kInput, i, static_cast<const std::byte*>(segment.source),
                     found.element, buffer, segment.elements);
      }
    } else {
      fill_identity(buffer, segment.elements, run.shard.dtype, wire_op(run.description()));
    }
    buffer += segment.elements * element;
  }
}

void unpack_pieces(const ShardRun& run, const RunContext& context, double factor, std::byte* buffer,
                   FiniteCheck* check = nullptr) {
  const TracedStep step(context.timeline, run, "UNPACK");
  const size_t element = size_of(run.shard.dtype);
  const bool is_checked = check != nullptr && check->is_on();
  if (is_checked && factor != 1.0) {
    // Unpacking looks at what it reads, and the factor may be what makes it infinite.
    scale(buffer, buffer, run.shard.elements(), run.shard.dtype, factor);
    factor = 1.0;
  }
  for (size_t i = 0; i < run.shard.pieces.size(); ++i) {
    const Segment segment = segment_of(run, run.shard.pieces[i]);
    if (segment.target != nullptr) {
      const PackResult found = cpu_device().unpack(buffer, run.shard.dtype, {&segment, 1},
                                                   run.shard.dtype, factor, is_checked);
      if (!found.is_finite) {
        check->found(FiniteCheck::kResult, i, buffer, found.element,
                     static_cast<std::byte*>(segment.target), segment.elements);
      }
    } else if (is_checked) {
      // Nothing to keep, but the other ranks may have to ask this one.
      check->search(FiniteCheck::kResult, i, buffer, segment.elements);
    }
    buffer += segment.elements * element;
  }
}

// The codec of a shard, or null: only float32 sums are coded.
const Codec* codec_for(const ShardRun& run, const RunContext& context) {
  if (run.shard.dtype != DataType::kFloat32 || wire_op(run.description()) != ReduceOp::kSum) {
    return nullptr;
  }
  int id = run.description().codec;
  if (id == kCodecFromSettings) {
    constexpr int kFp16Setting = 0, kBf16Setting = 2;
    id = context.settings.wire_dtype == kFp16Setting   ? kCodecFp16
         : context.settings.wire_dtype == kBf16Setting ? kCodecBf16
                                                       : kCodecNone;
  }
  return codec(id);
}

// Where what coding loses of a piece is kept between its operations.
float* residual_of(ShardRun& run, RunContext& context, const Piece& piece) {
  const Agreement::Ready& agreed = run.batch->agreed[piece.operation];
  const auto elements = static_cast<size_t>(agreed.description().tensors[piece.tensor].elements());
  run.residual_name = agreed.key();
  run.residual_name += '/';
  run.residual_name += std::to_string(piece.tensor);
  return context.residuals.of(run.residual_name, elements).data() + piece.offset;
}

// Sums the shard through a codec; with error feedback, what coding loses is added to the next.
Task run_coded(ShardRun& run, RunContext context, const Codec& codec, float* values) {
  const Group& group = run.batch->set->group;
  const Call call = call_for(run, context, run.index);
  const uint64_t elements = run.shard.elements();
  Buffer lost;
  if (codec.has_error_feedback()) {
    lost = context.buffers.take(elements * sizeof(float));
    if (!lost) co_return Status::out_of_memory("no memory for the error feedback of a codec");
    float* at = values;
    for (const Piece& piece : run.shard.pieces) {
      add_residual(at, residual_of(run, context, piece), piece.elements);
      at += piece.elements;
    }
  }
  auto* kept = reinterpret_cast<float*>(lost.data());
  const Status status = co_await coded_allreduce(group, call, values, elements, codec, kept);
  PERSEUS_CO_RETURN_IF_ERROR(status);
  if (lost) {
    for (const Piece& piece : run.shard.pieces) {
      std::memcpy(residual_of(run, context, piece), kept, piece.elements * sizeof(float));
      kept += piece.elements;
    }
  }
  co_return Status::ok();
}

Task run_adasum(ShardRun& run, RunContext context) {
  const Description& description = run.description();
  const std::span<const Piece> pieces = run.shard.pieces;  // whole tensors: see Planner::cut
  Buffer buffer = context.buffers.take(run.shard.bytes);
  ScratchArray<uint64_t> tensors(context.buffers, pieces.size());
  if (!buffer || !tensors) co_return Status::out_of_memory("no memory for a fusion buffer");
  for (const Piece& piece : pieces) tensors.emplace(piece.elements);
  FiniteCheck check(run, context, pieces);
  PERSEUS_CO_RETURN_IF_ERROR(check.ready());
  pack_pieces(run, context, description.prescale, buffer.data(), &check);
  Status status = co_await adasum(run.batch->set->group, call_for(run, context, run.index),
                                  buffer.data(), tensors.span(), run.shard.dtype);
  PERSEUS_CO_RETURN_IF_ERROR(status);
  unpack_pieces(run, context, description.postscale, buffer.data(), &check);
  if (check.has_to_conclude(/*is_shared=*/true)) status = co_await check.conclude(true);
  co_return status;
}

Task run_allreduce(ShardRun& run, RunContext context) {
  const Description& description = run.description();
  const Group& group = run.batch->set->group;
  const uint64_t elements = run.shard.elements();
  const double factor = result_factor(description, group.size);
  const Call call = call_for(run, context, run.index);
  const Codec* coding = codec_for(run, context);
  const Segment segment = only_segment_of(run);

  FiniteCheck check(run, context, run.shard.pieces);
  PERSEUS_CO_RETURN_IF_ERROR(check.ready());

  Status status;
  // Without a copy; but zeros may be put only where the result will be.
  const bool in_place = segment.source != nullptr && description.prescale == 1.0 &&
                        coding == nullptr &&
                        (!check.puts_zeros() || segment.source == segment.target);
  if (in_place) {
    auto* source = static_cast<std::byte*>(const_cast<void*>(segment.source));
    check.search(FiniteCheck::kInput, 0, source, elements);
    status = co_await allreduce(group, call, segment.source, segment.target, elements,
                                run.shard.dtype, wire_op(description),
                                algorithm_for(context, group, run.shard.bytes), factor);
    PERSEUS_CO_RETURN_IF_ERROR(status);
    auto* target = static_cast<std::byte*>(segment.target);
    check.search(FiniteCheck::kResult, 0, target, elements);
    if (check.has_to_conclude(/*is_shared=*/true)) status = co_await check.conclude(true);
    co_return status;
  }

  Buffer buffer = context.buffers.take(run.shard.bytes);
  if (!buffer) co_return Status::out_of_memory("no memory for a fusion buffer");
  pack_pieces(run, context, description.prescale, buffer.data(), &check);
  double factor_left = 1.0;
  if (coding != nullptr) {
    auto* values = reinterpret_cast<float*>(buffer.data());
    status = co_await run_coded(run, context, *coding, values);
    factor_left = factor;
  } else {
    status = co_await allreduce(group, call, buffer.data(), buffer.data(), elements,
                                run.shard.dtype, wire_op(description),
                                algorithm_for(context, group, run.shard.bytes), factor);
  }
  PERSEUS_CO_RETURN_IF_ERROR(status);
  unpack_pieces(run, context, factor_left, buffer.data(), &check);
  if (check.has_to_conclude(/*is_shared=*/true)) status = co_await check.conclude(true);
  co_return status;
}

Task run_broadcast(ShardRun& run, RunContext context) {
  const ProcessSet& set = *run.batch->set;
  const int root = set.index_of(run.description().root);
  const bool is_root = root == set.index;
  const Call call = call_for(run, context, run.index);
  const Segment segment = only_segment_of(run);

  if (segment.source != nullptr) {
    if (is_root && segment.source != segment.target) {
      std::memcpy(segment.target, segment.source, run.shard.bytes);
    }
    const Status status =
        co_await broadcast(set.group, call, segment.target, run.shard.bytes, root);
    co_return status;
  }
  Buffer buffer = context.buffers.take(run.shard.bytes);
  if (!buffer) co_return Status::out_of_memory("no memory for a fusion buffer");
  if (is_root) pack_pieces(run, context, 1.0, buffer.data());
  const Status status = co_await broadcast(set.group, call, buffer.data(), run.shard.bytes, root);
  PERSEUS_CO_RETURN_IF_ERROR(status);
  unpack_pieces(run, context, 1.0, buffer.data());
  co_return Status::ok();
}

}  // namespace

Call call_for(const ShardRun& run, RunContext& context, uint32_t number) {
  Call call;
  call.operation = (static_cast<uint64_t>(run.batch->set->id) << kSetShift) | run.series;
  call.shard = number;
  call.priority = run.shard.priority;
  call.buffers = &context.buffers;
  call.streaming = run.streaming;
  return call;
}

double result_factor(const Description& description, int set_size) {
  return description.reduce_op == ReduceOp::kAverage ? description.postscale / set_size
                                                     : description.postscale;
}
ReduceOp wire_op(const Description& description) {
  return description.reduce_op == ReduceOp::kAverage ? ReduceOp::kSum : description.reduce_op;
}

Task run_shard(ShardRun& run, RunContext context) {
  switch (run.description().kind) {
    case OperationKind::kAllreduce:
      return run.description().reduce_op == ReduceOp::kAdasum ? run_adasum(run, context)
                                                              : run_allreduce(run, context);
    case OperationKind::kBroadcast: return run_broadcast(run, context);
    default: return run_whole(run, context);
  }
}

}  // namespace perseus
