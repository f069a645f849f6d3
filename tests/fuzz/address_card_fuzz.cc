// What ranks say of themselves before there is any link.
#include "fuzz/input.h"
#include "transport/address_card.h"

using namespace perseus;

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  fuzz::Input input(data, size);
  const std::string packed = fuzz::Input::as_text(input.remainder());
  const auto card = AddressCard::unpack(packed);
  if (!card.is_ok()) return 0;
  const std::string again = card.value().pack();
  const auto same = AddressCard::unpack(again);
  MUST(same.is_ok() && same.value().pack() == again);
  const auto cards = unpack_cards({packed, packed});
  if (cards.is_ok()) make_topology(1, cards.value());
  return 0;
}
