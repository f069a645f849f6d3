// The transports that the conformance suite is run against: one list for each program it is part
// of.
#pragma once

#include <vector>

namespace perseus {

struct TransportUnderTest {
  const char* name;
  const char* transport;  // PERSEUS_TRANSPORT
  const char* streams;    // PERSEUS_ALLREDUCE_STREAMS
};

std::vector<TransportUnderTest> transports_under_test();

}  // namespace perseus
