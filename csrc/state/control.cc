#include "state/control.h"

#include <algorithm>
#include <utility>

namespace perseus {
namespace {

std::vector<std::byte> copy(const ByteWriter& writer) {
  return {writer.bytes().begin(), writer.bytes().end()};
}

void write_strings(ByteWriter& writer, const std::vector<std::string>& strings) {
  writer.put<uint32_t>(static_cast<uint32_t>(strings.size()));
  for (const std::string& text : strings) writer.put_string(text);
}

void write_ranks(ByteWriter& writer, const std::vector<int32_t>& ranks) {
  writer.put<uint32_t>(static_cast<uint32_t>(ranks.size()));
  for (const int32_t rank : ranks) writer.put(rank);
}

bool read_ranks(ByteReader& reader, std::vector<int32_t>& ranks) {
  const auto count = reader.get<uint32_t>();
  if (!reader.can_hold(count, sizeof(int32_t))) return false;
  ranks.reserve(count);
  for (uint32_t i = 0; i < count; ++i) ranks.push_back(reader.get<int32_t>());
  return !reader.failed();
}

bool read_strings(ByteReader& reader, std::vector<std::string>& strings) {
  const auto count = reader.get<uint32_t>();
  if (!reader.can_hold(count, sizeof(uint32_t))) return false;
  strings.reserve(count);
  for (uint32_t i = 0; i < count; ++i) strings.push_back(reader.get_string());
  return !reader.failed();
}

}  // namespace

std::vector<std::byte> Leaving::write() const {
  ByteWriter writer;
  writer.put(ControlKind::kLeaving);
  writer.put(rank);
  writer.put_string(why);
  writer.put<uint32_t>(static_cast<uint32_t>(rounds.size()));
  for (const auto& [set, round] : rounds) {
    writer.put(set);
    writer.put(round);
  }
  return copy(writer);
}

std::optional<Leaving> Leaving::read(ByteReader reader) {
  Leaving message;
  message.rank = reader.get<int32_t>();
  message.why = reader.get_string();
  const auto count = reader.get<uint32_t>();
  if (!reader.can_hold(count, sizeof(int32_t) + sizeof(uint64_t))) return {};
  for (uint32_t i = 0; i < count; ++i) {
    const auto set = reader.get<int32_t>();
    message.rounds.emplace_back(set, reader.get<uint64_t>());
  }
  if (reader.failed()) return {};
  return message;
}

uint64_t Leaving::last_round(int32_t set) const {
  const auto entry = std::ranges::find(rounds, set, &std::pair<int32_t, uint64_t>::first);
  return entry == rounds.end() ? 0 : entry->second;
}

std::vector<std::byte> RoundDemand::write() const {
  ByteWriter writer;
  writer.put(ControlKind::kRoundDemand);
  writer.put(process_set);
  writer.put(round);
  return copy(writer);
}

std::optional<RoundDemand> RoundDemand::read(ByteReader reader) {
  RoundDemand message;
  message.process_set = reader.get<int32_t>();
  message.round = reader.get<uint64_t>();
  if (reader.failed()) return {};
  return message;
}

std::vector<std::byte> Closed::write() const {
  ByteWriter writer;
  writer.put(ControlKind::kClosed);
  writer.put(process_set);
  writer.put(rank);
  writer.put(last_round);
  return copy(writer);
}

std::optional<Closed> Closed::read(ByteReader reader) {
  Closed message;
  message.process_set = reader.get<int32_t>();
  message.rank = reader.get<int32_t>();
  message.last_round = reader.get<uint64_t>();
  if (reader.failed()) return {};
  return message;
}

std::vector<std::byte> Broken::write() const {
  ByteWriter writer;
  writer.put(ControlKind::kBroken);
  writer.put(rank);
  writer.put<uint8_t>(has_left);
  writer.put_string(why);
  write_ranks(writer, others_lost);
  return copy(writer);
}

std::optional<Broken> Broken::read(ByteReader reader) {
  Broken message;
  message.rank = reader.get<int32_t>();
  message.has_left = reader.get<uint8_t>() != 0;
  message.why = reader.get_string();
  if (!read_ranks(reader, message.others_lost)) return {};
  return message;
}

std::vector<std::byte> StallQuery::write() const {
  ByteWriter writer;
  writer.put(ControlKind::kStallQuery);
  writer.put(process_set);
  writer.put(rounds);
  writer.put<uint32_t>(static_cast<uint32_t>(late.size()));
  for (const Late& operation : late) {
    writer.put_string(operation.key);
    writer.put(operation.waited_seconds);
  }
  return copy(writer);
}

std::optional<StallQuery> StallQuery::read(ByteReader reader) {
  StallQuery message;
  message.process_set = reader.get<int32_t>();
  message.rounds = reader.get<uint64_t>();
  const auto count = reader.get<uint32_t>();
  if (!reader.can_hold(count, 2 * sizeof(uint32_t))) return {};
  message.late.reserve(count);
  for (uint32_t i = 0; i < count; ++i) {
    std::string key = reader.get_string();
    message.late.push_back({std::move(key), reader.get<uint32_t>()});
  }
  if (reader.failed()) return {};
  return message;
}

std::vector<std::byte> StallAnswer::write() const {
  ByteWriter writer;
  writer.put(ControlKind::kStallAnswer);
  writer.put(process_set);
  write_strings(writer, missing);
  writer.put_string(last_submitted);
  return copy(writer);
}

std::optional<StallAnswer> StallAnswer::read(ByteReader reader) {
  StallAnswer message;
  message.process_set = reader.get<int32_t>();
  if (!read_strings(reader, message.missing)) return {};
  message.last_submitted = reader.get_string();
  if (reader.failed()) return {};
  return message;
}

std::vector<std::byte> WaitQuery::write() const {
  ByteWriter writer;
  writer.put(ControlKind::kWaitQuery);
  writer.put(number);
  writer.put(limit_ms);
  writer.put(process_set);
  writer.put(rounds);
  writer.put_string(key);
  return copy(writer);
}

std::optional<WaitQuery> WaitQuery::read(ByteReader reader) {
  WaitQuery message;
  message.number = reader.get<uint32_t>();
  message.limit_ms = reader.get<uint32_t>();
  message.process_set = reader.get<int32_t>();
  message.rounds = reader.get<uint64_t>();
  message.key = reader.get_string();
  if (reader.failed()) return {};
  return message;
}

std::vector<std::byte> WaitAnswer::write() const {
  ByteWriter writer;
  writer.put(ControlKind::kWaitAnswer);
  writer.put(number);
  writer.put<uint8_t>(has_it);
  writer.put<uint8_t>(has_joined);
  writer.put<uint8_t>(waits_for_data_only);
  writer.put(waited_ms);
  writer.put_string(waits_for);
  write_ranks(writer, ranks);
  writer.put_string(last_submitted);
  writer.put(idle_ms);
  return copy(writer);
}

std::optional<WaitAnswer> WaitAnswer::read(ByteReader reader) {
  WaitAnswer message;
  message.number = reader.get<uint32_t>();
  message.has_it = reader.get<uint8_t>() != 0;
  message.has_joined = reader.get<uint8_t>() != 0;
  message.waits_for_data_only = reader.get<uint8_t>() != 0;
  message.waited_ms = reader.get<uint64_t>();
  message.waits_for = reader.get_string();
  if (!read_ranks(reader, message.ranks)) return {};
  message.last_submitted = reader.get_string();
  message.idle_ms = reader.get<uint64_t>();
  if (reader.failed()) return {};
  return message;
}

}  // namespace perseus
