// perseus.h: announcements, which all ranks learn of at the same operation.
#include "state/announcements.h"

#include "capi/c_status.h"
#include "capi/process.h"
#include "perseus/perseus.h"

using perseus::Process;
using perseus::Status;
using perseus::to_c;

extern "C" {

perseus_status_t perseus_announce(uint64_t number) {
  const auto engine = Process::instance().engine();
  if (engine == nullptr) return to_c(perseus::not_initialized());
  engine->announcements().announce(number);
  return PERSEUS_OK;
}

uint64_t perseus_announced(void) {
  const auto engine = Process::instance().engine();
  return engine == nullptr ? 0 : engine->announcements().announced();
}

}  // extern "C"
