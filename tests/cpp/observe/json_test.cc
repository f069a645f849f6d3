#include "observe/json.h"

#include <gtest/gtest.h>

#include <string>

namespace perseus {
namespace {

std::string quoted(std::string_view text) {
  std::string out;
  append_json_string(out, text);
  return out;
}

TEST(JsonStringTest, EscapesQuotesBackslashesAndControls) {
  EXPECT_EQ(quoted("layer1.weight"), R"("layer1.weight")");
  EXPECT_EQ(quoted(R"(a"b\c)"), R"("a\"b\\c")");
  EXPECT_EQ(quoted(std::string_view("\n\0\x1f\x7f", 4)), R"("\u000a\u0000\u001f\u007f")");
}

TEST(JsonStringTest, KeepsWellFormedUtf8) {
  EXPECT_EQ(quoted("größe 重み \xF0\x9F\x8E\x88"), "\"größe 重み \xF0\x9F\x8E\x88\"");
}

TEST(JsonStringTest, ReplacesWhatIsNotUtf8) {
  EXPECT_EQ(quoted("a\xFFz"), R"("a\ufffdz")");
  EXPECT_EQ(quoted("\xC3"), R"("\ufffd")");                                // cut short
  EXPECT_EQ(quoted("\xC0\xAF"), R"("\ufffd\ufffd")");                      // overlong
  EXPECT_EQ(quoted("\xED\xA0\x80"), R"("\ufffd\ufffd\ufffd")");            // a surrogate
  EXPECT_EQ(quoted("\xF4\x90\x80\x80"), R"("\ufffd\ufffd\ufffd\ufffd")");  // beyond U+10FFFF
}

}  // namespace
}  // namespace perseus
