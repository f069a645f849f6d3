// The driver's stream and event functions.
#include "device.h"
#include "simulator.h"

using namespace perseus;           // NOLINT: the exported functions belong to no namespace
using namespace perseus::standin;  // NOLINT

extern "C" {

PERSEUS_STANDIN_API CuResult cuStreamCreateWithPriority(CuStream* stream, unsigned flags,
                                                        int priority) {
  if (const CuResult error = enter(__func__, Needs::kContext)) return error;
  if ((flags & ~kCuStreamNonBlocking) != 0) return kInvalidValue;
  *stream = Simulator::get().create_stream(current_device());
  return kCuSuccess;
}

PERSEUS_STANDIN_API CuResult cuStreamDestroy_v2(CuStream stream) {
  if (const CuResult error = enter(__func__, Needs::kContext)) return error;
  return Simulator::get().destroy_stream(stream) ? kCuSuccess : kInvalidHandle;
}

PERSEUS_STANDIN_API CuResult cuStreamWaitEvent(CuStream stream, CuEvent event, unsigned flags) {
  if (const CuResult error = enter(__func__, Needs::kContext)) return error;
  const auto found = Simulator::get().stream(stream, current_device());
  if (!found || Simulator::get().device_of(event) < 0) return kInvalidHandle;
  Simulator::get().wait(*found, event);
  return kCuSuccess;
}

PERSEUS_STANDIN_API CuResult cuStreamIsCapturing(CuStream stream, int* status) {
  if (const CuResult error = enter(__func__, Needs::kContext)) return error;
  const auto found = Simulator::get().stream(stream, current_device());
  if (!found) return kInvalidHandle;
  *status = found->is_capturing ? 1 : kCuNotCapturing;
  return kCuSuccess;
}

// The stand-in's captures forbid nothing, so it only stores the mode.
PERSEUS_STANDIN_API CuResult cuThreadExchangeStreamCaptureMode(int* mode) {
  if (const CuResult error = enter(__func__, Needs::kContext)) return error;
  if (*mode < 0 || *mode > kCuCaptureRelaxed) return kInvalidValue;
  thread_local int current = 0;
  std::swap(current, *mode);
  return kCuSuccess;
}

PERSEUS_STANDIN_API CuResult cuEventCreate(CuEvent* event, unsigned flags) {
  if (const CuResult error = enter(__func__, Needs::kContext)) return error;
  *event = Simulator::get().create_event(current_device());
  return kCuSuccess;
}

PERSEUS_STANDIN_API CuResult cuEventDestroy_v2(CuEvent event) {
  if (const CuResult error = enter(__func__, Needs::kContext)) return error;
  return Simulator::get().destroy_event(event) ? kCuSuccess : kInvalidHandle;
}

PERSEUS_STANDIN_API CuResult cuEventRecord(CuEvent event, CuStream stream) {
  if (const CuResult error = enter(__func__, Needs::kContext)) return error;
  const auto found = Simulator::get().stream(stream, current_device());
  if (!found || Simulator::get().device_of(event) != found->device) return kInvalidHandle;
  Simulator::get().record(event, *found);
  return kCuSuccess;
}

PERSEUS_STANDIN_API CuResult cuEventQuery(CuEvent event) {
  if (const CuResult error = enter(__func__, Needs::kContext)) return error;
  if (Simulator::get().device_of(event) < 0) return kInvalidHandle;
  return Simulator::get().query(event) ? kCuSuccess : kCuNotReady;
}

void perseus_standin_synchronize() { Simulator::get().synchronize(); }

void perseus_standin_hold(void* stream) {
  Simulator::get().stream(static_cast<CuStream>(stream), current_device())->hold();
}

void perseus_standin_release(void* stream) {
  Simulator::get().stream(static_cast<CuStream>(stream), current_device())->release();
}

void perseus_standin_set_capturing(void* stream, int capturing) {
  Simulator::get().stream(static_cast<CuStream>(stream), current_device())->is_capturing =
      capturing != 0;
}

}  // extern "C"
