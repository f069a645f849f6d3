#include "base/large_memory.h"

#include <sys/mman.h>
#include <unistd.h>

#include <cstdint>
#include <cstdlib>

namespace perseus {
namespace {

constexpr size_t kHugePage = 2 << 20;
constexpr size_t kLarge = 2 * kHugePage;

}  // namespace

std::byte* allocate_large(size_t bytes) {
  if (bytes < kLarge) return static_cast<std::byte*>(std::malloc(bytes));
  const size_t whole_pages = (bytes + kHugePage - 1) / kHugePage * kHugePage;
  if (whole_pages < bytes) return nullptr;
  void* memory = std::aligned_alloc(kHugePage, whole_pages);
  if (memory != nullptr) prefer_huge_pages(memory, bytes);
  return static_cast<std::byte*>(memory);
}

void prefer_huge_pages(void* memory, size_t bytes) {
  if (bytes < kLarge) return;
  static const auto page = static_cast<uintptr_t>(sysconf(_SC_PAGESIZE));
  const uintptr_t begin = (reinterpret_cast<uintptr_t>(memory) + page - 1) / page * page;
  const uintptr_t end = (reinterpret_cast<uintptr_t>(memory) + bytes) / page * page;
  // An error is harmless: without huge pages this only takes longer.
  madvise(reinterpret_cast<void*>(begin), end - begin, MADV_HUGEPAGE);
}

}  // namespace perseus
