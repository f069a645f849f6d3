// One collective operation, as an operation of MXNet's engine: it runs once its arrays are ready,
// and whatever uses them next waits for its end.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "mxnet_api.h"
#include "outcome.h"
#include "perseus/perseus.h"
#include "turns.h"

// The argument of perseus_mxnet_push.
struct perseus_mxnet_call_t {
  int32_t id;  // of the name
  perseus_operation_t operation;
  perseus_reduce_op_t reduce_op;
  int32_t root;
  int32_t priority;  // for MXNet's engine and for Perseus
  double prescale;
  double postscale;
  const int64_t* splits;
  int32_t split_count;
  int32_t array_count;
  const perseus::mxnet::NDArrayHandle* inputs;
  // nullptr: the library allocates the results, and the caller waits for them.
  const perseus::mxnet::NDArrayHandle* outputs;
  // Nonzero if MXNet's engine is the naive one, which runs everything at once and takes no errors:
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

// Tells the other ranks that this rank's call of the name with this id failed before it was pushed,
// when that call's turn comes.
void refuse(int32_t id, const std::string& reason);

// Made on the caller's thread, runs on one of MXNet's, completes on one of Perseus's. MXNet's
// engine frees it then; if an operation that it depends on has failed, it frees it without running
// it.
class EngineOperation {
 public:
  // Hands a call to MXNet's engine. `outcome` receives its end, and is null if nobody asks for it.
  // Returns "", or the reason if the engine refuses it; the other ranks have then been told.
  static std::string push(const perseus_mxnet_call_t& what, std::shared_ptr<Outcome> outcome);

  ~EngineOperation();

 private:
  EngineOperation(const perseus_mxnet_call_t& what, std::shared_ptr<Outcome> outcome);

  // Takes references to the arrays, so that the caller may free its handles.
  bool take_references(const perseus_mxnet_call_t& what);
  void run(OnComplete on_complete);
  void begin();
  bool describe_tensors();
  // Returns null if there is no view; why_not_ then holds the reason.
  const dlpack::Tensor* view(const Array& array, bool is_written);
  void submit();
  void complete(perseus_handle_t handle, perseus_status_t status, const char* message);

  // Its pointers are null after construction.
  perseus_mxnet_call_t what_;
  std::vector<int64_t> splits_;
  std::vector<Array> inputs_;
  std::vector<Array> outputs_;
  std::shared_ptr<Outcome> outcome_;  // null once it has ended
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
