#include "kernels/gpu_memory.h"

#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <utility>
#include <vector>

#include "device/cuda/cuda_error.h"

namespace perseus::gpu_check {
namespace {

Gpu* first_gpu() {
  const char* folders = std::getenv("PERSEUS_CUDA_LIBRARY_PATH");
  const Result<Gpu*> gpu = Gpu::get(folders != nullptr ? folders : "", 0);
  require(gpu.status());
  return gpu.value();
}

}  // namespace

void fail(const std::string& what) {
  std::fflush(stdout);
  std::fprintf(stderr, "gpu_kernels: %s\n", what.c_str());
  std::exit(1);
}

void require(const Status& status) {
  if (!status.is_ok()) fail(status.message());
}

Machine::Machine(bool is_standin) : gpu_(first_gpu()), current_(*gpu_), kernels_(gpu_->kernels()) {
  require(current_.status());
  check(driver().create_stream(&stream_, kCuStreamNonBlocking, 0), "making a stream");
  check(driver().create_event(&event_, kCuEventDisableTiming), "making an event");
  if (is_standin && kernels_ == nullptr) {
    const std::byte any_image[1] = {};
    auto loaded = MoveKernels::load(driver(), any_image);
    require(loaded.status());
    of_standin_ = std::move(loaded).value();
    kernels_ = of_standin_.get();
  }
  if (kernels_ == nullptr) fail("no kernels: " + gpu_->why_no_kernels());
}

void Machine::check(CuResult result, const std::string& what) const {
  require(cuda_status(driver(), result, what));
}

void Machine::synchronize() const {
  check(driver().record_event(event_, stream_), "recording an event");
  CuResult state = kCuNotReady;
  while ((state = driver().query_event(event_)) == kCuNotReady) {
  }
  check(state, "the GPU's work");
}

DeviceMemory::DeviceMemory(const Machine& machine, size_t bytes)
    : DeviceMemory(if_there_is(machine, bytes)) {
  if (!*this) fail("the GPU has not as much memory as " + std::to_string(bytes) + " bytes");
}

DeviceMemory::DeviceMemory(DeviceMemory&& other) noexcept
    : machine_(other.machine_), address_(std::exchange(other.address_, 0)), bytes_(other.bytes_) {}

DeviceMemory::~DeviceMemory() {
  if (address_ != 0) machine_->check(machine_->driver().free(address_), "freeing memory");
}

DeviceMemory DeviceMemory::if_there_is(const Machine& machine, size_t bytes) {
  CuPointer address = 0;
  const CuResult made = machine.driver().allocate(&address, bytes > 0 ? bytes : 1);
  if (made == kCuOutOfMemory) return {machine, 0, 0};
  machine.check(made, "allocating memory");
  return {machine, address, bytes};
}

void DeviceMemory::fill(unsigned char value) const {
  const std::vector<unsigned char> first(std::min(bytes_, size_t{1} << 20), value);
  write(0, first.data(), first.size());
  // Each copy doubles what is filled.
  for (size_t filled = first.size(); filled < bytes_;) {
    const size_t bytes = std::min(filled, bytes_ - filled);
    machine_->check(
        machine_->driver().copy_on_device(address_ + filled, address_, bytes, machine_->stream()),
        "filling");
    filled += bytes;
  }
  machine_->synchronize();
}

void DeviceMemory::write(size_t at, const void* source, size_t bytes) const {
  if (bytes == 0) return;
  machine_->check(
      machine_->driver().copy_to_device(address_ + at, source, bytes, machine_->stream()),
      "copying to the GPU");
  machine_->synchronize();
}

void DeviceMemory::read(size_t at, void* target, size_t bytes) const {
  if (bytes == 0) return;
  machine_->check(machine_->driver().copy_to_host(target, address_ + at, bytes, machine_->stream()),
                  "copying from the GPU");
  machine_->synchronize();
}

}  // namespace perseus::gpu_check
