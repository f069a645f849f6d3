#include "injection.h"

#include <map>
#include <mutex>
#include <sstream>
#include <string>
#include <vector>

#include "failure.h"
#include "settings.h"

namespace perseus::standin {
namespace {

constexpr int kEvery = 0;

struct PlannedFailure {
  std::string function;
  int nth;
  int code;
};

struct PlannedFault {
  int nth;
  int error;
};

class Injection {
 public:
  Injection() {
    std::istringstream failures(settings().fail);
    for (std::string each; std::getline(failures, each, ',');) {
      const size_t colon = each.find(':');
      const size_t equals = each.find('=');
      if (colon == std::string::npos || equals == std::string::npos || equals < colon) {
        fail("PERSEUS_STANDIN_FAIL has '" + each + "'; it takes function:nth=code");
      }
      const std::string nth = each.substr(colon + 1, equals - colon - 1);
      failures_.push_back({each.substr(0, colon), nth == "*" ? kEvery : std::stoi(nth),
                           std::stoi(each.substr(equals + 1))});
    }
    const std::string& fault = settings().collective;
    if (const size_t equals = fault.find('='); equals != std::string::npos) {
      const std::string error = fault.substr(equals + 1);
      faults_.push_back({std::stoi(fault), error == "hang" ? 0 : std::stoi(error)});
    }
  }

  int call(const char* function) {
    std::lock_guard lock(mutex_);
    const int nth = ++calls_[function];
    for (const PlannedFailure& each : failures_) {
      if (each.function == function && (each.nth == kEvery || each.nth == nth)) return each.code;
    }
    return 0;
  }

  int calls(const char* function) {
    std::lock_guard lock(mutex_);
    return calls_[function];
  }

  CollectiveFault collective() {
    std::lock_guard lock(mutex_);
    ++collectives_;
    for (const PlannedFault& each : faults_) {
      if (each.nth == collectives_) return {.hangs = true, .error = each.error};
    }
    return {};
  }

  void plan(const char* function, int nth_from_now, int code) {
    std::lock_guard lock(mutex_);
    const int nth = nth_from_now == kEvery ? kEvery : calls_[function] + nth_from_now;
    failures_.push_back({function, nth, code});
  }

  void plan_fault(int nth_from_now, int error) {
    std::lock_guard lock(mutex_);
    faults_.push_back({collectives_ + nth_from_now, error});
  }

 private:
  std::mutex mutex_;
  std::map<std::string, int> calls_;
  int collectives_ = 0;
  std::vector<PlannedFailure> failures_;
  std::vector<PlannedFault> faults_;
};

Injection& injection() {
  static Injection& injection = *new Injection;
  return injection;
}

}  // namespace

int injected(const char* function) { return injection().call(function); }
CollectiveFault injected_collective() { return injection().collective(); }

}  // namespace perseus::standin

int perseus_standin_calls(const char* function) {
  return perseus::standin::injection().calls(function);
}

void perseus_standin_fail(const char* function, int nth_from_now, int code) {
  perseus::standin::injection().plan(function, nth_from_now, code);
}

void perseus_standin_fail_collective(int nth_from_now, int code) {
  perseus::standin::injection().plan_fault(nth_from_now, code);
}

void perseus_standin_hang_collective(int nth_from_now) {
  perseus::standin::injection().plan_fault(nth_from_now, 0);
}
