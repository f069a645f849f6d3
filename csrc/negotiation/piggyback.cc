#include "negotiation/piggyback.h"

#include <bit>
#include <cstring>

namespace perseus {
namespace {

template <typename Visit>
void for_each_index(uint64_t ranks, Visit visit) {
  for (; ranks != 0; ranks &= ranks - 1) visit(std::countr_zero(ranks));
}

}  // namespace

void Piggyback::make_room(uint64_t ranks) {
  inputs_.resize(size_t{bytes_} * static_cast<size_t>(std::bit_width(ranks)));
}

void Piggyback::set(uint32_t id, int index, std::span<const std::byte> input_of_rank) {
  id_ = id;
  bytes_ = static_cast<uint32_t>(input_of_rank.size());
  ranks_ = uint64_t{1} << index;
  make_room(ranks_);
  std::memcpy(input(index), input_of_rank.data(), bytes_);
}

void Piggyback::merge(const Piggyback& other) {
  if (!has_inputs()) return;
  if (!other.has_inputs() || other.id_ != id_ || other.bytes_ != bytes_) return clear();
  const uint64_t others = other.ranks_ & ~ranks_;
  ranks_ |= others;
  make_room(ranks_);
  for_each_index(others, [&](int index) { std::memcpy(input(index), other.input(index), bytes_); });
}

void Piggyback::write(ByteWriter& writer) const {
  writer.put(id_);
  writer.put(bytes_);
  writer.put(ranks_);
  for_each_index(ranks_, [&](int index) { writer.put_bytes(input(index), bytes_); });
}

bool Piggyback::read(ByteReader& reader) {
  id_ = reader.get<uint32_t>();
  bytes_ = reader.get<uint32_t>();
  ranks_ = reader.get<uint64_t>();
  if (!fits(std::bit_width(ranks_), bytes_)) {
    clear();
    return false;
  }
  make_room(ranks_);
  for_each_index(ranks_, [&](int index) { reader.get_bytes(input(index), bytes_); });
  return !reader.failed();
}

}  // namespace perseus
