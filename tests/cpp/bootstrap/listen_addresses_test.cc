#include "bootstrap/listen_addresses.h"

#include <gtest/gtest.h>

#include <algorithm>

namespace perseus {
namespace {

using Addresses = std::vector<std::string>;

TEST(ListenAddresses, LoopbackIsForThisHostAlone) {
  for (const char* told : {"localhost", "127.0.0.1", "::1"}) {
    EXPECT_EQ(listen_addresses(told, ""), Addresses{told});
    EXPECT_EQ(listen_addresses(told, "lo"), Addresses{told});
  }
}

// An address that no host has, since it is reserved for documentation (RFC 5737).
TEST(ListenAddresses, ATranslatedAddressIsServedOnTheNamedInterfaces) {
  const Addresses on_lo = listen_addresses("192.0.2.1", "no0,lo");
  EXPECT_NE(std::ranges::find(on_lo, "127.0.0.1"), on_lo.end());
  EXPECT_EQ(std::ranges::find(on_lo, ""), on_lo.end());
}

TEST(ListenAddresses, WithoutNamedInterfacesWhatIsNotOursIsServedOnAll) {
  EXPECT_EQ(listen_addresses("192.0.2.1", ""), Addresses{""});
  EXPECT_EQ(listen_addresses("no such host", ""), Addresses{""});
}

TEST(ListenAddresses, AnInterfaceThatIsNotThereIsNotAskedFor) {
  EXPECT_EQ(listen_addresses("192.0.2.1", "no0"), Addresses{""});
}

}  // namespace
}  // namespace perseus
