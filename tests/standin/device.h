// The devices and each thread's current one.
#pragma once

#include "device/cuda/driver.h"
#include "standin.h"

namespace perseus::standin {

inline constexpr CuResult kInvalidValue = 1;
inline constexpr CuResult kNotInitialized = 3;
inline constexpr CuResult kNoDevice = 100;
inline constexpr CuResult kInvalidDevice = 101;
inline constexpr CuResult kInvalidContext = 201;
inline constexpr CuResult kInvalidHandle = 400;
inline constexpr CuResult kNotFound = 500;

enum class Needs { kNothing, kInit, kContext };

// Called first by every exported function: returns an injected error, or that of a missing
// precondition.
CuResult enter(const char* function, Needs needs);

// The device of the current context; -1 if there is none.
PERSEUS_STANDIN_API int current_device();
PERSEUS_STANDIN_API CuUuid uuid_of(int device);

}  // namespace perseus::standin
