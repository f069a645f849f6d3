#include "observe/counters.h"

namespace perseus {

void visit_counters(const Counters& counters,
                    const std::function<void(const char* name, uint64_t value)>& visit) {
#define COUNTER(name, help) visit(#name, counters.name.value());
#define MESH_COUNTER(name, help)
#include "observe/counters_table.inc"
#undef COUNTER
#undef MESH_COUNTER
}

}  // namespace perseus
