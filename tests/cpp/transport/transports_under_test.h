// The transports that the conformance suite runs against: one list for each program that has it.
#pragma once

#include <vector>

namespace perseus {

struct TransportUnderTest {
  const char* name;
  const char* transport;       // PERSEUS_TRANSPORT
  const char* streams;         // PERSEUS_ALLREDUCE_STREAMS
  const char* wire = "plain";  // PERSEUS_WIRE
};

std::vector<TransportUnderTest> transports_under_test();

}  // namespace perseus
