// Ranks on hosts, joined by simulated links, in virtual time. One thread, deterministic.
//
// The model is LogGP's (Alexandrov, Ionescu, Schauser, Scheiman 1995) with two kinds of link. A
// message costs its sender's CPU an overhead, then the sending host's network card the time of its
// bytes, then the latency of the wire, then the receiving host's card, and then an overhead of its
// receiver's CPU. Work that shares a CPU or a card is done one after the other. Bytes flow through
// both cards at once, so they cost their time once. Inside a host there are no cards.
#pragma once

#include <cstddef>
#include <cstdint>
#include <queue>
#include <span>
#include <vector>

namespace perseus::simulation {

using Nanoseconds = int64_t;

struct LinkModel {
  Nanoseconds overhead;  // of the CPU at each end
  Nanoseconds latency;
  double bytes_per_ns;
};

struct Model {
  int ranks_per_host = 8;
  LinkModel inside{1000, 4000, 10.0};
  LinkModel between{2000, 25000, 3.125};  // 25 Gbit/s
};

struct Message {
  int from = 0, to = 0;
  size_t size = 0;              // bytes on the wire
  std::vector<std::byte> body;  // may be empty where only the size matters
};

// The ranks' behaviour. Called in order of virtual time.
class Ranks {
 public:
  virtual void start(int rank) = 0;
  virtual void receive(int rank, const Message& message) = 0;

 protected:
  ~Ranks() = default;
};

class Network {
 public:
  Network(int size, const Model& model);

  int size() const { return static_cast<int>(cpu_free_.size()); }
  // When the rank's CPU will have finished its work so far.
  Nanoseconds now(int rank) const { return cpu_free_[rank]; }
  // Makes the rank's CPU busy for this long.
  void spend(int rank, Nanoseconds work) { cpu_free_[rank] += work; }
  void send(Message message);
  void start_at(int rank, Nanoseconds time);
  // Runs until no message is under way.
  void run(Ranks& ranks);

  struct Traffic {
    uint64_t messages_sent = 0, bytes_sent = 0;
    uint64_t messages_received = 0, bytes_received = 0;
  };
  const Traffic& traffic(int rank) const { return traffic_[rank]; }
  void forget_traffic();

 private:
  enum class Stage : uint8_t { kStart, kDepart, kReachCard, kDeliver };
  struct Event {
    Nanoseconds time;
    uint64_t sequence;  // at equal times the older event comes first
    Stage stage;
    uint32_t subject;  // the rank that starts, or the index of the message
  };
  struct Later {
    bool operator()(const Event& a, const Event& b) const {
      return a.time != b.time ? a.time > b.time : a.sequence > b.sequence;
    }
  };

  int host_of(int rank) const { return rank / model_.ranks_per_host; }
  const LinkModel& link(const Message& message) const;
  void at(Nanoseconds time, Stage stage, uint32_t subject);
  void depart(Nanoseconds time, uint32_t place);
  void reach_card(Nanoseconds time, uint32_t place);
  void deliver(Nanoseconds time, uint32_t place, Ranks& ranks);

  const Model model_;
  std::vector<Nanoseconds> cpu_free_;                      // by rank
  std::vector<Nanoseconds> sending_free_, arriving_free_;  // network cards, by host
  std::vector<Traffic> traffic_;
  std::priority_queue<Event, std::vector<Event>, Later> events_;
  uint64_t sequence_ = 0;
  std::vector<Message> under_way_;
  std::vector<uint32_t> free_places_;
};

}  // namespace perseus::simulation
