// Ends a process that broke a rule.
#pragma once

#include <cstdio>
#include <cstdlib>
#include <string>

namespace perseus::standin {

[[noreturn]] inline void fail(const std::string& what) {
  std::fprintf(stderr, "stand-in: %s\n", what.c_str());
  std::fflush(stderr);
  std::abort();
}

}  // namespace perseus::standin
