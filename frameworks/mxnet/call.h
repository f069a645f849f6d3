// One operation that the ranks do together, as an operation of MXNet's engine: it runs once the
// arrays are ready, and those who use them next wait for its end.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "mxnet_api.h"
#include "outcome.h"
#include "perseus/perseus.h"
#include "turns.h"

// What perseus_mxnet_push takes.
struct perseus_mxnet_call_t {
  int32_t id;  // of the name
  perseus_operation_t operation;
  perseus_reduce_op_t reduce_op;
  int32_t root;
  int32_t priority;  // of MXNet's engine and of Perseus's
  double prescale;
  double postscale;
  const int64_t* splits;
  int32_t split_count;
  int32_t array_count;
  const perseus::mxnet::NDArrayHandle* inputs;
  // In place of which nullptr: the library allocates results, for which the caller waits.
  const perseus::mxnet::NDArrayHandle* outputs;
  // MXNet's engine is the naive one, which runs what it is given at once and hears of no errors:
  // the caller asks for them.
  int32_t is_naive;
};

namespace perseus::mxnet {

struct FreeArray {
  void operator()(void* array) const { api().MXNDArrayFree(array); }
};
using Array = std::unique_ptr<void, FreeArray>;

struct FreeTensor {
  void operator()(dlpack::ManagedTensor* tensor) const { api().MXNDArrayCallDLPackDeleter(tensor); }
};
using Tensor = std::unique_ptr<dlpack::ManagedTensor, FreeTensor>;

// This rank's call of the name with this id has failed before it was pushed: the other ranks are
// told, when its turn comes.
void refuse(int32_t id, const std::string& reason);

// Made on the caller's thread, runs on one of MXNet's, completes on one of Perseus's; MXNet's
// engine frees it then, or without having run it if an operation that it needs has failed.
class Call {
 public:
  // Hands it to MXNet's engine. `outcome` is told of its end; null where nobody asks. Why it
  // cannot, which the other ranks have been told; "" if it could.
  static std::string push(const perseus_mxnet_call_t& what, std::shared_ptr<Outcome> outcome);

  ~Call();

 private:
  Call(const perseus_mxnet_call_t& what, std::shared_ptr<Outcome> outcome);

  // Of what is given: the caller may let go of its handles.
  bool take_references(const perseus_mxnet_call_t& what);
  void run(OnComplete on_complete);
  void begin();
  bool describe_tensors();
  // Null if there is none: why_not_ says why.
  const dlpack::Tensor* view(const Array& array, bool is_written);
  void submit();
  void complete(perseus_handle_t handle, perseus_status_t status, const char* message);

  // Without pointers once it is made.
  perseus_mxnet_call_t what_;
  std::vector<int64_t> splits_;
  std::vector<Array> inputs_;
  std::vector<Array> outputs_;
  const std::shared_ptr<Outcome> outcome_;
  const Turns::Ticket ticket_;

  bool has_run_ = false;
  OnComplete on_complete_{};
  std::vector<Tensor> views_;
  std::vector<Array> copies_;            // of inputs whose layout is not the default one
  std::vector<dlpack::DataType> types_;  // of the inputs
  std::vector<perseus_tensor_t> tensors_;
  std::string why_not_;
};

}  // namespace perseus::mxnet
