// Fuzzes ballots: a negotiator with something pending receives anything at all from its peers.
#include <algorithm>
#include <array>
#include <memory>
#include <numeric>
#include <vector>

#include "fuzz/input.h"
#include "negotiation/negotiator.h"

using namespace perseus;

namespace {

constexpr int kRanks = 4;

// The odd names are allgathers, whose sizes go along with ballots, the others small allreduces.
OperationKind kind_of(size_t which) {
  return which % 2 == 0 ? OperationKind::kAllreduce : OperationKind::kAllgather;
}

struct Host final : NegotiatorHost {
  void send(int, std::span<const std::byte>) override {}
  void agreed(const Agreement& agreement) override {
    for (const Agreement::Ready& ready : agreement.ready) MUST(ready.known != nullptr);
    MUST(agreement.announced >= std::max(heard, cast));
    heard = agreement.announced;
    if (agreement.inputs.empty() && agreement.sizes.empty()) return;
    MUST(agreement.ready.size() == 1);
    const Description& its = agreement.ready.front().description();
    if (agreement.sizes.empty()) {
      const auto bytes = static_cast<int64_t>(agreement.inputs.size());
      MUST(is_uneven(its.kind) || bytes == kRanks * its.bytes());
    } else {
      MUST(is_uneven(its.kind) && agreement.inputs.empty());
    }
  }
  Attachment attachment(const std::string& key) override {
    const bool is_reduced = kind_of_key(key) == OperationKind::kAllreduce;
    return {is_reduced ? Attachment::Kind::kInput : Attachment::Kind::kSizes,
            std::span(mine).first(is_reduced ? sizeof(float) : sizeof(int64_t))};
  }

  // Asked once a round, for its ballot.
  uint64_t announcement() const override { return cast = own; }

  std::array<std::byte, sizeof(int64_t)> mine{};
  uint64_t own = 0, heard = 0;
  mutable uint64_t cast = 0;
};

std::shared_ptr<const Description> description(uint8_t which, OperationKind kind) {
  auto made = std::make_shared<Description>();
  made->kind = kind;
  made->priority = which;
  made->tensors = {{DataType::kFloat32, {1}}};
  return made;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  fuzz::Input input(data, size);
  Host host;
  std::vector<int> ranks(kRanks);
  std::iota(ranks.begin(), ranks.end(), 0);
  Negotiator negotiator(1, kRanks, ranks, /*capacity=*/4, {}, host);
  std::vector<bool> is_pending(8);
  while (!input.empty()) {
    const auto what = input.number<uint8_t>();
    const size_t which = what % is_pending.size();
    const OperationKind kind = kind_of(which);
    const std::string key = operation_key(kind, std::string(1, 'a' + which));
    switch (what >> 6) {
      case 0:
        // Names are not reused here, since only the engine knows when one is done.
        if (!is_pending[which]) negotiator.submit(key, description(what, kind));
        is_pending[which] = true;
        break;
      case 1:
        if (which == 0) negotiator.join();
        if (which == 1) host.own += input.number<uint8_t>();
        break;
      default:
        if (!negotiator.receive(input.piece()).is_ok()) return 0;
    }
    negotiator.advance();
  }
  return 0;
}
