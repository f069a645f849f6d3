// What Perseus asks of CUDA's runtime library, which frameworks and NCCL are built on: its version,
// since one that is newer than the driver fails in their hands. All work goes by the driver.
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
