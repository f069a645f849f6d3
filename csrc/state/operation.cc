#include "state/operation.h"

namespace perseus {

Status status_for(const Operation& operation, Status why) {
  const bool is_of_message = is_message(operation.description.kind);
  if (is_of_message && !why.is_ok()) {
    return {why.code(), title(operation.key) + ": " + why.message(), why.peer()};
  }
  const bool is_users = operation.name_id >= 0;
  if (!is_users || why.code() != StatusCode::kAborted) return why;
  return Status::aborted(title(operation.key) + ": " + why.message());
}

}  // namespace perseus
