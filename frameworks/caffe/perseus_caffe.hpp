// SPDX-License-Identifier: Apache-2.0
// perseus_caffe.hpp: data-parallel training with the solvers of BVLC Caffe 1.0, one process a GPU.
//
//   perseus::caffe::init();                                   // before the solver is made
//   shared_ptr<caffe::Solver<float> > solver(...);
//   perseus::caffe::Synchronizer<float> synchronizer(*solver);
//   synchronizer.solve();                                     // in place of solver->Solve()
//
// At the start the weights of rank 0 are broadcast to all ranks. Gradients are submitted layer by
// layer as the backward pass computes them, are averaged in the background, and are complete when
// the solver updates. C++11; uses only Caffe's public classes. See docs/caffe.md.
#ifndef PERSEUS_PERSEUS_CAFFE_HPP_
#define PERSEUS_PERSEUS_CAFFE_HPP_

#include <perseus/perseus.h>

#include <algorithm>
#include <caffe/caffe.hpp>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <sstream>
#include <stdexcept>
#include <string>
#include <vector>

namespace perseus {
namespace caffe {

namespace detail {

inline perseus_dtype_t dtype_of(const float*) { return PERSEUS_FLOAT32; }
inline perseus_dtype_t dtype_of(const double*) { return PERSEUS_FLOAT64; }

[[noreturn]] inline void fail(const std::string& what, perseus_status_t status,
                              const std::string& why) {
  std::ostringstream text;
  text << "perseus: rank " << perseus_rank() << ": " << what << ": " << why << " ("
       << perseus_status_name(status) << ")";
  throw std::runtime_error(text.str());
}

inline void check(perseus_status_t status, const std::string& what) {
  if (status != PERSEUS_OK) fail(what, status, perseus_last_error());
}

template <typename Dtype>
std::vector<int64_t> shape_of(const ::caffe::Blob<Dtype>& blob) {
  return std::vector<int64_t>(blob.shape().begin(), blob.shape().end());
}

// A complete operation on host memory: the constructor submits it and waits for it. An error
// consists of `what` and the engine's message, which has the name. A null output is left to the
// library.
class Operation {
 public:
  Operation(const std::string& what, perseus_operation_t operation, const std::string& name,
            const void* input, void* output, const std::vector<int64_t>& shape,
            perseus_dtype_t dtype) {
    const perseus_tensor_t tensor = {input, output, shape.data(),
                                     static_cast<int32_t>(shape.size()), dtype};
    perseus_submission_t submission = {};
    submission.struct_size = sizeof submission;
    submission.tensor_count = 1;
    submission.tensors = &tensor;
    check(perseus_register(PERSEUS_WORLD, operation, name.c_str(), &submission.id), what);
    check(perseus_submit(&submission, &handle_), what);
    const perseus_status_t status = perseus_wait(handle_, -1);
    if (status == PERSEUS_OK) return;
    perseus_release(handle_);
    check(status, what);
  }
  ~Operation() { perseus_release(handle_); }
  Operation(const Operation&) = delete;
  Operation& operator=(const Operation&) = delete;

  // Returns the bytes of the result, if the output was left to the library.
  std::string result() const {
    perseus_result_t result = {};
    result.struct_size = sizeof result;
    check(perseus_result(handle_, 0, &result), "a result");
    return std::string(static_cast<const char*>(result.data), static_cast<size_t>(result.shape[0]));
  }

 private:
  perseus_handle_t handle_ = 0;
};

// A description of what a rank is about to train, in sentences without null characters.
typedef std::vector<std::string> Description;

// Returns the descriptions of all ranks, by rank.
inline std::vector<Description> gather(const std::string& name, const Description& own) {
  std::string text;
  for (const std::string& sentence : own) text += sentence + '\0';
  text += '\0';
  const Operation gathered("the ranks do not meet", PERSEUS_ALLGATHER, name, text.data(), nullptr,
                           {static_cast<int64_t>(text.size())}, PERSEUS_UINT8);
  const std::string all = gathered.result();
  std::vector<Description> of_ranks(1);
  for (size_t begin = 0; begin < all.size();) {
    const size_t end = all.find('\0', begin);
    if (end == begin) {
      of_ranks.emplace_back();
    } else {
      of_ranks.back().push_back(all.substr(begin, end - begin));
    }
    begin = end + 1;
  }
  of_ranks.pop_back();
  return of_ranks;
}

// Fails unless the descriptions of all ranks are the same: otherwise some ranks would wait for
// gradients that others never submit.
inline void check_agreement(const std::string& name, const Description& own) {
  const std::vector<Description> of_ranks = gather(name, own);
  const Description& first = of_ranks[0];
  for (size_t rank = 1; rank < of_ranks.size(); ++rank) {
    const Description& other = of_ranks[rank];
    for (size_t i = 0; i < std::max(first.size(), other.size()); ++i) {
      const std::string here = i < first.size() ? first[i] : "there is no more";
      const std::string there = i < other.size() ? other[i] : "there is no more";
      if (here == there) continue;
      fail("the ranks differ", PERSEUS_MISMATCH,
           "on rank 0 " + here + ", and on rank " + std::to_string(rank) + " " + there +
               "; every rank must train the same net from the same iteration");
    }
  }
}

template <typename Dtype>
struct Parameter {
  std::string name;  // such as "conv1/0", after the first layer that uses it
  ::caffe::Blob<Dtype>* blob;
  int layer;  // the first that uses it, so the last one of backward that adds to its gradient
};

// Returns the learnable parameters, in the order of the forward pass. A parameter that several
// layers share is listed once; each of those layers has its own blob for it, on the same memory.
template <typename Dtype>
std::vector<Parameter<Dtype>> parameters_of(const ::caffe::Net<Dtype>& net) {
  std::vector<Parameter<Dtype>> parameters;
  std::map<const ::caffe::Blob<Dtype>*, size_t> places;
  for (::caffe::Blob<Dtype>* blob : net.learnable_params()) {
    places[blob] = parameters.size();
    parameters.push_back({"", blob, -1});
  }
  size_t position = 0;
  for (size_t layer = 0; layer < net.layers().size(); ++layer) {
    const size_t blobs = net.layers()[layer]->blobs().size();
    for (size_t blob = 0; blob < blobs; ++blob, ++position) {
      const int owner = net.param_owners().at(position);  // of net.params(); -1: itself
      const size_t learnt_by = owner < 0 ? position : static_cast<size_t>(owner);
      Parameter<Dtype>& parameter = parameters[places.at(net.params().at(learnt_by).get())];
      if (parameter.layer >= 0) continue;
      parameter.name = net.layer_names()[layer] + "/" + std::to_string(blob);
      parameter.layer = static_cast<int>(layer);
    }
  }
  return parameters;
}

// The outcome of a batch. The engine's thread reports it, and the solver's thread waits for it.
class Outcome {
 public:
  void note_failure(int32_t gradient, perseus_status_t status, const char* message) {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (status_ != PERSEUS_OK) return;  // later failures follow from the first
    gradient_ = gradient;
    status_ = status;
    message_ = message;
  }

  void end() {
    const std::lock_guard<std::mutex> lock(mutex_);
    is_there_ = true;
    has_come_.notify_one();
  }

  // Waits for the end of the batch; returns PERSEUS_OK or the first failure. Then the next batch
  // begins.
  perseus_status_t wait(int32_t* gradient, std::string* message) {
    std::unique_lock<std::mutex> lock(mutex_);
    has_come_.wait(lock, [this] { return is_there_; });
    const perseus_status_t status = status_;
    *gradient = gradient_;
    message->swap(message_);
    is_there_ = false;
    status_ = PERSEUS_OK;
    return status;
  }

 private:
  std::mutex mutex_;
  std::condition_variable has_come_;
  bool is_there_ = false;
  int32_t gradient_ = -1;
  perseus_status_t status_ = PERSEUS_OK;
  std::string message_;
};

}  // namespace detail

// Joins the other ranks, and tells Caffe the number of solvers and which one this process runs.
// Call it before the solver is made, since data layers choose their share of the rows when they are
// set up, and on the thread that makes the solver, since Caffe keeps these numbers for each thread.
// Throws std::runtime_error. Call perseus_shutdown() in the end.
inline void init() {
  detail::check(perseus_init(nullptr), "init");
  ::caffe::Caffe::set_solver_count(perseus_size());
  ::caffe::Caffe::set_solver_rank(perseus_rank());
  ::caffe::Caffe::set_multiprocess(true);
}

// Keeps the solvers of all ranks in step. All ranks must make their Synchronizers in the same
// order, after the solver has its weights and its mode, and use them on the thread that runs the
// solver. Caffe cannot remove a callback, so the solver must take no step after the Synchronizer is
// gone.
template <typename Dtype>
class Synchronizer final : public ::caffe::Solver<Dtype>::Callback,
                           public ::caffe::Net<Dtype>::Callback {
 public:
  // `name` distinguishes the solvers of one process. Blocks until all ranks have called this.
  // Throws std::runtime_error if init() was not called before, if the ranks' nets differ, or if a
  // rank has died.
  explicit Synchronizer(::caffe::Solver<Dtype>& solver, const std::string& name = "caffe")
      : solver_(solver),
        net_(*solver.net()),
        is_on_gpu_(::caffe::Caffe::mode() == ::caffe::Caffe::GPU),
        completed_by_(net_.layers().size()),
        gradients_(nullptr, perseus_gradients_destroy) {
    check_solver_count();
    const Parameters parameters = detail::parameters_of(net_);
    check_agreement(name, parameters);
    broadcast_weights(name, parameters);
    register_gradients(name, parameters);
    solver_.add_callback(this);
    net_.add_after_backward(this);
  }

  Synchronizer(const Synchronizer&) = delete;
  Synchronizer& operator=(const Synchronizer&) = delete;

  // To be called instead of solver.Solve(), which Caffe allows only on rank 0: the other ranks take
  // the same steps, without tests and snapshots. If a gradient cannot be averaged, throws
  // std::runtime_error with the parameter and the reason; so does solver.Step().
  void solve() {
    if (::caffe::Caffe::root_solver()) {
      solver_.Solve();
    } else {
      solver_.Step(solver_.param().max_iter() - solver_.iter());
    }
  }

 protected:
  void on_start() override {
    passes_ = 0;
    is_in_iteration_ = true;
  }

  // Called after each layer of each backward pass. Gradients are complete only in the last of
  // iter_size passes.
  void run(int layer) override {
    if (!is_in_iteration_) return;
    if (passes_ + 1 == solver_.param().iter_size()) {
      for (const int32_t number : completed_by_[layer]) submit(number);
    }
    if (layer == 0) ++passes_;
  }

  void on_gradients_ready() override {
    is_in_iteration_ = false;
    if (registered_.empty()) return;  // there is no batch whose end could come
    // Every rank must submit every gradient, also those that its backward pass did not reach.
    for (size_t number = 0; number < registered_.size(); ++number) {
      if (!registered_[number].is_submitted) submit(static_cast<int32_t>(number));
    }
    int32_t failed = -1;
    std::string message;
    const perseus_status_t status = outcome_.wait(&failed, &message);
    for (Gradient& gradient : registered_) gradient.is_submitted = false;
    if (status != PERSEUS_OK) detail::fail(title(failed) + " is not averaged", status, message);
  }

 private:
  typedef std::vector<detail::Parameter<Dtype>> Parameters;

  struct Gradient {
    std::string name;
    ::caffe::Blob<Dtype>* blob;
    const Dtype* memory;
    bool is_submitted;
  };

  static void check_solver_count() {
    if (perseus_is_initialized() && ::caffe::Caffe::solver_count() == perseus_size() &&
        ::caffe::Caffe::solver_rank() == perseus_rank()) {
      return;
    }
    throw std::runtime_error(
        "perseus: Caffe does not know this process's rank: call perseus::caffe::init() before the "
        "solver is made, by the same thread, and Caffe::set_solver_count() not at all");
  }

  // A parameter with an lr_mult of 0 is never updated. Its gradient may still be nonzero, if a
  // layer that shares it has another lr_mult or ignores it. Then it counts in the norm by which
  // Caffe clips all gradients, which must be the same on all ranks.
  bool needs_gradient(size_t parameter) const {
    return net_.params_lr()[parameter] != 0 || solver_.param().clip_gradients() >= 0;
  }

  void check_agreement(const std::string& name, const Parameters& parameters) const {
    detail::Description description = {
        "iter_size is " + std::to_string(solver_.param().iter_size()),
        "it goes on from iteration " + std::to_string(solver_.iter())};
    for (size_t i = 0; i < parameters.size(); ++i) {
      const ::caffe::Blob<Dtype>& blob = *parameters[i].blob;
      std::string shape;
      for (const int extent : blob.shape()) shape += " " + std::to_string(extent);
      description.push_back("parameter " + std::to_string(i) + " is '" + parameters[i].name +
                            "', of" + (shape.empty() ? " one number" : shape) + ", " +
                            (needs_gradient(i) ? "trained" : "frozen"));
    }
    detail::check_agreement(name + "/agreement", description);
  }

  static void broadcast_weights(const std::string& name, const Parameters& parameters) {
    for (const detail::Parameter<Dtype>& parameter : parameters) {
      Dtype* data = parameter.blob->mutable_cpu_data();
      const detail::Operation broadcast("the weights of rank 0 are not broadcast",
                                        PERSEUS_BROADCAST, name + "/weights/" + parameter.name,
                                        data, data, detail::shape_of(*parameter.blob),
                                        detail::dtype_of(data));
    }
  }

  void register_gradients(const std::string& name, const Parameters& parameters) {
    perseus_gradients_options_t options = {};
    options.struct_size = sizeof options;
    options.name = name.c_str();
    options.set = PERSEUS_WORLD;
    options.reduce_op = PERSEUS_AVERAGE;
    options.device = is_on_gpu_ ? PERSEUS_CUDA : PERSEUS_CPU;
    options.device_index = -1;
    options.gradient_done = gradient_done;
    options.batch_done = batch_done;
    options.user = &outcome_;
    perseus_gradients_t* gradients = nullptr;
    detail::check(perseus_gradients_create(&options, &gradients), name);
    gradients_.reset(gradients);
    for (size_t i = 0; i < parameters.size(); ++i) {
      if (needs_gradient(i)) register_gradient(parameters[i]);
    }
  }

  void register_gradient(const detail::Parameter<Dtype>& parameter) {
    Dtype* memory = memory_of(parameter.blob);
    const std::vector<int64_t> shape = detail::shape_of(*parameter.blob);
    const perseus_tensor_t tensor = {memory, memory, shape.data(),
                                     static_cast<int32_t>(shape.size()), detail::dtype_of(memory)};
    int32_t number = -1;
    detail::check(perseus_gradients_add(gradients_.get(), parameter.name.c_str(), &tensor, &number),
                  parameter.name);
    registered_.push_back({parameter.name, parameter.blob, memory, false});
    completed_by_[parameter.layer].push_back(number);
  }

  // Returns the gradient's memory on the CPU or GPU. Caffe copies the gradient there if it is on
  // the other side, on the default stream.
  Dtype* memory_of(::caffe::Blob<Dtype>* blob) const {
    return is_on_gpu_ ? blob->mutable_gpu_diff() : blob->mutable_cpu_diff();
  }

  void submit(int32_t number) {
    Gradient& gradient = registered_[number];
    if (memory_of(gradient.blob) != gradient.memory) {
      detail::fail(title(number), PERSEUS_INVALID_ARGUMENT,
                   "its memory has moved since the Synchronizer was made");
    }
    void* const default_stream = nullptr;  // on which Caffe computes
    detail::check(perseus_gradients_submit(gradients_.get(), number, default_stream),
                  title(number));
    gradient.is_submitted = true;
  }

  std::string title(int32_t number) const {
    return "the gradient of '" + registered_[number].name + "' in iteration " +
           std::to_string(solver_.iter());
  }

  static void gradient_done(void* outcome, int32_t gradient, perseus_status_t status,
                            const char* message) {
    if (status == PERSEUS_OK) return;
    static_cast<detail::Outcome*>(outcome)->note_failure(gradient, status, message);
  }

  static void batch_done(void* outcome, int64_t, perseus_status_t, const char*) {
    static_cast<detail::Outcome*>(outcome)->end();
  }

  ::caffe::Solver<Dtype>& solver_;
  ::caffe::Net<Dtype>& net_;
  const bool is_on_gpu_;
  std::vector<Gradient> registered_;                // by the gradients' numbers
  std::vector<std::vector<int32_t>> completed_by_;  // by layer: the numbers of gradients
  int passes_ = 0;                                  // backward passes of this iteration so far
  bool is_in_iteration_ = false;                    // if not, a backward pass is not the solver's
  detail::Outcome outcome_;
  // Last, so that it is destroyed first: until then, the engine's thread may call back.
  std::unique_ptr<perseus_gradients_t, void (*)(perseus_gradients_t*)> gradients_;
};

}  // namespace caffe
}  // namespace perseus

#endif  // PERSEUS_PERSEUS_CAFFE_HPP_
