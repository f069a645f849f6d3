#include "transport/address_card.h"

#include <limits.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <fstream>
#include <span>

#include "base/bytes.h"
#include "base/settings.h"
#include "build_id.h"
#include "perseus/perseus.h"

namespace perseus {
namespace {

constexpr std::string_view kFormat = "perseus card 8";
constexpr char kSameForAll[] = "; install the same on all hosts";
constexpr uint32_t kMaxListItems = 4096;

std::string version() {
  return std::to_string(PERSEUS_VERSION_MAJOR) + "." + std::to_string(PERSEUS_VERSION_MINOR) + "." +
         std::to_string(PERSEUS_VERSION_PATCH);
}

std::string host_name() {
  if (const char* given = std::getenv("PERSEUS_HOSTNAME"); given != nullptr && *given != '\0') {
    return given;
  }
  char name[HOST_NAME_MAX + 1] = {};
  gethostname(name, HOST_NAME_MAX);
  return name;
}

// Whatever is no number, such as a user's own variable of this name, orders nothing.
int slot() {
  const char* given = std::getenv("PERSEUS_ELASTIC_SLOT");
  return given == nullptr ? 0 : std::atoi(given);
}

std::string machine() {
  std::string boot_id;
  std::ifstream("/proc/sys/kernel/random/boot_id") >> boot_id;
  char network[PATH_MAX] = {};
  if (readlink("/proc/self/ns/net", network, sizeof network - 1) < 0) network[0] = '\0';
  return boot_id + " " + network;
}

void put(ByteWriter& writer, const Processors& processors) {
  writer.put<uint32_t>(static_cast<uint32_t>(processors.words().size()));
  for (const uint64_t bits : processors.words()) writer.put(bits);
}

Processors get_processors(ByteReader& reader) {
  std::vector<uint64_t> words;
  const auto count = reader.get<uint32_t>();
  for (uint32_t i = 0; i < count && i < kMaxListItems && !reader.failed(); ++i) {
    words.push_back(reader.get<uint64_t>());
  }
  return Processors(std::move(words));
}

// The settings that decide order, fusion, sharding, streams or the format on the wire. Only the
// first that differs is reported, so a setting that makes others differ comes before them.
std::vector<std::pair<std::string, std::string>> settings_to_agree_on(const Settings& settings) {
  static constexpr std::string_view kNames[] = {"PERSEUS_TRANSPORT",
                                                "PERSEUS_WIRE",
                                                "PERSEUS_ALLREDUCE_DISABLE_STREAM_TUNING",
                                                "PERSEUS_ALLREDUCE_STREAMS",
                                                "PERSEUS_CHUNK",
                                                "PERSEUS_ALLREDUCE_FUSION",
                                                "PERSEUS_ALLREDUCE_SHARD",
                                                "PERSEUS_TUNING_STEPS",
                                                "PERSEUS_TUNING_WARM_UP",
                                                "PERSEUS_TUNING_TRIALS",
                                                "PERSEUS_CREDIT",
                                                "PERSEUS_MESSAGE_CREDIT",
                                                "PERSEUS_ALLREDUCE_DTYPE",
                                                "PERSEUS_ALLREDUCE_NANCHECK",
                                                "PERSEUS_ALLREDUCE_MODE",
                                                "PERSEUS_ALLREDUCE_ALGORITHM",
                                                "PERSEUS_CACHE_GROUPS",
                                                "PERSEUS_CACHE_CAPACITY",
                                                "PERSEUS_DISABLE_GROUP_FUSION",
                                                "PERSEUS_DYNAMIC_PROCESS_SETS",
                                                "PERSEUS_GPU_OPERATIONS",
                                                "PERSEUS_NCCL_LANES",
                                                "PERSEUS_NCCL_REGISTER_BUFFERS",
                                                "PERSEUS_NCCL_CTA_POLICY",
                                                "PERSEUS_NCCL_RANKS_PER_ROOT"};
  std::vector<std::pair<std::string, std::string>> agreed;
  const std::vector<SettingRow> rows = describe(settings);
  for (const std::string_view name : kNames) {
    const SettingRow& row = *std::ranges::find(rows, name, &SettingRow::name);
    agreed.emplace_back(row.name, row.value);
    // A setting that is not set may be tuned, and may have another default for GPUs. All ranks must
    // then do the same.
    const bool is_tuned = !settings.disable_stream_tuning &&
                          std::ranges::find(kTunedSettings, row.name) != std::end(kTunedSettings);
    const bool has_gpu_default =
        std::ranges::find(kGpuDefaults, row.name, &GpuDefault::name) != std::end(kGpuDefaults);
    if ((is_tuned || has_gpu_default) && !settings.is_given(row.name)) {
      agreed.back().second += " (not set)";
    }
  }
  return agreed;
}

std::string rank_text(size_t rank, const AddressCard& card) {
  return "rank " + std::to_string(rank) + " on " + card.host_name;
}

Status compare(size_t rank, const AddressCard& card, const AddressCard& first) {
  for (size_t i = 0; i < first.agreed.size() && i < card.agreed.size(); ++i) {
    if (card.agreed[i] == first.agreed[i]) continue;
    return Status::invalid_argument(first.agreed[i].first + " is '" + card.agreed[i].second +
                                    "' on " + rank_text(rank, card) + " and '" +
                                    first.agreed[i].second + "' on " + rank_text(0, first) +
                                    "; it must be the same on all ranks");
  }
  return Status::ok();
}

// A launcher may bind each rank to processors of its own, or all ranks to the same ones.
int processor_share(int rank, const std::vector<AddressCard>& cards) {
  const AddressCard& own = cards[rank];
  double share = 0;
  for (int processor = 0; processor < own.processors.end(); ++processor) {
    const auto may_use = [&](const AddressCard& card) {
      return card.processors.contains(processor);
    };
    if (!may_use(own)) continue;
    share += 1.0 / static_cast<double>(std::ranges::count_if(cards, [&](const AddressCard& card) {
               return card.machine == own.machine && may_use(card);
             }));
  }
  constexpr double kRounding = 1e-6;
  return std::max(1, static_cast<int>(share + kRounding));
}

}  // namespace

AddressCard AddressCard::of_this_process(const Settings& settings) {
  AddressCard card;
  card.host_name = perseus::host_name();
  card.slot = perseus::slot();
  card.machine = perseus::machine();
  card.processors = Processors::of_this_process();
  card.caches = last_level_caches(card.processors);
  card.thread_affinity = settings.thread_affinity;
  card.nonce = random_nonce();
  card.agreed = settings_to_agree_on(settings);
  return card;
}

std::string AddressCard::pack() const {
  ByteWriter writer;
  writer.put_string(kFormat);
  writer.put_string(version());
  writer.put_string(kBuildId);
  writer.put<uint32_t>(static_cast<uint32_t>(error.code()));
  writer.put_string(error.message());
  writer.put_string(host_name);
  writer.put<int32_t>(slot);
  writer.put_string(machine);
  writer.put(nonce);
  writer.put(process);
  writer.put<uint32_t>(static_cast<uint32_t>(tcp.size()));
  for (const Endpoint& endpoint : tcp) writer.put_string(endpoint.pack());
  writer.put_string(unix_name);
  put(writer, processors);
  writer.put<uint32_t>(static_cast<uint32_t>(caches.size()));
  for (const Processors& cache : caches) put(writer, cache);
  writer.put_string(thread_affinity);
  writer.put<uint32_t>(static_cast<uint32_t>(agreed.size()));
  for (const auto& [name, value] : agreed) {
    writer.put_string(name);
    writer.put_string(value);
  }
  writer.put_string(experience);
  const auto bytes = writer.bytes();
  return std::string(reinterpret_cast<const char*>(bytes.data()), bytes.size());
}

Result<AddressCard> AddressCard::unpack(const std::string& packed) {
  ByteReader reader(std::as_bytes(std::span(packed)));
  if (reader.get_string() != kFormat) {
    return Status::mismatch("runs another version of Perseus than " + version() + kSameForAll);
  }
  if (const std::string theirs = reader.get_string(); theirs != version()) {
    return Status::mismatch("runs Perseus " + theirs + ", this rank " + version() + kSameForAll);
  }
  if (const std::string theirs = reader.get_string(); theirs != kBuildId) {
    return Status::mismatch("runs another build of Perseus " + version() + " (" + theirs +
                            ") than this rank (" + kBuildId + ")" + kSameForAll);
  }
  AddressCard card;
  const auto error = reader.get<uint32_t>();
  const std::string why = reader.get_string();
  if (error != 0) card.error = Status(error_code(error), why);
  card.host_name = reader.get_string();
  card.slot = reader.get<int32_t>();
  card.machine = reader.get_string();
  card.nonce = reader.get<Nonce>();
  card.process = reader.get<Nonce>();
  const auto endpoints = reader.get<uint32_t>();
  for (uint32_t i = 0; i < endpoints && i < kMaxListItems && !reader.failed(); ++i) {
    Result<Endpoint> endpoint = Endpoint::unpack(reader.get_string());
    if (!endpoint.is_ok()) return endpoint.status();
    card.tcp.push_back(endpoint.value());
  }
  card.unix_name = reader.get_string();
  card.processors = get_processors(reader);
  const auto caches = reader.get<uint32_t>();
  for (uint32_t i = 0; i < caches && i < kMaxListItems && !reader.failed(); ++i) {
    card.caches.push_back(get_processors(reader));
  }
  card.thread_affinity = reader.get_string();
  const auto settings = reader.get<uint32_t>();
  for (uint32_t i = 0; i < settings && i < kMaxListItems && !reader.failed(); ++i) {
    std::string name = reader.get_string();
    card.agreed.emplace_back(std::move(name), reader.get_string());
  }
  card.experience = reader.get_string();
  if (reader.failed()) return Status::internal("sent a malformed address card");
  return card;
}

Result<std::vector<AddressCard>> unpack_cards(const std::vector<std::string>& packed) {
  std::vector<AddressCard> cards;
  for (size_t rank = 0; rank < packed.size(); ++rank) {
    Result<AddressCard> card = AddressCard::unpack(packed[rank]);
    if (!card.is_ok()) {
      return Status(card.status().code(),
                    "rank " + std::to_string(rank) + " " + card.status().message());
    }
    cards.push_back(std::move(card).value());
  }
  for (size_t rank = 0; rank < cards.size(); ++rank) {
    if (const Status& error = cards[rank].error; !error.is_ok()) {
      return Status(error.code(), rank_text(rank, cards[rank]) + ": " + error.message());
    }
    PERSEUS_RETURN_IF_ERROR(compare(rank, cards[rank], cards[0]));
  }
  return cards;
}

Topology make_topology(int rank, const std::vector<AddressCard>& cards) {
  Topology topology;
  topology.rank = rank;
  topology.size = static_cast<int>(cards.size());
  std::vector<const AddressCard*> hosts;
  for (const AddressCard& card : cards) {
    size_t host = 0;
    while (host < hosts.size() && !hosts[host]->same_host(card)) ++host;
    if (host == hosts.size()) {
      hosts.push_back(&card);
      topology.host_names.push_back(card.host_name);
    }
    topology.host_of.push_back(static_cast<int>(host));
    topology.slot_of.push_back(card.slot);
  }
  topology.processor_share = processor_share(rank, cards);
  return topology;
}

}  // namespace perseus
