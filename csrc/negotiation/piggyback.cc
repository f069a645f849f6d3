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
  attachments_.resize(size_t{bytes_} * static_cast<size_t>(std::bit_width(ranks)));
}

void Piggyback::set(uint32_t id, int index, const Attachment& attachment) {
  id_ = id;
  kind_ = attachment.kind;
  bytes_ = static_cast<uint32_t>(attachment.bytes.size());
  ranks_ = uint64_t{1} << index;
  make_room(ranks_);
  std::memcpy(of(index), attachment.bytes.data(), bytes_);
}

void Piggyback::merge(const Piggyback& other) {
  if (empty()) return;
  const bool is_alike = other.id_ == id_ && other.kind_ == kind_ && other.bytes_ == bytes_;
  if (other.empty() || !is_alike) return clear();
  const uint64_t others = other.ranks_ & ~ranks_;
  ranks_ |= others;
  make_room(ranks_);
  for_each_index(others, [&](int index) { std::memcpy(of(index), other.of(index), bytes_); });
}

void Piggyback::write(ByteWriter& writer) const {
  writer.put(id_);
  writer.put(kind_);
  writer.put(bytes_);
  writer.put(ranks_);
  for_each_index(ranks_, [&](int index) { writer.put_bytes(of(index), bytes_); });
}

bool Piggyback::read(ByteReader& reader) {
  id_ = reader.get<uint32_t>();
  kind_ = reader.get<Attachment::Kind>();
  bytes_ = reader.get<uint32_t>();
  ranks_ = reader.get<uint64_t>();
  if (kind_ > Attachment::Kind::kSizes || !fits(std::bit_width(ranks_), bytes_)) {
    clear();
    return false;
  }
  make_room(ranks_);
  for_each_index(ranks_, [&](int index) { reader.get_bytes(of(index), bytes_); });
  return !reader.failed();
}

}  // namespace perseus
