#include "schedule/plan.h"

#include <algorithm>
#include <tuple>

namespace perseus {
namespace {

// Cuts fall on multiples of this many elements, so that no cache line is written by two shards of
// an aligned tensor.
constexpr uint64_t kCutElements = 64;

bool is_cut(OperationKind kind) {
  return kind == OperationKind::kAllreduce || kind == OperationKind::kBroadcast;
}

bool is_unsharded(OperationKind kind) {
  return is_uneven(kind) || kind == OperationKind::kReduceScatter;
}

// Adasum weighs each tensor by its length and direction, which a part of the tensor does not have.
bool may_be_cut(const Description& description) {
  return description.reduce_op != ReduceOp::kAdasum;
}

bool may_merge(const Description& a, DataType dtype_a, const Description& b, DataType dtype_b) {
  return a.kind == b.kind && dtype_a == dtype_b && a.root == b.root && a.codec == b.codec &&
         a.device == b.device && a.reduce_op == b.reduce_op && a.prescale == b.prescale &&
         a.postscale == b.postscale;
}

}  // namespace

void Planner::make(std::span<const Agreement::Ready> agreed, const Granularity& granularity,
                   Plan& plan) {
  agreed_ = agreed;
  granularity_ = granularity;
  plan.shards.clear();
  plan.pieces.clear();
  placed_.clear();
  units_.clear();
  ends_.clear();
  for (uint32_t i = 0; i < agreed_.size(); ++i) {
    const Description& description = agreed_[i].description();
    if (is_unsharded(description.kind)) {
      add_unsharded(i, plan);
    } else if (is_cut(description.kind)) {
      for (uint32_t t = 0; t < description.tensors.size(); ++t) add_tensor(i, t);
    }
  }
  std::sort(placed_.begin(), placed_.end(), [](const PlacedTensor& a, const PlacedTensor& b) {
    return std::tie(a.unit, a.tensor.operation, a.tensor.tensor) <
           std::tie(b.unit, b.tensor.operation, b.tensor.tensor);
  });
  for (size_t begin = 0, end = 0; begin < placed_.size(); begin = end) {
    const size_t unit = placed_[begin].unit;
    while (end < placed_.size() && placed_[end].unit == unit) ++end;
    cut(std::span(placed_).subspan(begin, end - begin), units_[unit].bytes, plan);
  }

  // From here on the pieces do not move in memory.
  size_t begin = 0;
  for (size_t i = 0; i < plan.shards.size(); begin = ends_[i++]) {
    plan.shards[i].pieces = std::span(plan.pieces).subspan(begin, ends_[i] - begin);
  }
  std::sort(plan.shards.begin(), plan.shards.end(), [](const Shard& a, const Shard& b) {
    const Piece* const pieces_a = a.pieces.data();
    const Piece* const pieces_b = b.pieces.data();
    return std::tie(b.priority, a.operation, pieces_a) <
           std::tie(a.priority, b.operation, pieces_b);
  });
}

const Description& Planner::description_of(const Piece& piece) const {
  return agreed_[piece.operation].description();
}

const TensorDescription& Planner::tensor_of(const Piece& piece) const {
  return description_of(piece).tensors[piece.tensor];
}

void Planner::add_unsharded(uint32_t operation, Plan& plan) {
  const Description& description = agreed_[operation].description();
  Shard shard;
  shard.operation = operation;
  shard.priority = description.priority;
  shard.bytes = static_cast<uint64_t>(description.bytes());
  if (!description.tensors.empty()) shard.dtype = description.tensors.front().dtype;
  close(shard, plan);
}

void Planner::add_tensor(uint32_t operation, uint32_t tensor) {
  Piece piece{operation, tensor, 0, 0};
  piece.elements = static_cast<uint64_t>(tensor_of(piece).elements());
  if (piece.elements == 0) return;
  const uint64_t bytes = piece.elements * size_of(tensor_of(piece).dtype);
  const uint64_t merge_bytes = granularity_.merge_bytes_on(description_of(piece).device);
  Unit* unit = bytes < merge_bytes ? open_unit_for(piece, bytes) : nullptr;
  if (unit == nullptr) unit = &units_.emplace_back(Unit{piece, 0});
  unit->bytes += bytes;
  placed_.push_back({piece, static_cast<size_t>(unit - units_.data())});
}

// Returns the last unit that the tensor may share, if it has room, or null.
Planner::Unit* Planner::open_unit_for(const Piece& piece, uint64_t bytes) {
  const auto unit = std::find_if(units_.rbegin(), units_.rend(), [&](const Unit& candidate) {
    return may_share_unit(candidate.first, piece);
  });
  const uint64_t merge_bytes = granularity_.merge_bytes_on(description_of(piece).device);
  if (unit == units_.rend() || unit->bytes + bytes > merge_bytes) return nullptr;
  return &*unit;
}

bool Planner::may_share_unit(const Piece& a, const Piece& b) const {
  if (!may_merge(description_of(a), tensor_of(a).dtype, description_of(b), tensor_of(b).dtype)) {
    return false;
  }
  const auto is_of_a_group = [this](const Piece& piece) {
    return description_of(piece).tensors.size() > 1;
  };
  return !granularity_.groups_apart || a.operation == b.operation ||
         (!is_of_a_group(a) && !is_of_a_group(b));
}

// Cuts the tensors of a unit, laid end to end, into shards of nearly equal size. Tensors that must
// not be cut stay whole.
void Planner::cut(std::span<const PlacedTensor> tensors, uint64_t bytes, Plan& plan) {
  const DataType dtype = tensor_of(tensors.front().tensor).dtype;
  const uint64_t elements = bytes / size_of(dtype);
  const uint64_t shard_bytes =
      granularity_.shard_bytes_on(description_of(tensors.front().tensor).device);
  const uint64_t count = (bytes + shard_bytes - 1) / shard_bytes;
  const uint64_t even = (elements + count - 1) / count;
  const uint64_t shard_elements = (even + kCutElements - 1) / kCutElements * kCutElements;

  Shard shard;
  uint64_t room = 0;
  for (const auto& [tensor, unit] : tensors) {
    for (uint64_t offset = 0; offset < tensor.elements;) {
      if (room == 0) {
        if (shard.bytes != 0) close(shard, plan);
        room = shard_elements;
        shard = Shard{};
        shard.operation = tensor.operation;
        shard.dtype = dtype;
        shard.priority = description_of(tensor).priority;
      }
      const uint64_t left = tensor.elements - offset;
      const uint64_t take = may_be_cut(description_of(tensor)) ? std::min(room, left) : left;
      plan.pieces.push_back({tensor.operation, tensor.tensor, offset, take});
      shard.bytes += take * size_of(dtype);
      offset += take;
      room -= std::min(room, take);
    }
  }
  close(shard, plan);
}

// Adds the shard to the plan, with the pieces that have been added since the shard before it.
void Planner::close(const Shard& shard, Plan& plan) {
  plan.shards.push_back(shard);
  ends_.push_back(plan.pieces.size());
}

}  // namespace perseus
