#include "observe/counters.h"

namespace perseus {

void visit_counters(
    const Counters& counters,
    const std::function<void(const char* name, const char* meaning, uint64_t value)>& visit) {
#define PERSEUS_VISIT_COUNTER(name, meaning) visit(#name, meaning, counters.name.value());
  PERSEUS_COUNTERS(PERSEUS_VISIT_COUNTER)
#undef PERSEUS_VISIT_COUNTER
}

}  // namespace perseus
