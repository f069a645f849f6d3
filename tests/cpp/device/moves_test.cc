// Tests the GPU's kernels, run on the host, against the CPU's; and the code that launches them,
// with a driver that runs or records each launch.
#include "device/cuda/moves.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "device/cpu/kernels.h"
#include "device/cuda/kernels_image.h"
#include "device/cuda/move_launch.h"
#include "reference/elements.h"
#include "sanitizers.h"
#include "standin/host_kernels.h"

namespace perseus {
namespace {

// The launches that the driver saw, and how it handles them.
struct Launched {
  std::string kernel;
  MoveTable table;
};
struct DriverState {
  std::vector<std::unique_ptr<std::string>> names;
  std::vector<Launched> launched;
  bool runs = true;
  CuResult answer = kCuSuccess;
};
DriverState state;

CuResult find_function(CuFunction* function, CuModule, const char* name) {
  if (!standin::has_kernel(name)) return 500;  // CUDA_ERROR_NOT_FOUND
  state.names.push_back(std::make_unique<std::string>(name));
  *function = reinterpret_cast<CuFunction>(state.names.back().get());
  return kCuSuccess;
}

CuResult launch(CuFunction function, unsigned grid_x, unsigned, unsigned, unsigned block_x,
                unsigned, unsigned, unsigned, CuStream, void** parameters, void**) {
  if (state.answer != kCuSuccess) return state.answer;
  const auto& name = *reinterpret_cast<const std::string*>(function);
  const auto& table = *static_cast<const MoveTable*>(parameters[0]);
  EXPECT_EQ(grid_x, table.blocks);
  EXPECT_EQ(block_x, kMoveThreads);
  state.launched.push_back({name, table});
  if (state.runs) standin::run_kernel(name, table);
  return kCuSuccess;
}

CudaDriver fake_driver() {
  CudaDriver driver;
  driver.load_module = [](CuModule*, const void*) { return state.answer; };
  driver.find_function = find_function;
  driver.launch = launch;
  driver.error_name = [](CuResult, const char** name) {
    *name = "CUDA_ERROR_OF_TEST";
    return kCuSuccess;
  };
  driver.error_text = [](CuResult, const char** text) {
    *text = "as the test wants";
    return kCuSuccess;
  };
  return driver;
}

class Moves : public testing::Test {
 protected:
  Moves() {
    state = {};
    const std::byte image[1] = {};
    kernels = std::move(MoveKernels::load(driver, image)).value();
  }

  void run(const std::vector<Move>& moves, DataType from, DataType to, double factor,
           const NonFiniteSearch& search = {}) {
    const Status status = kernels->launch(moves, from, to, factor, search, nullptr);
    ASSERT_TRUE(status.is_ok()) << status.message();
  }

  CudaDriver driver = fake_driver();
  std::unique_ptr<MoveKernels> kernels;
};

// `elements` elements with random bits, or of usual magnitude, in memory of exactly their size, so
// that AddressSanitizer sees reads beyond them. They begin `offset` elements after a 16-byte
// boundary.
class Source {
 public:
  Source(DataType type, size_t elements, size_t offset, uint64_t seed)
      : begin_(offset * size_of(type)), memory_(begin_ + elements * size_of(type)) {
    std::mt19937_64 random(seed);
    std::vector<double> values(elements);
    for (double& value : values) {
      value = std::ldexp(static_cast<double>(static_cast<int64_t>(random())),
                         -63 + static_cast<int>(random() % 44) - 26);
    }
    if (is_floating(type)) {
      convert(data(), type, values.data(), DataType::kFloat64, elements);
    }
    for (size_t i = 0; i < elements; ++i) {
      const uint64_t bits = random();
      const bool any = !is_floating(type) || bits % 3 == 0;
      const uint64_t drawn = random();
      if (any) std::memcpy(at(i, type), &drawn, size_of(type));
    }
#if PERSEUS_ADDRESS_SANITIZER
    // The bytes before must not be read either; AddressSanitizer tracks them in units of 8.
    ASAN_POISON_MEMORY_REGION(memory_.data(), begin_ / 8 * 8);
#endif
  }

  std::byte* data() { return memory_.data() + begin_; }
  const std::byte* data() const { return memory_.data() + begin_; }
  std::byte* at(size_t i, DataType type) { return data() + i * size_of(type); }

 private:
  size_t begin_;
  std::vector<std::byte> memory_;
};

bool is_nan(const std::byte* element, DataType type) {
  double value = 0;
  if (is_floating(type)) convert(&value, DataType::kFloat64, element, type, 1);
  return std::isnan(value);
}

// Returns the first element that differs, except in the payload of a NaN, or `elements`.
size_t first_difference(const void* a, const void* b, size_t elements, DataType type) {
  const size_t size = size_of(type);
  const auto* x = static_cast<const std::byte*>(a);
  const auto* y = static_cast<const std::byte*>(b);
  if (elements == 0 || std::memcmp(x, y, elements * size) == 0) return elements;
  for (size_t i = 0; i < elements; ++i, x += size, y += size) {
    if (std::memcmp(x, y, size) != 0 && !(is_nan(x, type) && is_nan(y, type))) return i;
  }
  return elements;
}

struct Pair {
  DataType from, to;
};
std::vector<Pair> all_pairs() {
  std::vector<Pair> pairs;
  for (DataType from : kAllTypes) {
    for (DataType to : kAllTypes) {
      if (from == to || (is_floating(from) && is_floating(to))) pairs.push_back({from, to});
    }
  }
  return pairs;
}

// Runs of these sizes, each from and to memory of its own that begins this many elements after a
// 16-byte boundary.
struct Case {
  Case(Pair types, const std::vector<size_t>& sizes, size_t from_offset, size_t to_offset)
      : pair(types) {
    for (size_t size : sizes) {
      sources.emplace_back(pair.from, size, from_offset, size + 1000 * from_offset);
      targets.emplace_back(pair.to, size, size, to_offset);
    }
    for (size_t i = 0; i < sizes.size(); ++i) {
      moves.push_back({sources[i].data(), targets[i].data(), sizes[i], static_cast<uint32_t>(i)});
    }
  }

  void check(double factor) const {
    for (size_t i = 0; i < moves.size(); ++i) {
      const size_t elements = moves[i].elements;
      std::vector<std::byte> expected(elements * size_of(pair.to));
      scale_convert(expected.data(), pair.to, sources[i].data(), pair.from, elements, factor);
      ASSERT_EQ(first_difference(targets[i].data(), expected.data(), elements, pair.to), elements)
          << to_string(pair.from) << " to " << to_string(pair.to) << ", " << elements
          << " elements times " << factor;
      ASSERT_TRUE(targets[i].guards_intact());
    }
  }

  Pair pair;
  std::vector<Source> sources;
  std::vector<Elements> targets;
  std::vector<Move> moves;
};

TEST_F(Moves, AreTheCpusToTheBitWhateverTheAlignment) {
  std::vector<size_t> sizes(101);
  for (size_t i = 0; i < sizes.size(); ++i) sizes[i] = i;
  const double factors[] = {1.0 / 3, -2.5, 1.0, 0.0, 1e5, 1e-5};
  size_t turn = 0;
  for (const Pair& pair : all_pairs()) {
    for (size_t from = 0; from < 16 / size_of(pair.from); ++from) {
      for (size_t to = 0; to < 16 / size_of(pair.to); ++to) {
        const double factor = factors[turn++ % std::size(factors)];
        Case of(pair, sizes, from, to);
        run(of.moves, pair.from, pair.to, factor);
        of.check(factor);
        if (HasFatalFailure()) return;
      }
    }
  }
}

TEST_F(Moves, OfManyTilesAreTheCpus) {
  for (const Pair& pair : all_pairs()) {
    const size_t tile = tile_elements(size_of(pair.from), size_of(pair.to));
    for (size_t from : {0, 1}) {
      for (size_t to : {0, 1}) {
        for (double factor : {1.0, 0.7}) {
          Case of(pair, {tile, tile - 1, 1, tile + 1, 0, 2 * tile + 37, 3000, 0}, from, to);
          run(of.moves, pair.from, pair.to, factor);
          of.check(factor);
          if (HasFatalFailure()) return;
        }
      }
    }
  }
}

TEST_F(Moves, CopyBytesWhateverTheAlignment) {
  std::vector<size_t> sizes(101);
  for (size_t i = 0; i < sizes.size(); ++i) sizes[i] = i;
  for (size_t from = 0; from < 16; ++from) {
    for (size_t to = 0; to < 16; ++to) {
      Case of({DataType::kInt8, DataType::kInt8}, sizes, from, to);
      run(of.moves, DataType::kInt8, DataType::kInt8, 1.0);
      of.check(1.0);
      if (HasFatalFailure()) return;
    }
  }
  EXPECT_EQ(state.launched.front().kernel, "perseus_copy");
}

TEST_F(Moves, InPlaceScaleEachElementOnce) {
  for (DataType type : kAllTypes) {
    for (size_t offset = 0; offset < 16 / size_of(type); ++offset) {
      for (size_t elements : {1, 77, 20000}) {
        Source source(type, elements, offset, elements);
        std::vector<std::byte> expected(elements * size_of(type));
        scale(expected.data(), source.data(), elements, type, 0.5);
        run({{source.data(), source.data(), elements, 0}}, type, type, 0.5);
        ASSERT_EQ(first_difference(source.data(), expected.data(), elements, type), elements)
            << to_string(type);
      }
    }
  }
}

TEST_F(Moves, InPlaceThatChangeNothingAreNotLaunched) {
  Source source(DataType::kFloat32, 100, 0, 1);
  run({{source.data(), source.data(), 100, 0}}, DataType::kFloat32, DataType::kFloat32, 1.0);
  EXPECT_TRUE(state.launched.empty());
}

TEST_F(Moves, FindTheFirstNanOrInfinityOfEach) {
  std::mt19937_64 random(7);
  for (const Pair& pair : all_pairs()) {
    for (int turn = 0; turn < 40; ++turn) {
      const double factor = turn % 2 ? 1.0 : 2.0;
      const bool puts_zeros = turn % 4 >= 2;
      const size_t offset = random() % (16 / size_of(pair.from));
      std::vector<Elements> sources;
      std::vector<Elements> targets;
      std::vector<Move> moves;
      std::vector<Elements> finite;
      std::vector<unsigned long long> expected(10, kNothingFound);
      for (uint32_t index : {7u, 3u, 9u}) {
        const size_t elements = random() % 9000;
        sources.emplace_back(pair.from, elements, turn, offset);
        finite.emplace_back(pair.from, elements, turn, offset);
        targets.emplace_back(pair.to, elements, turn, random() % (16 / size_of(pair.to)));
        for (uint64_t bad = random() % 3; bad > 0 && elements > 0 && is_floating(pair.from);
             --bad) {
          const uint64_t place = random() % elements;
          const bool is_nan = random() % 2 != 0;
          sources.back().set(place, is_nan ? NAN : -INFINITY);
          finite.back().set(place, 0);
          unsigned long long& word = expected[index];
          if (place <= found_element(word)) word = found_word(place, !is_nan);
        }
        moves.push_back({sources.back().data(), targets.back().data(), elements, index});
      }
      std::vector<unsigned long long> found(10, kNothingFound);
      run(moves, pair.from, pair.to, factor, {found.data(), puts_zeros});
      ASSERT_EQ(found, expected) << to_string(pair.from) << " to " << to_string(pair.to);
      for (size_t i = 0; i < moves.size(); ++i) {
        const size_t elements = moves[i].elements;
        std::vector<std::byte> moved(elements * size_of(pair.to));
        scale_convert(moved.data(), pair.to, (puts_zeros ? finite : sources)[i].data(), pair.from,
                      elements, factor);
        ASSERT_EQ(first_difference(targets[i].data(), moved.data(), elements, pair.to), elements)
            << to_string(pair.from) << " to " << to_string(pair.to);
      }
    }
  }
}

TEST_F(Moves, KeepWhatEarlierLaunchesFound) {
  Elements source(DataType::kFloat32, 10, 1);
  source.set(4, NAN);
  for (const uint64_t earlier : {3, 4, 5}) {
    unsigned long long found[] = {kNothingFound, found_word(earlier, true)};
    run({{source.data(), source.data(), 10, 1}}, DataType::kFloat32, DataType::kFloat32, 1.0,
        {found});
    EXPECT_EQ(found[0], kNothingFound);
    EXPECT_EQ(found[1], earlier < 4 ? found_word(earlier, true) : found_word(4, false));
  }
}

TEST_F(Moves, WithoutASearchFindNothing) {
  Elements source(DataType::kFloat16, 10, 1), target(DataType::kFloat16, 10, 2);
  source.set(4, NAN);
  run({{source.data(), target.data(), 10, 6}}, DataType::kFloat16, DataType::kFloat16, 2.0);
  EXPECT_TRUE(std::isnan(target[4]));
}

TEST_F(Moves, MoreThanATableHoldsTakeSeveral) {
  constexpr size_t kMoves = 3 * MoveTable::kCapacity + 5;
  std::vector<size_t> sizes(kMoves);
  for (size_t i = 0; i < kMoves; ++i) sizes[i] = i % 3 == 0 ? 0 : 10 + i;
  Case of({DataType::kFloat32, DataType::kBfloat16}, sizes, 1, 3);
  run(of.moves, DataType::kFloat32, DataType::kBfloat16, 0.25);
  of.check(0.25);
  // Empty moves take no place in the table.
  ASSERT_EQ(state.launched.size(), 3u);
  EXPECT_EQ(state.launched[0].table.count, MoveTable::kCapacity);
  EXPECT_EQ(state.launched[2].table.count, kMoves - 129 - 2 * MoveTable::kCapacity);
}

TEST_F(Moves, TooLongForATableAreSplit) {
  state.runs = false;
  auto* const source = reinterpret_cast<const float*>(uintptr_t{1} << 20);
  auto* const target = reinterpret_cast<uint16_t*>((uintptr_t{1} << 20) + 6);
  constexpr size_t kElements = (size_t{1} << 43) * 9 / 4;
  unsigned long long found = kNothingFound;
  run({{source, target, 100, 1}, {source, target, kElements, 2}, {source, target, 50, 3}},
      DataType::kFloat32, DataType::kFloat16, 0.5, {&found});
  ASSERT_EQ(state.launched.size(), 3u);
  uint64_t done = 0;
  for (size_t i = 0; i < 3; ++i) {
    const MoveTable& table = state.launched[i].table;
    const MoveTable::Run& run = table.runs[i == 0 ? 1 : 0];
    ASSERT_EQ(run.index, 2u);
    EXPECT_EQ(run.source, source + done);
    EXPECT_EQ(run.target, target + done);
    EXPECT_EQ(table.first_element, i == 0 ? 0 : done);
    EXPECT_LE(table.blocks, kMostBlocks);
    EXPECT_EQ(table.blocks == kMostBlocks, i < 2);
    done += run.elements;
  }
  EXPECT_EQ(done, kElements);
  const MoveTable& last = state.launched[2].table;
  ASSERT_EQ(last.count, 2);
  EXPECT_EQ(last.runs[1].index, 3u);
  EXPECT_EQ(last.runs[1].first_block, last.blocks - 1);
}

TEST_F(Moves, CountElementsFromWhereTheCallersRunBegan) {
  Elements source(DataType::kFloat32, 10, 1);
  source.set(4, INFINITY);
  unsigned long long found[] = {kNothingFound, kNothingFound};
  MoveTable table = {};
  table.count = 2;
  table.blocks = 2;
  table.factor = 1;
  table.found = found;
  table.runs[0] = {source.data(), source.data(), 10, 0, 0};
  table.runs[1] = {source.data(), source.data(), 10, 1, 1};
  table.first_element = 1ull << 43;
  ASSERT_TRUE(standin::run_kernel("perseus_move_float32_float32", table));
  EXPECT_EQ(found[0], found_word((1ull << 43) + 4, true));
  EXPECT_EQ(found[1], found_word(4, true));
}

TEST_F(Moves, OfTypesThatDoNotConvertAreRefused) {
  const Status status = kernels->launch({}, DataType::kInt32, DataType::kFloat32, 1.0, {}, nullptr);
  EXPECT_EQ(status.code(), StatusCode::kInvalidArgument);
  EXPECT_NE(status.message().find("int32 to float32"), std::string::npos);
}

TEST_F(Moves, TellTheDriversError) {
  Elements source(DataType::kFloat32, 10, 1);
  state.answer = kCuOutOfMemory;
  const Status status = kernels->launch({{Move{source.data(), source.data(), 10, 0}}},
                                        DataType::kFloat32, DataType::kFloat32, 2.0, {}, nullptr);
  EXPECT_EQ(status.code(), StatusCode::kOutOfMemory);
  EXPECT_NE(status.message().find("CUDA_ERROR_OF_TEST (2): as the test wants"), std::string::npos)
      << status.message();
  state.answer = 700;
  const std::byte image[1] = {};
  EXPECT_EQ(MoveKernels::load(driver, image).status().code(), StatusCode::kInternal);
}

TEST_F(Moves, NeedABuildWithNvcc) {
  const Status status = MoveKernels::load(driver, {}).status();
  EXPECT_EQ(status.code(), StatusCode::kUnsupported);
  EXPECT_NE(status.message().find("nvcc"), std::string::npos);
}

TEST(KernelsImage, IsAFatbin) {
  const std::span<const std::byte> image = kernels_image();
  if (image.empty()) GTEST_SKIP() << "built without nvcc";
  uint32_t magic = 0;
  ASSERT_GT(image.size(), sizeof(magic));
  std::memcpy(&magic, image.data(), sizeof(magic));
  EXPECT_EQ(magic, 0xba55ed50u);
}

}  // namespace
}  // namespace perseus
