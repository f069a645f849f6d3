// One run of a collective op: from TensorFlow's inputs to its outputs.
#pragma once

#include <atomic>
#include <functional>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <vector>

#include "status.h"

namespace perseus::tensorflow {

// An operation of a node. Ranks match it by its name.
struct Member {
  int32_t id = 0;  // of the name
  int32_t priority = 0;
};

// The part that all runs of a node have in common. A single member takes all of the node's tensors;
// if there are several, each takes one.
struct Collective {
  perseus_operation_t operation;
  std::vector<Member> members = {};
  perseus_reduce_op_t reduce_op = PERSEUS_SUM;
  double prescale = 1.0;
  double postscale = 1.0;
  int32_t root = 0;
};

struct DeleteTensor {
  void operator()(TF_Tensor* tensor) const { api().TF_DeleteTensor(tensor); }
};
using Tensor = std::unique_ptr<TF_Tensor, DeleteTensor>;

// Starts on TensorFlow's thread and completes on Perseus's. That thread then runs TensorFlow's
// callback, which passes work that has become ready to other threads.
class OpRun {
 public:
  // Runs the op; the context may be used until `done` has run, once.
  static void start(const Collective& collective, TF_OpKernelContext* context,
                    std::function<void()> done);

 private:
  OpRun(const Collective& collective, TF_OpKernelContext* context, std::function<void()> done)
      : collective_(collective), context_(context), done_(std::move(done)) {}

  bool take_inputs();
  bool take_splits();
  // Allocates the outputs whose size is that of their inputs: the input's own memory if nobody else
  // uses it.
  bool make_outputs();
  void submit();
  void submit(const Member& member, std::span<const perseus_tensor_t> tensors);
  // Completes a member, on any thread. The last one ends the run.
  void complete(perseus_handle_t handle, perseus_status_t status, const char* message);
  void end();
  bool give_results(perseus_handle_t handle);
  bool give_result(int index, const perseus_result_t& result, void* data);
  bool give_numbers(int output, const int64_t* numbers, int64_t count, bool is_scalar);
  // Returns false. The op fails when all members are complete, with the first of the reasons.
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
  std::atomic<size_t> incomplete_{0};
  std::mutex why_not_mutex_;
  // The first failure. The code is one of TensorFlow's.
  int why_not_code_ = kOk;
  std::string why_not_;
};

}  // namespace perseus::tensorflow
