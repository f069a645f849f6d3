// Memory for large results. The kernel provides fresh memory page by page, which for a result of
// many MiB takes several times as long as moving the data. With pages of 2 MiB it takes a fifth.
#pragma once

#include <cstddef>

namespace perseus {

// Like malloc: to be freed with free(), null if memory has run out. Asks for huge pages if large.
std::byte* allocate_large(size_t bytes);

// Asks the kernel for huge pages for memory that is about to be written as a whole, if it is large.
void prefer_huge_pages(void* memory, size_t bytes);

}  // namespace perseus
