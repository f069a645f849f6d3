// Caffe's state of a thread: the mode, the number of solvers, and which of them this is.
#pragma once

#include <cstdio>
#include <cstdlib>
#include <memory>
#include <random>
#include <string>
#include <vector>

// Caffe ends the process, too.
#define CHECK(condition)                                      \
  do {                                                        \
    if (!(condition)) {                                       \
      std::fprintf(stderr, "Check failed: %s\n", #condition); \
      std::abort();                                           \
    }                                                         \
  } while (false)

namespace caffe {

using std::shared_ptr;
using std::string;
using std::vector;

class Caffe {
 public:
  enum Brew { CPU, GPU };

  static Brew mode() { return get().mode_; }
  static void set_mode(Brew mode) { get().mode_ = mode; }
  static int solver_count() { return get().solver_count_; }
  static void set_solver_count(int count) { get().solver_count_ = count; }
  static int solver_rank() { return get().solver_rank_; }
  static void set_solver_rank(int rank) { get().solver_rank_ = rank; }
  static bool multiprocess() { return get().multiprocess_; }
  static void set_multiprocess(bool multiprocess) { get().multiprocess_ = multiprocess; }
  static bool root_solver() { return solver_rank() == 0; }
  static void set_random_seed(unsigned seed) { get().generator_.seed(seed); }
  // The stand-in's own, in place of rng_stream().
  static std::mt19937& generator() { return get().generator_; }

 private:
  static Caffe& get() {
    static thread_local Caffe caffe;
    return caffe;
  }

  Brew mode_ = CPU;
  int solver_count_ = 1;
  int solver_rank_ = 0;
  bool multiprocess_ = false;
  std::mt19937 generator_;
};

}  // namespace caffe
