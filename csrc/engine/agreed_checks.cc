#include "engine/agreed_checks.h"

#include <algorithm>
#include <array>
#include <string_view>

#include "base/bytes.h"

namespace perseus {
namespace {

constexpr std::array kShared = {
    std::string_view("PERSEUS_TRANSPORT"),
    std::string_view("PERSEUS_ALLREDUCE_STREAMS"),
    std::string_view("PERSEUS_ALLREDUCE_DISABLE_STREAM_TUNING"),
    std::string_view("PERSEUS_ALLREDUCE_FUSION"),
    std::string_view("PERSEUS_ALLREDUCE_SHARD"),
    std::string_view("PERSEUS_CHUNK"),
    std::string_view("PERSEUS_ALLREDUCE_DTYPE"),
    std::string_view("PERSEUS_ALLREDUCE_MODE"),
    std::string_view("PERSEUS_ALLREDUCE_ALGORITHM"),
    std::string_view("PERSEUS_CACHE_CAPACITY"),
    std::string_view("PERSEUS_DISABLE_GROUP_FUSION"),
};

}  // namespace

Status check_settings_agree(const Settings& settings, Bootstrap& bootstrap) {
  if (bootstrap.size() == 1) return {};
  ByteWriter writer;
  for (const SettingRow& row : describe(settings)) {
    if (std::find(kShared.begin(), kShared.end(), row.name) != kShared.end()) {
      writer.put_string(row.name);
      writer.put_string(row.value);
    }
  }
  const auto bytes = writer.bytes();
  auto all = bootstrap.all_gather({reinterpret_cast<const char*>(bytes.data()), bytes.size()},
                                  std::chrono::seconds(settings.start_timeout));
  if (!all.is_ok()) return all.status();
  const auto reader_of = [&](size_t rank) {
    return ByteReader(std::as_bytes(std::span(all.value()[rank])));
  };
  for (size_t rank = 1; rank < all.value().size(); ++rank) {
    ByteReader first = reader_of(0), other = reader_of(rank);
    while (first.remaining() > 0 && !other.failed()) {
      const std::string name = first.get_string(), value = first.get_string();
      const std::string other_name = other.get_string(), other_value = other.get_string();
      if (name != other_name) break;
      if (value != other_value) {
        return Status::mismatch("setting " + name + " is '" + value + "' on rank 0 and '" +
                                other_value + "' on rank " + std::to_string(rank) +
                                "; it must be the same on every rank");
      }
    }
    if (first.remaining() > 0 || other.failed() || other.remaining() > 0) {
      return Status::mismatch("rank " + std::to_string(rank) +
                              " has other settings than rank 0: is it another version of Perseus?");
    }
  }
  return {};
}

Status check_agreed(const Agreement::Ready& ready, const std::vector<int32_t>& joined) {
  const Description& description = ready.description;
  const auto because = [&](const std::string& what) {
    return Status::unsupported(std::string(to_string(description.kind)) + " of '" +
                               std::string(name_of_key(ready.key)) + "': " + what);
  };
  if (is_uneven(description.kind) || description.kind == OperationKind::kReduceScatter) {
    for (const TensorDescription& tensor : description.tensors) {
      if (tensor.shape.empty()) {
        return because("a scalar has no first dimension; submit a tensor of one element");
      }
    }
  }
  if (description.kind == OperationKind::kReduceScatter &&
      description.reduce_op != ReduceOp::kAverage && description.reduce_op != ReduceOp::kSum) {
    return because("op " + std::string(to_string(description.reduce_op)) +
                   " is not supported; use sum or average");
  }
  if (is_reduction(description.kind) && description.reduce_op == ReduceOp::kAdasum) {
    return because("op adasum is not supported");
  }
  if (description.kind == OperationKind::kBroadcast &&
      std::find(joined.begin(), joined.end(), description.root) != joined.end()) {
    return because("its root, rank " + std::to_string(description.root) +
                   ", has joined and has nothing to send");
  }
  return {};
}

}  // namespace perseus
