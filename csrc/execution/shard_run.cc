#include "execution/shard_run.h"

#include <algorithm>
#include <cstring>
#include <span>

#include "base/settings.h"
#include "codec/codec.h"
#include "collectives/adasum.h"
#include "collectives/coded_allreduce.h"
#include "collectives/scratch_array.h"
#include "execution/error_feedback.h"
#include "execution/finite_check.h"
#include "execution/fusion_buffer.h"
#include "execution/run_options.h"
#include "execution/unsharded_run.h"

namespace perseus {
namespace {

// The user's choice if the group allows it: hierarchical needs several hosts, or caches, with
// equally many ranks.
AllreduceAlgorithm algorithm_for(const RunContext& context, const Group& group, uint64_t bytes) {
  AllreduceAlgorithm wanted = wanted_algorithm(context.settings);
  if (wanted == AllreduceAlgorithm::kHierarchical && !can_be_hierarchical(group)) {
    wanted = AllreduceAlgorithm::kAuto;
  }
  if (wanted != AllreduceAlgorithm::kAuto) return wanted;
  const AllreduceAlgorithm best = choose_allreduce(group, bytes);
  const bool must_be_flat = context.settings.mode == AllreduceMode::kFlat;
  if (!must_be_flat || best != AllreduceAlgorithm::kHierarchical) return best;
  return spans_hosts(group) ? AllreduceAlgorithm::kRing : choose_flat_allreduce(group, bytes);
}

// The memory of a shard that is a part of one tensor in the host's memory. Such a shard can move
// from and to the tensor directly. Null for any other.
Segment only_segment_of(const ShardRun& run) {
  const bool is_direct = run.shard.pieces.size() == 1 && !run.is_of_gpus();
  return is_direct ? segment_of(run, run.shard.pieces.front()) : Segment{};
}

// Sums the shard through a codec. With error feedback, the error of the encoding is added to the
// next operation's values.
Task run_coded(ShardRun& run, RunContext context, const Codec& codec, float* values) {
  const Group& group = run.batch->set->group;
  const CollectiveOptions options = collective_options(run, context, run.index);
  const uint64_t elements = run.shard.elements();
  Buffer lost;
  if (codec.has_error_feedback()) {
    lost = context.buffers.take(elements * sizeof(float));
    if (!lost) co_return Status::out_of_memory("no memory for the error feedback of a codec");
    float* at = values;
    for (const Piece& piece : run.shard.pieces) {
      const std::span<const float> last = residual_of(run, context, piece).last;
      add_residual(at, last.data(), last.size());
      at += piece.elements;
    }
  }
  auto* kept = reinterpret_cast<float*>(lost.data());
  const Status status = co_await coded_allreduce(group, options, values, elements, codec, kept);
  PERSEUS_CO_RETURN_IF_ERROR(status);
  if (lost) {
    for (const Piece& piece : run.shard.pieces) {
      const std::span<float> next = residual_of(run, context, piece).next;
      std::copy_n(kept, next.size(), next.begin());
      kept += piece.elements;
    }
  }
  co_return Status::ok();
}

Task run_adasum(ShardRun& run, RunContext context) {
  const Description& description = run.description();
  const std::span<const Piece> pieces = run.shard.pieces;  // whole tensors: see Planner::cut
  ScratchArray<uint64_t> tensors(context.buffers, pieces.size());
  if (!tensors) co_return out_of_scratch(pieces.size() * sizeof(uint64_t));
  for (const Piece& piece : pieces) tensors.emplace(piece.elements);
  FiniteCheck check(run, context, pieces);
  PERSEUS_CO_RETURN_IF_ERROR(check.ready());
  FusionBuffer buffer(run, context);
  Status status = co_await buffer.take();
  PERSEUS_CO_RETURN_IF_ERROR(status);
  status = co_await buffer.pack(description.prescale, &check);
  PERSEUS_CO_RETURN_IF_ERROR(status);
  status = co_await adasum(run.batch->set->group, collective_options(run, context, run.index),
                           buffer.data(), tensors.span(), run.shard.dtype);
  PERSEUS_CO_RETURN_IF_ERROR(status);
  status = co_await buffer.unpack(description.postscale, &check);
  PERSEUS_CO_RETURN_IF_ERROR(status);
  if (check.has_to_conclude(/*is_shared=*/true)) status = co_await check.conclude(true);
  co_return status;
}

Task run_allreduce(ShardRun& run, RunContext context) {
  const Description& description = run.description();
  const Group& group = run.batch->set->group;
  const uint64_t elements = run.shard.elements();
  const double factor = result_factor(description, group.size);
  const CollectiveOptions options = collective_options(run, context, run.index);
  const Codec* coding = codec_for(description, run.shard.dtype, context.settings);
  const Segment segment = only_segment_of(run);

  FiniteCheck check(run, context, run.shard.pieces);
  PERSEUS_CO_RETURN_IF_ERROR(check.ready());

  Status status;
  // No copy is needed then. But zeros may be put in the tensor only if it is the result's memory
  // too.
  const bool in_place = segment.source != nullptr && description.prescale == 1.0 &&
                        coding == nullptr &&
                        (!check.puts_zeros() || segment.source == segment.target);
  if (in_place) {
    auto* source = static_cast<std::byte*>(const_cast<void*>(segment.source));
    check.search(FiniteCheck::kInput, 0, source, elements);
    status = co_await allreduce(group, options, segment.source, segment.target, elements,
                                run.shard.dtype, wire_op(description),
                                algorithm_for(context, group, run.shard.bytes), factor);
    PERSEUS_CO_RETURN_IF_ERROR(status);
    auto* target = static_cast<std::byte*>(segment.target);
    check.search(FiniteCheck::kResult, 0, target, elements);
    if (check.has_to_conclude(/*is_shared=*/true)) status = co_await check.conclude(true);
    co_return status;
  }

  FusionBuffer buffer(run, context);
  status = co_await buffer.take();
  PERSEUS_CO_RETURN_IF_ERROR(status);
  status = co_await buffer.pack(description.prescale, &check);
  PERSEUS_CO_RETURN_IF_ERROR(status);
  double factor_left = 1.0;
  if (coding != nullptr) {
    auto* values = reinterpret_cast<float*>(buffer.data());
    status = co_await run_coded(run, context, *coding, values);
    factor_left = factor;
  } else {
    status = co_await allreduce(group, options, buffer.data(), buffer.data(), elements,
                                run.shard.dtype, wire_op(description),
                                algorithm_for(context, group, run.shard.bytes), factor);
  }
  PERSEUS_CO_RETURN_IF_ERROR(status);
  status = co_await buffer.unpack(factor_left, &check);
  PERSEUS_CO_RETURN_IF_ERROR(status);
  if (check.has_to_conclude(/*is_shared=*/true)) status = co_await check.conclude(true);
  co_return status;
}

Task run_broadcast(ShardRun& run, RunContext context) {
  const ProcessSet& set = *run.batch->set;
  const int root = set.index_of(run.description().root);
  const bool is_root = root == set.index;
  const CollectiveOptions options = collective_options(run, context, run.index);
  const Segment segment = only_segment_of(run);

  if (segment.source != nullptr) {
    if (is_root && segment.source != segment.target) {
      std::memcpy(segment.target, segment.source, run.shard.bytes);
    }
    const Status status =
        co_await broadcast(set.group, options, segment.target, run.shard.bytes, root);
    co_return status;
  }
  FusionBuffer buffer(run, context);
  Status status = co_await buffer.take();
  PERSEUS_CO_RETURN_IF_ERROR(status);
  if (is_root) status = co_await buffer.pack(1.0);
  PERSEUS_CO_RETURN_IF_ERROR(status);
  status = co_await broadcast(set.group, options, buffer.data(), run.shard.bytes, root);
  PERSEUS_CO_RETURN_IF_ERROR(status);
  status = co_await buffer.unpack(1.0);
  co_return status;
}

}  // namespace

Task run_shard(ShardRun& run, RunContext context) {
  switch (run.description().kind) {
    case OperationKind::kAllreduce:
      return run.description().reduce_op == ReduceOp::kAdasum ? run_adasum(run, context)
                                                              : run_allreduce(run, context);
    case OperationKind::kBroadcast: return run_broadcast(run, context);
    default: return run_unsharded(run, context);
  }
}

}  // namespace perseus
