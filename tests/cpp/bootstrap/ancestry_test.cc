#include "bootstrap/ancestry.h"

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <functional>
#include <string>

namespace perseus {
namespace {

constexpr const char* kName = "PERSEUS_ANCESTRY_TEST";

int age(const char* name) { return Ancestry().age(name, std::getenv(name)); }

// Runs it in a forked child, and returns the child's exit status.
int in_child(const std::function<int()>& body) {
  const pid_t child = fork();
  if (child == 0) _exit(body());
  int status = 0;
  waitpid(child, &status, 0);
  return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

TEST(Ancestry, WhatThisProcessHasSetIsNew) {
  setenv(kName, "here", 1);
  EXPECT_EQ(age(kName), 0);
  EXPECT_EQ(in_child([] { return age(kName); }), 0);  // its program is the same
  unsetenv(kName);
}

TEST(Ancestry, WhatTheProcessWasStartedWithIsOlder) {
  ASSERT_NE(std::getenv("PATH"), nullptr);
  const int before = age("PATH");
  EXPECT_GE(before, 1);
  EXPECT_EQ(in_child([] { return age("PATH"); }), before + 1);
  const std::string old = std::getenv("PATH");
  setenv("PATH", (old + ":/more").c_str(), 1);
  EXPECT_EQ(age("PATH"), 0);
  setenv("PATH", old.c_str(), 1);
  EXPECT_EQ(age("PATH"), before);
}

TEST(Ancestry, ThePartOfANameOrValueIsNotTheWhole) {
  const std::string path = std::getenv("PATH");
  EXPECT_EQ(Ancestry().age("ATH", path), 0);
  EXPECT_EQ(Ancestry().age("PATH", path.substr(0, path.size() - 1)), 0);
}

}  // namespace
}  // namespace perseus
