// Matches messages with the receives that ask for them, whichever comes first. Messages from one
// rank that a receive could take are taken in the order in which they were sent, and receives that
// could take a message get it in the order in which they were posted, as in MPI. Engine thread.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <unordered_map>
#include <vector>

#include "base/buffer_pool.h"
#include "messages/envelope.h"
#include "state/operation.h"

namespace perseus {

// The set, sender and tag that a message has, or that a receive asks for.
struct MessageKey {
  int32_t process_set = 0;
  int32_t source = MessageEnds::kAny;
  int32_t tag = MessageEnds::kAny;
  bool operator==(const MessageKey&) const = default;
};

// A message that no receive has asked for yet.
struct KeptMessage {
  enum class Elements { kAtSender, kArriving, kHere };

  Envelope envelope;
  int source = -1;
  Elements elements = Elements::kAtSender;
  Buffer data;              // once they arrive
  OperationPtr own_send;    // of this rank to itself, if the elements still lie there
  OperationPtr receive;     // has asked for it while the elements arrive
  bool is_dropped = false;  // nobody will ask for it
};
using KeptMessagePtr = std::shared_ptr<KeptMessage>;

class Mailbox {
 public:
  // Takes the receive that is to get a message of this key; null if none asks for it.
  OperationPtr take_receive(const MessageKey& message);
  // Takes the message that this receive is to get; null if there is none.
  KeptMessagePtr take_message(const MessageKey& asked);

  void post(const MessageKey& asked, OperationPtr receive);
  void keep(KeptMessagePtr message);

  // Takes the receives for which `is_one` holds, in the order in which they were posted.
  std::vector<OperationPtr> take_receives(const std::function<bool(const Operation&)>& is_one);
  // Drops the messages for which `is_one` holds.
  void drop_messages(const std::function<bool(KeptMessage&)>& is_one);
  void for_each_receive(const std::function<void(const Operation&)>& visit) const;

 private:
  struct Hash {
    size_t operator()(const MessageKey& key) const {
      uint64_t hash =
          (uint64_t{static_cast<uint32_t>(key.source)} << 32) | static_cast<uint32_t>(key.tag);
      hash = (hash ^ static_cast<uint32_t>(key.process_set)) * 0x9e3779b97f4a7c15u;
      return static_cast<size_t>(hash ^ (hash >> 32));
    }
  };
  template <typename T>
  struct Entry {
    uint64_t order;
    T value;
  };
  template <typename T>
  using Queues = std::unordered_map<MessageKey, std::deque<Entry<T>>, Hash>;

  template <typename T>
  static T take_front(Queues<T>& queues, typename Queues<T>::iterator queue);

  uint64_t next_order_ = 0;
  Queues<OperationPtr> receives_;
  Queues<KeptMessagePtr> messages_;
};

}  // namespace perseus
