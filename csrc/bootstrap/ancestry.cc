#include "bootstrap/ancestry.h"

#include <fstream>
#include <iterator>
#include <optional>

namespace perseus {
namespace {

// Bounds the search in case that processes come and go meanwhile.
constexpr size_t kMostGenerations = 64;

std::optional<std::string> read_file(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  if (!file) return std::nullopt;
  std::string text{std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
  if (file.bad()) return std::nullopt;
  return text;
}

// Returns the parent's number; empty if there is none that can be seen.
std::string parent_of(const std::string& process) {
  const std::optional<std::string> stat = read_file("/proc/" + process + "/stat");
  if (!stat) return "";
  // proc(5): number, name in parentheses, which may hold anything, state, parent.
  const size_t name_end = stat->rfind(") ");
  if (name_end == stat->npos) return "";
  const size_t begin = stat->find(' ', name_end + 2) + 1;
  const std::string parent = stat->substr(begin, stat->find(' ', begin) - begin);
  return parent == "0" ? "" : parent;
}

}  // namespace

int Ancestry::age(std::string_view name, std::string_view value) {
  std::string wanted(1, '\0');
  wanted.append(name).append("=").append(value).push_back('\0');
  for (size_t generation = 0;; ++generation) {
    if (generation == environments_.size() && !read_next()) return static_cast<int>(generation);
    if (environments_[generation].find(wanted) == std::string::npos) {
      return static_cast<int>(generation);
    }
  }
}

bool Ancestry::read_next() {
  if (process_.empty() || environments_.size() == kMostGenerations) return false;
  std::optional<std::string> environment = read_file("/proc/" + process_ + "/environ");
  // The kernel's own processes have none, and neither has one that is ending.
  if (!environment || environment->empty()) {
    process_.clear();
    return false;
  }
  environments_.push_back(std::string(1, '\0') + *environment + '\0');
  process_ = parent_of(process_);
  return true;
}

}  // namespace perseus
