// Fuzzes the messages between clients and servers of a rendezvous.
#include "bootstrap/rendezvous_protocol.h"
#include "fuzz/input.h"

using namespace perseus;
using namespace perseus::rendezvous;

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  fuzz::Input input(data, size);
  const auto which = input.number<uint8_t>();
  const std::string payload = fuzz::Input::as_text(input.remainder());
  if (which == 0) {
    Hello hello;
    if (decode(payload, hello)) MUST(encode(hello) == payload);
  } else if (which == 1) {
    Contribution contribution;
    if (decode(payload, contribution)) MUST(encode(contribution) == payload);
  } else {
    Decoded decoded;
    if (!decode(payload, decoded)) return 0;
    if (decoded.kind == Answer::kWelcome) MUST(encode_welcome() == payload);
    if (decoded.kind == Answer::kGathered) MUST(encode_gathered(decoded.gathered) == payload);
  }
  return 0;
}
