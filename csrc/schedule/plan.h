// Turns agreed operations into shards: merges small tensors up to the merging granularity, and cuts
// anything that is larger than the sharding granularity. A pure function of what was agreed and of
// settings that all ranks share, so that every rank makes the same plan by itself.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "negotiation/agreement.h"

namespace perseus {

// A run of elements of one tensor of one agreed operation.
struct Piece {
  uint32_t operation = 0;  // index in the list of agreed operations
  uint32_t tensor = 0;
  uint64_t offset = 0;  // in elements
  uint64_t elements = 0;
};

// The unit of work that one stream carries at a time.
struct Shard {
  // Index of an operation whose description holds for all pieces.
  uint32_t operation = 0;
  DataType dtype = DataType::kFloat32;
  int32_t priority = 0;
  uint64_t bytes = 0;
  // The pieces lie in the plan. Empty if the operation is not sharded (allgather, alltoall,
  // reduce-scatter): its parts are not known until the ranks have exchanged their sizes.
  std::span<const Piece> pieces;

  uint64_t elements() const { return bytes / size_of(dtype); }
};

// Calls `visit(operation index)` once for each operation that has a part in the shard.
template <typename Visit>
void for_each_operation(const Shard& shard, Visit visit) {
  if (shard.pieces.empty()) return visit(shard.operation);
  int64_t last = -1;
  for (const Piece& piece : shard.pieces) {
    // Pieces of one operation are neighbours.
    if (piece.operation != last) visit(piece.operation);
    last = piece.operation;
  }
}

// All values come from the settings and the tuner.
struct Granularity {
  uint64_t merge_bytes = 0;   // 0 merges nothing
  uint64_t shard_bytes = 0;   // must be set, above 0
  bool groups_apart = false;  // tensors of a group are merged only with each other
  // For tensors on GPUs.
  uint64_t gpu_merge_bytes = merge_bytes;
  uint64_t gpu_shard_bytes = shard_bytes;

  uint64_t merge_bytes_on(DeviceKind device) const {
    return device == DeviceKind::kCpu ? merge_bytes : gpu_merge_bytes;
  }
  uint64_t shard_bytes_on(DeviceKind device) const {
    return device == DeviceKind::kCpu ? shard_bytes : gpu_shard_bytes;
  }
};

// Shards are sorted by priority, then in the order of the operations. Barriers and operations
// without elements get no shard.
struct Plan {
  std::vector<Shard> shards;
  std::vector<Piece> pieces;  // of all shards, one shard after another
};

// Reuses its memory from one plan to the next, as a Plan does. One thread.
class Planner {
 public:
  void make(std::span<const Agreement::Ready> agreed, const Granularity& granularity, Plan& plan);

 private:
  // A tensor, and the index of the unit that it belongs to.
  struct PlacedTensor {
    Piece tensor;
    size_t unit = 0;
  };
  // Tensors that are merged, and cut into shards later.
  struct Unit {
    Piece first;
    uint64_t bytes = 0;
  };

  const Description& description_of(const Piece& piece) const;
  const TensorDescription& tensor_of(const Piece& piece) const;
  void add_unsharded(uint32_t operation, Plan& plan);
  void add_tensor(uint32_t operation, uint32_t tensor);
  Unit* open_unit_for(const Piece& piece, uint64_t bytes);
  bool may_share_unit(const Piece& a, const Piece& b) const;
  void cut(std::span<const PlacedTensor> tensors, uint64_t bytes, Plan& plan);
  void close(const Shard& shard, Plan& plan);

  std::span<const Agreement::Ready> agreed_;
  Granularity granularity_;
  std::vector<PlacedTensor> placed_;
  std::vector<Unit> units_;
  std::vector<size_t> ends_;  // where each shard's pieces end in the plan's
};

}  // namespace perseus
