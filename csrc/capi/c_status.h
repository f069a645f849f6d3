// A Status as perseus.h gives it: a code, and the message that perseus_last_error returns.
#pragma once

#include <string>

#include "base/status.h"
#include "perseus/perseus.h"

namespace perseus {

// The result of a perseus.h call as a Status.
Status from_c(perseus_status_t status, const char* message);
// Keeps perseus_last_error's message across a callback that runs within a call and may change it.
class KeptError {
 public:
  KeptError();
  KeptError(const KeptError&) = delete;
  ~KeptError();

 private:
  std::string error_;
};
// Stores the message for perseus_last_error and returns the code.
perseus_status_t to_c(const Status& status);
Status not_initialized();

}  // namespace perseus
