#include "status.h"

namespace perseus::tensorflow {

int code_of(perseus_status_t status) {
  switch (status) {
    case PERSEUS_OK: return kOk;
    case PERSEUS_INVALID_ARGUMENT:
    case PERSEUS_DUPLICATE_NAME:
    case PERSEUS_NON_FINITE: return kInvalidArgument;
    case PERSEUS_NOT_INITIALIZED:
    case PERSEUS_MISMATCH: return kFailedPrecondition;
    case PERSEUS_UNSUPPORTED: return kUnimplemented;
    case PERSEUS_OUT_OF_MEMORY: return kResourceExhausted;
    case PERSEUS_TIMED_OUT: return kDeadlineExceeded;
    case PERSEUS_UNREACHABLE: return kUnavailable;
    case PERSEUS_INTERNAL: return kInternal;
    default: return kUnknown;
  }
}

}  // namespace perseus::tensorflow
