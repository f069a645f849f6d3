#include "kernel.h"

#include "base/types.h"

namespace perseus::standin {
namespace {

size_t size_of_type(std::string_view name) {
  for (int i = 0; i < kDataTypeCount; ++i) {
    const auto type = static_cast<DataType>(i);
    if (to_string(type) == name) return size_of(type);
  }
  return 0;
}

bool take_prefix(std::string_view& text, std::string_view prefix) {
  if (!text.starts_with(prefix)) return false;
  text.remove_prefix(prefix.size());
  return true;
}

}  // namespace

std::optional<Kernel> kernel_of(std::string_view name) {
  if (name == "perseus_copy") return Kernel{std::string(name), 1, 1};
  std::string_view types = name;
  if (!take_prefix(types, "perseus_move_")) return std::nullopt;
  const size_t bar = types.find('_');
  const size_t source = size_of_type(types.substr(0, bar));
  const size_t target =
      bar == std::string_view::npos ? source : size_of_type(types.substr(bar + 1));
  if (source == 0 || target == 0) return std::nullopt;
  return Kernel{std::string(name), source, target};
}

std::vector<Access> accesses_of(const Kernel& kernel, const MoveTable& table) {
  std::vector<Access> accesses;
  for (int i = 0; i < table.count; ++i) {
    const MoveTable::Run& run = table.runs[i];
    if (table.found != nullptr) {
      accesses.push_back({table.found + run.index, sizeof(*table.found), true, Place::kEither});
    }
    accesses.push_back({run.source, run.elements * kernel.source_bytes, false, Place::kEither});
    accesses.push_back({run.target, run.elements * kernel.target_bytes, true, Place::kEither});
  }
  return accesses;
}

}  // namespace perseus::standin
