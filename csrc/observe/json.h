// Writes JSON strings.
#pragma once

#include <string>
#include <string_view>

namespace perseus {

// Appends `text` in quotes, escaped. Bytes that are not valid UTF-8, as JSON requires, become
// U+FFFD. Any thread.
void append_json_string(std::string& out, std::string_view text);

}  // namespace perseus
