#include "engine/thread_affinity.h"

#include <charconv>
#include <sstream>

#include "base/pin_thread.h"
#include "observe/log.h"

namespace perseus {

Result<std::vector<int>> parse_processors(const std::string& list) {
  std::vector<int> numbers;
  std::istringstream items(list);
  std::string item;
  while (std::getline(items, item, ',')) {
    int number = -1;
    const char* end = item.data() + item.size();
    const auto [stopped_at, error] = std::from_chars(item.data(), end, number);
    if (error != std::errc() || stopped_at != end || number < 0) {
      return Status::invalid_argument("PERSEUS_THREAD_AFFINITY='" + list +
                                      "' is malformed; it takes numbers of processors from 0 on, "
                                      "separated by commas");
    }
    numbers.push_back(number);
  }
  return numbers;
}

void pin_thread(int processor) {
  if (!pin_thread_to(processor)) {
    PERSEUS_LOG(kWarning, "PERSEUS_THREAD_AFFINITY: there is no processor " << processor);
  }
}

}  // namespace perseus
