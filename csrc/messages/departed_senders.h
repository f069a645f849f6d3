// The ranks that send nothing more, to anyone or in one process set. What such a rank has sent may
// still be on its way for a while. Engine thread.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <utility>
#include <vector>

#include "base/alarm.h"
#include "transport/mesh.h"

namespace perseus {

class DepartedSenders {
 public:
  static constexpr int32_t kAllSets = -1;

  // Calls `on_gone` once nothing more can come from a rank.
  DepartedSenders(EventLoop& loop, const Mesh& mesh, std::function<void()> on_gone)
      : mesh_(mesh), on_gone_(std::move(on_gone)), alarm_(loop) {}

  // The rank has begun to leave, or has closed the set.
  void add(int rank, int32_t set);
  // The connection to a rank that leaves is broken.
  void cut_off(int rank);
  // This rank has closed the set.
  void forget(int32_t set);
  void clear();

  bool is_empty() const { return departures_.empty(); }
  // Returns whether nothing more can come from the rank in this set.
  bool has_gone(int rank, int32_t set) const;

 private:
  struct Departure {
    int rank;
    int32_t set;
    Clock::time_point since;
    bool is_over = false;
  };

  void look();
  bool is_over(const Departure& departure) const;

  const Mesh& mesh_;
  const std::function<void()> on_gone_;
  Alarm alarm_;
  std::vector<Departure> departures_;
};

}  // namespace perseus
