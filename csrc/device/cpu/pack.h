// Device over ordinary memory. Stateless; any thread.
#pragma once

#include "device/device.h"

namespace perseus {

class CpuDevice final : public Device {
 public:
  PackResult pack(std::span<const Segment> segments, DataType tensor_type, DataType buffer_type,
                  double factor, void* buffer, bool check_finite) const override;
  PackResult unpack(const void* buffer, DataType buffer_type, std::span<const Segment> segments,
                    DataType tensor_type, double factor, bool check_finite) const override;
};

// The one instance.
const CpuDevice& cpu_device();

}  // namespace perseus
