// The settings that the tuner chooses, and what a tuner has found in one world, in the form in
// which it goes to the next: from this process's last engine, and from rank to rank, since a rank
// that is new has found nothing. Values; no thread of their own.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>

namespace perseus {

struct Settings;

struct Tuning {
  int streams = 0;
  uint64_t shard_bytes = 0;
  uint64_t merge_bytes = 0;
  uint64_t credit_bytes = 0;
  uint64_t chunk_bytes = 0;

  static Tuning from(const Settings& settings);
  bool operator==(const Tuning&) const = default;
};

// What the fastest settings depend on, apart from the work: the same on all ranks of a world.
struct WorldShape {
  int hosts = 1;
  int ranks = 1;

  bool has_several_hosts() const { return hosts > 1; }
  bool operator==(const WorldShape&) const = default;
};

// Some class of work, and how much of it there is in a look; see WorkWatch.
struct WorkHabit {
  int work_class = 0;
  uint64_t look_batches = 0;  // 0: not known
  uint64_t look_bytes = 0;

  bool is_known() const { return look_batches != 0; }
  bool operator==(const WorkHabit&) const = default;
};

struct TunerFindings {
  struct Found {
    Tuning tuning;
    WorldShape shape;  // of the world in which it was fastest
    bool operator==(const Found&) const = default;
  };
  std::map<int, Found> by_class;
  WorkHabit habit;  // the work of late

  bool operator==(const TunerFindings&) const = default;

  // In the form in which ranks tell each other; empty if there is nothing.
  std::string pack() const;
  // Returns nothing for what pack() has not written.
  static TunerFindings unpack(std::string_view packed);
};

}  // namespace perseus
