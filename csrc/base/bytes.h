// Reads and writes the engine's own messages. Little-endian, as is every machine that Perseus runs
// on. The reader never goes beyond the message's end: after a short read it has failed() and
// returns zeros.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>
#include <vector>

namespace perseus {

class ByteWriter {
 public:
  template <typename T>
  void put(T value) {
    static_assert(std::is_trivially_copyable_v<T>);
    put_bytes(&value, sizeof value);
  }
  void put_bytes(const void* data, size_t size) {
    if (size > memory_.size() - size_) memory_.resize(2 * memory_.size() + size);
    if (size != 0) std::memcpy(memory_.data() + size_, data, size);
    size_ += size;
  }
  void put_string(std::string_view text) {
    put<uint32_t>(static_cast<uint32_t>(text.size()));
    put_bytes(text.data(), text.size());
  }

  // Keeps its memory for the next message.
  void clear() { size_ = 0; }
  std::span<const std::byte> bytes() const { return {memory_.data(), size_}; }
  size_t size() const { return size_; }

 private:
  // Longer than the message, so that a number is put into it without a call.
  std::vector<std::byte> memory_;
  size_t size_ = 0;
};

class ByteReader {
 public:
  explicit ByteReader(std::span<const std::byte> bytes) : bytes_(bytes) {}

  template <typename T>
  T get() {
    static_assert(std::is_trivially_copyable_v<T>);
    T value{};
    if (const std::byte* from = take(sizeof value)) std::memcpy(&value, from, sizeof value);
    return value;
  }
  // Leaves `data` unchanged if fewer bytes are left.
  void get_bytes(void* data, size_t size) {
    if (const std::byte* from = take(size)) std::memcpy(data, from, size);
  }
  std::string get_string() {
    const auto size = get<uint32_t>();
    const std::byte* from = take(size);
    return from ? std::string(reinterpret_cast<const char*>(from), size) : std::string();
  }
  // Returns whether `count` items of `item_size` bytes can follow; if not, the reader has failed.
  // Check this before reserving memory for a count that a peer sent.
  bool can_hold(uint64_t count, size_t item_size) {
    if (count <= remaining() / item_size) return true;
    failed_ = true;
    return false;
  }

  // The bytes that have not been read.
  std::span<const std::byte> rest() const { return bytes_; }

  bool failed() const { return failed_; }
  size_t remaining() const { return failed_ ? 0 : bytes_.size(); }

 private:
  const std::byte* take(size_t size) {
    if (failed_ || size > bytes_.size()) {
      failed_ = true;
      return nullptr;
    }
    const std::byte* from = bytes_.data();
    bytes_ = bytes_.subspan(size);
    return from;
  }

  std::span<const std::byte> bytes_;
  bool failed_ = false;
};

}  // namespace perseus
