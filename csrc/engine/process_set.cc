#include "engine/process_set.h"

#include <string>

#include "engine/nccl_group.h"

namespace perseus {

ProcessSet::ProcessSet() = default;
ProcessSet::~ProcessSet() = default;

Status set_is_gone(int32_t id, std::string_view how) {
  return Status::invalid_argument("process set " + std::to_string(id) + " has been " +
                                  std::string(how));
}

}  // namespace perseus
