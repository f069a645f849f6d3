#include "collectives/parts.h"

#include <algorithm>

namespace perseus {
namespace {

constexpr size_t kLocalChunkBytes = 128 << 10;
constexpr size_t kRemoteChunkBytes = 512 << 10;

constexpr int kDirectRanks = 8;
// A group within one host has no wire to spare: direct algorithms read and write memory least.
constexpr int kDirectLocalRanks = 32;

}  // namespace

Range even_part(size_t elements, int parts, int index) {
  const size_t each = elements / parts;
  const size_t longer = elements % parts;
  const size_t i = index;
  return {i * each + std::min(i, longer), each + (i < longer ? 1 : 0)};
}

Range chunk_of(Range part, size_t chunk_elements, size_t index) {
  const size_t begin = std::min(index * chunk_elements, part.size);
  return {part.begin + begin, std::min(chunk_elements, part.size - begin)};
}

CollectiveOptions options_of_part(CollectiveOptions options, uint32_t part) {
  options.first_step += part * kStepsPerPart;
  return options;
}

size_t chunk_elements(const Group& group, size_t longest, size_t element_size,
                      uint32_t steps_per_chunk) {
  const size_t bytes = host_count(group) == 1 ? kLocalChunkBytes : kRemoteChunkBytes;
  const size_t most_chunks = std::max<size_t>(1, kStepsPerPart / steps_per_chunk);
  return std::max({bytes / element_size, divide_up(longest, most_chunks), size_t{1}});
}

uint64_t offset_of(std::span<const uint64_t> bytes_of, int index) {
  uint64_t offset = 0;
  for (int i = 0; i < index; ++i) offset += bytes_of[i];
  return offset;
}

int host_count(const Group& group) {
  int hosts = 0;
  for (size_t i = 0; i < group.host_of.size(); ++i) {
    const auto before = group.host_of.begin() + i;
    hosts += std::find(group.host_of.begin(), before, group.host_of[i]) == before;
  }
  return hosts;
}

bool is_small_group(const Group& group) {
  return group.size <= (host_count(group) == 1 ? kDirectLocalRanks : kDirectRanks);
}

}  // namespace perseus
