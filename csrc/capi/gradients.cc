#include "capi/gradients.h"

#include <algorithm>
#include <chrono>
#include <utility>

#include "capi/c_status.h"
#include "capi/checked_submission.h"
#include "capi/process.h"
#include "capi/submit.h"
#include "capi/waiting.h"

namespace perseus {
namespace {

using Clock = std::chrono::steady_clock;

// Returns what is left of a time-out that began at `began`.
int64_t left_of(int64_t time_out_ms, Clock::time_point began) {
  if (!is_bound(time_out_ms)) return -1;
  const auto passed = std::chrono::duration_cast<std::chrono::milliseconds>(Clock::now() - began);
  return std::max<int64_t>(0, time_out_ms - passed.count());
}

// A callback that only serves this layer waits for nothing, so it may run in a wait.
perseus_callback_thread_t callback_thread_of(const perseus_gradients_options_t& options) {
  const bool are_told = options.gradient_done != nullptr || options.batch_done != nullptr;
  return are_told ? options.callback_thread : PERSEUS_CALLBACK_IN_WAIT;
}

}  // namespace

Gradients::Gradients(const perseus_gradients_options_t& options)
    : options_(options),
      name_(options.name == nullptr ? "gradients" : options.name),
      lists_(*this, options.set, name_) {}

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
  if (names_.contains(gradient.name)) {
    return Status::invalid_argument(title(gradient) + " is registered already");
  }
  if (const auto bytes = bytes_of(tensor); !bytes.is_ok()) {
    return Status::invalid_argument(title(gradient) + ": " + bytes.status().message());
  }
  const std::string whole = name_ + "." + gradient.name;
  if (perseus_register(options_.set, PERSEUS_ALLREDUCE, whole.c_str(), &gradient.id) !=
      PERSEUS_OK) {
    return Status::invalid_argument(title(gradient) + ": " + perseus_last_error());
  }
  names_.insert(gradient.name);
  gradient.shape.assign(tensor.shape, tensor.shape + tensor.rank);
  if (tensor.output == nullptr) gradient.tensor.output = const_cast<void*>(tensor.input);
  Gradient& kept = gradients_.emplace_back(std::move(gradient));
  kept.tensor.shape = kept.shape.data();
  return number;
}

Status Gradients::submit(int32_t number, void* stream) {
  const auto found = find(number);
  if (!found.is_ok()) return found.status();
  Gradient& gradient = *found.value();
  bool is_first = false;
  int64_t turn = 0;
  {
    const std::lock_guard lock(mutex_);
    const auto entered = enter(gradient);
    if (!entered.is_ok()) return gradient.refusal = entered.status();
    is_first = entered.value();
    turn = gradient.submitted;
  }
  const Status status = hand_over(gradient, turn, stream);
  std::unique_lock lock(mutex_);
  --gradient.being_submitted;
  gradient.refusal = status;
  is_known_.notify_all();
  if (status.is_ok()) return status;
  if (lists_differ_) {  // nothing more is submitted in its batch
    --under_way_;
    const int64_t last = batch_;
    lock.unlock();
    note_done(last, 1, PERSEUS_MISMATCH, why_.c_str());
  } else {
    leave(gradient, is_first);
  }
  return status;
}

Status Gradients::hand_over(Gradient& gradient, int64_t turn, void* stream) {
  const std::shared_ptr<Engine> engine = Process::instance().engine();
  if (engine == nullptr) return not_initialized();
  PERSEUS_RETURN_IF_ERROR(show_list_once(engine));
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
  submission.callback_thread = callback_thread_of(options_);
  perseus_handle_t handle = 0;
  PERSEUS_RETURN_IF_ERROR(perseus::submit(engine, submission, &handle));
  {
    const std::lock_guard lock(mutex_);
    // The operation's callback may already have submitted the next one.
    if (turn > gradient.handle_of) {
      std::swap(gradient.handle, handle);
      gradient.handle_of = turn;
    }
  }
  perseus_release(handle);
  return {};
}

Result<bool> Gradients::enter(Gradient& gradient) {
  PERSEUS_RETURN_IF_ERROR(difference());
  const bool is_first = gradient.submitted > batch_;
  if (is_first && unsubmitted_ > 0) return second_time(gradient);
  if (const OperationPtr last = Process::instance().handles.find(gradient.handle);
      last != nullptr && !last->done.is_set()) {
    return Status::invalid_argument(
        title(gradient) + " is still under way: wait for it before it is submitted again");
  }
  if (is_first) open_batch();
  ++gradient.submitted;
  ++gradient.being_submitted;
  --unsubmitted_;
  ++under_way_;
  return is_first;
}

Status Gradients::second_time(const Gradient& gradient) const {
  const auto missing =
      std::find_if(gradients_.begin(), gradients_.end(),
                   [this](const Gradient& each) { return each.submitted <= batch_; });
  const std::string others =
      unsubmitted_ > 1 ? ", nor " + std::to_string(unsubmitted_ - 1) + " more" : "";
  return Status::invalid_argument(title(gradient) + " is submitted a second time in batch " +
                                  std::to_string(batch_) + ", in which " + title(*missing) +
                                  " has not been" + others);
}

void Gradients::leave(Gradient& gradient, bool was_first) {
  --gradient.submitted;
  ++unsubmitted_;
  --under_way_;
  // A batch in which the lists are being compared stays, even if nothing is submitted in it.
  if (was_first && unsubmitted_ == gradients_.size() && batch(batch_).remaining == unsubmitted_) {
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
  opened.status = PERSEUS_OK;
  opened.message.clear();
}

void Gradients::complete(Gradient& gradient, perseus_status_t status, const char* message) {
  if (options_.gradient_done != nullptr) {
    options_.gradient_done(options_.user, gradient.number, status, message);
  }
  int64_t number = 0;
  {
    const std::lock_guard lock(mutex_);
    // A gradient is submitted once a batch, and its callbacks come in order.
    number = gradient.done++;
  }
  note_done(number, 1, status, message);
  end_one();
}

void Gradients::end_one() {
  const std::lock_guard lock(mutex_);
  if (--under_way_ == 0) is_idle_.notify_all();
}

void Gradients::note_done(int64_t number, size_t parts, perseus_status_t status,
                          const char* message) {
  std::unique_lock lock(mutex_);
  Batch& of = batch(number);
  if (status != PERSEUS_OK && of.status == PERSEUS_OK) {
    of.status = status;
    of.message = message;
  }
  of.remaining -= parts;
  if (of.remaining > 0) return;
  // A mismatch takes the place of errors that follow from it.
  const perseus_status_t of_batch = lists_differ_ ? PERSEUS_MISMATCH : of.status;
  const std::string text = lists_differ_ ? why_ : std::move(of.message);
  lock.unlock();
  if (options_.batch_done != nullptr) {
    options_.batch_done(options_.user, number, of_batch, text.c_str());
  }
}

Status Gradients::show_list_once(const std::shared_ptr<Engine>& engine) {
  std::vector<std::string> names;
  {
    const std::lock_guard lock(mutex_);
    if (shown_in_.lock() == engine) return {};
    shown_in_ = engine;
    shown_at_ = batch_;
    are_compared_ = false;
    ++batch(batch_).remaining;
    ++under_way_;
    for (const Gradient& each : gradients_) names.push_back(each.name);
  }
  Status status = lists_.show(names);
  if (status.is_ok()) return status;
  {
    const std::lock_guard lock(mutex_);
    shown_in_.reset();
    --batch(shown_at_).remaining;
    are_compared_ = true;  // the comparison failed: nobody must wait for it
    is_known_.notify_all();
  }
  end_one();
  return status;
}

std::vector<int64_t> Gradients::on_compared(const Status& status) {
  std::vector<int64_t> submitted;
  std::unique_lock lock(mutex_);
  const int64_t last = batch_;
  size_t never = 0;
  if (status.code() == StatusCode::kMismatch) {
    why_ = status.message();
    lists_differ_ = true;
    never = std::exchange(unsubmitted_, 0);
  }
  are_compared_ = true;
  is_known_.notify_all();
  for (const Gradient& each : gradients_) submitted.push_back(each.submitted - shown_at_);
  lock.unlock();
  const auto code = static_cast<perseus_status_t>(status.code());
  if (never > 0) note_done(last, never, code, status.message().c_str());
  note_done(shown_at_, 1, code, status.message().c_str());
  return submitted;
}

void Gradients::on_settled() { end_one(); }

Status Gradients::wait_for_comparison(int64_t time_out_ms) {
  std::unique_lock lock(mutex_);
  const auto compared = [this] { return are_compared_; };
  if (!compared()) {
    PERSEUS_RETURN_IF_ERROR(check_may_wait(time_out_ms));
    if (!is_bound(time_out_ms)) {
      is_known_.wait(lock, compared);
    } else if (!is_known_.wait_for(lock, std::chrono::milliseconds(time_out_ms), compared)) {
      return {StatusCode::kInProgress, "not all ranks have sent the names of their gradients yet"};
    }
  }
  return difference();
}

Status Gradients::difference() const { return lists_differ_ ? Status::mismatch(why_) : Status(); }

template <typename Wait>
Status Gradients::wait_for_last(int32_t number, int64_t time_out_ms, Wait wait) {
  const auto began = Clock::now();
  const auto found = last_of(number);
  if (!found.is_ok()) return found.status();
  const Last& last = found.value();
  Status status;
  if (last.operation != nullptr) status = wait(*last.operation, time_out_ms);
  if (status.code() == StatusCode::kInProgress) return status;
  PERSEUS_RETURN_IF_ERROR(last.refusal);
  if (last.operation == nullptr) return difference();
  PERSEUS_RETURN_IF_ERROR(wait_for_comparison(left_of(time_out_ms, began)));
  return status;
}

Status Gradients::wait(int32_t number, int64_t time_out_ms) {
  return wait_for_last(number, time_out_ms,
                       [](Operation& last, int64_t ms) { return wait_for(last, ms); });
}

Status Gradients::wait_on_stream(int32_t number, void* stream, int64_t time_out_ms) {
  return wait_for_last(number, time_out_ms, [stream](Operation& last, int64_t ms) {
    return perseus::wait_on_stream(last, stream, ms);
  });
}

Status Gradients::wait_all(int64_t time_out_ms) {
  if (is_inherited()) return not_initialized();
  const auto began = Clock::now();
  Status first;
  for (int32_t number = 0; find(number).is_ok(); ++number) {
    const Status status = wait(number, left_of(time_out_ms, began));
    if (status.code() == StatusCode::kInProgress) return status;
    if (first.is_ok()) first = status;
  }
  return first;
}

Result<Gradients::Last> Gradients::last_of(int32_t number) {
  const auto found = find(number);
  if (!found.is_ok()) return found.status();
  const Gradient& gradient = *found.value();
  std::unique_lock lock(mutex_);
  is_known_.wait(lock, [&] { return gradient.being_submitted == 0; });
  Last last{nullptr, gradient.refusal};
  if (gradient.handle == 0) return last;
  last.operation = Process::instance().handles.find(gradient.handle);
  if (last.operation == nullptr && last.refusal.is_ok()) return unknown_handle(gradient.handle);
  return last;
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
