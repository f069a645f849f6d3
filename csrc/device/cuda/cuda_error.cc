#include "device/cuda/cuda_error.h"

#include <string>

namespace perseus {

Status cuda_status(const CudaDriver& driver, CuResult result, std::string_view what) {
  if (result == kCuSuccess) return {};
  const char* name = nullptr;
  const char* text = nullptr;
  // Older drivers do not know every error of newer ones.
  if (driver.error_name(result, &name) != kCuSuccess || name == nullptr) name = "unknown error";
  if (driver.error_text(result, &text) != kCuSuccess || text == nullptr) text = "no description";
  std::string message = "CUDA failed while " + std::string(what) + ": " + name + " (" +
                        std::to_string(result) + "): " + text;
  if (result == kCuOutOfMemory) return Status::out_of_memory(std::move(message));
  return Status::internal(std::move(message));
}

}  // namespace perseus
