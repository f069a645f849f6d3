#include "base/rank_names.h"

#include <algorithm>

namespace perseus {

std::string enumerate(const std::vector<std::string>& names) {
  constexpr size_t kMostNamed = 16;
  const size_t named = std::min(names.size(), kMostNamed);
  std::string text;
  for (size_t i = 0; i < named; ++i) {
    if (i > 0) text += i + 1 == names.size() ? " and " : ", ";
    text += names[i];
  }
  if (named < names.size()) text += " and " + std::to_string(names.size() - named) + " more";
  return text;
}

std::string name_ranks(const std::vector<int>& ranks) {
  std::vector<std::string> names;
  for (const int rank : ranks) names.push_back(std::to_string(rank));
  return (ranks.size() == 1 ? "rank " : "ranks ") + enumerate(names);
}

}  // namespace perseus
