#include "execution/gpu/gpu_search.h"

#include <algorithm>

#include "device/cuda/moves.h"

namespace perseus {

Status GpuSearch::prepare(Gpu& gpu) {
  if (!is_on_) return {};
  const size_t count = inputs_ + results_;
  auto taken = gpu.take_buffer(GpuBuffer::Kind::kPinned, count * sizeof(unsigned long long));
  PERSEUS_RETURN_IF_ERROR(taken.status());
  words_ = std::move(taken).value();
  std::fill_n(words(FiniteCheck::kInput), count, kNothingFound);
  return {};
}

unsigned long long* GpuSearch::words(FiniteCheck::Side side) const {
  auto* const first = reinterpret_cast<unsigned long long*>(words_.data());
  return side == FiniteCheck::kInput ? first : first + inputs_;
}

NonFiniteSearch GpuSearch::of(FiniteCheck::Side side) const {
  return is_on_ ? NonFiniteSearch{words(side), puts_zeros_} : NonFiniteSearch{};
}

std::optional<GpuSearch::Finding> GpuSearch::found(FiniteCheck::Side side, size_t index) const {
  if (!is_on_ || !words_) return std::nullopt;
  const unsigned long long word = words(side)[index];
  if (word == kNothingFound) return std::nullopt;
  return Finding{found_element(word), found_infinity(word)};
}

}  // namespace perseus
