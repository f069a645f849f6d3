// The end of a call whose results the library allocates, for the caller that waits for it.
#pragma once

#include <chrono>
#include <condition_variable>
#include <mutex>
#include <string>
#include <vector>

#include "mxnet_api.h"
#include "perseus/perseus.h"

namespace perseus::mxnet {

// Any thread.
class Outcome {
 public:
  ~Outcome();

  void fail(perseus_status_t status, const std::string& message);
  // Takes results over from an operation that is complete, one of each of these types: the inputs',
  // or none where the results are in arrays of the caller's.
  void succeed(perseus_handle_t handle, const std::vector<dlpack::DataType>& types);

  // PERSEUS_IN_PROGRESS when the time ends first.
  perseus_status_t wait_for(std::chrono::milliseconds time);
  // Once it has ended:
  const std::string& message() const { return message_; }
  // A result as an array of MXNet's, which owns it from then on; null for one without elements.
  // False, and MXNet has a message, if it cannot.
  bool take(int index, NDArrayHandle* array);
  const std::vector<int64_t>& shape(int index) const { return results_[index].shape; }
  const std::vector<int64_t>& received_splits() const { return received_splits_; }

 private:
  struct Result {
    void* data;
    std::vector<int64_t> shape;
    dlpack::Device device;
    dlpack::DataType type;
  };

  void end(perseus_status_t status, const std::string& message);

  std::mutex mutex_;
  std::condition_variable has_ended_;
  perseus_status_t status_ = PERSEUS_IN_PROGRESS;
  std::string message_;
  std::vector<Result> results_;
  std::vector<int64_t> received_splits_;
};

}  // namespace perseus::mxnet
