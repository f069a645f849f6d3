#include "simulator.h"

#include <utility>

namespace perseus::standin {

Simulator& Simulator::get() {
  static Simulator& simulator = *new Simulator;
  return simulator;
}

std::byte* Simulator::allocate(size_t bytes, int device, bool is_pinned) {
  std::lock_guard lock(mutex_);
  return memory_.allocate(bytes, device, is_pinned);
}

bool Simulator::release(const char* call, const void* start) {
  std::lock_guard lock(mutex_);
  const std::optional<Allocation> found = memory_.find(start);
  if (!found || found->start != start || found->is_pinned) return false;
  const Piece piece{call, kHostComponent, host_.advance(kHostComponent)};
  history_.add(piece, host_, start, found->bytes, true);
  history_.forget(start, found->bytes);
  memory_.release(*found);
  return true;
}

std::optional<Allocation> Simulator::find(const void* address) {
  std::lock_guard lock(mutex_);
  return memory_.find(address);
}

void Simulator::host_touches(const char* what, const void* bytes, size_t count, bool writes) {
  std::lock_guard lock(mutex_);
  if (count == 0 || !memory_.find(bytes)) return;
  memory_.check(what, {bytes, count, writes, Place::kHost}, 0);
  history_.add({what, kHostComponent, host_.advance(kHostComponent)}, host_, bytes, count, writes);
}

CuStream Simulator::create_stream(int device) {
  std::lock_guard lock(mutex_);
  auto stream = std::make_shared<Stream>(device, ++streams_made_);
  // The handle is a serial number, so that a destroyed stream is never mistaken for a newer one.
  // Real handles are pointers, and some small numbers mean null streams.
  const auto handle = reinterpret_cast<CuStream>((uintptr_t{1} << 32) + 16 * streams_made_);
  streams_[handle] = std::move(stream);
  return handle;
}

bool Simulator::destroy_stream(CuStream stream) {
  std::lock_guard lock(mutex_);
  const auto found = streams_.find(stream);
  if (found == streams_.end()) return false;
  found->second->close();
  streams_.erase(found);
  return true;
}

std::shared_ptr<Stream> Simulator::stream(CuStream stream, int device) {
  std::lock_guard lock(mutex_);
  if (stream == nullptr) {
    std::shared_ptr<Stream>& null_stream = null_streams_[device];
    if (!null_stream) null_stream = std::make_shared<Stream>(device, ++streams_made_);
    return null_stream;
  }
  const auto found = streams_.find(stream);
  return found == streams_.end() ? nullptr : found->second;
}

void Simulator::launch(Stream& stream, const char* name, const std::vector<Access>& accesses,
                       std::function<void()> work) {
  std::lock_guard lock(mutex_);
  stream.clock.join(host_);
  const Piece piece{name, stream.component, stream.clock.advance(stream.component)};
  for (const Access& access : accesses) {
    memory_.check(name, access, stream.device);
    // The stand-in does not see when unpinned memory is allocated and freed.
    if (!memory_.find(access.address)) continue;
    history_.add(piece, stream.clock, access.address, access.bytes, access.writes);
  }
  stream.push_delayed(std::move(work));
}

void Simulator::synchronize() {
  std::vector<std::shared_ptr<Mark>> marks;
  {
    std::lock_guard lock(mutex_);
    const auto mark = [&](Stream& stream) {
      marks.push_back(std::make_shared<Mark>());
      marks.back()->clock = stream.clock;
      stream.push([mark = marks.back()] { mark->reach(); });
    };
    for (const auto& [handle, stream] : streams_) mark(*stream);
    for (const auto& [device, stream] : null_streams_) mark(*stream);
  }
  for (const auto& mark : marks) mark->wait();
  std::lock_guard lock(mutex_);
  for (const auto& mark : marks) host_.join(mark->clock);
}

CuEvent Simulator::create_event(int device) {
  std::lock_guard lock(mutex_);
  const auto handle = reinterpret_cast<CuEvent>((uintptr_t{2} << 32) + 16 * ++events_made_);
  events_[handle] = {device, nullptr};
  return handle;
}

bool Simulator::destroy_event(CuEvent event) {
  std::lock_guard lock(mutex_);
  return events_.erase(event) == 1;
}

int Simulator::device_of(CuEvent event) {
  std::lock_guard lock(mutex_);
  const auto found = events_.find(event);
  return found == events_.end() ? -1 : found->second.device;
}

void Simulator::record(CuEvent event, Stream& stream) {
  std::lock_guard lock(mutex_);
  auto mark = std::make_shared<Mark>();
  stream.clock.join(host_);
  mark->clock = stream.clock;
  events_.at(event).last = mark;
  stream.push([mark] { mark->reach(); });
}

void Simulator::wait(Stream& stream, CuEvent event) {
  std::lock_guard lock(mutex_);
  const std::shared_ptr<Mark> mark = events_.at(event).last;
  if (!mark) return;
  stream.clock.join(mark->clock);
  stream.push([mark] { mark->wait(); });
}

bool Simulator::query(CuEvent event) {
  std::lock_guard lock(mutex_);
  const std::shared_ptr<Mark>& mark = events_.at(event).last;
  if (!mark) return true;
  if (!mark->reached.load()) return false;
  host_.join(mark->clock);
  return true;
}

}  // namespace perseus::standin
