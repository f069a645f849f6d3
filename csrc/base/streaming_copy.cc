#include "base/streaming_copy.h"

#include <algorithm>
#include <cstdint>
#include <cstring>

#ifdef __SSE2__
#include <emmintrin.h>
#endif

namespace perseus {

#ifdef __SSE2__

void streaming_copy(void* target, const void* source, size_t bytes) {
  constexpr size_t kLine = 64;
  auto* to = static_cast<std::byte*>(target);
  const auto* from = static_cast<const std::byte*>(source);
  const size_t head =
      std::min<size_t>(bytes, (kLine - reinterpret_cast<uintptr_t>(to) % kLine) % kLine);
  std::memcpy(to, from, head);
  const size_t lines = (bytes - head) / kLine;
  to += head;
  from += head;
  for (size_t i = 0; i < lines; ++i, to += kLine, from += kLine) {
    const auto* in = reinterpret_cast<const __m128i*>(from);
    auto* out = reinterpret_cast<__m128i*>(to);
    // A whole line at once, so that it leaves the write-combining buffer whole.
    const __m128i quarters[4] = {_mm_loadu_si128(in), _mm_loadu_si128(in + 1),
                                 _mm_loadu_si128(in + 2), _mm_loadu_si128(in + 3)};
    for (int quarter = 0; quarter < 4; ++quarter)
      _mm_stream_si128(out + quarter, quarters[quarter]);
  }
  std::memcpy(to, from, bytes - head - lines * kLine);
  // Streaming stores are not ordered by the store that later publishes the result.
  _mm_sfence();
}

#else

void streaming_copy(void* target, const void* source, size_t bytes) {
  std::memcpy(target, source, bytes);
}

#endif

}  // namespace perseus
