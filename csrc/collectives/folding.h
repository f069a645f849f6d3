// Folds a group of any size to a power of two: the first ranks pair up, and the odd one of each
// pair sits out while its neighbour takes part for both.
#pragma once

#include <bit>
#include <cstdint>

namespace perseus {

// The first steps of a collective that folds are those of the pairs' messages: the odd rank's
// input, and the result that it gets back.
inline constexpr uint32_t kPairStep = 0;
inline constexpr uint32_t kResultStep = 1;
inline constexpr uint32_t kFirstStepAfterFolding = 2;

class Folding {
 public:
  explicit Folding(int size)
      : power_(static_cast<int>(std::bit_floor(static_cast<unsigned>(size)))),
        pairs_(size - power_) {}

  int power() const { return power_; }  // how many take part
  bool is_paired(int index) const { return index < 2 * pairs_; }
  bool sits_out(int index) const { return is_paired(index) && index % 2 == 1; }
  // From a rank's index to its number among the ranks that take part, and back.
  int id_of(int index) const { return is_paired(index) ? index / 2 : index - pairs_; }
  int index_of(int id) const { return id < pairs_ ? 2 * id : id + pairs_; }

 private:
  int power_;
  int pairs_;
};

}  // namespace perseus
