#include "engine/thread_affinity.h"

#include <gtest/gtest.h>

namespace perseus {
namespace {

TEST(ThreadAffinity, IsAListOfProcessors) {
  EXPECT_EQ(parse_processors("").value(), std::vector<int>{});
  EXPECT_EQ(parse_processors("3").value(), std::vector<int>{3});
  EXPECT_EQ(parse_processors("0,2,1").value(), (std::vector<int>{0, 2, 1}));
}

TEST(ThreadAffinity, AMalformedListIsAnErrorThatNamesTheSetting) {
  for (const char* list : {"a", "1,b", "-1", "1.5", "1 ,2", "99999999999"}) {
    const auto found = parse_processors(list);
    ASSERT_FALSE(found.is_ok()) << list;
    EXPECT_EQ(found.status().code(), StatusCode::kInvalidArgument);
    EXPECT_NE(found.status().message().find("PERSEUS_THREAD_AFFINITY='" + std::string(list)),
              std::string::npos);
  }
}

}  // namespace
}  // namespace perseus
