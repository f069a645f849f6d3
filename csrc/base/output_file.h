// Opens files for writing at paths that a user has named, such as those of PERSEUS_TIMELINE. They
// may lie in folders like /tmp, where another user can put something there first.
#pragma once

#include <chrono>
#include <string>
#include <string_view>

#include "base/file_descriptor.h"
#include "base/status.h"

namespace perseus {

// Opens `path` for writing. A file that is there keeps what it holds; otherwise it is made. It
// must not be another user's, nor have a second name, and no symbolic link on the way to it may be
// another user's (but for root's): else that user could have this one overwrite files of its own.
// Never waits, and neither do writes, so that a pipe cannot hang anybody. The error is only the
// reason.
Result<FileDescriptor> open_output_file(const std::string& path);

// Writes all of it; waits at most for `patience` at a time, for a pipe or a terminal. The error is
// only the reason.
Status write_all(const FileDescriptor& file, std::string_view bytes,
                 std::chrono::milliseconds patience = std::chrono::seconds(5));

}  // namespace perseus
