// perseus.h: process sets.
#include <algorithm>

#include "capi/c_status.h"
#include "capi/process.h"
#include "capi/waiting.h"

using perseus::Process;
using perseus::Status;
using perseus::to_c;

static_assert(PERSEUS_FIRST_OPENED_SET == perseus::ProcessSet::kFirstOpened);
static_assert(PERSEUS_LAST_OPENED_SET == perseus::ProcessSet::kLastOpened);

extern "C" {

perseus_status_t perseus_add_process_set(const int32_t* ranks, int32_t rank_count,
                                         perseus_process_set_t* set) {
  const auto engine = Process::instance().engine();
  if (engine == nullptr) return to_c(perseus::not_initialized());
  if (set == nullptr) {
    return to_c(Status::invalid_argument("the place for the process set's id is missing"));
  }
  if (const Status status = perseus::check_may_wait(-1); !status.is_ok()) return to_c(status);
  const bool is_empty = ranks == nullptr || rank_count < 1;  // which the engine refuses, for all
  const auto id = engine->add_process_set({ranks, is_empty ? ranks : ranks + rank_count});
  if (id.is_ok()) *set = id.value();
  return to_c(id.status());
}

perseus_status_t perseus_remove_process_set(perseus_process_set_t set) {
  const auto engine = Process::instance().engine();
  if (engine == nullptr) return to_c(perseus::not_initialized());
  if (const Status status = perseus::check_may_wait(-1); !status.is_ok()) return to_c(status);
  return to_c(engine->remove_process_set(set));
}

perseus_status_t perseus_open_process_set(perseus_process_set_t set, const int32_t* ranks,
                                          int32_t rank_count) {
  const auto engine = Process::instance().engine();
  if (engine == nullptr) return to_c(perseus::not_initialized());
  if (ranks == nullptr || rank_count < 1) {
    return to_c(Status::invalid_argument("a process set needs at least one rank"));
  }
  if (const Status status = perseus::check_may_wait(-1); !status.is_ok()) return to_c(status);
  return to_c(engine->open_process_set(set, {ranks, ranks + rank_count}));
}

perseus_status_t perseus_close_process_set(perseus_process_set_t set) {
  const auto engine = Process::instance().engine();
  if (engine == nullptr) return to_c(perseus::not_initialized());
  if (const Status status = perseus::check_may_wait(-1); !status.is_ok()) return to_c(status);
  return to_c(engine->close_process_set(set));
}

int32_t perseus_process_set_rank(perseus_process_set_t set) {
  const auto engine = Process::instance().engine();
  if (engine == nullptr) return -1;
  const auto ranks = engine->process_set_ranks(set);
  if (!ranks.is_ok()) return -1;
  const auto place = std::ranges::find(*ranks.value(), engine->topology().rank);
  return place == ranks.value()->end() ? -1 : static_cast<int32_t>(place - ranks.value()->begin());
}

int32_t perseus_process_set_size(perseus_process_set_t set) {
  const auto engine = Process::instance().engine();
  if (engine == nullptr) return -1;
  const auto ranks = engine->process_set_ranks(set);
  return ranks.is_ok() ? static_cast<int32_t>(ranks.value()->size()) : -1;
}

perseus_status_t perseus_process_set_ranks(perseus_process_set_t set, int32_t* ranks) {
  const auto engine = Process::instance().engine();
  if (engine == nullptr) return to_c(perseus::not_initialized());
  if (ranks == nullptr) {
    return to_c(Status::invalid_argument("there is no place for the process set's ranks"));
  }
  const auto found = engine->process_set_ranks(set);
  if (found.is_ok()) std::ranges::copy(*found.value(), ranks);
  return to_c(found.status());
}

int32_t perseus_process_sets(perseus_process_set_t* ids, int32_t capacity) {
  const auto engine = Process::instance().engine();
  if (engine == nullptr) return 0;
  const auto sets = engine->process_sets();
  const auto count = static_cast<int32_t>(sets.size());
  if (ids != nullptr) std::copy_n(sets.begin(), std::clamp(capacity, 0, count), ids);
  return count;
}

}  // extern "C"
