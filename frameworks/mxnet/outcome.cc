#include "outcome.h"

#include <memory>
#include <utility>

namespace perseus::mxnet {
namespace {

// Owned by MXNet for a result; freed with the last array that shows it.
struct Lent {
  dlpack::ManagedTensor managed{};
  std::vector<int64_t> shape;
};

void give_back(dlpack::ManagedTensor* managed) {
  perseus_free(managed->tensor.data);
  delete static_cast<Lent*>(managed->context);
}

}  // namespace

Outcome::~Outcome() {
  for (const Result& result : results_) perseus_free(result.data);
}

void Outcome::fail(perseus_status_t status, const std::string& message) { end(status, message); }

void Outcome::succeed(perseus_handle_t handle, const std::vector<dlpack::DataType>& types) {
  for (size_t i = 0; i < types.size(); ++i) {
    const int index = static_cast<int>(i);
    perseus_result_t result{};
    result.struct_size = sizeof(result);
    if (perseus_result(handle, index, &result) != PERSEUS_OK) {
      return end(PERSEUS_INTERNAL, perseus_last_error());
    }
    const bool is_on_gpu = result.device == PERSEUS_CUDA;
    results_.push_back(
        {perseus_take_result(handle, index),
         {result.shape, result.shape + result.rank},
         {is_on_gpu ? dlpack::kCuda : dlpack::kCpu, is_on_gpu ? result.device_index : 0},
         types[i]});
    received_splits_.assign(result.received_splits,
                            result.received_splits + result.received_split_count);
  }
  end(PERSEUS_OK, "");
}

void Outcome::end(perseus_status_t status, const std::string& message) {
  const std::lock_guard lock(mutex_);
  if (status_ != PERSEUS_IN_PROGRESS) return;
  message_ = message;
  status_ = status;
  has_ended_.notify_all();
}

perseus_status_t Outcome::wait_for(std::chrono::milliseconds time) {
  std::unique_lock lock(mutex_);
  has_ended_.wait_for(lock, time, [this] { return status_ != PERSEUS_IN_PROGRESS; });
  return status_;
}

bool Outcome::take(int index, NDArrayHandle* array) {
  Result& result = results_[index];
  *array = nullptr;
  if (result.data == nullptr) return true;
  auto lent = std::make_unique<Lent>();
  lent->shape = result.shape;
  lent->managed.tensor = {result.data,
                          result.device,
                          static_cast<int32_t>(result.shape.size()),
                          result.type,
                          lent->shape.data(),
                          nullptr,
                          0};
  lent->managed.context = lent.get();
  lent->managed.deleter = give_back;
  if (api().MXNDArrayFromDLPackEx(&lent->managed, false, array) != 0) return false;
  lent.release();
  result.data = nullptr;
  return true;
}

}  // namespace perseus::mxnet
