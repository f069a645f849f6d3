#include "bootstrap/rank_names.h"

#include <algorithm>

namespace perseus {

std::string name_ranks(const std::vector<int>& ranks) {
  constexpr size_t kMostNamed = 16;
  std::string text = ranks.size() == 1 ? "rank " : "ranks ";
  const size_t named = std::min(ranks.size(), kMostNamed);
  for (size_t i = 0; i < named; ++i) {
    if (i > 0) text += i + 1 == ranks.size() ? " and " : ", ";
    text += std::to_string(ranks[i]);
  }
  if (named < ranks.size()) text += " and " + std::to_string(ranks.size() - named) + " more";
  return text;
}

}  // namespace perseus
