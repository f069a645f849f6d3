#include "engine/process_set.h"

#include "engine/nccl_group.h"

namespace perseus {

ProcessSet::ProcessSet() = default;
ProcessSet::~ProcessSet() = default;

}  // namespace perseus
