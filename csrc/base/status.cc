#include "base/status.h"

namespace perseus {

std::string_view to_string(StatusCode code) {
  switch (code) {
    case StatusCode::kOk: return "ok";
    case StatusCode::kInvalidArgument: return "invalid argument";
    case StatusCode::kNotInitialized: return "not initialized";
    case StatusCode::kAborted: return "aborted";
    case StatusCode::kMismatch: return "mismatch";
    case StatusCode::kDuplicateName: return "duplicate name";
    case StatusCode::kTimedOut: return "timed out";
    case StatusCode::kUnreachable: return "unreachable";
    case StatusCode::kUnsupported: return "unsupported";
    case StatusCode::kOutOfMemory: return "out of memory";
    case StatusCode::kInternal: return "internal error";
    case StatusCode::kInProgress: return "in progress";
    case StatusCode::kNonFinite: return "not finite";
  }
  return "unknown";
}

StatusCode error_code(uint32_t number) {
  const bool is_known = number > 0 && number <= static_cast<uint32_t>(StatusCode::kNonFinite);
  return is_known ? static_cast<StatusCode>(number) : StatusCode::kInternal;
}

const std::string& Status::message() const {
  static const std::string kEmpty;
  return error_ ? error_->message : kEmpty;
}

}  // namespace perseus
