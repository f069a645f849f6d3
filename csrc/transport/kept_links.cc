#include "transport/kept_links.h"

#include <algorithm>
#include <utility>

#include "base/settings.h"

namespace perseus {
namespace {

// The settings that decide how many channels a link has, and how each is made.
std::string terms_of(const Settings& settings, std::string_view secret) {
  static constexpr std::string_view kNames[] = {
      "PERSEUS_TRANSPORT",         "PERSEUS_WIRE",
      "PERSEUS_INTERFACES",        "PERSEUS_PEER_TIMEOUT",
      "PERSEUS_ALLREDUCE_STREAMS", "PERSEUS_ALLREDUCE_DISABLE_STREAM_TUNING"};
  std::string terms(bytes_of(sha256(secret)));
  for (const SettingRow& row : describe(settings)) {
    if (std::ranges::find(kNames, row.name) == std::end(kNames)) continue;
    terms += std::string(row.name) + "=" + row.value + ";";
  }
  return terms;
}

}  // namespace

KeptLinks::KeptLinks() : memory_(std::make_unique<Memory>()) {}

KeptLinks::~KeptLinks() { clear(); }

std::shared_ptr<const FileDescriptor> KeptLinks::doorbell() {
  if (!memory_->doorbell || !*memory_->doorbell) memory_->doorbell = EventLoop::make_doorbell();
  return memory_->doorbell;
}

void KeptLinks::prepare_for(const Settings& settings, std::string_view secret) {
  std::string terms = terms_of(settings, secret);
  if (terms != memory_->terms) memory_->links.clear();
  memory_->terms = std::move(terms);
  if (!memory_->outbox->is_worn()) return;
  std::erase_if(memory_->links, [](const auto& link) {
    return link.second.front()->kind() == Channel::Kind::kShm;
  });
  memory_->outbox = std::make_unique<Outbox>();
}

void KeptLinks::put(const Nonce& process, Channels channels) {
  memory_->links.insert_or_assign(process, std::move(channels));
}

KeptLinks::Channels KeptLinks::take(const Nonce& process) {
  auto found = memory_->links.extract(process);
  return found.empty() ? Channels() : std::move(found.mapped());
}

void KeptLinks::clear() {
  memory_->links.clear();
  memory_->outbox = std::make_unique<Outbox>();
  memory_->doorbell = nullptr;
}

void KeptLinks::after_fork_in_child() {
  // Leaked: a thread of the parent may have been in the middle of a change.
  [[maybe_unused]] Memory* const parents = memory_.release();
  memory_ = std::make_unique<Memory>();
}

}  // namespace perseus
