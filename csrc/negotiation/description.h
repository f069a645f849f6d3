// Describes an operation. All ranks must describe the operation of one name alike.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/bytes.h"
#include "base/shape.h"
#include "base/types.h"

namespace perseus {

// The first seven numbers are those of perseus_operation_t.
enum class OperationKind : uint8_t {
  kAllreduce = 0,
  kBroadcast = 1,
  kAllgather = 2,
  kAlltoall = 3,
  kReduceScatter = 4,
  kBarrier = 5,
  kJoin = 6,
  kAddProcessSet = 7,
  kRemoveProcessSet = 8,
  // Messages between two ranks, which nobody agrees on.
  kSend = 9,
  kReceive = 10,
};

std::string_view to_string(OperationKind kind);

// Returns whether the first dimension may differ from rank to rank.
constexpr bool is_uneven(OperationKind kind) {
  return kind == OperationKind::kAllgather || kind == OperationKind::kAlltoall;
}
constexpr bool is_message(OperationKind kind) {
  return kind == OperationKind::kSend || kind == OperationKind::kReceive;
}
constexpr bool is_reduction(OperationKind kind) {
  return kind == OperationKind::kAllreduce || kind == OperationKind::kReduceScatter;
}

struct TensorDescription {
  DataType dtype = DataType::kFloat32;
  Shape shape;

  int64_t elements() const;
  bool operator==(const TensorDescription&) const = default;

  void write(ByteWriter& writer) const;
  // Returns false if the bytes are not a description.
  bool read(ByteReader& reader);
};

struct Description {
  OperationKind kind = OperationKind::kAllreduce;
  ReduceOp reduce_op = ReduceOp::kSum;
  int32_t root = -1;  // a rank of the world
  double prescale = 1.0;
  double postscale = 1.0;
  int32_t codec = 0;
  DeviceKind device = DeviceKind::kCpu;  // where this rank's tensors live
  std::vector<TensorDescription> tensors;
  std::vector<int32_t> ranks;  // of the process set to add; or the id of the set to remove
  // Not compared: where ranks differ, the lowest rank's priority is used.
  int32_t priority = 0;

  int64_t bytes() const;  // of all its tensors

  void write(ByteWriter& writer) const;
  // Returns false if the bytes are not a description.
  bool read(ByteReader& reader);
};

// The key of an operation within a process set: its kind and name. Ranks match operations by it.
std::string operation_key(OperationKind kind, std::string_view name);
OperationKind kind_of_key(std::string_view key);
std::string_view name_of_key(std::string_view key);

// The name that the user gave it. Adapters put the kind first, as in "grouped_allreduce.layer1".
std::string_view users_name(std::string_view key);
// Returns whether an adapter has numbered it because the user gave no name: "allreduce.noname.7".
bool is_numbered(std::string_view key);
// "allreduce of 'layer1'", or "send to rank 1 (tag 7)". Errors about one operation begin with this.
std::string title(std::string_view key);
// "allreduce.layer1", for use inside a message.
std::string display_name(std::string_view key);

// "float32[64,3,7,7]"
std::string to_string(const TensorDescription& tensor);

// Returns whether two ranks with these descriptions may run the operation together.
bool compatible(const Description& a, const Description& b);
// Says why two ranks may not: "rank 2 submitted float32[64,3,7,7], rank 0 float32[64,3,3,3]; every
// rank must submit the same shape". Call only if they are not compatible.
std::string explain_difference(const Description& a, int rank_a, const Description& b, int rank_b);

}  // namespace perseus
