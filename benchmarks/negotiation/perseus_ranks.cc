#include "perseus_ranks.h"

#include <algorithm>
#include <cstdio>
#include <cstdlib>

#include "stopwatch.h"

namespace perseus::simulation {
namespace {

// Perseus sends the kind of control message and the process set before a ballot (csrc/engine).
constexpr size_t kPrefix = sizeof(uint8_t) + sizeof(int32_t);
constexpr size_t kCapacity = 1 << 20;  // in names, so that none is ever evicted

}  // namespace

class PerseusRanks::Rank final : public NegotiatorHost {
 public:
  Rank(PerseusRanks& owner, int index, const std::vector<int>& all)
      : owner_(owner),
        index_(index),
        negotiator_(index, static_cast<int>(all.size()), all, kCapacity,
                    std::vector<std::byte>(kPrefix), *this) {}

  void send(int to, std::span<const std::byte> message) override {
    owner_.network_.send({index_, to, message.size(), {message.begin(), message.end()}});
  }
  void agreed(const Agreement& agreement) override {
    ready_ += agreement.ready.size();
    if (ready_ < owner_.tensors_.size()) return;
    owner_.network_.spend(index_,
                          std::max<Nanoseconds>(0, owner_.cost_.conclude - owner_.cost_.message));
    agreed_at_ = owner_.network_.now(index_);
  }

  void submit_all() {
    ready_ = 0;
    agreed_at_ = -1;
    for (const Tensor& tensor : owner_.tensors_) {
      negotiator_.submit(operation_key(tensor.description->kind, tensor.name), tensor.description);
    }
    negotiator_.advance();
  }
  void receive(const Message& message) {
    const Status status = negotiator_.receive(std::span(message.body).subspan(kPrefix));
    if (!status.is_ok()) {
      std::fprintf(stderr, "rank %d: %s\n", index_, status.message().c_str());
      std::abort();  // links that keep order deliver only ballots
    }
    negotiator_.advance();
  }

  Nanoseconds agreed_at() const { return agreed_at_; }
  uint64_t rounds() const { return negotiator_.completed_rounds(); }

 private:
  PerseusRanks& owner_;
  const int index_;
  Negotiator negotiator_;
  size_t ready_ = 0;
  Nanoseconds agreed_at_ = -1;
};

PerseusRanks::PerseusRanks(Network& network, const std::vector<Tensor>& tensors,
                           NegotiatorCost cost)
    : network_(network), tensors_(tensors), cost_(cost) {
  std::vector<int> all(network.size());
  for (int rank = 0; rank < network.size(); ++rank) all[rank] = rank;
  for (int rank : all) ranks_.push_back(std::make_unique<Rank>(*this, rank, all));
}

PerseusRanks::~PerseusRanks() = default;

void PerseusRanks::start(int rank) {
  network_.spend(rank, cost_.begin);
  const Nanoseconds begin = steady_now();
  ranks_[rank]->submit_all();
  begins_.add(steady_now() - begin);
}

void PerseusRanks::receive(int rank, const Message& message) {
  network_.spend(rank, cost_.message);
  const uint64_t rounds = ranks_[rank]->rounds();
  const Nanoseconds begin = steady_now();
  ranks_[rank]->receive(message);
  (ranks_[rank]->rounds() > rounds ? conclusions_ : messages_).add(steady_now() - begin);
}

Nanoseconds PerseusRanks::agreed_at(int rank) const { return ranks_[rank]->agreed_at(); }

NegotiatorCost PerseusRanks::measured() {
  const NegotiatorCost cost{begins_.value(), messages_.value(), conclusions_.value()};
  begins_ = messages_ = conclusions_ = Mean();
  return cost;
}

}  // namespace perseus::simulation
