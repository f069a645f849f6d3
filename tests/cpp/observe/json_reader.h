// Reads JSON strictly, so that tests see what a viewer would.
#pragma once

#include <cctype>
#include <cstdlib>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace perseus {

struct Json {
  enum class Kind { kNull, kBool, kNumber, kString, kArray, kObject } kind = Kind::kNull;
  double number = 0;
  std::string string;  // \uXXXX is not decoded
  std::vector<Json> array;
  std::map<std::string, Json> object;

  bool has(const std::string& key) const { return object.count(key) > 0; }
  const Json& operator[](const std::string& key) const {
    static const Json nothing;
    auto found = object.find(key);
    return found == object.end() ? nothing : found->second;
  }
};

class JsonReader {
 public:
  // Returns nothing if the text is not one JSON value.
  static std::optional<Json> read(std::string_view text) {
    JsonReader reader(text);
    Json value;
    if (!reader.value(value)) return {};
    reader.blanks();
    if (!reader.text_.empty()) return {};
    return value;
  }

 private:
  explicit JsonReader(std::string_view text) : text_(text) {}

  void blanks() {
    while (!text_.empty() && std::isspace(static_cast<unsigned char>(text_[0]))) {
      text_.remove_prefix(1);
    }
  }
  bool take(std::string_view word) {
    blanks();
    if (!text_.starts_with(word)) return false;
    text_.remove_prefix(word.size());
    return true;
  }

  bool value(Json& out) {
    blanks();
    if (text_.empty()) return false;
    if (text_[0] == '{') return object(out);
    if (text_[0] == '[') return array(out);
    if (text_[0] == '"') return out.kind = Json::Kind::kString, string(out.string);
    if (take("null")) return true;
    if (take("true")) return out.kind = Json::Kind::kBool, out.number = 1, true;
    if (take("false")) return out.kind = Json::Kind::kBool, true;
    const size_t length = text_.find_first_not_of("+-.0123456789eE");
    const std::string digits(text_.substr(0, length));
    char* end = nullptr;
    out.kind = Json::Kind::kNumber;
    out.number = std::strtod(digits.c_str(), &end);
    text_.remove_prefix(digits.size());
    return !digits.empty() && *end == '\0';
  }
  bool string(std::string& out) {
    if (!take("\"")) return false;
    while (!text_.empty() && text_[0] != '"') {
      if (static_cast<unsigned char>(text_[0]) < 0x20) return false;
      if (text_[0] == '\\') {
        if (text_.size() < 2) return false;
        if (text_[1] == 'u') {
          out += '\\';
        } else if (text_[1] != '"' && text_[1] != '\\') {
          return false;  // no other escape is written
        }
        text_.remove_prefix(1);
      }
      out += text_[0];
      text_.remove_prefix(1);
    }
    return take("\"");
  }
  bool array(Json& out) {
    out.kind = Json::Kind::kArray;
    if (!take("[")) return false;
    if (take("]")) return true;
    do {
      if (!value(out.array.emplace_back())) return false;
    } while (take(","));
    return take("]");
  }
  bool object(Json& out) {
    out.kind = Json::Kind::kObject;
    if (!take("{")) return false;
    if (take("}")) return true;
    do {
      std::string key;
      blanks();
      if (!string(key) || !take(":") || !value(out.object[key])) return false;
    } while (take(","));
    return take("}");
  }

  std::string_view text_;
};

}  // namespace perseus
