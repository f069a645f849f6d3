// Ascending lists of ranks in ballots; most are empty.
#pragma once

#include <algorithm>
#include <cstdint>
#include <iterator>
#include <vector>

#include "base/bytes.h"

namespace perseus {

inline void merge_ranks(std::vector<int32_t>& ranks, const std::vector<int32_t>& others) {
  if (others.empty()) return;
  std::vector<int32_t> all;
  std::set_union(ranks.begin(), ranks.end(), others.begin(), others.end(), std::back_inserter(all));
  ranks = std::move(all);
}

inline void write_ranks(ByteWriter& writer, const std::vector<int32_t>& ranks) {
  writer.put<uint32_t>(static_cast<uint32_t>(ranks.size()));
  writer.put_bytes(ranks.data(), ranks.size() * sizeof(int32_t));
}

inline bool read_ranks(ByteReader& reader, std::vector<int32_t>& ranks) {
  const auto count = reader.get<uint32_t>();
  if (!reader.can_hold(count, sizeof(int32_t))) return false;
  ranks.resize(count);
  for (int32_t& rank : ranks) rank = reader.get<int32_t>();
  return true;
}

}  // namespace perseus
