#include "negotiation/description.h"

#include <algorithm>

namespace perseus {
namespace {

// Limits on what a peer's message may contain, far above any real tensor.
constexpr uint32_t kMaxTensors = 1u << 20;
constexpr uint32_t kMaxDimensions = 64;
constexpr uint32_t kMaxRanks = 1u << 20;

bool same_shape(OperationKind kind, const TensorDescription& a, const TensorDescription& b) {
  if (!is_uneven(kind)) return a.shape == b.shape;
  return a.shape.size() == b.shape.size() &&
         (a.shape.empty() || std::equal(a.shape.begin() + 1, a.shape.end(), b.shape.begin() + 1));
}

std::string number(double value) {
  std::string text = std::to_string(value);
  while (text.back() == '0') text.pop_back();
  if (text.back() == '.') text.push_back('0');
  return text;
}

std::string list(const std::vector<int32_t>& ranks) {
  std::string text = "[";
  for (size_t i = 0; i < ranks.size(); ++i) text += (i ? ", " : "") + std::to_string(ranks[i]);
  return text + "]";
}

}  // namespace

std::string_view to_string(OperationKind kind) {
  switch (kind) {
    case OperationKind::kAllreduce: return "allreduce";
    case OperationKind::kBroadcast: return "broadcast";
    case OperationKind::kAllgather: return "allgather";
    case OperationKind::kAlltoall: return "alltoall";
    case OperationKind::kReduceScatter: return "reducescatter";
    case OperationKind::kBarrier: return "barrier";
    case OperationKind::kJoin: return "join";
    case OperationKind::kAddProcessSet: return "add_process_set";
    case OperationKind::kRemoveProcessSet: return "remove_process_set";
    case OperationKind::kSend: return "send";
    case OperationKind::kReceive: return "recv";
  }
  return "unknown";
}

int64_t TensorDescription::elements() const {
  int64_t product = 1;
  for (int64_t extent : shape) product *= extent;
  return product;
}

void TensorDescription::write(ByteWriter& writer) const {
  writer.put(dtype);
  writer.put<uint32_t>(static_cast<uint32_t>(shape.size()));
  writer.put_bytes(shape.data(), shape.size() * sizeof(int64_t));
}

bool TensorDescription::read(ByteReader& reader) {
  dtype = reader.get<DataType>();
  const auto dimensions = reader.get<uint32_t>();
  if (static_cast<int>(dtype) >= kDataTypeCount || dimensions > kMaxDimensions ||
      !reader.can_hold(dimensions, sizeof(int64_t))) {
    return false;
  }
  shape.clear();
  int64_t elements = 1;
  for (uint32_t d = 0; d < dimensions; ++d) {
    const auto extent = reader.get<int64_t>();
    shape.push_back(extent);
    if (extent < 0 || __builtin_mul_overflow(elements, extent, &elements)) return false;
  }
  return !reader.failed();
}

int64_t Description::bytes() const {
  int64_t sum = 0;
  for (const TensorDescription& tensor : tensors) {
    sum += tensor.elements() * static_cast<int64_t>(size_of(tensor.dtype));
  }
  return sum;
}

void Description::write(ByteWriter& writer) const {
  writer.put(kind);
  writer.put(reduce_op);
  writer.put(root);
  writer.put(prescale);
  writer.put(postscale);
  writer.put(codec);
  writer.put(device);
  writer.put(priority);
  writer.put<uint32_t>(static_cast<uint32_t>(tensors.size()));
  for (const TensorDescription& tensor : tensors) tensor.write(writer);
  writer.put<uint32_t>(static_cast<uint32_t>(ranks.size()));
  writer.put_bytes(ranks.data(), ranks.size() * sizeof(int32_t));
}

bool Description::read(ByteReader& reader) {
  kind = reader.get<OperationKind>();
  reduce_op = reader.get<ReduceOp>();
  root = reader.get<int32_t>();
  prescale = reader.get<double>();
  postscale = reader.get<double>();
  codec = reader.get<int32_t>();
  device = reader.get<DeviceKind>();
  priority = reader.get<int32_t>();
  if (kind > OperationKind::kRemoveProcessSet || reduce_op > kLastReduceOp ||
      device > DeviceKind::kCuda) {
    return false;
  }
  const auto tensor_count = reader.get<uint32_t>();
  if (tensor_count > kMaxTensors || !reader.can_hold(tensor_count, 5)) return false;
  tensors.resize(tensor_count);
  for (TensorDescription& tensor : tensors) {
    if (!tensor.read(reader)) return false;
  }
  const auto rank_count = reader.get<uint32_t>();
  if (rank_count > kMaxRanks || !reader.can_hold(rank_count, sizeof(int32_t))) return false;
  ranks.resize(rank_count);
  for (int32_t& rank : ranks) rank = reader.get<int32_t>();
  return !reader.failed();
}

std::string operation_key(OperationKind kind, std::string_view name) {
  std::string key;
  key.reserve(name.size() + 1);
  key.push_back(static_cast<char>('a' + static_cast<int>(kind)));
  key.append(name);
  return key;
}

OperationKind kind_of_key(std::string_view key) {
  return static_cast<OperationKind>(key.front() - 'a');
}

std::string_view name_of_key(std::string_view key) { return key.substr(1); }

std::string_view users_name(std::string_view key) {
  const std::string_view name = name_of_key(key);
  std::string_view rest = name;
  if (rest.starts_with("grouped_")) rest.remove_prefix(sizeof("grouped_") - 1);
  const std::string_view kind = to_string(kind_of_key(key));
  const bool has_kind = rest.starts_with(kind) && rest.substr(kind.size()).starts_with('.');
  return has_kind ? rest.substr(kind.size() + 1) : name;
}

bool is_numbered(std::string_view key) { return key.find(".noname.") != key.npos; }

std::string title(std::string_view key) {
  if (is_message(kind_of_key(key))) {
    return std::string(to_string(kind_of_key(key))) + ' ' + std::string(name_of_key(key));
  }
  return std::string(to_string(kind_of_key(key))) + " of '" + std::string(name_of_key(key)) + "'";
}

std::string display_name(std::string_view key) {
  const std::string_view name = name_of_key(key);
  if (users_name(key) != name) return std::string(name);
  return std::string(to_string(kind_of_key(key))) + '.' + std::string(name);
}

std::string to_string(const TensorDescription& tensor) {
  std::string text(to_string(tensor.dtype));
  text.push_back('[');
  for (size_t i = 0; i < tensor.shape.size(); ++i) {
    if (i) text.push_back(',');
    text += std::to_string(tensor.shape[i]);
  }
  text.push_back(']');
  return text;
}

bool compatible(const Description& a, const Description& b) {
  if (a.kind != b.kind || a.root != b.root || a.codec != b.codec || a.device != b.device ||
      a.ranks != b.ranks || a.tensors.size() != b.tensors.size()) {
    return false;
  }
  if (is_reduction(a.kind) &&
      (a.reduce_op != b.reduce_op || a.prescale != b.prescale || a.postscale != b.postscale)) {
    return false;
  }
  for (size_t i = 0; i < a.tensors.size(); ++i) {
    if (a.tensors[i].dtype != b.tensors[i].dtype ||
        !same_shape(a.kind, a.tensors[i], b.tensors[i])) {
      return false;
    }
  }
  return true;
}

std::string explain_difference(const Description& a, int rank_a, const Description& b, int rank_b) {
  const auto differ = [&](const std::string& in_a, const std::string& in_b, const char* what) {
    return "rank " + std::to_string(rank_b) + " submitted " + in_b + ", rank " +
           std::to_string(rank_a) + " " + in_a + "; every rank must submit the same " + what;
  };
  if (a.kind != b.kind) {
    return differ(std::string(to_string(a.kind)), std::string(to_string(b.kind)), "operation");
  }
  if (a.ranks != b.ranks) return differ(list(a.ranks), list(b.ranks), "ranks");
  if (a.tensors.size() != b.tensors.size()) {
    return differ(std::to_string(a.tensors.size()) + " tensors",
                  std::to_string(b.tensors.size()) + " tensors", "number of tensors");
  }
  for (size_t i = 0; i < a.tensors.size(); ++i) {
    const std::string which =
        a.tensors.size() > 1 ? " of tensor " + std::to_string(i) + " of the group" : std::string();
    if (a.tensors[i].dtype != b.tensors[i].dtype) {
      return differ(to_string(a.tensors[i]), to_string(b.tensors[i]), "data type") + which;
    }
    if (!same_shape(a.kind, a.tensors[i], b.tensors[i])) {
      const char* what = is_uneven(a.kind) ? "shape after the first dimension" : "shape";
      return differ(to_string(a.tensors[i]), to_string(b.tensors[i]), what) + which;
    }
  }
  if (a.root != b.root) {
    return differ("root " + std::to_string(a.root), "root " + std::to_string(b.root), "root");
  }
  if (a.reduce_op != b.reduce_op) {
    return differ("op " + std::string(to_string(a.reduce_op)),
                  "op " + std::string(to_string(b.reduce_op)), "reduce operation");
  }
  if (a.prescale != b.prescale) {
    return differ("prescale factor " + number(a.prescale), "prescale factor " + number(b.prescale),
                  "prescale factor");
  }
  if (a.postscale != b.postscale) {
    return differ("postscale factor " + number(a.postscale),
                  "postscale factor " + number(b.postscale), "postscale factor");
  }
  if (a.device != b.device) {
    return differ("memory of " + std::string(to_string(a.device)),
                  "memory of " + std::string(to_string(b.device)), "kind of memory");
  }
  return differ("codec " + std::to_string(a.codec), "codec " + std::to_string(b.codec), "codec");
}

}  // namespace perseus
