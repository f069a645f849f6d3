#include "transport/transports_under_test.h"

namespace perseus {

std::vector<TransportUnderTest> transports_under_test() {
  return {{"shm", "shm", "1"},
          {"tcp1", "tcp", "1"},
          {"tcp4", "tcp", "4"},
          {"tcpAuthenticated", "tcp", "2", "authenticated"},
          {"tcpEncrypted", "tcp", "2", "encrypted"}};
}

}  // namespace perseus
