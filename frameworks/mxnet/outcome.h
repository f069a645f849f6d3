// The outcome of a call, for a caller that waits for it.
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
  // Takes over the results of a complete operation, one for each of these types. The types are
  // those of the inputs; there are none if the results are in the caller's arrays.
  void succeed(perseus_handle_t handle, const std::vector<dlpack::DataType>& types);

  // Returns PERSEUS_IN_PROGRESS if the time ends first.
  perseus_status_t wait_for(std::chrono::milliseconds time);
  // The rest only once the call has ended.
  const std::string& message() const { return message_; }
  // Gives a result as an array of MXNet's, which then owns it; null for one without elements.
  // Returns false if MXNet refuses; MXNet then has a message.
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
