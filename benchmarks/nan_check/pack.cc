// Measures packing tensors into fusion buffers and unpacking them, with and without looking for
// NaN, in turns.
//
// pack TENSOR_ELEMENTS TENSORS BUFFER_BYTES TURNS
//
// All tensors together exceed the caches, a buffer does not. Prints a line with a JSON object for
// each dtype and direction: nanoseconds of a pass over all tensors, in each turn.
#include "device/cpu/pack.h"

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <vector>

namespace {

using perseus::DataType;
using Clock = std::chrono::steady_clock;

struct Work {
  DataType type;
  size_t elements;  // of a tensor
  std::vector<std::vector<std::byte>> tensors;
  std::vector<std::byte> buffer;

  size_t bytes() const { return elements * perseus::size_of(type); }
};

// Packs all tensors into one buffer after another, or unpacks them.
double pass(Work& work, bool packs, bool is_checked) {
  const size_t places = work.buffer.size() / work.bytes();
  bool is_finite = true;
  const auto begin = Clock::now();
  for (size_t t = 0; t < work.tensors.size(); ++t) {
    const perseus::Segment segment{work.tensors[t].data(), work.tensors[t].data(), work.elements};
    std::byte* place = work.buffer.data() + t % places * work.bytes();
    const perseus::PackResult found =
        packs
            ? perseus::pack_segments({&segment, 1}, work.type, work.type, 1.0, place, is_checked)
            : perseus::unpack_segments(place, work.type, {&segment, 1}, work.type, 1.0, is_checked);
    is_finite &= found.is_finite;
  }
  const std::chrono::duration<double, std::nano> taken = Clock::now() - begin;
  if (!is_finite) std::abort();
  return taken.count();
}

void print(const char* name, const std::vector<double>& times, const char* end) {
  std::printf("\"%s\": [", name);
  for (size_t i = 0; i < times.size(); ++i) std::printf("%s%.0f", i == 0 ? "" : ", ", times[i]);
  std::printf("]%s", end);
}

void measure(Work& work, bool packs, int turns) {
  pass(work, packs, false);
  std::vector<double> plain, checked;
  for (int turn = 0; turn < turns; ++turn) {
    // The two also take turns at going first.
    for (const bool is_checked : {turn % 2 == 0, turn % 2 != 0}) {
      (is_checked ? checked : plain).push_back(pass(work, packs, is_checked));
    }
  }
  std::printf("{\"dtype\": \"%s\", \"direction\": \"%s\", ",
              std::string(perseus::to_string(work.type)).c_str(), packs ? "pack" : "unpack");
  print("plain", plain, ", ");
  print("checked", checked, "}\n");
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 5) {
    std::fprintf(stderr, "usage: %s TENSOR_ELEMENTS TENSORS BUFFER_BYTES TURNS\n", argv[0]);
    return 2;
  }
  const auto number = [&](int i) { return std::strtoull(argv[i], nullptr, 10); };
  for (const DataType type : {DataType::kFloat32, DataType::kFloat16, DataType::kFloat64}) {
    Work work{type, number(1), {}, std::vector<std::byte>(number(3))};
    if (work.bytes() == 0 || work.bytes() > work.buffer.size()) {
      std::fprintf(stderr, "a tensor must fit into a buffer\n");
      return 2;
    }
    work.tensors.assign(number(2), std::vector<std::byte>(work.bytes(), std::byte{0x11}));
    std::memset(work.buffer.data(), 0x11, work.buffer.size());
    for (const bool packs : {true, false}) measure(work, packs, static_cast<int>(number(4)));
  }
}
