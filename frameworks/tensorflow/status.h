// Turns statuses of Perseus into those of TensorFlow.
#pragma once

#include <memory>
#include <string>

#include "perseus/perseus.h"
#include "tensorflow_api.h"

namespace perseus::tensorflow {

struct DeleteStatus {
  void operator()(TF_Status* status) const { api().TF_DeleteStatus(status); }
};
using StatusHolder = std::unique_ptr<TF_Status, DeleteStatus>;

inline StatusHolder new_status() { return StatusHolder(api().TF_NewStatus()); }
inline bool is_ok(const StatusHolder& status) { return api().TF_GetCode(status.get()) == kOk; }

// Returns the codes of the errors that Horovod raises: FailedPreconditionError if ranks differ or
// init is missing, InvalidArgumentError for this rank's mistakes, UnknownError if the job cannot go
// on.
int code_of(perseus_status_t status);

}  // namespace perseus::tensorflow
