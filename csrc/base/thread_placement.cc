#include "base/thread_placement.h"

#include <charconv>
#include <sstream>

namespace perseus {
namespace {

// `takes` says what the setting takes, for the error.
Result<std::vector<int>> parse_numbers(const char* setting, const std::string& list,
                                       const char* takes) {
  std::vector<int> numbers;
  std::istringstream items(list);
  std::string item;
  while (std::getline(items, item, ',')) {
    int number = -1;
    const char* end = item.data() + item.size();
    const auto [stopped_at, error] = std::from_chars(item.data(), end, number);
    if (error != std::errc() || stopped_at != end || number < 0) {
      return Status::invalid_argument(setting + ("='" + list) + "' is malformed; it takes " +
                                      takes + " from 0 on, separated by commas");
    }
    numbers.push_back(number);
  }
  return numbers;
}

}  // namespace

Status check_thread_placement(const std::string& thread_affinity, const std::string& cache_groups) {
  PERSEUS_RETURN_IF_ERROR(parse_thread_affinity(thread_affinity).status());
  return parse_cache_groups(cache_groups).status();
}

Result<ThreadAffinity> parse_thread_affinity(const std::string& text) {
  if (text == "auto") return ThreadAffinity{.is_automatic = true, .processors = {}};
  if (text == "none") return ThreadAffinity();
  auto numbers =
      parse_numbers("PERSEUS_THREAD_AFFINITY", text, "auto, none, or numbers of processors");
  if (!numbers.is_ok()) return numbers.status();
  return ThreadAffinity{.is_automatic = false, .processors = std::move(numbers).value()};
}

Result<std::vector<int>> parse_cache_groups(const std::string& text) {
  return parse_numbers("PERSEUS_CACHE_GROUPS", text, "a number for each rank of a host,");
}

}  // namespace perseus
