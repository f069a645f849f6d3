#include "capi/gradients.h"

#include <algorithm>
#include <chrono>
#include <utility>

#include "capi/process.h"
#include "capi/waiting.h"

namespace perseus {
namespace {

// What can be seen of it before it is submitted.
Status check_tensor(const perseus_tensor_t& tensor, const std::string& title) {
  if (tensor.dtype < 0 || tensor.dtype >= kDataTypeCount) {
    return Status::invalid_argument(title + ": data type " + std::to_string(tensor.dtype) +
                                    " is not supported");
  }
  if (tensor.rank < 0 || (tensor.rank > 0 && tensor.shape == nullptr)) {
    return Status::invalid_argument(title + ": its shape is missing");
  }
  bool is_empty = false;
  for (int32_t i = 0; i < tensor.rank; ++i) {
    if (tensor.shape[i] < 0) return Status::invalid_argument(title + ": its shape is not possible");
    is_empty |= tensor.shape[i] == 0;
  }
  if (tensor.input == nullptr && !is_empty) {
    return Status::invalid_argument(title + ": its input is a null pointer");
  }
  return {};
}

}  // namespace

Gradients::Gradients(const perseus_gradients_options_t& options)
    : options_(options), name_(options.name == nullptr ? "gradients" : options.name) {}

Gradients::~Gradients() {
  std::unique_lock lock(mutex_);
  is_idle_.wait(lock, [this] { return under_way_ == 0; });
  for (const Gradient& gradient : gradients_) perseus_release(gradient.handle);
}

Result<int32_t> Gradients::add(const char* name, const perseus_tensor_t& tensor) {
  if (name == nullptr || *name == '\0') {
    return Status::invalid_argument("a gradient of '" + name_ + "' has no name");
  }
  const std::lock_guard lock(mutex_);
  const auto number = static_cast<int32_t>(gradients_.size());
  Gradient gradient{this, number, name, 0, tensor, {}};
  if (batch_ >= 0) {
    return Status::invalid_argument(title(gradient) +
                                    " comes too late: one has been submitted already");
  }
  if (std::any_of(gradients_.begin(), gradients_.end(),
                  [&](const Gradient& each) { return each.name == gradient.name; })) {
    return Status::invalid_argument(title(gradient) + " is there already");
  }
  PERSEUS_RETURN_IF_ERROR(check_tensor(tensor, title(gradient)));
  const std::string whole = name_ + "." + gradient.name;
  if (perseus_register(options_.set, PERSEUS_ALLREDUCE, whole.c_str(), &gradient.id) !=
      PERSEUS_OK) {
    return Status::invalid_argument(title(gradient) + ": " + perseus_last_error());
  }
  gradient.shape.assign(tensor.shape, tensor.shape + tensor.rank);
  if (tensor.output == nullptr) gradient.tensor.output = const_cast<void*>(tensor.input);
  Gradient& kept = gradients_.emplace_back(std::move(gradient));
  kept.tensor.shape = kept.shape.data();
  return number;
}

Status Gradients::submit(int32_t number, void* stream) {
  const auto found = find(number);
  if (!found.is_ok()) return found.status();
  if (list_.empty()) PERSEUS_RETURN_IF_ERROR(show_list());
  Gradient& gradient = *found.value();
  bool is_first = false;
  int64_t turn = 0;
  {
    const std::lock_guard lock(mutex_);
    const auto entered = enter(gradient);
    if (!entered.is_ok()) return entered.status();
    is_first = entered.value();
    turn = gradient.submitted;
  }
  perseus_submission_t submission{};
  submission.struct_size = sizeof submission;
  submission.id = gradient.id;
  submission.tensor_count = 1;
  submission.tensors = &gradient.tensor;
  submission.reduce_op = options_.reduce_op;
  submission.prescale = 1.0;
  submission.postscale = options_.scale == 0.0 ? 1.0 : options_.scale;
  submission.codec = options_.codec;
  submission.priority = -gradient.number;  // the next forward pass needs the first one first
  submission.device = options_.device;
  submission.device_index = options_.device_index;
  submission.stream = stream;
  submission.callback = [](void* user, perseus_handle_t, perseus_status_t status,
                           const char* message) {
    auto& done = *static_cast<Gradient*>(user);
    done.owner->complete(done, status, message);
  };
  submission.user = &gradient;
  perseus_handle_t handle = 0;
  const perseus_status_t status = perseus_submit(&submission, &handle);
  const std::lock_guard lock(mutex_);
  --gradient.being_submitted;
  is_known_.notify_all();
  if (status != PERSEUS_OK) {
    leave(gradient, is_first);
    return {static_cast<StatusCode>(status), perseus_last_error()};
  }
  // Its callback may have submitted the next one meanwhile.
  if (turn > gradient.handle_of) {
    std::swap(gradient.handle, handle);
    gradient.handle_of = turn;
  }
  perseus_release(handle);
  return {};
}

Result<bool> Gradients::enter(Gradient& gradient) {
  if (lists_differ_) return Status::mismatch(why_);
  if (const OperationPtr last = Process::instance().handles.find(gradient.handle);
      last != nullptr && !last->done.is_set()) {
    return Status::invalid_argument(
        title(gradient) + " is still under way: wait for it before it is submitted again");
  }
  const bool is_first = gradient.submitted > batch_;
  if (is_first) {
    if (unsubmitted_ > 0) {
      const auto missing =
          std::find_if(gradients_.begin(), gradients_.end(),
                       [this](const Gradient& each) { return each.submitted <= batch_; });
      return Status::invalid_argument(title(gradient) + " is submitted a second time in batch " +
                                      std::to_string(batch_) + ", in which " + title(*missing) +
                                      " has not been");
    }
    open_batch();
  }
  ++gradient.submitted;
  ++gradient.being_submitted;
  --unsubmitted_;
  ++under_way_;
  return is_first;
}

// As if it had not been entered.
void Gradients::leave(Gradient& gradient, bool was_first) {
  --gradient.submitted;
  ++unsubmitted_;
  --under_way_;
  if (was_first && unsubmitted_ == gradients_.size()) {
    batch(batch_).remaining = 0;
    unsubmitted_ = 0;
    --batch_;
  }
}

void Gradients::open_batch() {
  ++batch_;
  unsubmitted_ = gradients_.size();
  if (batch(batch_).remaining > 0) {
    std::vector<Batch> more(2 * batches_.size());
    const auto count = static_cast<int64_t>(batches_.size());
    for (int64_t number = batch_ - count; number < batch_; ++number) {
      more[static_cast<size_t>(number) % more.size()] = std::move(batch(number));
    }
    batches_ = std::move(more);
  }
  Batch& opened = batch(batch_);
  opened.remaining = gradients_.size();
  opened.is_told = false;
  opened.status = PERSEUS_OK;
  opened.message.clear();
}

void Gradients::complete(Gradient& gradient, perseus_status_t status, const char* message) {
  if (options_.gradient_done != nullptr) {
    options_.gradient_done(options_.user, gradient.number, status, message);
  }
  std::unique_lock lock(mutex_);
  // A gradient is submitted once a batch, and its callbacks come in order.
  const int64_t number = gradient.done++;
  Batch& of = batch(number);
  if (status != PERSEUS_OK && of.status == PERSEUS_OK) {
    of.status = status;
    of.message = message;
  }
  if (--of.remaining == 0 && !of.is_told) {
    const perseus_status_t batch_status = of.status;
    const std::string batch_message = std::move(of.message);
    lock.unlock();
    tell_end(number, batch_status, batch_message);
    lock.lock();
  }
  if (--under_way_ == 0) is_idle_.notify_all();
}

void Gradients::tell_end(int64_t number, perseus_status_t status, const std::string& message) {
  if (options_.batch_done != nullptr) {
    options_.batch_done(options_.user, number, status, message.c_str());
  }
}

Status Gradients::show_list() {
  for (const Gradient& gradient : gradients_) list_.append(gradient.name).push_back('\0');
  list_.push_back('\0');
  const auto bytes = static_cast<int64_t>(list_.size());
  const perseus_tensor_t tensor = {list_.data(), nullptr, &bytes, 1, PERSEUS_UINT8};
  perseus_submission_t submission{};
  submission.struct_size = sizeof submission;
  submission.tensor_count = 1;
  submission.tensors = &tensor;
  submission.callback = [](void* user, perseus_handle_t handle, perseus_status_t status,
                           const char*) {
    auto& self = *static_cast<Gradients*>(user);
    // Where it fails, gradients do so, too.
    if (status == PERSEUS_OK) self.compare_lists(handle);
    perseus_release(handle);
    const std::lock_guard lock(self.mutex_);
    if (--self.under_way_ == 0) self.is_idle_.notify_all();
  };
  submission.user = this;
  const std::string name = name_ + ".registered";
  perseus_handle_t handle = 0;
  {
    const std::lock_guard lock(mutex_);
    ++under_way_;
  }
  perseus_status_t status =
      perseus_register(options_.set, PERSEUS_ALLGATHER, name.c_str(), &submission.id);
  if (status == PERSEUS_OK) status = perseus_submit(&submission, &handle);
  if (status == PERSEUS_OK) return {};
  const std::lock_guard lock(mutex_);
  --under_way_;
  list_.clear();
  return {static_cast<StatusCode>(status), perseus_last_error()};
}

void Gradients::compare_lists(perseus_handle_t handle) {
  perseus_result_t result{};
  result.struct_size = sizeof result;
  if (perseus_result(handle, 0, &result) != PERSEUS_OK) return;
  std::string why =
      difference({static_cast<const char*>(result.data), static_cast<size_t>(result.shape[0])});
  if (!why.empty()) fail_all(std::move(why));
}

std::string Gradients::difference(std::string_view lists) const {
  const auto take = [&lists] {
    const std::string_view name = lists.substr(0, lists.find('\0'));
    lists.remove_prefix(name.size() + 1);
    return name;
  };
  std::vector<std::vector<std::string_view>> of_ranks;
  while (!lists.empty()) {
    std::vector<std::string_view>& names = of_ranks.emplace_back();
    for (std::string_view name = take(); !name.empty(); name = take()) names.push_back(name);
  }
  std::vector<int32_t> ranks(of_ranks.size());
  if (perseus_process_set_ranks(options_.set, ranks.data()) != PERSEUS_OK) return "";
  const auto named = [](const std::vector<std::string_view>& names, size_t at) {
    return at < names.size() ? "'" + std::string(names[at]) + "'" : std::string("none");
  };
  for (size_t i = 1; i < of_ranks.size(); ++i) {
    const auto [first, other] = std::mismatch(of_ranks[0].begin(), of_ranks[0].end(),
                                              of_ranks[i].begin(), of_ranks[i].end());
    if (first == of_ranks[0].end() && other == of_ranks[i].end()) continue;
    const auto at = static_cast<size_t>(first - of_ranks[0].begin());
    return "the ranks have registered different gradients of '" + name_ + "': number " +
           std::to_string(at) + " is " + named(of_ranks[0], at) + " on rank " +
           std::to_string(ranks[0]) + " and " + named(of_ranks[i], at) + " on rank " +
           std::to_string(ranks[i]) + "; every rank must register the same, in the same order";
  }
  return "";
}

// What is under way stays so, where other ranks have none of it; but nobody waits for it.
void Gradients::fail_all(std::string why) {
  std::vector<int64_t> open;
  {
    const std::lock_guard lock(mutex_);
    why_ = std::move(why);
    lists_differ_ = true;
    for (int64_t number = std::max<int64_t>(0, batch_ - 1); number <= batch_; ++number) {
      if (batch(number).remaining > 0 && !std::exchange(batch(number).is_told, true)) {
        open.push_back(number);
      }
    }
  }
  for (const int64_t number : open) tell_end(number, PERSEUS_MISMATCH, why_);
}

template <typename Wait>
Status Gradients::wait_unless_lists_differ(int64_t time_out_ms, Wait wait) {
  constexpr int64_t kLookMs = 50;
  const auto began = std::chrono::steady_clock::now();
  for (;;) {
    const auto passed = std::chrono::duration_cast<std::chrono::milliseconds>(
                            std::chrono::steady_clock::now() - began)
                            .count();
    const bool is_bounded = is_bound(time_out_ms);
    const int64_t left = is_bounded ? std::max<int64_t>(0, time_out_ms - passed) : kLookMs;
    const Status status = wait(std::min(left, kLookMs));
    // Also in place of what follows from it, such as another rank that has given up.
    if (lists_differ_ && !status.is_ok()) return Status::mismatch(why_);
    if (status.code() != StatusCode::kInProgress) return status;
    if (is_bounded && left <= kLookMs) return status;
  }
}

Status Gradients::wait(int32_t number, int64_t time_out_ms) {
  const auto last = last_of(number);
  if (!last.is_ok() || last.value() == nullptr) return last.status();
  return wait_unless_lists_differ(time_out_ms,
                                  [&](int64_t ms) { return wait_for(*last.value(), ms); });
}

Status Gradients::wait_on_stream(int32_t number, void* stream, int64_t time_out_ms) {
  const auto last = last_of(number);
  if (!last.is_ok() || last.value() == nullptr) return last.status();
  return wait_unless_lists_differ(
      time_out_ms, [&](int64_t ms) { return perseus::wait_on_stream(*last.value(), stream, ms); });
}

Status Gradients::wait_all(int64_t time_out_ms) {
  const auto began = std::chrono::steady_clock::now();
  Status first;
  for (int32_t number = 0; find(number).is_ok(); ++number) {
    int64_t left = time_out_ms;
    if (is_bound(time_out_ms)) {
      const auto passed = std::chrono::steady_clock::now() - began;
      left -= std::chrono::duration_cast<std::chrono::milliseconds>(passed).count();
    }
    const Status status = wait(number, is_bound(time_out_ms) ? std::max<int64_t>(0, left) : -1);
    if (status.code() == StatusCode::kInProgress) return status;
    if (first.is_ok()) first = status;
  }
  return first;
}

Result<OperationPtr> Gradients::last_of(int32_t number) {
  const auto found = find(number);
  if (!found.is_ok()) return found.status();
  const Gradient& gradient = *found.value();
  std::unique_lock lock(mutex_);
  is_known_.wait(lock, [&] { return gradient.being_submitted == 0; });
  if (gradient.handle == 0) return OperationPtr();
  OperationPtr operation = Process::instance().handles.find(gradient.handle);
  if (operation == nullptr) return unknown_handle(gradient.handle);
  return operation;
}

Result<Gradients::Gradient*> Gradients::find(int32_t number) {
  if (is_inherited()) return not_initialized();
  const std::lock_guard lock(mutex_);
  if (number >= 0 && static_cast<size_t>(number) < gradients_.size()) return &gradients_[number];
  return Status::invalid_argument("'" + name_ + "' has " + std::to_string(gradients_.size()) +
                                  " gradients, and no number " + std::to_string(number));
}

std::string Gradients::title(const Gradient& gradient) const {
  return "gradient '" + gradient.name + "' of '" + name_ + "'";
}

}  // namespace perseus

// ---- perseus.h ------------------------------------------------------------------------------

using perseus::Gradients;
using perseus::Status;
using perseus::to_c;

struct perseus_gradients {
  Gradients gradients;
};

namespace {

Status missing() { return Status::invalid_argument("the gradients are a null pointer"); }

}  // namespace

extern "C" {

perseus_status_t perseus_gradients_create(const perseus_gradients_options_t* options,
                                          perseus_gradients_t** gradients) {
  if (gradients == nullptr || (options != nullptr && options->struct_size < sizeof *options)) {
    return to_c(Status::invalid_argument(
        "the place for the gradients is missing, or the options' struct_size is not set"));
  }
  if (options != nullptr &&
      (options->reduce_op < PERSEUS_AVERAGE || options->reduce_op > PERSEUS_PRODUCT)) {
    return to_c(
        Status::invalid_argument("there is no reduction " + std::to_string(options->reduce_op)));
  }
  perseus_gradients_options_t averages{};
  averages.struct_size = sizeof averages;
  averages.device_index = -1;
  *gradients = new perseus_gradients{Gradients(options == nullptr ? averages : *options)};
  return PERSEUS_OK;
}

perseus_status_t perseus_gradients_add(perseus_gradients_t* gradients, const char* name,
                                       const perseus_tensor_t* tensor, int32_t* gradient) {
  if (gradients == nullptr) return to_c(missing());
  if (tensor == nullptr || gradient == nullptr) {
    return to_c(Status::invalid_argument("the tensor, or the place for its number, is missing"));
  }
  const auto added = gradients->gradients.add(name, *tensor);
  if (added.is_ok()) *gradient = added.value();
  return to_c(added.status());
}

perseus_status_t perseus_gradients_submit(perseus_gradients_t* gradients, int32_t gradient,
                                          void* stream) {
  return to_c(gradients == nullptr ? missing() : gradients->gradients.submit(gradient, stream));
}

perseus_status_t perseus_gradients_wait(perseus_gradients_t* gradients, int32_t gradient,
                                        int64_t time_out_ms) {
  return to_c(gradients == nullptr ? missing() : gradients->gradients.wait(gradient, time_out_ms));
}

perseus_status_t perseus_gradients_wait_all(perseus_gradients_t* gradients, int64_t time_out_ms) {
  return to_c(gradients == nullptr ? missing() : gradients->gradients.wait_all(time_out_ms));
}

perseus_status_t perseus_gradients_wait_on_stream(perseus_gradients_t* gradients, int32_t gradient,
                                                  void* stream, int64_t time_out_ms) {
  return to_c(gradients == nullptr
                  ? missing()
                  : gradients->gradients.wait_on_stream(gradient, stream, time_out_ms));
}

void perseus_gradients_destroy(perseus_gradients_t* gradients) {
  if (gradients != nullptr && !gradients->gradients.is_inherited()) delete gradients;
}

}  // extern "C"
