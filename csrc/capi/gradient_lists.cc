#include "capi/gradient_lists.h"

#include <algorithm>
#include <map>

#include "capi/c_status.h"

namespace perseus {
namespace {

// The result of an allgather of one tensor.
perseus_result_t gathered(perseus_handle_t handle) {
  perseus_result_t result{};
  result.struct_size = sizeof result;
  if (perseus_result(handle, 0, &result) != PERSEUS_OK) return {};
  return result;
}

std::vector<std::vector<std::string>> parse(std::string_view lists) {
  const auto take = [&lists] {
    const std::string_view name = lists.substr(0, lists.find('\0'));
    lists.remove_prefix(name.size() + 1);
    return name;
  };
  std::vector<std::vector<std::string>> of_ranks;
  while (!lists.empty()) {
    std::vector<std::string>& names = of_ranks.emplace_back();
    for (std::string_view name = take(); !name.empty(); name = take()) names.emplace_back(name);
  }
  return of_ranks;
}

}  // namespace

Status GradientLists::show(const std::vector<std::string>& gradients) {
  own_ = gradients;
  shown_.clear();
  for (const std::string& name : own_) shown_.append(name).push_back('\0');
  shown_.push_back('\0');
  return gather(
      "registered", shown_.data(), static_cast<int64_t>(shown_.size()), PERSEUS_UINT8,
      [](void* user, perseus_handle_t handle, perseus_status_t status, const char* message) {
        static_cast<GradientLists*>(user)->compare(handle, from_c(status, message));
      });
}

Status GradientLists::gather(const std::string& what, const void* data, int64_t count,
                             perseus_dtype_t dtype, perseus_callback_t callback) {
  const perseus_tensor_t tensor = {data, nullptr, &count, 1, dtype};
  perseus_submission_t submission{};
  submission.struct_size = sizeof submission;
  submission.tensor_count = 1;
  submission.tensors = &tensor;
  submission.callback = callback;
  submission.user = this;
  const std::string name = name_ + "." + what;
  perseus_handle_t handle = 0;
  perseus_status_t status = perseus_register(set_, PERSEUS_ALLGATHER, name.c_str(), &submission.id);
  if (status == PERSEUS_OK) status = perseus_submit(&submission, &handle);
  return from_c(status, perseus_last_error());
}

void GradientLists::compare(perseus_handle_t handle, const Status& status) {
  if (status.is_ok()) {
    const perseus_result_t all = gathered(handle);
    of_ranks_ = parse({static_cast<const char*>(all.data), static_cast<size_t>(all.shape[0])});
    why_ = find_difference();
  }
  perseus_release(handle);
  const bool differ = status.is_ok() && !why_.empty();
  submitted_ = owner_.on_compared(differ ? Status::mismatch(why_) : status);
  if (!differ || !gather_counts("submitted", [](void* user, perseus_handle_t counts,
                                                perseus_status_t of_counts, const char*) {
                    static_cast<GradientLists*>(user)->settle(counts, of_counts);
                  }).is_ok()) {
    owner_.on_settled();
  }
}

Status GradientLists::gather_counts(const std::string& what, perseus_callback_t callback) {
  return gather(what, submitted_.data(), static_cast<int64_t>(submitted_.size()), PERSEUS_INT64,
                callback);
}

void GradientLists::settle(perseus_handle_t handle, perseus_status_t status) {
  if (status == PERSEUS_OK) refuse_what_others_have(handle);
  perseus_release(handle);
  // A rank that completes this operation has heard of all refusals before it, so none leaves early.
  if (!gather_counts("settled", [](void* user, perseus_handle_t last, perseus_status_t,
                                   const char*) {
         perseus_release(last);
         static_cast<GradientLists*>(user)->owner_.on_settled();
       }).is_ok()) {
    owner_.on_settled();
  }
}

void GradientLists::refuse_what_others_have(perseus_handle_t handle) {
  const auto* count = static_cast<const int64_t*>(gathered(handle).data);
  std::map<std::string_view, int64_t> most;
  for (const std::vector<std::string>& names : of_ranks_) {
    for (const std::string& name : names) {
      int64_t& so_far = most[name];
      so_far = std::max(so_far, *count++);
    }
  }
  for (size_t i = 0; i < own_.size(); ++i) {
    if (most[own_[i]] == submitted_[i]) most.erase(own_[i]);
  }
  for (const auto& [name, times] : most) {
    if (times == 0) continue;
    // A rank is ahead by one at most: a gradient is submitted again only when it is done.
    const std::string whole = name_ + "." + std::string(name);
    int32_t id = 0;
    if (perseus_register(set_, PERSEUS_ALLREDUCE, whole.c_str(), &id) == PERSEUS_OK) {
      perseus_refuse(id, why_.c_str());
    }
  }
}

std::string GradientLists::find_difference() const {
  std::vector<int32_t> ranks(of_ranks_.size());
  if (perseus_process_set_ranks(set_, ranks.data()) != PERSEUS_OK) return "";
  const auto named = [](const std::vector<std::string>& names, size_t at) {
    return at < names.size() ? "'" + names[at] + "'" : std::string("none");
  };
  const std::vector<std::string>& first = of_ranks_[0];
  for (size_t i = 1; i < of_ranks_.size(); ++i) {
    const std::vector<std::string>& other = of_ranks_[i];
    if (first == other) continue;
    const auto same_up_to = std::ranges::mismatch(first, other).in1;
    const auto at = static_cast<size_t>(same_up_to - first.begin());
    return "the ranks have registered different gradients of '" + name_ + "': number " +
           std::to_string(at) + " is " + named(first, at) + " on rank " + std::to_string(ranks[0]) +
           " and " + named(other, at) + " on rank " + std::to_string(ranks[i]) +
           "; every rank must register the same, in the same order";
  }
  return "";
}

}  // namespace perseus
