#include "base/thread_placement.h"

#include <gtest/gtest.h>

namespace perseus {
namespace {

TEST(ThreadAffinity, IsAListOfProcessors) {
  for (const auto& [text, processors] : {std::pair{"none", std::vector<int>{}},
                                         {"", std::vector<int>{}},
                                         {"3", std::vector<int>{3}},
                                         {"0,2,1", std::vector<int>{0, 2, 1}}}) {
    const auto affinity = parse_thread_affinity(text);
    ASSERT_TRUE(affinity.is_ok()) << text;
    EXPECT_EQ(affinity.value().processors, processors);
    EXPECT_FALSE(affinity.value().is_automatic);
  }
}

TEST(ThreadAffinity, MayBeAutomatic) {
  const auto affinity = parse_thread_affinity("auto");
  ASSERT_TRUE(affinity.is_ok());
  EXPECT_TRUE(affinity.value().is_automatic);
  EXPECT_TRUE(affinity.value().processors.empty());
}

TEST(ThreadAffinity, AMalformedListIsAnErrorThatNamesTheSetting) {
  for (const char* list : {"a", "1,b", "-1", "1.5", "1 ,2", "99999999999", "auto,1", "Auto"}) {
    const auto found = parse_thread_affinity(list);
    ASSERT_FALSE(found.is_ok()) << list;
    EXPECT_EQ(found.status().code(), StatusCode::kInvalidArgument);
    EXPECT_EQ(
        found.status().message(),
        "PERSEUS_THREAD_AFFINITY='" + std::string(list) +
            "' is malformed; it takes auto, none, or numbers of processors from 0 on, separated by "
            "commas");
    EXPECT_EQ(check_thread_placement(list, "").message(), found.status().message());
  }
}

TEST(CacheGroups, AreANumberForEachRank) {
  EXPECT_EQ(parse_cache_groups("").value(), std::vector<int>{});
  EXPECT_EQ(parse_cache_groups("0,0,3,3").value(), (std::vector<int>{0, 0, 3, 3}));
}

TEST(CacheGroups, AMalformedListIsAnErrorThatNamesTheSetting) {
  for (const char* list : {"auto", "0,-1", "0;1"}) {
    const auto found = parse_cache_groups(list);
    ASSERT_FALSE(found.is_ok()) << list;
    EXPECT_EQ(found.status().code(), StatusCode::kInvalidArgument);
    EXPECT_NE(found.status().message().find("PERSEUS_CACHE_GROUPS='" + std::string(list) +
                                            "' is malformed; it takes a number for each rank"),
              std::string::npos);
    EXPECT_EQ(check_thread_placement("0", list).message(), found.status().message());
  }
}

}  // namespace
}  // namespace perseus
