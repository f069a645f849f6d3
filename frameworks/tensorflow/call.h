// One run of an op that the ranks do together: from TensorFlow's inputs to its outputs.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "status.h"

namespace perseus::tensorflow {

// What all runs of a node have in common.
struct Collective {
  perseus_operation_t operation;
  int32_t id = 0;  // of its name
  perseus_reduce_op_t reduce_op = PERSEUS_SUM;
  double prescale = 1.0;
  double postscale = 1.0;
  int32_t root = 0;
  int32_t priority = 0;
};

struct DeleteTensor {
  void operator()(TF_Tensor* tensor) const { api().TF_DeleteTensor(tensor); }
};
using Tensor = std::unique_ptr<TF_Tensor, DeleteTensor>;

// Begun on TensorFlow's thread; completes on Perseus's, which runs what TensorFlow wants to be told
// then: that hands what is ready next to other threads.
class Call {
 public:
  // Runs the op; the context may be used until `done` has run, once.
  static void start(const Collective& collective, TF_OpKernelContext* context,
                    std::function<void()> done);

 private:
  Call(const Collective& collective, TF_OpKernelContext* context, std::function<void()> done)
      : collective_(collective), context_(context), done_(std::move(done)) {}

  bool take_inputs();
  bool take_splits();
  // Where results go whose size is the input's: into the input's own memory if nobody else has it.
  bool make_outputs();
  void submit();
  void complete(perseus_handle_t handle, perseus_status_t status, const char* message);
  bool give_results(perseus_handle_t handle);
  bool give_result(int index, const perseus_result_t& result, void* data);
  bool give_numbers(int output, const int64_t* numbers, int64_t count, bool is_scalar);
  // False; the op has failed.
  bool fail(int code, const std::string& message);
  bool fail(const StatusHolder& status);

  bool has_own_outputs() const {
    return collective_.operation == PERSEUS_ALLREDUCE || collective_.operation == PERSEUS_BROADCAST;
  }
  int tensor_count() const {
    return static_cast<int>(inputs_.size()) - (collective_.operation == PERSEUS_ALLTOALL ? 1 : 0);
  }

  const Collective& collective_;
  TF_OpKernelContext* const context_;
  const std::function<void()> done_;
  std::vector<Tensor> inputs_;
  std::vector<Tensor> outputs_;
  std::vector<std::vector<int64_t>> shapes_;
  std::vector<int64_t> splits_;
  std::string why_not_;
};

}  // namespace perseus::tensorflow
