// A caller's thread may flush subnormal numbers to zero or have its own rounding mode. The engine's
// results must not depend on which thread computes them, so it sets both to the standard's default.
#pragma once

#if defined(__SSE2__)
#include <immintrin.h>
#else
#include <cfenv>
#endif

namespace perseus {

// Gives the calling thread the default floating-point environment while this exists.
class DefaultFloatEnvironment {
 public:
#if defined(__SSE2__)
  // The x87 unit keeps its settings: compilers use it for long double alone, which no tensor has.
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
