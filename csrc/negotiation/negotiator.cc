#include "negotiation/negotiator.h"

#include <algorithm>
#include <bit>

namespace perseus {
namespace {

// The failure of an operation that a rank refused, or that two ranks describe differently.
Agreement::Failure failure_of(const std::string& key, const Record& record) {
  Agreement::Failure failure;
  failure.key = key;
  for (const Statement& statement : record.statements) {
    if (!statement.refusal) continue;
    failure.message = "rank " + std::to_string(statement.rank) +
                      " could not take part: " + statement.refusal->reason;
    failure.instead_set = statement.refusal->instead_set;
    failure.instead_key = statement.refusal->instead_key;
    return failure;
  }
  const Statement& first = record.statements.front();
  const Statement& second = record.statements.back();
  failure.message =
      title(key) + ": " +
      explain_difference(first.description, first.rank, second.description, second.rank);
  return failure;
}

}  // namespace

Negotiator::Negotiator(int index, int size, const std::vector<int>& ranks, size_t capacity,
                       std::vector<std::byte> prefix, NegotiatorHost& host)
    : index_(index),
      size_(size),
      rank_(ranks[index]),
      hops_(std::bit_width(static_cast<unsigned>(size - 1))),
      capacity_(capacity),
      prefix_(std::move(prefix)),
      host_(host) {}

uint32_t Negotiator::find(const std::string& key) const {
  const auto found = ids_.find(key);
  return found == ids_.end() ? kNoId : found->second;
}

void Negotiator::submit(const std::string& key, std::shared_ptr<const Description> description) {
  add(key, {next_ordinal_++, std::move(description), {}});
}

void Negotiator::refuse(const std::string& key, Refusal refusal) {
  add(key, {next_ordinal_++, {}, std::move(refusal)});
}

void Negotiator::add(const std::string& key, Pending pending) {
  const uint32_t id = find(key);
  if (is_pending(id, key)) {
    behind_refusals_.emplace_back(key, std::move(pending));
    return;
  }
  refusals_ += pending.refusal.has_value();
  add_to_ballots(id, key, std::move(pending));
  has_news_ = true;
}

void Negotiator::add_to_ballots(uint32_t id, const std::string& key, Pending pending) {
  const bool is_usual = !pending.refusal && !pending.is_overdue;
  if (!is_usual || id == kNoId || !compatible(description(id), *pending.description) ||
      description(id).priority != pending.description->priority) {
    to_describe_.insert(key, std::move(pending));
    return;
  }
  known_[id].pending = std::move(pending);
  pending_bits_.set(id);
  pending_bit_count_ += 1;
}

bool Negotiator::is_pending(uint32_t id, const std::string& key) const {
  return (id != kNoId && pending_bits_.has(id)) || to_describe_.contains(key);
}

Negotiator::Pending Negotiator::take_pending(uint32_t id, const std::string& key) {
  if (id == kNoId || !pending_bits_.has(id)) return to_describe_.extract(key);
  pending_bits_.reset(id);
  pending_bit_count_ -= 1;
  return std::exchange(known_[id].pending, {});
}

void Negotiator::forget_pending() {
  to_describe_.clear();
  pending_bits_.for_each([&](uint32_t id) { known_[id].pending = {}; });
  pending_bits_.clear();
  pending_bit_count_ = 0;
  refusals_ = 0;
}

bool Negotiator::conclude(const std::string& key) {
  if (!take_pending(find(key), key).refusal) return false;
  refusals_ -= 1;
  const auto next = std::find_if(behind_refusals_.begin(), behind_refusals_.end(),
                                 [&](const auto& entry) { return entry.first == key; });
  if (next != behind_refusals_.end()) {
    Pending pending = std::move(next->second);
    behind_refusals_.erase(next);
    add(key, std::move(pending));
  }
  return true;
}

void Negotiator::mark_overdue(const std::string& key) {
  const uint32_t id = find(key);
  Pending pending = take_pending(id, key);
  if (!pending.exists()) return;
  pending.is_overdue = true;
  add_to_ballots(id, key, std::move(pending));
  has_news_ = true;
}

// A refusal of an operation that nobody else has submitted does not keep this rank from joining.
bool Negotiator::can_join() const {
  return joining_ && pending_count() == refusals_ && behind_refusals_.empty();
}

void Negotiator::join() {
  joining_ = true;
  has_news_ = true;
}

bool Negotiator::limit_rounds(uint64_t last_round) {
  if (last_round >= last_round_) return false;
  last_round_ = last_round;
  return true;
}

Status Negotiator::receive(std::span<const std::byte> message) {
  ByteReader reader(message);
  const auto round = reader.get<uint64_t>();
  const auto hop = reader.get<uint8_t>();
  if (hop >= hops_) return Status::internal("a malformed ballot arrived");
  // A rank can be at most one round ahead of this one: it needs this rank's ballot to end a round.
  const uint64_t next = completed_rounds_ + 1;
  if (round != next && round != next + 1) {
    return Status::internal("a ballot of round " + std::to_string(round) + " arrived in round " +
                            std::to_string(next));
  }
  Arrival& place = inbox_[round & 1][hop];
  if (place.has_arrived) return Status::internal("a ballot arrived twice");
  if (!place.ballot.read(reader)) return Status::internal("a malformed ballot arrived");
  place.has_arrived = true;
  return {};
}

bool Negotiator::should_begin() const {
  if (in_round_ || is_exhausted()) return false;
  if (has_news_ || demanded_round_ > completed_rounds_) return true;
  const auto& arrived = inbox_[(completed_rounds_ + 1) & 1];
  const bool asked = std::any_of(arrived.begin(), arrived.begin() + hops_,
                                 [](const Arrival& arrival) { return arrival.has_arrived; });
  return asked &&
         (joined_ || takes_part_always_ || takes_part_for_launches_ || pending_count() > 0);
}

void Negotiator::advance() {
  for (;;) {
    if (should_begin()) begin_round();
    if (!in_round_) return;
    run_hops();
    if (hop_ < hops_) return;  // waiting for another rank
    complete_round();
  }
}

void Negotiator::begin_round() {
  in_round_ = true;
  hop_ = 0;
  has_news_ = false;
  if (can_join()) {
    forget_pending();
    joining_ = false;
    joined_ = true;
    join_round_ = completed_rounds_ + 1;
  }
  ballot_.clear();
  ballot_.time = time_of_ballot_ = host_.time();
  ballot_.launches_ended = launches_in_ballot_ = launches_ended_;
  // A number that all ranks have heard of needs no more bytes.
  if (const uint64_t number = host_.announcement(); number > announced_) ballot_.announced = number;
  if (joined_) {
    ballot_.all_joined = true;
    ballot_.last_join_round = join_round_;
    ballot_.last_join_rank = rank_;
    ballot_.joined = {rank_};
  } else {
    ballot_.speaker = rank_;
    ballot_.trial = trial_;
    ballot_.slowest = result_;
    ballot_.bits = pending_bits_;
    if (!to_describe_.empty()) describe();
    if (pending_count() == 1) attach();
  }
  if (hops_ > 0) send_hop();
}

void Negotiator::attach() {
  const auto attach_to = [&](uint32_t id, const std::string& key) {
    const Attachment attachment = host_.attachment(key);
    if (Piggyback::fits(size_, attachment.bytes.size())) {
      ballot_.piggyback.set(id, index_, attachment);
    }
  };
  pending_bits_.for_each([&](uint32_t id) { attach_to(id, known_[id].operation->key); });
  for (const auto& [key, pending] : to_describe_) {
    if (!pending.refusal) attach_to(kNoId, key);
  }
}

void Negotiator::describe() {
  std::vector<std::pair<std::string_view, const Pending*>> what;
  for (const auto& [key, pending] : to_describe_) what.emplace_back(key, &pending);
  std::sort(what.begin(), what.end());
  for (const auto& [key, pending] : what) {
    Record record;
    if (pending->is_overdue) record.waiting.push_back(rank_);
    const Description& described = pending->refusal ? Description() : *pending->description;
    record.statements.push_back({rank_, pending->ordinal, described, pending->refusal});
    ballot_.records.append(key, record);
  }
  descriptions_sent_ += what.size();
}

void Negotiator::send_hop() {
  writer_.clear();
  writer_.put_bytes(prefix_.data(), prefix_.size());
  writer_.put<uint64_t>(completed_rounds_ + 1);
  writer_.put<uint8_t>(static_cast<uint8_t>(hop_));
  ballot_.write(writer_);
  host_.send(static_cast<int>((index_ + (int64_t{1} << hop_)) % size_), writer_.bytes());
}

void Negotiator::run_hops() {
  auto& arrived = inbox_[(completed_rounds_ + 1) & 1];
  while (hop_ < hops_ && std::exchange(arrived[hop_].has_arrived, false)) {
    if (!is_valid(arrived[hop_].ballot)) {
      failure_ = Status::internal("a ballot arrived that does not fit what has been described");
      limit_rounds(completed_rounds_);
      return;
    }
    ballot_.merge(std::move(arrived[hop_].ballot), *this);
    arrived[hop_].ballot.records.clear();  // records are rare, and may be large
    if (++hop_ < hops_) send_hop();
  }
}

bool Negotiator::is_valid(const Ballot& ballot) const {
  bool all = true;
  ballot.bits.for_each(
      [&](uint32_t id) { all &= id < known_.size() && known_[id].operation != nullptr; });
  const Piggyback& piggyback = ballot.piggyback;
  if (!all || piggyback.empty()) return all;
  if (piggyback.id() == kNoId) return !ballot.records.empty();
  return ballot.bits.has(piggyback.id()) && fits(piggyback, description(piggyback.id()));
}

bool Negotiator::fits(const Piggyback& piggyback, const Description& its) const {
  if (piggyback.kind() == Attachment::Kind::kInput) {
    return is_uneven(its.kind) || its.bytes() == piggyback.bytes();
  }
  const bool is_gathered = its.kind == OperationKind::kAllgather;
  const size_t sizes = is_gathered ? its.tensors.size() : static_cast<size_t>(size_);
  return is_uneven(its.kind) && piggyback.bytes() == sizes * sizeof(int64_t);
}

void Negotiator::complete_round() {
  in_round_ = false;
  completed_rounds_ += 1;

  agreement_.clear();
  agreement_.round = completed_rounds_;
  agreement_.time = ballot_.time + 1;
  agreement_.launches_ended = ballot_.launches_ended;
  agreement_.announced = announced_ = std::max(announced_, ballot_.announced);
  agreement_.joined = std::move(ballot_.joined);
  agreement_.trial = ballot_.trial;
  agreement_.slowest = ballot_.slowest;
  if (ballot_.all_joined) {
    agreement_.last_joined = ballot_.last_join_rank;
    joined_ = false;
    if (pending_count() > 0) has_news_ = true;
  } else {
    conclude_records();
    ballot_.records.clear();
    conclude_bits();
    std::sort(agreement_.ready.begin(), agreement_.ready.end(), [](const auto& a, const auto& b) {
      return std::tie(b.priority, a.id) < std::tie(a.priority, b.id);
    });
    for (const auto& ready : agreement_.ready) take_pending(ready.id, ready.key());
    hand_on_attachments();
    for (auto& failure : agreement_.failures) failure.is_refused_here = conclude(failure.key);
    if (can_join()) has_news_ = true;
    forget_unused();
  }
  host_.agreed(agreement_);
}

// Each rank's ballot named one operation. So if one is ready, all of them named that.
void Negotiator::hand_on_attachments() {
  const Piggyback& piggyback = ballot_.piggyback;
  if (!piggyback.is_of_all(size_) || agreement_.ready.size() != 1) return;
  if (!fits(piggyback, agreement_.ready.front().description())) return;
  const bool is_input = piggyback.kind() == Attachment::Kind::kInput;
  (is_input ? agreement_.inputs : agreement_.sizes) = piggyback.attachments();
}

uint32_t Negotiator::learn(const std::string& key, const Description& description) {
  uint32_t id = find(key);
  Pending pending = take_pending(id, key);
  if (id == kNoId) {
    if (free_ids_.empty()) {
      id = static_cast<uint32_t>(known_.size());
      known_.emplace_back();
    } else {
      id = *free_ids_.begin();
      free_ids_.erase(free_ids_.begin());
    }
    ids_.emplace(key, id);
  }
  known_[id].operation = std::make_shared<const KnownOperation>(KnownOperation{key, description});
  known_[id].last_used = completed_rounds_;
  if (pending.exists()) add_to_ballots(id, key, std::move(pending));
  return id;
}

bool Negotiator::has_agreed_since(const std::string& key, uint64_t round) const {
  const uint32_t id = find(key);
  return id != kNoId && known_[id].last_used > round;
}

Agreement::Ready Negotiator::ready(uint32_t id) const {
  const auto& operation = known_[id].operation;
  return {id, operation->description.priority, operation};
}

void Negotiator::conclude_bits() {
  ballot_.bits.for_each([&](uint32_t id) {
    known_[id].last_used = completed_rounds_;
    agreement_.ready.push_back(ready(id));
  });
}

void Negotiator::conclude_records() {
  using Entry = std::pair<std::string, Record>;
  std::vector<Entry> in_order = ballot_.records.unpack();
  // New ids follow the order in which the lowest rank submitted. So tensors that are neighbours in
  // a backward pass have neighbouring ids, and are merged.
  std::sort(in_order.begin(), in_order.end(), [](const Entry& a, const Entry& b) {
    const Statement& first_a = a.second.statements.front();
    const Statement& first_b = b.second.statements.front();
    return std::tie(first_a.rank, first_a.ordinal, a.first) <
           std::tie(first_b.rank, first_b.ordinal, b.first);
  });
  for (const auto& [key, record] : in_order) {
    const Statement& first = record.statements.front();
    if (!record.everywhere) {
      if (!record.waiting.empty()) agreement_.overdue.push_back({key, record.waiting});
      // A known name keeps its description: whether ranks still differ shows once all have it
      // ready.
      const auto described =
          std::find_if(record.statements.begin(), record.statements.end(),
                       [](const Statement& statement) { return !statement.refusal; });
      if (described != record.statements.end() && find(key) == kNoId) {
        learn(key, described->description);
      }
    } else if (record.statements.size() > 1 || first.refusal) {
      agreement_.failures.push_back(failure_of(key, record));
    } else {
      const uint32_t id = learn(key, first.description);
      agreement_.ready.push_back(ready(id));
    }
  }
}

void Negotiator::forget_unused() {
  if (ids_.size() <= capacity_) return;
  // Forget some more than necessary, so that a program that gives every operation a new name does
  // not pay for this search each time.
  size_t count = ids_.size() - capacity_ + capacity_ / 16;
  std::vector<std::pair<uint64_t, uint32_t>> unused;  // last used, id
  for (uint32_t id = 0; id < known_.size(); ++id) {
    const bool may_go = known_[id].operation && known_[id].last_used != completed_rounds_;
    if (may_go) unused.emplace_back(known_[id].last_used, id);
  }
  count = std::min(count, unused.size());
  std::nth_element(unused.begin(), unused.begin() + count, unused.end());
  for (size_t i = 0; i < count; ++i) forget(unused[i].second);
}

void Negotiator::forget(uint32_t id) {
  const std::string key = known_[id].operation->key;
  Pending pending = take_pending(id, key);
  ids_.erase(key);
  free_ids_.insert(id);
  known_[id] = Known{};
  if (!pending.exists()) return;
  add_to_ballots(kNoId, key, std::move(pending));
  has_news_ = true;
}

}  // namespace perseus
