#include "base/interruption.h"

namespace perseus {
namespace {

struct Check {
  InterruptionCheck check = nullptr;
  void* user = nullptr;
  bool said_yes = false;
};
thread_local Check current;

}  // namespace

void set_interruption_check(InterruptionCheck check, void* user) { current = {check, user, false}; }

bool can_be_interrupted() { return current.check != nullptr; }

bool is_interrupted() {
  if (!current.said_yes && current.check != nullptr) {
    current.said_yes = current.check(current.user) != 0;
  }
  return current.said_yes;
}

Status interrupted_status() { return Status::aborted("the call was interrupted"); }

}  // namespace perseus
