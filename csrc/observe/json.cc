#include "observe/json.h"

#include <cstdint>

namespace perseus {
namespace {

// The length in bytes of the well-formed UTF-8 sequence at the start of `text` (Unicode 15, table
// 3-7), or 0.
size_t utf8_length(std::string_view text) {
  const auto byte = [&](size_t i) { return static_cast<uint8_t>(text[i]); };
  const auto in = [&](size_t i, int low, int high) {
    return i < text.size() && byte(i) >= low && byte(i) <= high;
  };
  const uint8_t first = byte(0);
  if (first < 0x80) return 1;
  if (first >= 0xC2 && first <= 0xDF) return in(1, 0x80, 0xBF) ? 2 : 0;
  if (first >= 0xE0 && first <= 0xEF) {
    const int low = first == 0xE0 ? 0xA0 : 0x80;   // no overlong forms
    const int high = first == 0xED ? 0x9F : 0xBF;  // no surrogates
    return in(1, low, high) && in(2, 0x80, 0xBF) ? 3 : 0;
  }
  if (first >= 0xF0 && first <= 0xF4) {
    const int low = first == 0xF0 ? 0x90 : 0x80;
    const int high = first == 0xF4 ? 0x8F : 0xBF;  // nothing beyond U+10FFFF
    return in(1, low, high) && in(2, 0x80, 0xBF) && in(3, 0x80, 0xBF) ? 4 : 0;
  }
  return 0;
}

}  // namespace

void append_json_string(std::string& out, std::string_view text) {
  static const char kDigits[] = "0123456789abcdef";
  out += '"';
  while (!text.empty()) {
    const char c = text[0];
    if (c == '"' || c == '\\') {
      out += '\\';
      out += c;
      text.remove_prefix(1);
    } else if (static_cast<uint8_t>(c) < 0x20 || c == 0x7f) {
      out += "\\u00";
      out += kDigits[c >> 4];
      out += kDigits[c & 0xf];
      text.remove_prefix(1);
    } else if (const size_t length = utf8_length(text); length > 0) {
      out += text.substr(0, length);
      text.remove_prefix(length);
    } else {
      out += "\\ufffd";
      text.remove_prefix(1);
    }
  }
  out += '"';
}

}  // namespace perseus
