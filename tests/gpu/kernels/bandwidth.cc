#include "kernels/bandwidth.h"

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <functional>
#include <memory>
#include <numeric>
#include <string>

#include "device/cuda/moves.h"

namespace perseus::gpu_check {
namespace {

// Tensors are aligned as PyTorch's allocator aligns them.
constexpr size_t kAlignment = 512;
// The least duration of a measurement, so that launching and waiting hardly count.
constexpr double kLeastSeconds = 0.004;

double now() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

struct Contender {
  std::string model, name;
  double bytes;                       // read and written in a pass
  std::function<void(size_t)> queue;  // one pass, of this number
  size_t passes = 1;                  // of a measurement
  std::vector<double> seconds;        // of a pass, in each turn
};

// The gradients, and a flat buffer for them. Several copies of both if they are less than
// `least_bytes`, so that no cache has them when their turn comes.
class Packing {
 public:
  Packing(const Machine& machine, const Gradients& gradients, size_t least_bytes)
      : machine_(machine),
        elements_(std::accumulate(gradients.elements.begin(), gradients.elements.end(), size_t{0})),
        found_(machine, gradients.elements.size() * sizeof(unsigned long long)) {
    size_t bytes = 0;
    std::vector<size_t> at;
    for (const size_t elements : gradients.elements) {
      at.push_back(bytes);
      bytes += (elements * sizeof(float) + kAlignment - 1) / kAlignment * kAlignment;
    }
    const size_t copies = std::max<size_t>(1, least_bytes / bytes);
    for (size_t copy = 0; copy < copies; ++copy) {
      Place& place = *places_.emplace_back(std::make_unique<Place>(
          Place{{machine, bytes}, {machine, elements_ * sizeof(float)}, {}, {}, {}}));
      place.tensors.fill(0);
      place.flat.fill(0);
      std::byte* flat = place.flat.data();
      std::byte* half = place.flat.data();
      for (size_t i = 0; i < at.size(); ++i) {
        std::byte* const tensor = place.tensors.data() + at[i];
        const size_t elements = gradients.elements[i];
        const auto index = static_cast<uint32_t>(i);
        place.pack.push_back({tensor, flat, elements, index});
        place.unpack.push_back({flat, tensor, elements, index});
        place.pack_half.push_back({tensor, half, elements, index});
        flat += elements * sizeof(float);
        half += elements * sizeof(uint16_t);
      }
    }
    const std::vector<unsigned long long> nothing(gradients.elements.size(), kNothingFound);
    found_.write(0, nothing.data(), nothing.size() * sizeof(unsigned long long));
  }

  double bytes() const { return 2.0 * sizeof(float) * static_cast<double>(elements_); }

  void pack(size_t pass, double factor, bool is_searched) const {
    launch(at(pass).pack, DataType::kFloat32, factor, is_searched);
  }
  void unpack(size_t pass, double factor) const {
    launch(at(pass).unpack, DataType::kFloat32, factor, false);
  }
  void pack_half(size_t pass) const { launch(at(pass).pack_half, DataType::kFloat16, 1.0, false); }
  void copy_each(size_t pass) const {
    for (const Move& move : at(pass).pack) {
      copy(move.target, move.source, move.elements * sizeof(float));
    }
  }
  void copy_at_once(size_t pass) const {
    copy(at(pass).flat.data(), at(pass).tensors.data(), elements_ * sizeof(float));
  }

 private:
  struct Place {
    DeviceMemory tensors, flat;
    std::vector<Move> pack, unpack, pack_half;
  };

  const Place& at(size_t pass) const { return *places_[pass % places_.size()]; }
  void launch(const std::vector<Move>& moves, DataType to, double factor, bool is_searched) const {
    auto* const found = reinterpret_cast<unsigned long long*>(found_.data());
    require(machine_.kernels().launch(moves, DataType::kFloat32, to, factor,
                                      NonFiniteSearch{is_searched ? found : nullptr},
                                      machine_.stream()));
  }
  void copy(void* target, const void* source, size_t bytes) const {
    machine_.check(machine_.driver().copy_on_device(reinterpret_cast<CuPointer>(target),
                                                    reinterpret_cast<CuPointer>(source), bytes,
                                                    machine_.stream()),
                   "copying on the GPU");
  }

  const Machine& machine_;
  const size_t elements_;
  const DeviceMemory found_;
  std::vector<std::unique_ptr<Place>> places_;
};

void add_contenders(std::vector<Contender>& contenders, const std::string& model,
                    const Packing& packing) {
  const auto add = [&](const char* name, double bytes, std::function<void(size_t)> queue) {
    contenders.push_back({model, name, bytes, std::move(queue), 1, {}});
  };
  const double bytes = packing.bytes();
  add("pack", bytes, [&](size_t pass) { packing.pack(pass, 1.0, false); });
  add("unpack", bytes, [&](size_t pass) { packing.unpack(pass, 1.0); });
  add("pack, scaled", bytes, [&](size_t pass) { packing.pack(pass, 0.25, false); });
  add("unpack, scaled", bytes, [&](size_t pass) { packing.unpack(pass, 0.25); });
  add("pack, searched for NaN", bytes, [&](size_t pass) { packing.pack(pass, 1.0, true); });
  add("pack as float16", bytes * 3 / 4, [&](size_t pass) { packing.pack_half(pass); });
  add("a cudaMemcpyAsync each", bytes, [&](size_t pass) { packing.copy_each(pass); });
  add("one copy as large", bytes, [&](size_t pass) { packing.copy_at_once(pass); });
}

double measure(const Machine& machine, Contender& contender) {
  machine.synchronize();
  const double begin = now();
  for (size_t pass = 0; pass < contender.passes; ++pass) contender.queue(pass);
  machine.synchronize();
  return (now() - begin) / static_cast<double>(contender.passes);
}

void print(const Contender& contender) {
  std::printf(
      "{\"model\": \"%s\", \"contender\": \"%s\", \"bytes\": %.0f, \"passes\": %zu, "
      "\"seconds\": [",
      contender.model.c_str(), contender.name.c_str(), contender.bytes, contender.passes);
  const char* before = "";
  for (const double seconds : contender.seconds) {
    std::printf("%s%.9f", before, seconds);
    before = ", ";
  }
  std::printf("]}\n");
}

}  // namespace

void measure_bandwidth(const Machine& machine, const std::vector<Gradients>& models, int turns,
                       size_t copy_bytes) {
  const DeviceMemory source(machine, copy_bytes), target(machine, copy_bytes);
  source.fill(0);
  target.fill(0);
  std::vector<Contender> contenders;
  contenders.push_back(
      {"",
       "copy",
       2.0 * static_cast<double>(copy_bytes),
       [&](size_t) {
         machine.check(machine.driver().copy_on_device(reinterpret_cast<CuPointer>(target.data()),
                                                       reinterpret_cast<CuPointer>(source.data()),
                                                       copy_bytes, machine.stream()),
                       "copying on the GPU");
       },
       1,
       {}});
  std::vector<std::unique_ptr<Packing>> packings;
  for (const Gradients& gradients : models) {
    packings.push_back(std::make_unique<Packing>(machine, gradients, copy_bytes));
    add_contenders(contenders, gradients.name, *packings.back());
  }
  // Also warms the GPU up.
  for (Contender& contender : contenders) {
    measure(machine, contender);
    const double seconds = std::max(measure(machine, contender), 1e-6);
    contender.passes = static_cast<size_t>(kLeastSeconds / seconds) + 1;
  }
  for (int turn = 0; turn < turns; ++turn) {
    // The order of contenders changes from turn to turn.
    for (size_t i = 0; i < contenders.size(); ++i) {
      Contender& contender = contenders[(i + static_cast<size_t>(turn)) % contenders.size()];
      contender.seconds.push_back(measure(machine, contender));
    }
  }
  for (const Contender& contender : contenders) print(contender);
}

}  // namespace perseus::gpu_check
