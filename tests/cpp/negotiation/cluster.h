// N negotiators in one thread, joined by queues. As links do, the queues deliver in order between
// two ranks, and in random order otherwise.
#pragma once

#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <random>
#include <vector>

#include "negotiation/negotiator.h"

namespace perseus {

class Cluster {
 public:
  explicit Cluster(int size, uint32_t seed = 1, size_t capacity = 1024) : random_(seed) {
    std::vector<int> ranks(size);
    for (int r = 0; r < size; ++r) ranks[r] = r;
    for (int r = 0; r < size; ++r)
      members_.push_back(std::make_unique<Member>(*this, r, ranks, capacity));
  }

  int size() const { return static_cast<int>(members_.size()); }
  Negotiator& at(int rank) { return members_[rank]->negotiator; }
  const std::vector<Agreement>& agreements(int rank) const { return members_[rank]->agreements; }
  struct Traffic {
    uint64_t messages_sent = 0, bytes_sent = 0, messages_received = 0;
  };
  const Traffic& traffic(int rank) const { return members_[rank]->traffic; }
  // From now on every operation has an input of `bytes` bytes: input(rank, bytes).
  void give_inputs(size_t bytes) { input_bytes_ = bytes; }
  // From now on ballots take along sizes, which are input(rank, bytes), on these ranks.
  void give_sizes(size_t bytes, std::function<bool(int rank)> where) {
    input_bytes_ = bytes;
    gives_sizes_ = std::move(where);
  }
  static std::vector<std::byte> input(int rank, size_t bytes) {
    return std::vector(bytes, static_cast<std::byte>(rank + 1));
  }
  Attachment::Kind kind_of(int rank) const {
    return gives_sizes_(rank) ? Attachment::Kind::kSizes : Attachment::Kind::kInput;
  }
  // The inputs that came with each of the rank's agreements, and the sizes.
  const std::vector<std::vector<std::byte>>& inputs(int rank) const {
    return members_[rank]->inputs;
  }
  const std::vector<std::vector<std::byte>>& sizes(int rank) const { return members_[rank]->sizes; }

  void submit(int rank, const std::string& name, Description description = one_float()) {
    submit_quietly(rank, name, std::move(description));
    at(rank).advance();
  }
  // The others hear of it when the rank advances.
  void submit_quietly(int rank, const std::string& name, Description description = one_float()) {
    const std::string key = operation_key(description.kind, name);
    at(rank).submit(key, std::make_shared<const Description>(std::move(description)));
  }
  void refuse(int rank, const std::string& name, const std::string& reason) {
    at(rank).refuse(operation_key(OperationKind::kAllreduce, name), {reason, -1, ""});
    at(rank).advance();
  }
  void join(int rank) {
    at(rank).join();
    at(rank).advance();
  }

  void announce(int rank, uint64_t number) { members_[rank]->announced = number; }

  // Delivers a message; returns false if none is on the way.
  bool deliver_one() {
    if (channels_.empty()) return false;
    auto channel = channels_.begin();
    std::advance(channel, std::uniform_int_distribution<size_t>(0, channels_.size() - 1)(random_));
    const int to = channel->first.second;
    const std::vector<std::byte> message = std::move(channel->second.front());
    channel->second.pop_front();
    if (channel->second.empty()) channels_.erase(channel);
    members_[to]->traffic.messages_received += 1;
    const Status status = at(to).receive(message);
    if (!status.is_ok()) throw std::runtime_error(status.message());
    at(to).advance();
    return true;
  }
  // Delivers until nothing is on the way; returns how many messages were.
  int deliver_all() {
    int delivered = 0;
    while (deliver_one()) ++delivered;
    return delivered;
  }

  // The names that a rank has agreed on, in order.
  std::vector<std::string> ready(int rank) const {
    std::vector<std::string> names;
    for (const Agreement& agreement : agreements(rank)) {
      for (const auto& ready : agreement.ready) names.emplace_back(name_of_key(ready.key()));
    }
    return names;
  }
  std::vector<std::string> failures(int rank) const {
    std::vector<std::string> messages;
    for (const Agreement& agreement : agreements(rank)) {
      for (const auto& failure : agreement.failures) messages.push_back(failure.message);
    }
    return messages;
  }

  static Description one_float() { return floats({1}); }
  static Description floats(Shape shape) {
    Description description;
    description.tensors.push_back({DataType::kFloat32, std::move(shape)});
    return description;
  }

 private:
  struct Member final : NegotiatorHost {
    Member(Cluster& owner, int rank, const std::vector<int>& ranks, size_t capacity)
        : cluster(owner),
          index(rank),
          negotiator(rank, static_cast<int>(ranks.size()), ranks, capacity, {}, *this) {}
    void send(int to, std::span<const std::byte> message) override {
      traffic.messages_sent += 1;
      traffic.bytes_sent += message.size();
      cluster.channels_[{index, to}].emplace_back(message.begin(), message.end());
    }
    void agreed(const Agreement& agreement) override {
      agreements.push_back(agreement);
      inputs.emplace_back(agreement.inputs.begin(), agreement.inputs.end());
      sizes.emplace_back(agreement.sizes.begin(), agreement.sizes.end());
      agreements.back().inputs = agreements.back().sizes = {};
      time_ = std::max(time_, agreement.time);
    }
    uint64_t time() const override { return time_; }
    uint64_t announcement() const override { return announced; }
    Attachment attachment(const std::string&) override {
      own_input = Cluster::input(index, cluster.input_bytes_);
      return {cluster.kind_of(index), own_input};
    }

    Cluster& cluster;
    int index;
    Negotiator negotiator;
    Traffic traffic;
    std::vector<Agreement> agreements;
    std::vector<std::vector<std::byte>> inputs, sizes;  // by agreement
    std::vector<std::byte> own_input;
    uint64_t announced = 0;
    uint64_t time_ = 0;
  };

  std::mt19937 random_;
  size_t input_bytes_ = 0;
  std::function<bool(int rank)> gives_sizes_ = [](int) { return false; };
  std::map<std::pair<int, int>, std::deque<std::vector<std::byte>>> channels_;
  std::vector<std::unique_ptr<Member>> members_;
};

}  // namespace perseus
