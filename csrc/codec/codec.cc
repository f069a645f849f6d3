#include "codec/codec.h"

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <mutex>

#include "codec/bf16_codec.h"
#include "codec/fp16_codec.h"

namespace perseus {
namespace {

struct Registry {
  Registry() {
    codecs.push_back({kCodecNone, "none", nullptr});
    codecs.push_back({kCodecFp16, "fp16", std::make_unique<Fp16Codec>()});
    codecs.push_back({kCodecBf16, "bf16", std::make_unique<Bf16Codec>()});
  }

  struct Entry {
    int id;
    std::string name;
    std::unique_ptr<Codec> codec;
  };
  // Returns null if there is none. The caller holds the mutex.
  const Entry* find(int id) const {
    const auto entry = std::ranges::find(codecs, id, &Entry::id);
    return entry == codecs.end() ? nullptr : &*entry;
  }

  std::mutex mutex;
  std::vector<Entry> codecs;  // in order of registration
};

std::atomic<bool> has_users{false};

// Never destroyed: engine threads may still be coding when static objects are destroyed.
Registry& registry() {
  static Registry& the_one = *new Registry;
  return the_one;
}

// FNV-1a (Fowler, Noll, Vo), cut to 30 bits and put above all built-in ids.
int id_of(std::string_view name) {
  uint32_t hash = 2166136261u;
  for (const char c : name) hash = (hash ^ static_cast<unsigned char>(c)) * 16777619u;
  return static_cast<int>((hash >> 2) | (1u << 30));
}

}  // namespace

Result<int> register_codec(std::unique_ptr<Codec> codec) {
  Registry& known = registry();
  std::string name(codec->name());
  std::lock_guard lock(known.mutex);
  for (const Registry::Entry& entry : known.codecs) {
    if (entry.name == name) {
      return Status::invalid_argument("a codec named '" + name + "' is registered already");
    }
  }
  const int id = id_of(name);
  if (const Registry::Entry* other = known.find(id)) {
    return Status::invalid_argument("the codecs '" + name + "' and '" + other->name +
                                    "' would have the same id; give one another name");
  }
  known.codecs.push_back({id, std::move(name), std::move(codec)});
  has_users.store(true, std::memory_order_relaxed);
  return id;
}

Result<int> find_codec(std::string_view name) {
  Registry& known = registry();
  std::lock_guard lock(known.mutex);
  std::string names;
  for (const Registry::Entry& entry : known.codecs) {
    if (entry.name == name) return entry.id;
    names += (names.empty() ? "" : ", ") + entry.name;
  }
  return Status::invalid_argument("no codec is named '" + std::string(name) +
                                  "'; there are: " + names);
}

bool codec_exists(int id) {
  if (id == kCodecFromSettings) return true;
  Registry& known = registry();
  std::lock_guard lock(known.mutex);
  return known.find(id) != nullptr;
}

void codecs_before_fork() { registry().mutex.lock(); }
void codecs_after_fork() { registry().mutex.unlock(); }

bool has_user_codecs() { return has_users.load(std::memory_order_relaxed); }

const Codec* codec(int id) {
  if (id == kCodecNone) return nullptr;  // without the lock: most operations ask for it
  Registry& known = registry();
  std::lock_guard lock(known.mutex);
  const Registry::Entry* entry = known.find(id);
  return entry == nullptr ? nullptr : entry->codec.get();
}

}  // namespace perseus
