// The processors of a machine that a thread may run on, and the caches that they share.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace perseus {

class Processors {
 public:
  Processors() = default;
  // Bit i % 64 of word i / 64 stands for processor i.
  explicit Processors(std::vector<uint64_t> words);

  // Those that the main thread of this process may run on; none if that cannot be found out.
  static Processors of_this_process();
  // A list as Linux writes it: "0-3,8". Nothing if it is malformed.
  static std::optional<Processors> parse(std::string_view list);

  void add(int processor);
  bool contains(int processor) const;
  bool contains_all(const Processors& others) const;
  Processors common_with(const Processors& others) const;
  int count() const;
  bool is_empty() const { return words_.empty(); }
  int lowest() const;  // -1 if there is none
  int end() const;     // all are below it

  const std::vector<uint64_t>& words() const { return words_; }  // the last one is not 0
  bool operator==(const Processors&) const = default;

 private:
  std::vector<uint64_t> words_;
};

// All processors under each last-level cache that has one of `wanted` under it, by the lowest of
// these. Empty if `folder` does not tell it for each of them.
std::vector<Processors> last_level_caches(const Processors& wanted,
                                          const std::string& folder = "/sys/devices/system/cpu");

// Lets the calling thread run on these only. Returns false if it may run on none of them.
bool bind_thread_to(const Processors& processors);

}  // namespace perseus
