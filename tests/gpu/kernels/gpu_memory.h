// Memory of the GPU and a stream, for a program that ends at the first error.
#pragma once

#include <cstddef>
#include <memory>
#include <string>

#include "device/cuda/gpu.h"

namespace perseus::gpu_check {

[[noreturn]] void fail(const std::string& what);
void require(const Status& status);

// GPU 0, whose context becomes the calling thread's, with a stream.
class Machine {
 public:
  // is_standin: the stand-in has kernels of its own, even if this build has none.
  explicit Machine(bool is_standin);
  Machine(const Machine&) = delete;

  const CudaDriver& driver() const { return gpu_->driver(); }
  const MoveKernels& kernels() const { return *kernels_; }
  const std::string& name() const { return gpu_->name(); }
  CuStream stream() const { return stream_; }
  // Ends the program with the driver's error, unless the result is a success.
  void check(CuResult result, const std::string& what) const;
  // Waits until the stream has done all its work.
  void synchronize() const;

 private:
  Gpu* const gpu_;
  const CurrentContext current_;
  CuStream stream_ = nullptr;
  CuEvent event_ = nullptr;
  std::unique_ptr<MoveKernels> of_standin_;
  const MoveKernels* kernels_;
};

class DeviceMemory {
 public:
  // Not written to, so that initcheck sees reads of uninitialised memory.
  DeviceMemory(const Machine& machine, size_t bytes);
  DeviceMemory(DeviceMemory&& other) noexcept;
  DeviceMemory& operator=(DeviceMemory&&) = delete;
  ~DeviceMemory();
  // Empty if the GPU does not have as much.
  static DeviceMemory if_there_is(const Machine& machine, size_t bytes);

  explicit operator bool() const { return address_ != 0; }
  std::byte* data() const { return reinterpret_cast<std::byte*>(address_); }
  size_t bytes() const { return bytes_; }
  // These return when the copy is done.
  void fill(unsigned char value) const;
  void write(size_t at, const void* source, size_t bytes) const;
  void read(size_t at, void* target, size_t bytes) const;

 private:
  DeviceMemory(const Machine& machine, CuPointer address, size_t bytes)
      : machine_(&machine), address_(address), bytes_(bytes) {}

  const Machine* machine_;
  CuPointer address_;
  size_t bytes_;
};

}  // namespace perseus::gpu_check
