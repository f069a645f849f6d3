#include "capi/c_status.h"

#include <cstdlib>
#include <string>
#include <string_view>

#include "capi/process.h"

namespace perseus {
namespace {

thread_local std::string last_error;

// Returns true if this process is yet to join an elastic job; see perseus_core/planned_place.py.
bool joins_later() {
  const char* meeting = std::getenv("PERSEUS_ELASTIC_MEETING");
  return meeting != nullptr && std::string_view(meeting) != "0" &&
         !Process::instance().has_tried_to_join();
}

}  // namespace

Status from_c(perseus_status_t status, const char* message) {
  if (status == PERSEUS_OK) return {};
  return {static_cast<StatusCode>(status), message};
}

KeptError::KeptError() { error_.swap(last_error); }
KeptError::~KeptError() { error_.swap(last_error); }

perseus_status_t to_c(const Status& status) {
  if (!status.is_ok()) last_error = status.message();
  return static_cast<perseus_status_t>(status.code());
}

Status not_initialized() {
  if (joins_later()) {
    return Status::not_initialized(
        "this process joins an elastic job that trains already, and is in no world before the "
        "function given to elastic.run begins; call collectives in there");
  }
  return Status::not_initialized(
      "Perseus has not been initialized, or has been shut down; call init() first");
}

}  // namespace perseus

extern "C" {

const char* perseus_last_error(void) { return perseus::last_error.c_str(); }

const char* perseus_status_name(perseus_status_t status) {
  return perseus::to_string(static_cast<perseus::StatusCode>(status)).data();
}

}  // extern "C"
