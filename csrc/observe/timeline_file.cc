#include "observe/timeline_file.h"

#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <utility>

#include "base/output_file.h"
#include "observe/json.h"

namespace perseus {

Status TimelineFile::failed(const char* what, const Status& why) const {
  return Status::invalid_argument("timeline file '" + path_ + "' cannot be " + what + ": " +
                                  why.message());
}

Status TimelineFile::open(const std::string& path) {
  path_ = path;
  Result<FileDescriptor> opened = open_output_file(path);
  if (!opened.is_ok()) return failed("opened for writing", opened.status());
  file_ = std::move(opened).value();
  return {};
}

Status TimelineFile::begin() {
  // Pipes and terminals cannot be truncated, and need not be.
  if (ftruncate(file_.get(), 0) != 0 && errno != EINVAL) {
    return failed("emptied", Status::invalid_argument(std::strerror(errno)));
  }
  text_ = "[";
  // Row 0 is common to all tensors. Horovod's readers look for the start time in its arguments.
  const auto since_epoch = std::chrono::system_clock::now().time_since_epoch();
  const auto start = std::chrono::duration_cast<std::chrono::microseconds>(since_epoch).count();
  begin_record();
  text_ += R"({"ph":"M","pid":0,"name":"process_name","args":{"name":"perseus",)";
  text_ += R"("start_time_since_epoch_in_micros":)" + std::to_string(start) + "}}";
  return flush();
}

// The comma goes before a record, so that at any moment the file lacks only its closing bracket.
void TimelineFile::begin_record() {
  text_ += empty_ ? "\n" : ",\n";
  empty_ = false;
}

TimelineFile::Row& TimelineFile::row_of(std::string_view tensor) {
  if (auto found = rows_.find(tensor); found != rows_.end()) return found->second;
  const int pid = tensor.empty() ? 0 : static_cast<int>(rows_.size()) + 1;
  if (pid != 0) {
    begin_record();
    const std::string number = std::to_string(pid);
    text_ += R"({"ph":"M","pid":)" + number + R"(,"name":"process_name","args":{"name":)";
    append_json_string(text_, tensor);
    text_ += "}}";
    begin_record();
    text_ += R"({"ph":"M","pid":)" + number +
             R"(,"name":"process_sort_index","args":{"sort_index":)" + number + "}}";
  }
  return rows_.emplace(tensor, Row{pid, {}, {}}).first->second;
}

void TimelineFile::name_lane(Row& row, size_t tid, int lane) {
  row.named[tid] = true;
  begin_record();
  text_ += R"({"ph":"M","pid":)" + std::to_string(row.pid) + R"(,"tid":)" + std::to_string(tid) +
           R"(,"name":"thread_name","args":{"name":"stream )" + std::to_string(lane) + R"("}})";
}

void TimelineFile::add(const TimelineEvent& event) {
  Row& row = row_of(event.tensor);
  const size_t tid = event.lane < 0 ? 0 : static_cast<size_t>(event.lane) + 1;
  if (tid >= row.depth.size()) {
    row.depth.resize(tid + 1, 0);
    row.named.resize(tid + 1, false);
  }
  if (event.phase == 'E') {
    if (row.depth[tid] == 0) return;
    --row.depth[tid];
  } else if (event.phase == 'B') {
    ++row.depth[tid];
  }
  if (tid > 0 && !row.named[tid]) name_lane(row, tid, event.lane);

  char head[128];
  snprintf(head, sizeof(head), R"({"ph":"%c","pid":%d,"tid":%zu,"ts":%lld.%03d)", event.phase,
           row.pid, tid, static_cast<long long>(event.time_ns / 1000),
           static_cast<int>(event.time_ns % 1000));
  begin_record();
  text_ += head;
  if (event.phase != 'E') {
    text_ += R"(,"name":)";
    append_json_string(text_, event.activity);
  }
  // An instant without a tensor is drawn across all rows, a tensor's on its own row.
  if (event.phase == 'i') text_ += event.tensor.empty() ? R"(,"s":"g")" : R"(,"s":"p")";
  if (!event.args.empty()) {
    text_ += R"(,"args":)";
    text_ += event.args;
  }
  text_ += '}';
}

Status TimelineFile::flush() {
  const Status written = write_all(file_, text_);
  text_.clear();
  return written.is_ok() ? written : failed("written", written);
}

Status TimelineFile::finish() {
  text_ += "\n]\n";
  PERSEUS_RETURN_IF_ERROR(flush());
  file_.reset();
  return {};
}

}  // namespace perseus
