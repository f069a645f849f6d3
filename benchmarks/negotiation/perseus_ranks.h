// Perseus's own negotiators, one for each rank, over the simulated network.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "negotiation/negotiator.h"
#include "network.h"

namespace perseus::simulation {

struct Tensor {
  std::string name;
  std::shared_ptr<const Description> description;
};

// CPU time that a negotiator needs, beyond the overhead of its messages.
struct NegotiatorCost {
  Nanoseconds begin = 0;     // handing over all tensors and casting a ballot
  Nanoseconds message = 0;   // receiving a message and answering it
  Nanoseconds conclude = 0;  // the same, when it ends the round
};

class PerseusRanks final : public Ranks {
 public:
  PerseusRanks(Network& network, const std::vector<Tensor>& tensors, NegotiatorCost cost);
  ~PerseusRanks();

  void start(int rank) override;
  void receive(int rank, const Message& message) override;

  // Prepares the next round: every rank submits every tensor again.
  void set_cost(NegotiatorCost cost) { cost_ = cost; }
  // When the rank last knew that every tensor is ready everywhere; -1 if it does not.
  Nanoseconds agreed_at(int rank) const;
  // The mean real time of calls since the last query, whatever cost is set.
  NegotiatorCost measured();

 private:
  class Rank;

  Network& network_;
  const std::vector<Tensor>& tensors_;
  NegotiatorCost cost_;
  std::vector<std::unique_ptr<Rank>> ranks_;

  struct Mean {
    Nanoseconds sum = 0, count = 0;
    void add(Nanoseconds time) { sum += time, count += 1; }
    Nanoseconds value() const { return count ? sum / count : 0; }
  };
  Mean begins_, messages_, conclusions_;
};

}  // namespace perseus::simulation
