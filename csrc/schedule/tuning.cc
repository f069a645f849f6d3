#include "schedule/tuning.h"

#include <span>

#include "base/bytes.h"
#include "base/settings.h"

namespace perseus {
namespace {

constexpr uint32_t kMostClasses = 64;

void put(ByteWriter& writer, const Tuning& tuning) {
  writer.put<int32_t>(tuning.streams);
  writer.put(tuning.shard_bytes);
  writer.put(tuning.merge_bytes);
  writer.put(tuning.credit_bytes);
  writer.put(tuning.chunk_bytes);
}

Tuning get_tuning(ByteReader& reader) {
  Tuning tuning;
  tuning.streams = reader.get<int32_t>();
  tuning.shard_bytes = reader.get<uint64_t>();
  tuning.merge_bytes = reader.get<uint64_t>();
  tuning.credit_bytes = reader.get<uint64_t>();
  tuning.chunk_bytes = reader.get<uint64_t>();
  return tuning;
}

}  // namespace

Tuning Tuning::from(const Settings& settings) {
  return {.streams = static_cast<int>(settings.streams),
          .shard_bytes = settings.shard_bytes,
          .merge_bytes = settings.fusion_bytes,
          .credit_bytes = settings.credit_bytes,
          .chunk_bytes = settings.chunk_bytes};
}

std::string TunerFindings::pack() const {
  if (by_class.empty()) return {};
  ByteWriter writer;
  writer.put<int32_t>(habit.work_class);
  writer.put(habit.look_batches);
  writer.put(habit.look_bytes);
  writer.put<uint32_t>(static_cast<uint32_t>(by_class.size()));
  for (const auto& [work_class, found] : by_class) {
    writer.put<int32_t>(work_class);
    writer.put<int32_t>(found.shape.hosts);
    writer.put<int32_t>(found.shape.ranks);
    put(writer, found.tuning);
  }
  const auto bytes = writer.bytes();
  return std::string(reinterpret_cast<const char*>(bytes.data()), bytes.size());
}

TunerFindings TunerFindings::unpack(std::string_view packed) {
  ByteReader reader(std::as_bytes(std::span(packed)));
  TunerFindings findings;
  findings.habit.work_class = reader.get<int32_t>();
  findings.habit.look_batches = reader.get<uint64_t>();
  findings.habit.look_bytes = reader.get<uint64_t>();
  const auto classes = reader.get<uint32_t>();
  for (uint32_t i = 0; i < classes && i < kMostClasses; ++i) {
    const auto work_class = reader.get<int32_t>();
    Found found;
    found.shape.hosts = reader.get<int32_t>();
    found.shape.ranks = reader.get<int32_t>();
    found.tuning = get_tuning(reader);
    findings.by_class[work_class] = found;
  }
  return reader.failed() ? TunerFindings() : findings;
}

}  // namespace perseus
