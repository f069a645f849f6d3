// Fuzzes ballots: a negotiator with something pending receives anything at all from its peers.
#include <memory>
#include <numeric>
#include <vector>

#include "fuzz/input.h"
#include "negotiation/negotiator.h"

using namespace perseus;

namespace {

struct Host final : NegotiatorHost {
  void send(int, std::span<const std::byte>) override {}
  void agreed(const Agreement& agreement) override {
    for (const Agreement::Ready& ready : agreement.ready) MUST(ready.known != nullptr);
  }
};

std::shared_ptr<const Description> description(uint8_t which) {
  auto made = std::make_shared<Description>();
  made->kind = OperationKind::kAllreduce;
  made->priority = which;
  return made;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  constexpr int kRanks = 4;
  fuzz::Input input(data, size);
  Host host;
  std::vector<int> ranks(kRanks);
  std::iota(ranks.begin(), ranks.end(), 0);
  Negotiator negotiator(1, kRanks, ranks, /*capacity=*/4, {}, host);
  std::vector<bool> is_pending(8);
  while (!input.empty()) {
    const auto what = input.number<uint8_t>();
    const size_t which = what % is_pending.size();
    const std::string key = operation_key(OperationKind::kAllreduce, std::string(1, 'a' + which));
    switch (what >> 6) {
      case 0:
        // Names are not reused here, since only the engine knows when one is done.
        if (!is_pending[which]) negotiator.submit(key, description(what));
        is_pending[which] = true;
        break;
      case 1:
        if (which == 0) negotiator.join();
        break;
      default:
        if (!negotiator.receive(input.piece()).is_ok()) return 0;
    }
    negotiator.advance();
  }
  return 0;
}
