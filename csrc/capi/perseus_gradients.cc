// perseus.h: the gradients of a training loop.
#include <algorithm>
#include <cstddef>
#include <cstring>
#include <string>

#include "capi/c_status.h"
#include "capi/checked_submission.h"
#include "capi/gradients.h"
#include "capi/waiting.h"
#include "observe/log.h"

using perseus::Gradients;
using perseus::Status;
using perseus::to_c;

struct perseus_gradients {
  explicit perseus_gradients(const perseus_gradients_options_t& options) : gradients(options) {}
  Gradients gradients;
};

namespace {

// The size in the first published perseus.h, when callbacks ran only in the library.
constexpr size_t kFirstOptionsSize = offsetof(perseus_gradients_options_t, callback_thread);

Status missing() { return Status::invalid_argument("the gradients are a null pointer"); }

}  // namespace

extern "C" {

perseus_status_t perseus_gradients_create(const perseus_gradients_options_t* options,
                                          perseus_gradients_t** gradients) {
  if (gradients == nullptr || (options != nullptr && options->struct_size < kFirstOptionsSize)) {
    return to_c(Status::invalid_argument(
        "the place for the gradients is missing, or the options' struct_size is not set"));
  }
  // A program that was compiled before the last fields existed gets callbacks in the library.
  perseus_gradients_options_t known{};
  known.device_index = -1;
  if (options != nullptr) {
    std::memcpy(&known, options, std::min(options->struct_size, sizeof known));
  }
  if (known.reduce_op < PERSEUS_AVERAGE || known.reduce_op > PERSEUS_BITWISE_XOR) {
    return to_c(
        Status::invalid_argument("there is no reduction " + std::to_string(known.reduce_op)));
  }
  if (const Status status = perseus::check_callback_thread(known.callback_thread);
      !status.is_ok()) {
    return to_c(status);
  }
  *gradients = new perseus_gradients(known);
  return PERSEUS_OK;
}

perseus_status_t perseus_gradients_add(perseus_gradients_t* gradients, const char* name,
                                       const perseus_tensor_t* tensor, int32_t* gradient) {
  if (gradients == nullptr) return to_c(missing());
  if (tensor == nullptr || gradient == nullptr) {
    return to_c(Status::invalid_argument("the tensor, or the place for its number, is missing"));
  }
  const auto added = gradients->gradients.add(name, *tensor);
  if (added.is_ok()) *gradient = added.value();
  return to_c(added.status());
}

perseus_status_t perseus_gradients_submit(perseus_gradients_t* gradients, int32_t gradient,
                                          void* stream) {
  return to_c(gradients == nullptr ? missing() : gradients->gradients.submit(gradient, stream));
}

perseus_status_t perseus_gradients_wait(perseus_gradients_t* gradients, int32_t gradient,
                                        int64_t time_out_ms) {
  return to_c(gradients == nullptr ? missing() : gradients->gradients.wait(gradient, time_out_ms));
}

perseus_status_t perseus_gradients_wait_all(perseus_gradients_t* gradients, int64_t time_out_ms) {
  return to_c(gradients == nullptr ? missing() : gradients->gradients.wait_all(time_out_ms));
}

perseus_status_t perseus_gradients_wait_on_stream(perseus_gradients_t* gradients, int32_t gradient,
                                                  void* stream, int64_t time_out_ms) {
  return to_c(gradients == nullptr
                  ? missing()
                  : gradients->gradients.wait_on_stream(gradient, stream, time_out_ms));
}

void perseus_gradients_destroy(perseus_gradients_t* gradients) {
  if (gradients == nullptr || gradients->gradients.is_inherited()) return;
  if (const Status status = perseus::check_may_wait(-1); !status.is_ok()) {
    PERSEUS_LOG(kError, "perseus_gradients_destroy did nothing: " << status.message());
    return;
  }
  delete gradients;
}

}  // extern "C"
