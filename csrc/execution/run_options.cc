#include "execution/run_options.h"

#include "base/settings.h"

namespace perseus {
namespace {

constexpr int kSetShift = 40;  // of Tag::operation: process set above, series below

int codec_id(WireDtype dtype) {
  switch (dtype) {
    case WireDtype::kFp16: return kCodecFp16;
    case WireDtype::kNone: return kCodecNone;
    case WireDtype::kBf16: return kCodecBf16;
  }
  return kCodecNone;
}

}  // namespace

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

uint64_t operation_tag(const ProcessSet& set, uint64_t series) {
  return (static_cast<uint64_t>(set.id) << kSetShift) | series;
}

CollectiveOptions collective_options(const ShardRun& run, RunContext& context, uint32_t number) {
  CollectiveOptions options;
  options.operation = operation_tag(*run.batch->set, run.series);
  options.shard = number;
  options.priority = run.shard.priority;
  options.buffers = &context.buffers;
  options.streaming = run.streaming;
  return options;
}

const Codec* codec_for(const Description& description, DataType dtype, const Settings& settings) {
  if (dtype != DataType::kFloat32 || wire_op(description) != ReduceOp::kSum) return nullptr;
  const bool is_from_settings = description.codec == kCodecFromSettings;
  return codec(is_from_settings ? codec_id(settings.wire_dtype) : description.codec);
}

AllreduceAlgorithm wanted_algorithm(const Settings& settings) {
  const AllreduceAlgorithm wanted = settings.algorithm;
  const bool is_free = wanted == AllreduceAlgorithm::kAuto;
  return is_free && settings.mode == AllreduceMode::kHierarchical
             ? AllreduceAlgorithm::kHierarchical
             : wanted;
}

double result_factor(const Description& description, int set_size) {
  return description.reduce_op == ReduceOp::kAverage ? description.postscale / set_size
                                                     : description.postscale;
}
ReduceOp wire_op(const Description& description) {
  return description.reduce_op == ReduceOp::kAverage ? ReduceOp::kSum : description.reduce_op;
}

}  // namespace perseus
