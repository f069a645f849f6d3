#include "messages/staged_run.h"

#include <algorithm>
#include <string>

#include "device/cuda/gpu_copies.h"

namespace perseus {

uint64_t StagedRun::most_bytes() const {
  return std::min(MessageForm::kRunElements, form_.elements()) * size_of(form_.dtype());
}

Status StagedRun::place(std::byte* elements) {
  wire_ = elements_ = elements;
  if (!form_.is_encoded()) return {};
  if (encoded_.capacity() < run_.bytes || !encoded_) encoded_ = buffers_.take(run_.bytes);
  wire_ = encoded_.data();
  if (encoded_) return {};
  return Status::out_of_memory("no memory for " + std::to_string(run_.bytes) +
                               " encoded bytes of a message");
}

MaybeTask StagedRun::load(uint32_t run) {
  run_ = form_.run(run);
  if (operation_.gpu != nullptr) {
    const auto thread = gpus_.of(*operation_.gpu);
    if (!thread.is_ok()) return thread.status();
    return load_from_gpu(*thread.value());
  }
  // It is only read.
  PERSEUS_RETURN_IF_ERROR(place(const_cast<std::byte*>(tensor().input) + tensor_offset()));
  if (form_.is_encoded()) form_.encode(run_, elements_, wire_);
  return Status::ok();
}

Task StagedRun::load_from_gpu(GpuThread& thread) {
  if (!pinned_) {
    const Status taken = co_await take_pinned(thread, most_bytes(), pinned_);
    PERSEUS_CO_RETURN_IF_ERROR(taken);
  }
  const Move move{tensor().input + tensor_offset(), pinned_.data(), run_.elements, 0};
  const CuEvent ready = operation_.ready.get();
  const Status copied =
      co_await copy_down(thread, {{&move, 1}, {&ready, 1}, form_.dtype(), 1.0}, pinned_);
  PERSEUS_CO_RETURN_IF_ERROR(copied);
  PERSEUS_CO_RETURN_IF_ERROR(place(pinned_.data()));
  if (form_.is_encoded()) form_.encode(run_, elements_, wire_);
  co_return Status::ok();
}

MaybeTask StagedRun::make_room(uint32_t run) {
  run_ = form_.run(run);
  if (operation_.gpu == nullptr) return place(tensor().output + tensor_offset());
  if (pinned_) return place(pinned_.data());
  const auto thread = gpus_.of(*operation_.gpu);
  if (!thread.is_ok()) return thread.status();
  return make_pinned_room(*thread.value());
}

Task StagedRun::make_pinned_room(GpuThread& thread) {
  const Status taken = co_await take_pinned(thread, most_bytes(), pinned_);
  PERSEUS_CO_RETURN_IF_ERROR(taken);
  co_return place(pinned_.data());
}

MaybeTask StagedRun::store() {
  if (form_.is_encoded()) form_.decode(run_, wire_, elements_);
  if (operation_.gpu == nullptr) return Status::ok();
  const auto thread = gpus_.of(*operation_.gpu);
  if (!thread.is_ok()) return thread.status();
  return store_on_gpu(*thread.value());
}

Task StagedRun::store_on_gpu(GpuThread& thread) {
  const Move move{elements_, tensor().output + tensor_offset(), run_.elements, 0};
  const CuEvent ready = operation_.ready.get();
  const Status status =
      co_await copy_up(thread, {{&move, 1}, {&ready, 1}, form_.dtype(), 1.0}, pinned_);
  co_return status;
}

}  // namespace perseus
