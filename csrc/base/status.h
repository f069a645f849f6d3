// Errors as values. The engine throws nothing across a thread or the C ABI: a function that can
// fail returns a Status, or a Result<T>, which holds a T or an error.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

namespace perseus {

// The numbers are those of perseus_status_t in perseus.h.
enum class StatusCode : int {
  kOk = 0,
  kInvalidArgument = 1,  // a mistake of the caller on this rank
  kNotInitialized = 2,   // before init, or after shutdown
  kAborted = 3,          // a peer died or left, or this process shut down
  kMismatch = 4,         // ranks described a name differently, or one's call was refused
  kDuplicateName = 5,    // the name is already in flight here
  kTimedOut = 6,
  kUnreachable = 7,  // a host or port could not be reached
  kUnsupported = 8,
  kOutOfMemory = 9,
  kInternal = 10,  // a fault of Perseus itself
  kInProgress = 11,
  kNonFinite = 12,  // a NaN or infinity was found, as the user asked
};

std::string_view to_string(StatusCode code);
// The code for an error number that another rank has sent; kInternal if there is no such code.
StatusCode error_code(uint32_t number);

// Cheap to copy: an ok Status is one null pointer, and an error is shared and immutable. Copies may
// be read from any thread.
class [[nodiscard]] Status {
 public:
  Status() = default;
  Status(StatusCode code, std::string message, int peer = -1)
      : error_(std::make_shared<const Error>(Error{code, std::move(message), peer})) {}

  static Status ok() { return {}; }
  static Status invalid_argument(std::string m) {
    return {StatusCode::kInvalidArgument, std::move(m)};
  }
  static Status not_initialized(std::string m) {
    return {StatusCode::kNotInitialized, std::move(m)};
  }
  static Status aborted(std::string m) { return {StatusCode::kAborted, std::move(m)}; }
  // The same if no rank is to blame: something between two ranks is.
  static Status blaming_nobody(std::string m) {
    return {StatusCode::kAborted, std::move(m), kNobody};
  }
  // Operations that need the rank `peer` cannot go on, since it is lost or has left.
  static Status without(int peer, std::string m) {
    return {StatusCode::kAborted, std::move(m), peer};
  }
  static Status mismatch(std::string m) { return {StatusCode::kMismatch, std::move(m)}; }
  static Status duplicate_name(std::string m) { return {StatusCode::kDuplicateName, std::move(m)}; }
  static Status timed_out(std::string m) { return {StatusCode::kTimedOut, std::move(m)}; }
  static Status unreachable(std::string m) { return {StatusCode::kUnreachable, std::move(m)}; }
  static Status unsupported(std::string m) { return {StatusCode::kUnsupported, std::move(m)}; }
  static Status out_of_memory(std::string m) { return {StatusCode::kOutOfMemory, std::move(m)}; }
  static Status internal(std::string m) { return {StatusCode::kInternal, std::move(m)}; }
  static Status non_finite(std::string m) { return {StatusCode::kNonFinite, std::move(m)}; }

  bool is_ok() const { return error_ == nullptr; }
  StatusCode code() const { return error_ ? error_->code : StatusCode::kOk; }
  const std::string& message() const;
  static constexpr int kNobody = -2;
  // The rank to blame for the failure; -1 if that is open, or kNobody.
  int peer() const { return error_ ? error_->peer : -1; }

 private:
  struct Error {
    StatusCode code;
    std::string message;
    int peer;
  };
  std::shared_ptr<const Error> error_;
};

template <typename T>
class [[nodiscard]] Result {
 public:
  Result(T value) : value_(std::move(value)) {}          // NOLINT: implicit by intent
  Result(Status status) : status_(std::move(status)) {}  // NOLINT: implicit by intent

  bool is_ok() const { return value_.has_value(); }
  const Status& status() const { return status_; }
  T& value() & { return *value_; }
  const T& value() const& { return *value_; }
  T&& value() && { return *std::move(value_); }

 private:
  std::optional<T> value_;
  Status status_;
};

}  // namespace perseus

// Leaves the enclosing function with the error, if there is one.
#define PERSEUS_RETURN_IF_ERROR(expression)                                         \
  do {                                                                              \
    if (::perseus::Status status_ = (expression); !status_.is_ok()) return status_; \
  } while (0)
