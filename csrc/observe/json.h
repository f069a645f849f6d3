// Text inside JSON.
#pragma once

#include <string>
#include <string_view>

namespace perseus {

// Appends `text` between quotes, escaped. Bytes that are not UTF-8, which JSON must be, become
// U+FFFD. Any thread.
void append_json_string(std::string& out, std::string_view text);

}  // namespace perseus
