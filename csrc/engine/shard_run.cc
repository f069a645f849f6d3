#include "engine/shard_run.h"

#include <cstring>

#include "codec/codec.h"
#include "collectives/adasum.h"
#include "collectives/coded_allreduce.h"
#include "collectives/message.h"
#include "device/cpu/kernels.h"
#include "device/cpu/pack.h"
#include "engine/trace.h"
#include "observe/log.h"

namespace perseus {
namespace {

constexpr int kSetShift = 40;  // of Tag::operation: process set above, series below
// The swap of sizes in an operation done whole; its tensors are numbered from 0.
constexpr uint32_t kSizes = UINT32_MAX;

Call call_for(const ShardRun& run, RunContext& context, uint32_t number) {
  Call call;
  call.operation = (static_cast<uint64_t>(run.batch->set->id) << kSetShift) | run.series;
  call.shard = number;
  call.priority = run.shard.priority;
  call.buffers = &context.buffers;
  call.streaming = run.streaming;
  return call;
}

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

// kAverage is a sum whose results are divided by the size of the set.
double result_factor(const Description& description, int set_size) {
  return description.reduce_op == ReduceOp::kAverage ? description.postscale / set_size
                                                     : description.postscale;
}
ReduceOp wire_op(const Description& description) {
  return description.reduce_op == ReduceOp::kAverage ? ReduceOp::kSum : description.reduce_op;
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

void report_non_finite(const ShardRun& run, const RunContext& context, const PackResult& found) {
  if (found.is_finite) return;
  context.counters.non_finite_tensors.add();
  const Piece& piece = run.shard.pieces[found.segment];
  const Agreement::Ready& agreed = run.batch->agreed[piece.operation];
  PERSEUS_LOG(kWarning, title(agreed.key())
                            << ": rank " << context.rank
                            << " submitted a NaN or infinity, the first at element "
                            << piece.offset + found.element << " of tensor " << piece.tensor);
}

// Copies the pieces into the buffer; what this rank has not submitted becomes the reduction's
// neutral element.
void pack_pieces(const ShardRun& run, const RunContext& context, double factor, std::byte* buffer) {
  const TracedStep step(context.timeline, run, "PACK");
  const size_t element = size_of(run.shard.dtype);
  const bool check = context.settings.nan_check != 0;
  for (size_t i = 0; i < run.shard.pieces.size(); ++i) {
    const Segment segment = segment_of(run, run.shard.pieces[i]);
    if (segment.source != nullptr) {
      PackResult found =
          cpu_device().pack({&segment, 1}, run.shard.dtype, run.shard.dtype, factor, buffer, check);
      found.segment = i;
      report_non_finite(run, context, found);
    } else {
      fill_identity(buffer, segment.elements, run.shard.dtype, wire_op(run.description()));
    }
    buffer += segment.elements * element;
  }
}

void unpack_pieces(const ShardRun& run, const RunContext& context, double factor,
                   const std::byte* buffer) {
  const TracedStep step(context.timeline, run, "UNPACK");
  const size_t element = size_of(run.shard.dtype);
  for (const Piece& piece : run.shard.pieces) {
    const Segment segment = segment_of(run, piece);
    if (segment.target != nullptr) {
      cpu_device().unpack(buffer, run.shard.dtype, {&segment, 1}, run.shard.dtype, factor, false);
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
  pack_pieces(run, context, description.prescale, buffer.data());
  const Status status = co_await adasum(run.batch->set->group, call_for(run, context, run.index),
                                        buffer.data(), tensors.span(), run.shard.dtype);
  PERSEUS_CO_RETURN_IF_ERROR(status);
  unpack_pieces(run, context, description.postscale, buffer.data());
  co_return Status::ok();
}

Task run_allreduce(ShardRun& run, RunContext context) {
  const Description& description = run.description();
  const Group& group = run.batch->set->group;
  const uint64_t elements = run.shard.elements();
  const double factor = result_factor(description, group.size);
  const Call call = call_for(run, context, run.index);
  const Codec* coding = codec_for(run, context);
  const Segment segment = only_segment_of(run);

  const bool in_place =
      segment.source != nullptr && description.prescale == 1.0 && coding == nullptr;
  if (in_place) {
    if (context.settings.nan_check != 0) {
      PackResult found;
      found.element = find_non_finite(segment.source, elements, run.shard.dtype);
      found.is_finite = found.element == elements;
      report_non_finite(run, context, found);
    }
    const Status status = co_await allreduce(
        group, call, segment.source, segment.target, elements, run.shard.dtype,
        wire_op(description), algorithm_for(context, group, run.shard.bytes), factor);
    co_return status;
  }

  Buffer buffer = context.buffers.take(run.shard.bytes);
  if (!buffer) co_return Status::out_of_memory("no memory for a fusion buffer");
  pack_pieces(run, context, description.prescale, buffer.data());
  Status status;
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
  unpack_pieces(run, context, factor_left, buffer.data());
  co_return Status::ok();
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

// Bytes of one row of the first dimension.
uint64_t row_bytes(const TensorDescription& tensor) {
  uint64_t bytes = size_of(tensor.dtype);
  for (size_t d = 1; d < tensor.shape.size(); ++d) bytes *= static_cast<uint64_t>(tensor.shape[d]);
  return bytes;
}

Status allocate(OperationTensor& tensor, uint64_t bytes) {
  if (bytes == 0) return {};
  tensor.allocated.reset(static_cast<std::byte*>(std::malloc(bytes)));
  tensor.output = tensor.allocated.get();
  if (tensor.output == nullptr) {
    return Status::out_of_memory("no memory for a result of " + std::to_string(bytes) + " bytes");
  }
  return {};
}

Task run_allgather(ShardRun& run, RunContext context) {
  const Group& group = run.batch->set->group;
  Operation* operation = run.batch->operations[run.shard.operation].get();
  const std::vector<TensorDescription>& agreed = run.description().tensors;
  const size_t tensors = agreed.size();

  // Every rank's first dimensions, tensor by tensor.
  ScratchArray<int64_t> mine(context.buffers, tensors, 0);
  ScratchArray<int64_t> rows(context.buffers, tensors * group.size, 0);
  ScratchArray<uint64_t> bytes_of(context.buffers, group.size, tensors * sizeof(int64_t));
  if (!mine || !rows || !bytes_of) co_return out_of_scratch(rows.size() * sizeof(int64_t));
  for (size_t t = 0; operation != nullptr && t < tensors; ++t) {
    mine[t] = operation->description.tensors[t].shape[0];
  }
  Status status = co_await allgather(group, call_for(run, context, kSizes), mine.data(),
                                     rows.data(), bytes_of.span());
  PERSEUS_CO_RETURN_IF_ERROR(status);

  for (size_t t = 0; t < tensors; ++t) {
    int64_t total = 0;
    for (int r = 0; r < group.size; ++r) {
      const int64_t of_rank = rows[r * tensors + t];
      total += of_rank;
      bytes_of[r] = static_cast<uint64_t>(of_rank) * row_bytes(agreed[t]);
    }
    // A rank that has joined takes part in moving what it does not keep.
    OperationTensor scratch;
    OperationTensor& tensor = operation != nullptr ? operation->tensors[t] : scratch;
    tensor.result_shape = agreed[t].shape;
    tensor.result_shape[0] = total;
    status = allocate(tensor, static_cast<uint64_t>(total) * row_bytes(agreed[t]));
    PERSEUS_CO_RETURN_IF_ERROR(status);
    status = co_await allgather(group, call_for(run, context, static_cast<uint32_t>(t)),
                                tensor.input, tensor.output, bytes_of.span());
    PERSEUS_CO_RETURN_IF_ERROR(status);
  }
  co_return Status::ok();
}

Task run_alltoall(ShardRun& run, RunContext context) {
  const Group& group = run.batch->set->group;
  Operation* operation = run.batch->operations[run.shard.operation].get();
  const TensorDescription& agreed = run.description().tensors.front();
  const auto size = static_cast<size_t>(group.size);

  ScratchArray<int64_t> send_rows(context.buffers, size, 0);
  ScratchArray<int64_t> receive_rows(context.buffers, size, 0);
  ScratchArray<uint64_t> send_bytes(context.buffers, size, sizeof(int64_t));
  ScratchArray<uint64_t> receive_bytes(context.buffers, size, sizeof(int64_t));
  if (!send_rows || !receive_rows || !send_bytes || !receive_bytes) {
    co_return out_of_scratch(size * sizeof(int64_t));
  }
  for (size_t r = 0; operation != nullptr && r < size; ++r) send_rows[r] = operation->splits[r];
  Status status = co_await alltoall(group, call_for(run, context, kSizes), send_rows.data(),
                                    receive_rows.data(), send_bytes.span(), receive_bytes.span());
  PERSEUS_CO_RETURN_IF_ERROR(status);

  int64_t total = 0;
  for (size_t r = 0; r < size; ++r) {
    send_bytes[r] = static_cast<uint64_t>(send_rows[r]) * row_bytes(agreed);
    receive_bytes[r] = static_cast<uint64_t>(receive_rows[r]) * row_bytes(agreed);
    total += receive_rows[r];
  }
  OperationTensor scratch;
  OperationTensor& tensor = operation != nullptr ? operation->tensors.front() : scratch;
  tensor.result_shape = agreed.shape;
  tensor.result_shape[0] = total;
  status = allocate(tensor, static_cast<uint64_t>(total) * row_bytes(agreed));
  PERSEUS_CO_RETURN_IF_ERROR(status);
  status = co_await alltoall(group, call_for(run, context, 0), tensor.input, tensor.output,
                             send_bytes.span(), receive_bytes.span());
  if (operation != nullptr) {
    operation->received_splits.assign(receive_rows.span().begin(), receive_rows.span().end());
  }
  co_return status;
}

Task run_reduce_scatter(ShardRun& run, RunContext context) {
  const ProcessSet& set = *run.batch->set;
  const Group& group = set.group;
  const Description& description = run.description();
  Operation* operation = run.batch->operations[run.shard.operation].get();
  const double factor = result_factor(description, group.size);
  ScratchArray<uint64_t> elements_of(context.buffers, group.size, 0);
  if (!elements_of) co_return out_of_scratch(group.size * sizeof(uint64_t));

  for (size_t t = 0; t < description.tensors.size(); ++t) {
    const TensorDescription& agreed = description.tensors[t];
    const auto total = static_cast<size_t>(agreed.elements());
    const uint64_t row_elements = row_bytes(agreed) / size_of(agreed.dtype);
    for (int r = 0; r < group.size; ++r) {
      elements_of[r] =
          static_cast<uint64_t>(rows_of(agreed.shape[0], group.size, r)) * row_elements;
    }

    Buffer scaled, scratch;
    const std::byte* input = operation != nullptr ? operation->tensors[t].input : nullptr;
    std::byte* output = operation != nullptr ? operation->tensors[t].output : nullptr;
    if (operation == nullptr) {
      scaled = context.buffers.take(total * size_of(agreed.dtype));
      scratch = context.buffers.take(elements_of[group.index] * size_of(agreed.dtype));
      if (!scaled || !scratch) co_return Status::out_of_memory("no memory for a reduce-scatter");
      fill_identity(scaled.data(), total, agreed.dtype, wire_op(description));
      input = scaled.data();
      output = scratch.data();
    } else if (description.prescale != 1.0) {
      scaled = context.buffers.take(total * size_of(agreed.dtype));
      if (!scaled) co_return Status::out_of_memory("no memory for a reduce-scatter");
      scale(scaled.data(), input, total, agreed.dtype, description.prescale);
      input = scaled.data();
    }
    const Status status = co_await reduce_scatter(
        group, call_for(run, context, static_cast<uint32_t>(t)), input, output, elements_of.span(),
        agreed.dtype, wire_op(description), factor);
    PERSEUS_CO_RETURN_IF_ERROR(status);
  }
  co_return Status::ok();
}

}  // namespace

Task run_shard(ShardRun& run, RunContext context) {
  switch (run.description().kind) {
    case OperationKind::kAllreduce:
      return run.description().reduce_op == ReduceOp::kAdasum ? run_adasum(run, context)
                                                              : run_allreduce(run, context);
    case OperationKind::kBroadcast: return run_broadcast(run, context);
    case OperationKind::kAllgather: return run_allgather(run, context);
    case OperationKind::kAlltoall: return run_alltoall(run, context);
    default: return run_reduce_scatter(run, context);
  }
}

int64_t rows_of(int64_t rows, int size, int index) {
  return rows / size + (index < rows % size ? 1 : 0);
}

Status allocate_outputs(Operation& operation, int set_size, int set_index) {
  const Description& description = operation.description;
  if (is_uneven(description.kind)) return {};  // known when ranks have swapped their sizes
  for (size_t t = 0; t < operation.tensors.size(); ++t) {
    OperationTensor& tensor = operation.tensors[t];
    tensor.result_shape = description.tensors[t].shape;
    if (description.kind == OperationKind::kReduceScatter) {
      tensor.result_shape[0] = rows_of(tensor.result_shape[0], set_size, set_index);
    }
    if (tensor.output != nullptr) continue;
    uint64_t bytes = size_of(description.tensors[t].dtype);
    for (int64_t extent : tensor.result_shape) bytes *= static_cast<uint64_t>(extent);
    PERSEUS_RETURN_IF_ERROR(allocate(tensor, bytes));
  }
  return {};
}

}  // namespace perseus
