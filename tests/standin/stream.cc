#include "stream.h"

#include <chrono>
#include <thread>
#include <utility>

#include "detached_thread.h"
#include "settings.h"

namespace perseus::standin {

Stream::Stream(int device, size_t component)
    : device(device), component(component), random_(settings().seed * 1000 + component) {}

void Stream::push(std::function<void()> step) {
  std::lock_guard lock(mutex_);
  steps_.push_back(std::move(step));
  if (!std::exchange(is_started_, true)) {
    start_detached([self = shared_from_this()] { self->run(); });
  }
  changed_.notify_one();
}

void Stream::push_delayed(std::function<void()> work) {
  push([this, work = std::move(work)] {
    if (const int most = settings().delay_us; most > 0) {
      std::this_thread::sleep_for(std::chrono::microseconds(random_() % (most + 1)));
    }
    work();
  });
}

void Stream::close() {
  std::lock_guard lock(mutex_);
  is_closed_ = true;
  changed_.notify_one();
}

void Stream::hold() {
  auto hold = std::make_shared<Mark>();
  {
    std::lock_guard lock(mutex_);
    hold_ = hold;
  }
  push([hold] { hold->wait(); });
}

void Stream::release() {
  std::lock_guard lock(mutex_);
  if (hold_) hold_->reach();
  hold_.reset();
}

void Stream::run() {
  for (;;) {
    std::function<void()> step;
    {
      std::unique_lock lock(mutex_);
      changed_.wait(lock, [&] { return !steps_.empty() || is_closed_; });
      if (steps_.empty()) return;
      step = std::move(steps_.front());
      steps_.pop_front();
    }
    step();
  }
}

}  // namespace perseus::standin
