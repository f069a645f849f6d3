#include "capi/c_status.h"

#include <string>

namespace perseus {
namespace {

thread_local std::string last_error;

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
