// Checks and measures the kernels on a GPU. Without one it runs on the stand-in of tests/standin,
// if PERSEUS_CUDA_LIBRARY_PATH names its folder.
//
//   gpu_kernels check [--seed N] [--alignments N] [--rounds N] [--huge] [--standin]
//   gpu_kernels bandwidth GRADIENTS [--turns N] [--copy BYTES] [--standin]
//
// GRADIENTS: a file with a line for each model: its name, and the number of elements of each
// tensor. Prints one JSON object a line.
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <random>
#include <sstream>
#include <string>
#include <vector>

#include "kernels/bandwidth.h"
#include "kernels/check.h"

namespace {

using perseus::gpu_check::CheckOptions;
using perseus::gpu_check::Gradients;
using perseus::gpu_check::Machine;

class Arguments {
 public:
  Arguments(int argc, char** argv) : all_(argv + 1, argv + argc) {}

  // The next argument; "" after the last.
  std::string take() { return next_ < all_.size() ? all_[next_++] : ""; }
  uint64_t take_number() {
    const std::string text = take();
    char* end = nullptr;
    const uint64_t number = std::strtoull(text.c_str(), &end, 10);
    if (text.empty() || *end != '\0') perseus::gpu_check::fail("'" + text + "' is no number");
    return number;
  }

 private:
  std::vector<std::string> all_;
  size_t next_ = 0;
};

[[noreturn]] void usage() {
  perseus::gpu_check::fail(
      "usage: gpu_kernels check [--seed N] [--alignments N] [--rounds N] [--huge] "
      "[--standin] | bandwidth GRADIENTS [--turns N] [--copy BYTES] [--standin]");
}

void check(Arguments arguments) {
  std::random_device random;
  CheckOptions options;
  bool is_standin = false;
  options.seed = uint64_t{random()} << 32 | random();
  for (std::string word; !(word = arguments.take()).empty();) {
    if (word == "--seed") {
      options.seed = arguments.take_number();
    } else if (word == "--alignments") {
      options.alignments = static_cast<int>(arguments.take_number());
    } else if (word == "--rounds") {
      options.rounds = static_cast<int>(arguments.take_number());
    } else if (word == "--huge") {
      options.is_huge = true;
    } else if (word == "--standin") {
      is_standin = true;
    } else {
      usage();
    }
  }
  const Machine machine(is_standin);
  std::printf("{\"gpu\": \"%s\", \"seed\": %llu}\n", machine.name().c_str(),
              static_cast<unsigned long long>(options.seed));
  perseus::gpu_check::check_kernels(machine, options);
}

std::vector<Gradients> read_gradients(const std::string& file) {
  std::ifstream lines(file);
  if (!lines) perseus::gpu_check::fail("cannot read " + file);
  std::vector<Gradients> models;
  for (std::string line; std::getline(lines, line);) {
    std::istringstream words(line);
    Gradients gradients;
    words >> gradients.name;
    for (size_t elements; words >> elements;) gradients.elements.push_back(elements);
    if (gradients.elements.empty()) perseus::gpu_check::fail(file + ": a line without tensors");
    models.push_back(std::move(gradients));
  }
  return models;
}

void bandwidth(Arguments arguments) {
  const std::vector<Gradients> models = read_gradients(arguments.take());
  int turns = 31;
  size_t copy_bytes = size_t{1} << 30;
  bool is_standin = false;
  for (std::string word; !(word = arguments.take()).empty();) {
    if (word == "--turns") {
      turns = static_cast<int>(arguments.take_number());
    } else if (word == "--copy") {
      copy_bytes = arguments.take_number();
    } else if (word == "--standin") {
      is_standin = true;
    } else {
      usage();
    }
  }
  const Machine machine(is_standin);
  perseus::gpu_check::measure_bandwidth(machine, models, turns, copy_bytes);
}

}  // namespace

int main(int argc, char** argv) {
  Arguments arguments(argc, argv);
  const std::string mode = arguments.take();
  if (mode == "check") {
    check(arguments);
  } else if (mode == "bandwidth") {
    bandwidth(arguments);
  } else {
    usage();
  }
}
