// The function of CUDA's runtime library that Perseus calls. Frameworks and NCCL are built on that
// library, and fail if it is newer than the driver, so its version is checked. All work goes
// through the driver.
#pragma once

namespace perseus {

// X(member, name in the library, parameters); all return 0 on success.
#define PERSEUS_CUDA_RUNTIME_FUNCTIONS(X) X(runtime_version, cudaRuntimeGetVersion, (int* version))

struct CudaRuntime {
#define PERSEUS_MEMBER(member, name, parameters) int(*member) parameters = nullptr;
  PERSEUS_CUDA_RUNTIME_FUNCTIONS(PERSEUS_MEMBER)
#undef PERSEUS_MEMBER
};

}  // namespace perseus
