// Maps names of operations to small ids, for the life of the process, so that a framework submits
// an index at each step and not a string. Any thread; only id_of takes a lock, since each operation
// needs the others several times.
#pragma once

#include <array>
#include <atomic>
#include <bit>
#include <cstdint>
#include <memory_resource>
#include <mutex>
#include <string_view>
#include <unordered_map>

#include "base/status.h"
#include "negotiation/description.h"

namespace perseus {

// Names are kept together in few large blocks of memory. Allocated one by one they would lie
// between blocks that the caller allocates and frees, such as the results of operations, and
// fragment that memory.
class Names {
 public:
  struct Entry {
    int32_t process_set = 0;
    OperationKind kind = OperationKind::kAllreduce;
    std::string_view key;
    uint64_t hash = 0;  // of the key; the same in every process
  };

  // Returns the id of this name. A new name gets the next id.
  int32_t id_of(int32_t process_set, OperationKind kind, std::string_view name);
  // The entry is valid for the life of the process. kInvalidArgument if there is no such id.
  Result<const Entry*> find(int32_t id) const;

  // Marks the name as in flight, which is a use of it. Returns false if it is already.
  bool take(int32_t id);
  // How often the name has been used in this world; the same on all ranks, unless one has joined.
  uint32_t uses(int32_t id) const;
  // A call that was refused is a use of the name, too.
  void count_use(int32_t id);
  // All names are unused, as a world begins, or after ranks have joined: call on all ranks.
  void reset_uses();
  void give_back(int32_t id);
  bool is_in_flight(int32_t id) const;

  void before_fork() { mutex_.lock(); }
  void after_fork_in_parent() { mutex_.unlock(); }
  // In the child nothing is in flight.
  void after_fork_in_child();

 private:
  struct Slot {
    Entry entry;
    std::atomic<bool> in_flight{false};
    std::atomic<uint32_t> uses{0};
  };
  static constexpr size_t kBlockBytes = 64 << 10;
  // Slots lie in blocks, each twice as large as the one before, so that they never move.
  static constexpr uint32_t kFirstBlockSlots = 256;
  static constexpr int kBlocks = 32 - std::bit_width(kFirstBlockSlots) + 1;

  // Returns the index of the block in which an id's slot lies.
  static int block_of(uint32_t id) {
    return std::bit_width(id + kFirstBlockSlots) - std::bit_width(kFirstBlockSlots);
  }
  // The id must be below slot_count_.
  Slot& slot(int32_t id) const {
    const auto place = static_cast<uint32_t>(id);
    const int block = block_of(place);
    return blocks_[block][place + kFirstBlockSlots - (kFirstBlockSlots << block)];
  }
  // Constructs the slots of a block that has none yet.
  void make_block(int block);

  std::mutex mutex_;  // guards what follows, but for slots below slot_count_
  std::pmr::monotonic_buffer_resource memory_{kBlockBytes};
  std::array<Slot*, kBlocks> blocks_{};
  std::pmr::unordered_map<std::string_view, int32_t> ids_{&memory_};

  std::atomic<int32_t> slot_count_{0};
};

}  // namespace perseus
