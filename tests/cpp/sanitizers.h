// The sanitizer that these tests are compiled with. g++ and clang++ have different ways to tell.
#pragma once

#ifdef __has_feature
#define PERSEUS_CLANG_HAS(feature) __has_feature(feature)
#else
#define PERSEUS_CLANG_HAS(feature) 0
#endif

#if defined(__SANITIZE_ADDRESS__) || PERSEUS_CLANG_HAS(address_sanitizer)
#define PERSEUS_ADDRESS_SANITIZER 1
#include <sanitizer/asan_interface.h>
#else
#define PERSEUS_ADDRESS_SANITIZER 0
#endif

#if defined(__SANITIZE_THREAD__) || PERSEUS_CLANG_HAS(thread_sanitizer)
#define PERSEUS_THREAD_SANITIZER 1
#else
#define PERSEUS_THREAD_SANITIZER 0
#endif

namespace perseus::test {

inline constexpr bool kIsSanitized = PERSEUS_ADDRESS_SANITIZER || PERSEUS_THREAD_SANITIZER;

}  // namespace perseus::test
