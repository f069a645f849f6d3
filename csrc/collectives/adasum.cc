#include "collectives/adasum.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <utility>

#include "base/buffer_pool.h"
#include "collectives/folding.h"
#include "collectives/parts.h"
#include "collectives/running_collective.h"
#include "collectives/scratch_array.h"
#include "device/cpu/kernels.h"

namespace perseus {
namespace {

// Steps: those of folding. Then each level has one for its halves, one for each hop of the
// products, and one for the halves on the way back.
constexpr uint32_t kFirstLevelStep = kFirstStepAfterFolding;
constexpr uint32_t kStepsPerLevel = 64;
constexpr uint32_t kProductsStep = 1;
constexpr uint32_t kReturnStep = kStepsPerLevel - 1;

constexpr size_t kProducts = 3;  // a.b, a.a, b.b

// The half of a range that this rank keeps at one level, and the half that it sends its partner.
struct Halves {
  Range kept, sent;
};
Halves halve(Range whole, bool is_lower) {
  const size_t half = whole.size / 2;
  const Range low{whole.begin, half}, high{whole.begin + half, whole.size - half};
  return is_lower ? Halves{low, high} : Halves{high, low};
}

class AdasumRun {
 public:
  AdasumRun(const Group& group, const CollectiveOptions& options, std::span<const uint64_t> tensors,
            DataType type, std::byte* mine, std::byte* theirs, double* products, double* arriving)
      : run_(group, options),
        index_(group.index),
        folding_(group.size),
        tensors_(tensors),
        type_(type),
        element_(size_of(type)),
        mine_(mine),
        theirs_(theirs),
        products_(products),
        arriving_(arriving),
        whole_{0, std::accumulate(tensors.begin(), tensors.end(), uint64_t{0})} {}

  Task run() {
    const bool is_paired = folding_.is_paired(index_);
    if (folding_.sits_out(index_)) {
      Message outgoing, result;
      run_.send(outgoing, index_ - 1, kPairStep, mine_, bytes(whole_));
      Status status = co_await outgoing;
      PERSEUS_CO_RETURN_IF_ERROR(status);
      run_.receive(result, index_ - 1, kResultStep, mine_, bytes(whole_));
      status = co_await result;
      co_return status;
    }
    if (is_paired) {
      Message incoming;
      run_.receive(incoming, index_ + 1, kPairStep, theirs_, bytes(whole_));
      const Status received = co_await incoming;
      PERSEUS_CO_RETURN_IF_ERROR(received);
      add_products_of(whole_, /*mine_is_lower=*/true);
      combine_range(whole_, /*mine_is_lower=*/true);
    }
    id_ = folding_.id_of(index_);
    const Status status = co_await descend(whole_, 0);
    PERSEUS_CO_RETURN_IF_ERROR(status);
    if (is_paired) {
      Message result;
      run_.send(result, index_ + 1, kResultStep, mine_, bytes(whole_));
      const Status sent = co_await result;
      co_return sent;
    }
    co_return Status::ok();
  }

 private:
  uint64_t bytes(Range range) const { return range.size * element_; }
  std::byte* at(std::byte* data, Range range) const { return data + range.begin * element_; }
  int partner(int mask) const { return folding_.index_of(id_ ^ mask); }

  // Combines the range with the same range of the other block of 2^level ranks. On return this rank
  // has the result for all of it.
  Task descend(Range range, int level) {
    const int mask = 1 << level;
    if (mask >= folding_.power()) co_return Status::ok();
    const bool is_lower = (id_ & mask) == 0;
    const Halves halves = halve(range, is_lower);
    const uint32_t step = kFirstLevelStep + static_cast<uint32_t>(level) * kStepsPerLevel;
    const int other = partner(mask);
    Task swapped = run_.exchange(step, {other, at(mine_, halves.sent), bytes(halves.sent)},
                                 {other, at(theirs_, halves.kept), bytes(halves.kept)});
    Status status = co_await std::move(swapped);
    PERSEUS_CO_RETURN_IF_ERROR(status);
    add_products_of(halves.kept, is_lower);
    status = co_await sum_products(mask, step + kProductsStep);
    PERSEUS_CO_RETURN_IF_ERROR(status);
    combine_range(halves.kept, is_lower);

    status = co_await descend(halves.kept, level + 1);
    PERSEUS_CO_RETURN_IF_ERROR(status);
    Task returned =
        run_.exchange(step + kReturnStep, {other, at(mine_, halves.kept), bytes(halves.kept)},
                      {other, at(mine_, halves.sent), bytes(halves.sent)});
    status = co_await std::move(returned);
    co_return status;
  }

  // Calls visit(tensor, the part of it that lies within the range) for each tensor, in order.
  template <typename Visit>
  void for_each_part(Range range, Visit visit) const {
    uint64_t begin = 0;
    for (size_t t = 0; t < tensors_.size(); begin += tensors_[t++]) {
      const uint64_t first = std::max(begin, range.begin);
      const uint64_t end = std::min(begin + tensors_[t], range.begin + range.size);
      if (first < end) visit(t, Range{first, end - first});
    }
  }

  // Products of this rank's part of the lower and the higher block, in the same order on all ranks.
  void add_products_of(Range range, bool mine_is_lower) {
    std::fill_n(products_, tensors_.size() * kProducts, 0.0);
    for_each_part(range, [&](size_t t, Range part) {
      const std::byte* lower = at(mine_is_lower ? mine_ : theirs_, part);
      const std::byte* higher = at(mine_is_lower ? theirs_ : mine_, part);
      add_products(lower, higher, part.size, type_, products_ + t * kProducts);
    });
  }

  // Sums the products over the 2 * mask ranks that hold the two blocks.
  Task sum_products(int mask, uint32_t first_step) {
    const uint64_t size = tensors_.size() * kProducts * sizeof(double);
    uint32_t step = first_step;
    for (int bit = 1; bit <= mask; bit <<= 1, ++step) {
      Task exchanged =
          run_.exchange(step, {partner(bit), products_, size}, {partner(bit), arriving_, size});
      Status status = co_await std::move(exchanged);
      PERSEUS_CO_RETURN_IF_ERROR(status);
      for (size_t i = 0; i < tensors_.size() * kProducts; ++i) products_[i] += arriving_[i];
    }
    co_return Status::ok();
  }

  void combine_range(Range range, bool mine_is_lower) {
    for_each_part(range, [&](size_t t, Range part) {
      const double* products = products_ + t * kProducts;
      const double lower = factor(products[0], products[1]);
      const double higher = factor(products[0], products[2]);
      combine(at(mine_, part), at(theirs_, part), part.size, type_, mine_is_lower ? lower : higher,
              mine_is_lower ? higher : lower);
    });
  }

  // A gradient that is (nearly) zero has no part in the direction of another.
  static double factor(double dot, double square) {
    const double least = std::sqrt(std::numeric_limits<double>::min());
    return square < least ? 1.0 : 1.0 - dot / (2.0 * square);
  }

  const RunningCollective run_;
  const int index_;
  const Folding folding_;
  const std::span<const uint64_t> tensors_;
  const DataType type_;
  const size_t element_;
  std::byte* const mine_;
  std::byte* const theirs_;
  double* const products_;
  double* const arriving_;
  const Range whole_;
  int id_ = 0;  // among the ranks that take part; see Folding
};

}  // namespace

Task adasum(const Group& group, CollectiveOptions options, void* data,
            std::span<const uint64_t> tensors, DataType type) {
  if (group.size == 1) co_return Status::ok();
  const uint64_t elements = std::accumulate(tensors.begin(), tensors.end(), uint64_t{0});
  // 16-bit floats are rounded once, at the end.
  const DataType wide = accumulator_type(type);
  const size_t bytes = elements * size_of(wide);
  const size_t products = tensors.size() * kProducts;
  Buffer scratch = options.buffers->take(std::max<size_t>(2 * bytes, 1));
  Buffer sums = options.buffers->take(std::max<size_t>(2 * products * sizeof(double), 1));
  if (!scratch || !sums) co_return out_of_scratch(2 * bytes);
  convert(scratch.data(), wide, data, type, elements);
  auto* doubles = reinterpret_cast<double*>(sums.data());
  AdasumRun run(group, options, tensors, wide, scratch.data(), scratch.data() + bytes, doubles,
                doubles + products);
  const Status status = co_await run.run();
  PERSEUS_CO_RETURN_IF_ERROR(status);
  convert(data, type, scratch.data(), wide, elements);
  co_return Status::ok();
}

}  // namespace perseus
