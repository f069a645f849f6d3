// How long ago the variables in this process's environment were set. A launcher sets its variables
// when it starts a process, and whatever that process starts inherits them. So of two launchers,
// the inner one is the one whose variables are younger.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace perseus {

// Reads in /proc about this process and those that it descends from. One thread at a time.
class Ancestry {
 public:
  // Returns how many generations ago the variable got this value: 0 if this process has set it
  // since its program began, 1 if the process had it from its beginning but its parent had not, 2
  // if the parent had it, too, and so on. Processes that cannot be read, such as other users', end
  // the search: nothing is older than the first of them.
  int age(std::string_view name, std::string_view value);

 private:
  // Reads one generation more. Returns false if there is none, or it cannot be read.
  bool read_next();

  // "NAME=value" strings, each with a zero byte before and after it. The first is this process's.
  std::vector<std::string> environments_;
  std::string process_ = "self";  // the next one to read; empty: there is none
};

}  // namespace perseus
