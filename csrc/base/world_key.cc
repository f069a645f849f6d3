#include "base/world_key.h"

#include <array>
#include <cassert>
#include <cstdint>
#include <cstring>

#include "base/secret.h"

namespace perseus {
namespace {

struct Number {
  uint64_t value;
  std::string_view view() const { return {reinterpret_cast<const char*>(&value), sizeof value}; }
};

std::string_view view(const Mac& mac) {
  return {reinterpret_cast<const char*>(mac.data()), mac.size()};
}

// The extract step and the expand step of HKDF (RFC 5869), with one block of output each.
Mac key_of(std::string_view secret, std::span<const std::string> introductions) {
  Sha256 transcript;
  for (const std::string& introduction : introductions) {
    transcript.update(Number{introduction.size()}.view());
    transcript.update(introduction);
  }
  const Mac extracted = HmacKey("perseus world").of(secret);
  return HmacKey(view(extracted))
      .of("perseus tags of a world ", {view(transcript.finish()), {"\x01", 1}});
}

// The purpose, and where one field ends and the next begins: so no two lists of fields are tagged
// as the same bytes. Allocates nothing, since an operation's tags are made on the steady path.
class Frame {
 public:
  Frame(std::string_view purpose, std::initializer_list<std::string_view> fields) {
    assert(purpose.size() < kMostPurpose && fields.size() <= kMostFields &&
           "make the frame larger");
    append(purpose);
    append({"\0", 1});
    for (const std::string_view field : fields) append(Number{field.size()}.view());
  }
  std::string_view view() const { return {bytes_.data(), size_}; }

 private:
  static constexpr size_t kMostPurpose = 32, kMostFields = 8;

  void append(std::string_view bytes) {
    bytes.copy(bytes_.data() + size_, bytes.size());
    size_ += bytes.size();
  }

  std::array<char, kMostPurpose + kMostFields * sizeof(uint64_t)> bytes_;
  size_t size_ = 0;
};

}  // namespace

WorldKey::WorldKey(std::string_view secret, std::span<const std::string> introductions)
    : key_(view(key_of(secret, introductions))) {}

MessageTag WorldKey::tag(std::string_view purpose,
                         std::initializer_list<std::string_view> fields) const {
  const Mac mac = key_.of(Frame(purpose, fields).view(), fields);
  MessageTag tag;
  std::memcpy(tag.data(), mac.data(), tag.size());
  return tag;
}

std::string WorldKey::name() const { return to_hex(perseus::view(tag("perseus name", {}))); }

}  // namespace perseus
