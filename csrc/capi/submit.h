// Submitting an operation to the engine, or refusing to, as perseus.h specifies it. Any thread.
// Without an engine both return kNotInitialized.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

#include "base/status.h"
#include "engine/engine.h"
#include "perseus/perseus.h"

namespace perseus {

enum class NameUse {
  kTake,   // it is taken now
  kTaken,  // the caller has taken it; it is given back if submission fails
};

// Writes the operation's handle. If anything is wrong with the submission, the error names the
// operation, and the other ranks are told so that they do not wait for this one.
Status submit(const std::shared_ptr<Engine>& engine, const perseus_submission_t& submission,
              perseus_handle_t* handle, NameUse use = NameUse::kTake);

// Tells the other ranks that this one will not submit the operation of this registered name.
Status refuse(const std::shared_ptr<Engine>& engine, int32_t id, const std::string& reason);

// Calls a program's function with what has become of an operation.
OperationCallback calling(perseus_callback_t callback, void* user);

// Begins to send or to receive a message; see perseus_send and perseus_recv. Writes the handle.
Status transfer(const std::shared_ptr<Engine>& engine, OperationKind kind,
                const perseus_transfer_t& message, perseus_handle_t* handle);

}  // namespace perseus
