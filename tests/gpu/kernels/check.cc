#include "kernels/check.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <random>
#include <string>
#include <vector>

#include "device/cpu/kernels.h"
#include "device/cuda/moves.h"

namespace perseus::gpu_check {
namespace {

using Bytes = std::vector<std::byte>;
constexpr std::byte kGuard{0x5a};
constexpr size_t kLine = 16;  // bytes: what the kernels' groups are aligned to

struct Pair {
  DataType from, to;
};

std::vector<Pair> all_pairs() {
  std::vector<Pair> pairs;
  for (int from = 0; from < kDataTypeCount; ++from) {
    for (int to = 0; to < kDataTypeCount; ++to) {
      const Pair pair{static_cast<DataType>(from), static_cast<DataType>(to)};
      if (from == to || (is_floating(pair.from) && is_floating(pair.to))) pairs.push_back(pair);
    }
  }
  return pairs;
}

std::string to_string(const Pair& pair) {
  return std::string(perseus::to_string(pair.from)) + " to " +
         std::string(perseus::to_string(pair.to));
}

double as_double(const std::byte* element, DataType type) {
  double value = 0;
  convert(&value, DataType::kFloat64, element, type, 1);
  return value;
}

bool is_nan(const std::byte* element, DataType type) {
  return is_floating(type) && std::isnan(as_double(element, type));
}

// Returns the first element that differs, except in the payload of a NaN, or `elements`.
size_t first_difference(const std::byte* a, const std::byte* b, size_t elements, DataType type) {
  const size_t size = size_of(type);
  if (elements == 0 || std::memcmp(a, b, elements * size) == 0) return elements;
  for (size_t i = 0; i < elements; ++i, a += size, b += size) {
    if (std::memcmp(a, b, size) != 0 && !(is_nan(a, type) && is_nan(b, type))) return i;
  }
  return elements;
}

class Check {
 public:
  Check(const Machine& machine, const CheckOptions& options)
      : machine_(machine), options_(options), random_(options.seed) {}

  void all() {
    part("alignments, 0 to 100 elements", [&](const Pair& pair) { alignments(pair); });
    part("long runs", [&](const Pair& pair) { long_runs(pair); });
    part("runs of their own memory", [&](const Pair& pair) { own_memory(pair); });
    part("more runs than a table holds", [&](const Pair& pair) { many_runs(pair); });
    part("in place", [&](const Pair& pair) { in_place(pair); });
    part("NaN and infinity", [&](const Pair& pair) { searches(pair); });
    part("zeros for them", [&](const Pair& pair) { puts_zeros(pair); });
    if (!options_.is_huge) return;
    part("runs of more than 2^32 elements", [&](const Pair& pair) { huge(pair); });
  }

 private:
  // Calls it for each pair of types, and prints the result.
  template <typename Of>
  void part(const char* name, const Of& of) {
    runs_ = elements_ = 0;
    for (const Pair& pair : all_pairs()) of(pair);
    std::printf("{\"part\": \"%s\", \"runs\": %zu, \"elements\": %zu}\n", name, runs_, elements_);
    std::fflush(stdout);
  }

  size_t below(size_t bound) { return random_() % bound; }

  double any_factor() {
    constexpr double kFactors[] = {1.0, 1.0 / 3, -2.5, 0.0, 1e5, 1e-5};
    return kFactors[below(std::size(kFactors))];
  }

  // Elements of usual magnitude; of floating ones a third have random bits.
  void draw(std::byte* target, size_t elements, DataType type) {
    const size_t size = size_of(type);
    if (is_floating(type)) {
      std::vector<double> values(elements);
      for (double& value : values) {
        value = std::ldexp(static_cast<double>(static_cast<int64_t>(random_())),
                           -63 - 26 + static_cast<int>(below(44)));
      }
      convert(target, type, values.data(), DataType::kFloat64, elements);
    }
    for (size_t i = 0; i < elements; ++i, target += size) {
      const uint64_t bits = random_();
      if (!is_floating(type) || below(3) == 0) std::memcpy(target, &bits, size);
    }
  }

  [[noreturn]] void differs(const Pair& pair, const std::string& what) const {
    fail("seed " + std::to_string(options_.seed) + ": " + to_string(pair) + ": " + what);
  }

  void launch(const std::vector<Move>& moves, const Pair& pair, double factor,
              const NonFiniteSearch& search = {}) {
    require(
        machine_.kernels().launch(moves, pair.from, pair.to, factor, search, machine_.stream()));
    machine_.synchronize();
    runs_ += moves.size();
    for (const Move& move : moves) elements_ += move.elements;
  }

  // Runs of these sizes, next to each other in one source and one target, each this many elements
  // after a 16-byte boundary. Bytes between the runs must not change.
  void runs(const Pair& pair, const std::vector<size_t>& sizes, size_t from_offset,
            size_t to_offset, double factor) {
    const size_t from_size = size_of(pair.from), to_size = size_of(pair.to);
    std::vector<size_t> from_at, to_at;
    size_t from_end = 0, to_end = kLine;
    const auto place = [](std::vector<size_t>& at, size_t& end, size_t offset, size_t bytes) {
      at.push_back(end + offset);
      end = (end + offset + bytes + kLine - 1) / kLine * kLine + kLine;
    };
    for (const size_t size : sizes) {
      place(from_at, from_end, from_offset * from_size, size * from_size);
      place(to_at, to_end, to_offset * to_size, size * to_size);
    }
    Bytes source(from_end), expected(to_end, kGuard), result(to_end, kGuard);
    const DeviceMemory from(machine_, from_end), to(machine_, to_end);
    std::vector<Move> moves;
    for (size_t i = 0; i < sizes.size(); ++i) {
      draw(source.data() + from_at[i], sizes[i], pair.from);
      scale_convert(expected.data() + to_at[i], pair.to, source.data() + from_at[i], pair.from,
                    sizes[i], factor);
      moves.push_back(
          {from.data() + from_at[i], to.data() + to_at[i], sizes[i], static_cast<uint32_t>(i)});
    }
    from.write(0, source.data(), source.size());
    to.write(0, result.data(), result.size());
    launch(moves, pair, factor);
    to.read(0, result.data(), result.size());
    size_t behind = 0;
    for (size_t i = 0; i <= sizes.size(); ++i) {
      const size_t before = i < sizes.size() ? to_at[i] : to_end;
      if (!std::all_of(result.data() + behind, result.data() + before,
                       [](std::byte byte) { return byte == kGuard; })) {
        differs(pair, "written outside of the runs, near run " + std::to_string(i));
      }
      if (i == sizes.size()) break;
      const size_t at =
          first_difference(result.data() + to_at[i], expected.data() + to_at[i], sizes[i], pair.to);
      if (at < sizes[i]) {
        differs(pair, "element " + std::to_string(at) + " of " + std::to_string(sizes[i]) +
                          " times " + std::to_string(factor) + ", offsets " +
                          std::to_string(from_offset) + " and " + std::to_string(to_offset));
      }
      behind = to_at[i] + sizes[i] * to_size;
    }
  }

  size_t offsets(DataType type) const { return kLine / size_of(type); }

  void alignments(const Pair& pair) {
    std::vector<size_t> sizes(101);
    for (size_t i = 0; i < sizes.size(); ++i) sizes[i] = i;
    if (options_.alignments > 0) {
      for (int i = 0; i < options_.alignments; ++i) {
        runs(pair, sizes, below(offsets(pair.from)), below(offsets(pair.to)), any_factor());
      }
      return;
    }
    for (size_t from = 0; from < offsets(pair.from); ++from) {
      for (size_t to = 0; to < offsets(pair.to); ++to) runs(pair, sizes, from, to, any_factor());
    }
  }

  void long_runs(const Pair& pair) {
    const size_t tile = tile_elements(size_of(pair.from), size_of(pair.to));
    const std::vector<size_t> sizes = {tile, tile - 1,      1,    tile + 1,
                                       0,    2 * tile + 37, 3000, below(5 * tile)};
    for (const double factor : {1.0, 0.7}) {
      runs(pair, sizes, 0, 0, factor);
      runs(pair, sizes, below(offsets(pair.from)), below(offsets(pair.to)), factor);
    }
  }

  // Each in memory of exactly its size, of which nothing else is written, so that memcheck sees
  // accesses beyond it, and initcheck reads before it.
  void own_memory(const Pair& pair) {
    const size_t from_size = size_of(pair.from), to_size = size_of(pair.to);
    for (const size_t size : {size_t{1}, 1 + below(40), 5000 + below(5000)}) {
      const size_t from_at = below(offsets(pair.from)) * from_size;
      const size_t to_at = below(offsets(pair.to)) * to_size;
      const double factor = any_factor();
      Bytes source(size * from_size), expected(size * to_size), result(size * to_size);
      draw(source.data(), size, pair.from);
      scale_convert(expected.data(), pair.to, source.data(), pair.from, size, factor);
      const DeviceMemory from(machine_, from_at + source.size());
      const DeviceMemory to(machine_, to_at + result.size());
      from.write(from_at, source.data(), source.size());
      launch({{from.data() + from_at, to.data() + to_at, size, 0}}, pair, factor);
      to.read(to_at, result.data(), result.size());
      if (first_difference(result.data(), expected.data(), size, pair.to) < size) {
        differs(pair, "a run of " + std::to_string(size) + " in memory of its own");
      }
    }
  }

  void many_runs(const Pair& pair) {
    std::vector<size_t> sizes(3 * MoveTable::kCapacity + 5);
    for (size_t& size : sizes) size = below(4) == 0 ? 0 : below(300);
    runs(pair, sizes, 0, below(offsets(pair.to)), any_factor());
  }

  void in_place(const Pair& pair) {
    if (pair.from != pair.to) return;
    const size_t type_size = size_of(pair.from);
    for (const size_t size : {size_t{1}, 1 + below(100), 20'000 + below(100)}) {
      const size_t at = below(offsets(pair.from)) * type_size;
      Bytes source(size * type_size), expected(source.size());
      draw(source.data(), size, pair.from);
      scale(expected.data(), source.data(), size, pair.from, 0.5);
      const DeviceMemory memory(machine_, at + source.size());
      memory.write(at, source.data(), source.size());
      launch({{memory.data() + at, memory.data() + at, size, 0}}, pair, 0.5);
      memory.read(at, source.data(), source.size());
      if (first_difference(source.data(), expected.data(), size, pair.from) < size) {
        differs(pair, "in place, " + std::to_string(size) + " elements");
      }
    }
  }

  // The first of each, among sources of usual numbers.
  void searches(const Pair& pair) {
    if (!is_floating(pair.from)) return;
    const size_t from_size = size_of(pair.from);
    constexpr size_t kWords = 10;
    const DeviceMemory found(machine_, kWords * sizeof(unsigned long long));
    for (int round = 0; round < options_.rounds; ++round) {
      const size_t at = below(offsets(pair.from)) * from_size;
      std::vector<unsigned long long> expected(kWords, kNothingFound);
      std::vector<DeviceMemory> memories;
      std::vector<Move> moves;
      for (const uint32_t index : {7u, 3u, 9u}) {
        const size_t size = below(9000);
        std::vector<double> values(size);
        for (double& value : values) value = static_cast<double>(below(2001)) / 100 - 10;
        for (size_t bad = below(3); bad > 0 && size > 0; --bad) {
          const uint64_t place = below(size);
          const bool is_nan = below(2) != 0;
          values[place] = is_nan ? NAN : -INFINITY;
          unsigned long long& word = expected[index];
          if (place <= found_element(word)) word = found_word(place, !is_nan);
        }
        Bytes source(size * from_size);
        convert(source.data(), pair.from, values.data(), DataType::kFloat64, size);
        memories.emplace_back(machine_, at + source.size());
        const DeviceMemory& from = memories.back();
        from.write(at, source.data(), source.size());
        std::byte* const place = from.data() + at;
        memories.emplace_back(machine_, size * size_of(pair.to));
        moves.push_back({place, memories.back().data(), size, index});
      }
      std::vector<unsigned long long> result(kWords, kNothingFound);
      found.write(0, result.data(), kWords * sizeof(unsigned long long));
      launch(moves, pair, round % 2 ? 1.0 : 2.0,
             {reinterpret_cast<unsigned long long*>(found.data())});
      found.read(0, result.data(), kWords * sizeof(unsigned long long));
      for (size_t i = 0; i < kWords; ++i) {
        if (result[i] == expected[i]) continue;
        differs(pair,
                "found " + std::to_string(result[i]) + ", not " + std::to_string(expected[i]));
      }
    }
  }

  // Writes zeros there, in place.
  void puts_zeros(const Pair& pair) {
    if (!is_floating(pair.from) || pair.from != pair.to) return;
    const size_t size = 5000 + below(5000), bytes = size * size_of(pair.from);
    std::vector<double> values(size, 1.5);
    const auto as_stored = [&] {
      Bytes stored(bytes);
      convert(stored.data(), pair.from, values.data(), DataType::kFloat64, size);
      return stored;
    };
    std::vector<size_t> bad(20);
    for (size_t& place : bad) values[place = below(size)] = below(2) ? NAN : INFINITY;
    const DeviceMemory memory(machine_, bytes), found(machine_, sizeof(unsigned long long));
    const unsigned long long nothing = kNothingFound;
    memory.write(0, as_stored().data(), bytes);
    found.write(0, &nothing, sizeof nothing);
    launch({{memory.data(), memory.data(), size, 0}}, pair, 1.0,
           {reinterpret_cast<unsigned long long*>(found.data()), true});
    for (const size_t place : bad) values[place] = 0;
    Bytes result(bytes);
    memory.read(0, result.data(), bytes);
    if (result != as_stored()) differs(pair, "zeros are not where NaN and infinity were");
  }

  // One value throughout, except for a few elements: one with the greatest index among them and,
  // for floating types, an infinity beyond 2^32.
  void huge(const Pair& pair) {
    const bool is_narrowing = pair.from == DataType::kFloat32 && pair.to == DataType::kFloat16;
    if (!is_narrowing && !(pair.from == pair.to && pair.from == DataType::kInt8)) return;
    const size_t from_size = size_of(pair.from), to_size = size_of(pair.to);
    const size_t size = (size_t{1} << 32) + 1000 + below(1000);
    const DeviceMemory from = DeviceMemory::if_there_is(machine_, size * from_size);
    const DeviceMemory to = DeviceMemory::if_there_is(machine_, size * to_size);
    if (!from || !to) {
      std::printf("{\"note\": \"%s: the GPU has not enough memory\"}\n", to_string(pair).c_str());
      return;
    }
    from.fill(0);
    to.fill(0x5a);
    const std::vector<size_t> places = {0, 12'345, (size_t{1} << 31) + 7, (size_t{1} << 32) + 7,
                                        size - 1};
    const double values[] = {2, 3, 4, is_floating(pair.from) ? INFINITY : 5, 6};
    const auto element = [](double value, DataType type, std::byte* target) {
      const auto small = static_cast<int8_t>(std::isfinite(value) ? value : 0);
      if (is_floating(type)) {
        convert(target, type, &value, DataType::kFloat64, 1);
      } else {
        std::memcpy(target, &small, 1);
      }
    };
    std::byte bytes[8] = {}, expected[8] = {};
    for (size_t i = 0; i < places.size(); ++i) {
      element(values[i], pair.from, bytes);
      from.write(places[i] * from_size, bytes, from_size);
    }
    const DeviceMemory found(machine_, sizeof(unsigned long long));
    unsigned long long result = kNothingFound;
    found.write(0, &result, sizeof result);
    launch({{from.data(), to.data(), size, 0}}, pair, 1.0,
           {reinterpret_cast<unsigned long long*>(found.data())});
    found.read(0, &result, sizeof result);
    const unsigned long long infinity = found_word(places[3], true);
    if (result != (is_floating(pair.from) ? infinity : kNothingFound)) {
      differs(pair, "beyond 2^32, found " + std::to_string(result));
    }
    for (size_t i = 0; i < places.size(); ++i) {
      element(values[i], pair.to, expected);
      to.read(places[i] * to_size, bytes, to_size);
      if (std::memcmp(bytes, expected, to_size) != 0) {
        differs(pair, "element " + std::to_string(places[i]) + " of " + std::to_string(size));
      }
    }
  }

  const Machine& machine_;
  const CheckOptions options_;
  std::mt19937_64 random_;
  size_t runs_ = 0, elements_ = 0;
};

}  // namespace

void check_kernels(const Machine& machine, const CheckOptions& options) {
  Check(machine, options).all();
}

}  // namespace perseus::gpu_check
