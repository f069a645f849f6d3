// Memory for large results. Fresh memory is given by the kernel page by page, which for a result of
// many MiB takes several times as long as moving it; with pages of 2 MiB, a fifth of that.
#pragma once

#include <cstddef>

namespace perseus {

// As malloc, for free(); null if there is none. Large memory prefers huge pages.
std::byte* allocate_large(size_t bytes);

// Tells the kernel so of memory that is about to be written as a whole, if it is large.
void prefer_huge_pages(void* memory, size_t bytes);

}  // namespace perseus
