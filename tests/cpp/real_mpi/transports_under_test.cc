#include "transport/transports_under_test.h"

namespace perseus {

std::vector<TransportUnderTest> transports_under_test() { return {{"mpi", "mpi", "1"}}; }

}  // namespace perseus
