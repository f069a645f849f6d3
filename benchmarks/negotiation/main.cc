// negotiation_simulator scheme=NAME ranks=N names=FILE [rounds=R] [spread_ns=T] [model fields]
//
// Simulates agreements of N ranks on the tensors that FILE lists (each line: name, then extents)
// and prints one JSON object per round: virtual time from the last rank's submission until the last
// rank learns the outcome, and messages and bytes of the ranks. In the first round no rank knows
// any name. With scheme=perseus the CPU time of the negotiators is measured with 16 of them, on
// this machine, and charged to the virtual ranks.
#include <algorithm>
#include <array>
#include <cstdio>
#include <fstream>
#include <map>
#include <random>
#include <sstream>
#include <string>
#include <unordered_map>
#include <utility>

#include "base/bytes.h"
#include "horovod_ranks.h"
#include "perseus_ranks.h"
#include "stopwatch.h"

namespace perseus::simulation {
namespace {

// Bytes of one request and response of Horovod beside the name: FlatBuffers tables of nine fields
// and of several fields (its wire/message.fbs), estimated low.
constexpr size_t kRequestBytes = 48, kResponseBytes = 16;

struct Options {
  std::string scheme = "perseus";
  std::string names;
  double ranks = 2, rounds = 3;
  double spread_ns = 200'000;  // the ranks submit within this time
  Model model;

  int size() const { return static_cast<int>(ranks); }
};

// Sets an option. Returns whether `argument` is one.
bool take(const std::string& argument, Options& options) {
  const size_t equals = argument.find('=');
  if (equals == std::string::npos) return false;
  const std::string name = argument.substr(0, equals), value = argument.substr(equals + 1);
  if (name == "scheme") return options.scheme = value, true;
  if (name == "names") return options.names = value, true;
  double number = 0;
  if (std::istringstream stream(value); !(stream >> number) || !stream.eof()) return false;
  const std::map<std::string, double*> numbers = {
      {"ranks", &options.ranks},
      {"rounds", &options.rounds},
      {"spread_ns", &options.spread_ns},
      {"inside_bytes_per_ns", &options.model.inside.bytes_per_ns},
      {"between_bytes_per_ns", &options.model.between.bytes_per_ns},
  };
  const std::map<std::string, Nanoseconds*> times = {
      {"inside_overhead_ns", &options.model.inside.overhead},
      {"inside_latency_ns", &options.model.inside.latency},
      {"between_overhead_ns", &options.model.between.overhead},
      {"between_latency_ns", &options.model.between.latency},
  };
  if (name == "ranks_per_host")
    return options.model.ranks_per_host = static_cast<int>(number), true;
  if (numbers.contains(name)) return *numbers.at(name) = number, true;
  if (times.contains(name)) return *times.at(name) = static_cast<Nanoseconds>(number), true;
  return false;
}

std::vector<Tensor> read_tensors(const std::string& path) {
  std::vector<Tensor> tensors;
  std::ifstream file(path);
  for (std::string line; std::getline(file, line);) {
    std::istringstream words(line);
    Tensor tensor;
    words >> tensor.name;
    auto description = std::make_shared<Description>();
    description->tensors.push_back({DataType::kFloat32, {}});
    for (int64_t extent = 0; words >> extent;) description->tensors[0].shape.push_back(extent);
    tensor.description = std::move(description);
    tensors.push_back(std::move(tensor));
  }
  return tensors;
}

struct Extremes {
  uint64_t least = UINT64_MAX, most = 0, of_rank_0 = 0;

  void add(int rank, uint64_t value) {
    least = std::min(least, value);
    most = std::max(most, value);
    if (rank == 0) of_rank_0 = value;
  }
  void print(const char* name) const {
    std::printf(", \"%s\": [%llu, %llu, %llu]", name, static_cast<unsigned long long>(least),
                static_cast<unsigned long long>(most), static_cast<unsigned long long>(of_rank_0));
  }
};

// Lets every rank submit, and prints the result. Returns false if some rank did not learn the
// outcome.
template <typename SomeRanks>
bool run_round(const Options& options, int round, Network& network, SomeRanks& ranks,
               const std::string& more) {
  Nanoseconds begin = 0;
  for (int rank = 0; rank < network.size(); ++rank) begin = std::max(begin, network.now(rank));
  std::mt19937_64 random(static_cast<uint64_t>(round) + 1);
  Nanoseconds last_submission = 0;
  for (int rank = 0; rank < network.size(); ++rank) {
    const auto delay = static_cast<Nanoseconds>(options.spread_ns *
                                                (static_cast<double>(random() >> 11) * 0x1p-53));
    network.start_at(rank, begin + delay);
    last_submission = std::max(last_submission, begin + delay);
  }
  network.forget_traffic();
  network.run(ranks);

  Nanoseconds last = 0;
  Extremes sent, received, bytes_sent, bytes_received;
  for (int rank = 0; rank < network.size(); ++rank) {
    if (ranks.agreed_at(rank) < 0) return false;
    last = std::max(last, ranks.agreed_at(rank));
    const Network::Traffic& traffic = network.traffic(rank);
    sent.add(rank, traffic.messages_sent);
    received.add(rank, traffic.messages_received);
    bytes_sent.add(rank, traffic.bytes_sent);
    bytes_received.add(rank, traffic.bytes_received);
  }
  std::printf("{\"scheme\": \"%s\", \"ranks\": %d, \"round\": %d, \"time_us\": %.3f",
              options.scheme.c_str(), options.size(), round, (last - last_submission) / 1000.0);
  sent.print("messages_sent");
  received.print("messages_received");
  bytes_sent.print("bytes_sent");
  bytes_received.print("bytes_received");
  std::printf("%s}\n", more.c_str());
  std::fflush(stdout);
  return true;
}

// The CPU time of a negotiator's own work in the first round and in later ones. Over several rounds
// the lowest means count, as on an otherwise idle machine.
std::vector<NegotiatorCost> measure_costs(const Options& options,
                                          const std::vector<Tensor>& tensors) {
  constexpr int kRanks = 16, kRepeats = 5, kRounds = 10;
  std::vector<NegotiatorCost> costs(2, {INT64_MAX, INT64_MAX, INT64_MAX});
  for (int repeat = 0; repeat < kRepeats; ++repeat) {
    Network network(kRanks, options.model);
    PerseusRanks ranks(network, tensors, {});
    for (int round = 0; round < kRounds; ++round) {
      for (int rank = 0; rank < kRanks; ++rank) network.start_at(rank, network.now(rank));
      network.run(ranks);
      const NegotiatorCost cost = ranks.measured();
      NegotiatorCost& least = costs[round > 0];
      least = {std::min(least.begin, cost.begin), std::min(least.message, cost.message),
               std::min(least.conclude, cost.conclude)};
    }
  }
  return costs;
}

// The least that rank 0 of Horovod must do for each request: take the name out of the list, look it
// up, and record which rank asks for it.
Nanoseconds measure_request(const std::vector<Tensor>& tensors) {
  constexpr int kLists = 64, kRepeats = 5;
  struct Asked {
    int rank;
    std::array<std::byte, kRequestBytes> what;
  };
  ByteWriter list;
  for (const Tensor& tensor : tensors) {
    list.put_string(tensor.name);
    list.put(std::array<std::byte, kRequestBytes>{});
  }
  Nanoseconds least = INT64_MAX;
  for (int repeat = 0; repeat < kRepeats; ++repeat) {
    std::unordered_map<std::string, std::vector<Asked>> table;
    const Nanoseconds begin = steady_now();
    for (int rank = 0; rank < kLists; ++rank) {
      ByteReader reader(list.bytes());
      while (reader.remaining() > 0) {
        const std::string name = reader.get_string();
        table[name].push_back({rank, reader.get<std::array<std::byte, kRequestBytes>>()});
      }
    }
    least = std::min(least, (steady_now() - begin) / kLists);
  }
  return least / static_cast<Nanoseconds>(tensors.size());
}

bool simulate_perseus(const Options& options, const std::vector<Tensor>& tensors) {
  const std::vector<NegotiatorCost> costs = measure_costs(options, tensors);
  Network network(options.size(), options.model);
  PerseusRanks ranks(network, tensors, costs[0]);
  for (int round = 0; round < options.rounds; ++round) {
    const NegotiatorCost& cost = costs[round > 0];
    ranks.set_cost(cost);
    const std::string more = ", \"begin_ns\": " + std::to_string(cost.begin) +
                             ", \"message_ns\": " + std::to_string(cost.message) +
                             ", \"conclude_ns\": " + std::to_string(cost.conclude);
    if (!run_round(options, round, network, ranks, more)) return false;
  }
  return true;
}

bool simulate_horovod(const Options& options, HorovodScheme scheme,
                      const std::vector<Tensor>& tensors) {
  HorovodRequests requests;
  requests.names = tensors.size();
  for (const Tensor& tensor : tensors) {
    requests.bytes += kRequestBytes + tensor.name.size();
    requests.response_bytes += kResponseBytes + tensor.name.size();
  }
  requests.cost = measure_request(tensors);
  Network network(options.size(), options.model);
  HorovodRanks ranks(network, scheme, requests);
  for (int round = 0; round < options.rounds; ++round) {
    if (!run_round(options, round, network, ranks,
                   ", \"request_ns\": " + std::to_string(requests.cost))) {
      return false;
    }
  }
  return true;
}

int run(int count, char** arguments) {
  Options options;
  for (int i = 1; i < count; ++i) {
    if (take(arguments[i], options)) continue;
    std::fprintf(stderr, "negotiation_simulator: '%s' is no argument\n", arguments[i]);
    return 2;
  }
  const std::vector<Tensor> tensors = read_tensors(options.names);
  const auto scheme = horovod_scheme(options.scheme);
  if (tensors.empty() || options.size() < 2 || options.model.ranks_per_host < 1 ||
      (!scheme && options.scheme != "perseus")) {
    std::fprintf(stderr, "negotiation_simulator: needs a scheme, names=FILE and ranks=2 or more\n");
    return 2;
  }
  const bool is_agreed =
      scheme ? simulate_horovod(options, *scheme, tensors) : simulate_perseus(options, tensors);
  if (!is_agreed) std::fprintf(stderr, "negotiation_simulator: some rank learnt of no agreement\n");
  return is_agreed ? 0 : 1;
}

}  // namespace
}  // namespace perseus::simulation

int main(int count, char** arguments) { return perseus::simulation::run(count, arguments); }
