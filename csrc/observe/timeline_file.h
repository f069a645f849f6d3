// The file of a timeline: takes events and writes JSON in Chrome's trace format.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "base/file_descriptor.h"
#include "base/status.h"

namespace perseus {

struct TimelineEvent {
  char phase;       // as in the trace format: 'B' begins, 'E' ends, 'i' is an instant
  int64_t time_ns;  // since the file was opened
  int lane;         // < 0: the tensor's own row
  std::string_view tensor, activity, args;
};

// One thread at a time.
class TimelineFile {
 public:
  // Does not empty the file yet, as it may be the one that another TimelineFile is writing.
  Status open(const std::string& path);
  // Empties the file and writes its head.
  Status begin();
  // Converts the event to text, which flush() writes.
  void add(const TimelineEvent& event);
  Status flush();
  // Ends the JSON array and closes the file.
  Status finish();

 private:
  // The state of one tensor in this file.
  struct Row {
    int pid;
    std::vector<int> depth;  // of nested activities, by thread id: lane + 1
    std::vector<bool> named;
  };
  Row& row_of(std::string_view tensor);
  void name_lane(Row& row, size_t tid, int lane);
  void begin_record();
  Status failed(const char* what, const Status& why) const;

  struct Hash {
    using is_transparent = void;
    size_t operator()(std::string_view text) const { return std::hash<std::string_view>()(text); }
  };
  std::unordered_map<std::string, Row, Hash, std::equal_to<>> rows_;
  std::string path_;
  std::string text_;
  FileDescriptor file_;
  bool empty_ = true;  // no record yet, so the next one needs no comma before it
};

}  // namespace perseus
