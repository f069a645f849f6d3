// Fuzzes the engine's own messages: only messages that could have been written are accepted.
#include <algorithm>

#include "fuzz/input.h"
#include "messages/envelope.h"
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

// The same for what messengers say, and for what is read of it only as far as it goes.
template <typename Word>
void read_and_write_word(std::span<const std::byte> bytes) {
  ByteReader reader(bytes);
  const auto word = Word::read(reader);
  if (!word) return;
  ByteWriter written, written_again;
  word->write(written);
  ByteReader again(written.bytes());
  again.get<ControlKind>();
  const auto found = Word::read(again);
  MUST(found);
  found->write(written_again);
  MUST(std::ranges::equal(written.bytes(), written_again.bytes()));
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
    case ControlKind::kEnvelope: read_and_write_word<Envelope>(bytes); break;
    case ControlKind::kClearance: read_and_write_word<Clearance>(bytes); break;
    case ControlKind::kWithdrawal: read_and_write_word<Withdrawal>(bytes); break;
    case ControlKind::kCredit: read_and_write_word<Credit>(bytes); break;
    default: break;
  }
  return 0;
}
