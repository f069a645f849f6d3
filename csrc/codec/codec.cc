#include "codec/codec.h"

#include <atomic>
#include <mutex>

#include "codec/bf16_codec.h"
#include "codec/fp16_codec.h"

namespace perseus {
namespace {

struct Registry {
  Registry() {
    codecs.push_back({"none", nullptr});
    codecs.push_back({"fp16", std::make_unique<Fp16Codec>()});
    codecs.push_back({"bf16", std::make_unique<Bf16Codec>()});
  }

  struct Entry {
    std::string name;
    std::unique_ptr<Codec> codec;
  };
  std::mutex mutex;
  std::vector<Entry> codecs;  // of id 1 and up
};

std::atomic<bool> has_users{false};

// Never destroyed, as engine threads may still be coding when static objects are.
Registry& registry() {
  static Registry& the_one = *new Registry;
  return the_one;
}

// The id of the codec at this place, the first of which is "none".
int id_at(size_t index) { return kCodecNone + static_cast<int>(index); }

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
  known.codecs.push_back({std::move(name), std::move(codec)});
  has_users.store(true, std::memory_order_relaxed);
  return id_at(known.codecs.size() - 1);
}

Result<int> find_codec(std::string_view name) {
  Registry& known = registry();
  std::lock_guard lock(known.mutex);
  std::string names;
  for (size_t i = 0; i < known.codecs.size(); ++i) {
    if (known.codecs[i].name == name) return id_at(i);
    names += (i == 0 ? "" : ", ") + known.codecs[i].name;
  }
  return Status::invalid_argument("no codec is named '" + std::string(name) +
                                  "'; there are: " + names);
}

bool codec_exists(int id) {
  if (id == kCodecFromSettings) return true;
  Registry& known = registry();
  std::lock_guard lock(known.mutex);
  return id >= kCodecNone && id < id_at(known.codecs.size());
}

void codecs_before_fork() { registry().mutex.lock(); }
void codecs_after_fork() { registry().mutex.unlock(); }

bool has_user_codecs() { return has_users.load(std::memory_order_relaxed); }

const Codec* codec(int id) {
  Registry& known = registry();
  std::lock_guard lock(known.mutex);
  if (id < kCodecNone || id >= id_at(known.codecs.size())) return nullptr;
  return known.codecs[static_cast<size_t>(id - kCodecNone)].codec.get();
}

}  // namespace perseus
