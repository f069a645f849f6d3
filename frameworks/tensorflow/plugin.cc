// The library for tf.load_op_library, which takes the ops that are registered while it loads.
#include <string>

#include "kernels.h"
#include "ops.h"
#include "tensorflow_api.h"

namespace {

std::string register_all() {
  using namespace perseus::tensorflow;  // NOLINT
  std::string wrong = find_api();
  if (wrong.empty()) wrong = register_ops();
  if (wrong.empty()) wrong = register_kernels();
  return wrong;
}

const std::string& what_is_wrong() {
  static const std::string& wrong = *new std::string(register_all());
  return wrong;
}

[[maybe_unused]] const bool has_registered = what_is_wrong().empty();

}  // namespace

// Returns why there are no ops; "" if there are.
extern "C" __attribute__((visibility("default"))) const char* perseus_tensorflow_error() {
  return what_is_wrong().c_str();
}
