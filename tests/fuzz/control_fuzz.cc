// Fuzzes the engine's own messages: only messages that could have been written are accepted.
#include "fuzz/input.h"
#include "state/control.h"

using namespace perseus;

namespace {

// A message that can be read, written and read again is the same.
template <typename Message>
void read_and_write(std::span<const std::byte> bytes) {
  const auto message = Message::read(ByteReader(bytes));
  if (!message) return;
  const std::vector<std::byte> written = message->write();
  ByteReader reader(written);
  reader.get<ControlKind>();
  const auto again = Message::read(reader);
  MUST(again && again->write() == written);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  fuzz::Input input(data, size);
  const auto kind = static_cast<ControlKind>(input.number<uint8_t>());
  const auto bytes = input.remainder();
  switch (kind) {
    case ControlKind::kLeaving: read_and_write<Leaving>(bytes); break;
    case ControlKind::kBroken: read_and_write<Broken>(bytes); break;
    case ControlKind::kStallQuery: read_and_write<StallQuery>(bytes); break;
    case ControlKind::kStallAnswer: read_and_write<StallAnswer>(bytes); break;
    case ControlKind::kWaitQuery: read_and_write<WaitQuery>(bytes); break;
    case ControlKind::kWaitAnswer: read_and_write<WaitAnswer>(bytes); break;
    default: break;
  }
  return 0;
}
