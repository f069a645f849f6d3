// How floating-point numbers are added: a caller's thread may flush what is subnormal to zero, or
// round its own way, and what the engine reduces must not depend on whose thread does it.
#pragma once

#if defined(__SSE2__)
#include <immintrin.h>
#else
#include <cfenv>
#endif

namespace perseus {

// The standard's for the calling thread, while this lives.
class DefaultFloatEnvironment {
 public:
#if defined(__SSE2__)
  // Compilers use the x87 for long double alone, which no tensor has.
  DefaultFloatEnvironment() : before_(_mm_getcsr()) { _mm_setcsr(kDefault); }
  ~DefaultFloatEnvironment() { _mm_setcsr(before_); }
#else
  DefaultFloatEnvironment() {
    std::fegetenv(&before_);
    std::fesetenv(FE_DFL_ENV);
  }
  ~DefaultFloatEnvironment() { std::fesetenv(&before_); }
#endif
  DefaultFloatEnvironment(const DefaultFloatEnvironment&) = delete;

 private:
#if defined(__SSE2__)
  static constexpr unsigned kDefault = _MM_MASK_MASK | _MM_ROUND_NEAREST | _MM_FLUSH_ZERO_OFF;
  const unsigned before_;
#else
  std::fenv_t before_;
#endif
};

}  // namespace perseus
