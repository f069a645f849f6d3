// Fuzzes address cards, which ranks exchange before there are links.
#include "base/bytes.h"
#include "fuzz/input.h"
#include "transport/address_card.h"

using namespace perseus;

// The beginning of a card of this version and build, which a fuzzer would hardly find by itself.
static std::string beginning() {
  const std::string packed = AddressCard().pack();
  ByteReader reader(std::as_bytes(std::span(packed)));
  size_t bytes = 0;
  for (int i = 0; i < 3; ++i) bytes += sizeof(uint32_t) + reader.get_string().size();
  return packed.substr(0, bytes);
}

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  fuzz::Input input(data, size);
  static const std::string known = beginning();
  const bool is_known = input.number<uint8_t>() % 2 == 1;
  const std::string packed = (is_known ? known : "") + fuzz::Input::as_text(input.remainder());
  const auto card = AddressCard::unpack(packed);
  if (!card.is_ok()) return 0;
  const std::string again = card.value().pack();
  const auto same = AddressCard::unpack(again);
  MUST(same.is_ok() && same.value().pack() == again);
  const auto cards = unpack_cards({packed, packed});
  if (cards.is_ok()) make_topology(1, cards.value());
  return 0;
}
