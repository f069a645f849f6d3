#include "messages/mailbox.h"

#include <algorithm>
#include <span>
#include <utility>

namespace perseus {
namespace {

// Empty queues are kept for the next message of their key, as long as they are this few.
constexpr size_t kMostQueues = 256;

constexpr int32_t kAny = MessageEnds::kAny;

// Returns whether a receive of any tag may take a message of this one.
bool is_any_tag(int32_t tag) { return tag < MessageEnds::kFirstOfLibraries; }

bool asks_for(const MessageKey& asked, const MessageKey& message) {
  return asked.process_set == message.process_set &&
         (asked.source == kAny || asked.source == message.source) &&
         (asked.tag == kAny ? is_any_tag(message.tag) : asked.tag == message.tag);
}

}  // namespace

template <typename T>
T Mailbox::take_front(Queues<T>& queues, typename Queues<T>::iterator queue) {
  T value = std::move(queue->second.front().value);
  queue->second.pop_front();
  if (queue->second.empty() && queues.size() > kMostQueues) queues.erase(queue);
  return value;
}

OperationPtr Mailbox::take_receive(const MessageKey& message) {
  const MessageKey all[] = {message,
                            {message.process_set, kAny, message.tag},
                            {message.process_set, message.source, kAny},
                            {message.process_set, kAny, kAny}};
  const std::span asked(all, is_any_tag(message.tag) ? 4 : 2);
  auto first = receives_.end();
  for (const MessageKey& key : asked) {
    const auto queue = receives_.find(key);
    if (queue == receives_.end() || queue->second.empty()) continue;
    if (first == receives_.end() || queue->second.front().order < first->second.front().order) {
      first = queue;
    }
  }
  return first == receives_.end() ? nullptr : take_front(receives_, first);
}

KeptMessagePtr Mailbox::take_message(const MessageKey& asked) {
  auto first = messages_.end();
  if (asked.source != kAny && asked.tag != kAny) {
    first = messages_.find(asked);
    if (first != messages_.end() && first->second.empty()) first = messages_.end();
  } else {
    for (auto queue = messages_.begin(); queue != messages_.end(); ++queue) {
      if (queue->second.empty() || !asks_for(asked, queue->first)) continue;
      if (first == messages_.end() || queue->second.front().order < first->second.front().order) {
        first = queue;
      }
    }
  }
  return first == messages_.end() ? nullptr : take_front(messages_, first);
}

void Mailbox::post(const MessageKey& asked, OperationPtr receive) {
  receives_[asked].push_back({next_order_++, std::move(receive)});
}

void Mailbox::keep(KeptMessagePtr message) {
  const MessageKey key{message->envelope.process_set, message->source, message->envelope.tag};
  messages_[key].push_back({next_order_++, std::move(message)});
}

std::vector<OperationPtr> Mailbox::take_receives(
    const std::function<bool(const Operation&)>& is_one) {
  std::vector<Entry<OperationPtr>> taken;
  for (auto& [key, queue] : receives_) {
    std::erase_if(queue, [&](Entry<OperationPtr>& entry) {
      if (!is_one(*entry.value)) return false;
      taken.push_back(std::move(entry));
      return true;
    });
  }
  std::ranges::sort(taken, {}, &Entry<OperationPtr>::order);
  std::vector<OperationPtr> receives;
  for (Entry<OperationPtr>& entry : taken) receives.push_back(std::move(entry.value));
  return receives;
}

void Mailbox::drop_messages(const std::function<bool(KeptMessage&)>& is_one) {
  for (auto& [key, queue] : messages_) {
    std::erase_if(queue, [&](const Entry<KeptMessagePtr>& entry) { return is_one(*entry.value); });
  }
}

void Mailbox::for_each_receive(const std::function<void(const Operation&)>& visit) const {
  for (const auto& [key, queue] : receives_) {
    for (const Entry<OperationPtr>& entry : queue) visit(*entry.value);
  }
}

}  // namespace perseus
