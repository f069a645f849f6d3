#include "capi/submit.h"

#include <utility>

#include "capi/c_status.h"
#include "capi/checked_submission.h"
#include "capi/process.h"

namespace perseus {
namespace {

constexpr size_t kMaxReason = 1024;

// Everything that submitting an operation of a registered name needs.
struct ResolvedName {
  Engine& engine;
  const Names::Entry* name = nullptr;
  SharedRanks ranks;  // of its process set
};

Result<ResolvedName> resolve(const std::shared_ptr<Engine>& engine, int32_t id) {
  if (engine == nullptr) return not_initialized();
  ResolvedName resolved{*engine, nullptr, nullptr};
  const auto name = Process::instance().names.find(id);
  if (!name.is_ok()) return name.status();
  resolved.name = name.value();
  auto ranks = resolved.engine.process_set_ranks(resolved.name->process_set);
  Status status = ranks.status();
  if (status.is_ok()) {
    resolved.ranks = std::move(ranks).value();
    status = check_membership(*resolved.name, *resolved.ranks, resolved.engine.topology().rank);
  }
  if (status.is_ok()) return resolved;
  resolved.engine.refuse(resolved.name->process_set, resolved.name->key, status.message());
  return status;
}

Status in_flight(const Names::Entry& name) {
  return Status::duplicate_name(
      title(name.key) +
      ": an operation of the same name is still in flight; wait for it, or use another name");
}

// Tells the other ranks of a call that has failed here, so that they do not wait for it.
void tell_of_refusal(const ResolvedName& resolved, const std::string& reason) {
  resolved.engine.refuse(resolved.name->process_set, resolved.name->key,
                         reason.substr(0, kMaxReason));
}

Status refuse(const ResolvedName& resolved, int32_t id, const std::string& reason) {
  Names& names = Process::instance().names;
  if (names.is_in_flight(id)) return in_flight(*resolved.name);
  names.count_use(id);
  tell_of_refusal(resolved, reason);
  return {};
}

Result<OperationPtr> make_operation(const perseus_submission_t& submission,
                                    const ResolvedName& resolved, bool has_place_for_handle) {
  if (!has_place_for_handle) {
    return Status::invalid_argument(title(resolved.name->key) +
                                    ": the place for its handle is missing");
  }
  return make_operation(submission, *resolved.name, *resolved.ranks, resolved.engine);
}

}  // namespace

// Small enough for std::function to store without allocating.
OperationCallback calling(perseus_callback_t callback, void* user) {
  return [callback, user](Operation& done) {
    const KeptError kept;
    callback(user, done.handle, static_cast<perseus_status_t>(done.status.code()),
             done.status.message().c_str());
  };
}

Status submit(const std::shared_ptr<Engine>& engine, const perseus_submission_t& submission,
              perseus_handle_t* handle, NameUse use) {
  Process& process = Process::instance();
  const auto give_back = [&] {
    if (use == NameUse::kTaken) process.names.give_back(submission.id);
  };
  const auto found = resolve(engine, submission.id);
  if (!found.is_ok()) {
    give_back();
    return found.status();
  }
  const ResolvedName& resolved = found.value();
  auto made = make_operation(submission, resolved, handle != nullptr);
  if (!made.is_ok()) {
    if (use == NameUse::kTaken) {
      give_back();
      tell_of_refusal(resolved, made.status().message());
    } else {
      // If the name is in flight this tells nobody: there is no call that the others could wait
      // for.
      [[maybe_unused]] const Status told = refuse(resolved, submission.id, made.status().message());
    }
    return made.status();
  }
  OperationPtr operation = std::move(made).value();

  if (use == NameUse::kTake && !process.names.take(submission.id)) return in_flight(*resolved.name);
  operation->holds_name.store(true, std::memory_order_relaxed);  // no other thread has it yet
  const perseus_handle_t added = process.handles.add(operation);
  if (submission.callback != nullptr) {
    operation->callback = calling(submission.callback, submission.user);
    operation->is_bound = submission.callback_thread == PERSEUS_CALLBACK_IN_LIBRARY;
  }
  Status status = resolved.engine.submit(std::move(operation));
  if (status.is_ok()) {
    *handle = added;
  } else {
    process.handles.remove(added);
  }
  return status;
}

Status refuse(const std::shared_ptr<Engine>& engine, int32_t id, const std::string& reason) {
  const auto found = resolve(engine, id);
  if (!found.is_ok()) return found.status();
  const ResolvedName& resolved = found.value();
  return refuse(resolved, id, title(resolved.name->key) + ": " + reason);
}

}  // namespace perseus
