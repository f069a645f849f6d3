#include "watch/last_submission.h"

#include "state/process_set.h"

namespace perseus {

std::string shown(int32_t set, const std::string& key) {
  const std::string text = "'" + display_name(key) + "'";
  return set == ProcessSet::kWorld ? text : text + " in process set " + std::to_string(set);
}

}  // namespace perseus
