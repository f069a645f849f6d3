#include "schedule/plan.h"

#include <algorithm>
#include <tuple>

namespace perseus {
namespace {

// Cuts fall on multiples of this many elements, so that no cache line is written by two shards of
// an aligned tensor.
constexpr uint64_t kCutElements = 64;

// Tensors that travel together, in order.
struct Unit {
  std::vector<Piece> tensors;
  uint64_t bytes = 0;
};

bool is_cut(OperationKind kind) {
  return kind == OperationKind::kAllreduce || kind == OperationKind::kBroadcast;
}

bool is_whole(OperationKind kind) {
  return is_uneven(kind) || kind == OperationKind::kReduceScatter;
}

bool may_merge(const Description& a, DataType dtype_a, const Description& b, DataType dtype_b) {
  return a.kind == b.kind && dtype_a == dtype_b && a.root == b.root && a.codec == b.codec &&
         a.reduce_op == b.reduce_op && a.prescale == b.prescale && a.postscale == b.postscale;
}

class Planner {
 public:
  Planner(std::span<const Agreement::Ready> agreed, const Granularity& granularity)
      : agreed_(agreed), granularity_(granularity) {}

  std::vector<Shard> run() {
    for (uint32_t i = 0; i < agreed_.size(); ++i) {
      const Description& description = agreed_[i].description;
      if (is_whole(description.kind)) {
        add_whole(i);
      } else if (is_cut(description.kind)) {
        for (uint32_t t = 0; t < description.tensors.size(); ++t) add_tensor(i, t);
      }
    }
    std::vector<Shard> shards = std::move(whole_);
    for (const Unit& unit : units_) cut(unit, shards);
    std::stable_sort(shards.begin(), shards.end(), [](const Shard& a, const Shard& b) {
      return std::tie(b.priority, a.operation) < std::tie(a.priority, b.operation);
    });
    return shards;
  }

 private:
  const TensorDescription& tensor_of(const Piece& piece) const {
    return agreed_[piece.operation].description.tensors[piece.tensor];
  }

  void add_whole(uint32_t operation) {
    const Description& description = agreed_[operation].description;
    Shard shard;
    shard.operation = operation;
    shard.priority = description.priority;
    for (const TensorDescription& tensor : description.tensors) {
      shard.bytes += static_cast<uint64_t>(tensor.elements()) * size_of(tensor.dtype);
    }
    if (!description.tensors.empty()) shard.dtype = description.tensors.front().dtype;
    whole_.push_back(std::move(shard));
  }

  void add_tensor(uint32_t operation, uint32_t tensor) {
    Piece piece{operation, tensor, 0, 0};
    piece.elements = static_cast<uint64_t>(tensor_of(piece).elements());
    if (piece.elements == 0) return;
    const uint64_t bytes = piece.elements * size_of(tensor_of(piece).dtype);
    Unit* unit = bytes < granularity_.merge_bytes ? open_unit_for(piece, bytes) : nullptr;
    if (unit == nullptr) unit = &units_.emplace_back();
    unit->tensors.push_back(piece);
    unit->bytes += bytes;
  }

  // The last unit of the same sort, if it has room.
  Unit* open_unit_for(const Piece& piece, uint64_t bytes) {
    for (auto unit = units_.rbegin(); unit != units_.rend(); ++unit) {
      const Piece& first = unit->tensors.front();
      if (!may_merge(agreed_[first.operation].description, tensor_of(first).dtype,
                     agreed_[piece.operation].description, tensor_of(piece).dtype)) {
        continue;
      }
      if (granularity_.groups_apart && first.operation != piece.operation &&
          (is_group(first.operation) || is_group(piece.operation))) {
        continue;
      }
      return unit->bytes + bytes <= granularity_.merge_bytes ? &*unit : nullptr;
    }
    return nullptr;
  }

  bool is_group(uint32_t operation) const {
    return agreed_[operation].description.tensors.size() > 1;
  }

  void cut(const Unit& unit, std::vector<Shard>& shards) const {
    const DataType dtype = tensor_of(unit.tensors.front()).dtype;
    const uint64_t elements = unit.bytes / size_of(dtype);
    const uint64_t count = (unit.bytes + granularity_.shard_bytes - 1) / granularity_.shard_bytes;
    const uint64_t even = (elements + count - 1) / count;
    const uint64_t shard_elements = (even + kCutElements - 1) / kCutElements * kCutElements;

    Shard shard;
    uint64_t room = 0;
    const auto close = [&] {
      if (!shard.pieces.empty()) shards.push_back(std::move(shard));
      shard = Shard{};
    };
    for (const Piece& tensor : unit.tensors) {
      for (uint64_t offset = 0; offset < tensor.elements;) {
        if (room == 0) {
          close();
          room = shard_elements;
          shard.operation = tensor.operation;
          shard.dtype = dtype;
          shard.priority = agreed_[tensor.operation].description.priority;
        }
        const uint64_t take = std::min(room, tensor.elements - offset);
        shard.pieces.push_back({tensor.operation, tensor.tensor, offset, take});
        shard.bytes += take * size_of(dtype);
        offset += take;
        room -= take;
      }
    }
    close();
  }

  std::span<const Agreement::Ready> agreed_;
  const Granularity& granularity_;
  std::vector<Shard> whole_;
  std::vector<Unit> units_;
};

}  // namespace

std::vector<Shard> plan(std::span<const Agreement::Ready> agreed, const Granularity& granularity) {
  return Planner(agreed, granularity).run();
}

}  // namespace perseus
