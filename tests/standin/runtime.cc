// The stand-in for CUDA's runtime library.
#include "device/cuda/runtime.h"

#include "injection.h"
#include "settings.h"

extern "C" PERSEUS_STANDIN_API int cudaRuntimeGetVersion(int* version) {
  using namespace perseus::standin;  // NOLINT
  if (const int error = injected(__func__)) return error;
  *version = settings().runtime_version;
  return 0;
}
