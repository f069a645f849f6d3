#include "base/world_key.h"

#include <cstdint>
#include <cstring>

namespace perseus {
namespace {

template <typename Number>
void append(std::string& text, Number number) {
  char bytes[sizeof number];
  std::memcpy(bytes, &number, sizeof number);
  text.append(bytes, sizeof bytes);
}

std::string_view view(const Mac& mac) {
  return {reinterpret_cast<const char*>(mac.data()), mac.size()};
}

// The extract step and the expand step of HKDF (RFC 5869), with one block of output each.
Mac key_of(std::string_view secret, std::span<const std::string> introductions) {
  Sha256 transcript;
  for (const std::string& introduction : introductions) {
    std::string length;
    append(length, uint64_t{introduction.size()});
    transcript.update(length);
    transcript.update(introduction);
  }
  const Mac extracted = HmacKey("perseus world").of(secret);
  return HmacKey(view(extracted))
      .of("perseus tags of a world ", {view(transcript.finish()), {"\x01", 1}});
}

// All that says where one field ends and the next begins, so that no two lists of fields are
// tagged as the same bytes.
std::string frame_of(std::string_view purpose, std::initializer_list<std::string_view> fields) {
  std::string frame(purpose);
  frame += '\0';
  append(frame, uint64_t{fields.size()});
  for (const std::string_view field : fields) append(frame, uint64_t{field.size()});
  return frame;
}

}  // namespace

WorldKey::WorldKey(std::string_view secret, std::span<const std::string> introductions)
    : key_(view(key_of(secret, introductions))) {}

MessageTag WorldKey::tag(std::string_view purpose,
                         std::initializer_list<std::string_view> fields) const {
  const Mac mac = key_.of(frame_of(purpose, fields), fields);
  MessageTag tag;
  std::memcpy(tag.data(), mac.data(), tag.size());
  return tag;
}

bool WorldKey::is_tag(std::string_view tag, std::string_view purpose,
                      std::initializer_list<std::string_view> fields) const {
  return equal_in_constant_time(tag, perseus::view(this->tag(purpose, fields)));
}

}  // namespace perseus
