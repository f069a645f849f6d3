// perseus_run: an operation that is submitted and awaited in one call. Any thread.
#pragma once

#include <cstdint>
#include <memory>

#include "base/status.h"
#include "engine/engine.h"
#include "perseus/perseus.h"

namespace perseus {

// Writes 0 in the place of the handle unless the operation is still under way when this returns.
Status run(const std::shared_ptr<Engine>& engine, const perseus_submission_t& submission,
           int64_t time_out_ms, perseus_handle_t& handle);

}  // namespace perseus
