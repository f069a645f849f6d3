// Settings: one table (settings_table.inc), read from the environment once per init.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "base/setting_choices.h"
#include "base/status.h"

namespace perseus {

using SettingInt = int64_t;
using SettingFloat = double;
using SettingBool = bool;
using SettingString = std::string;
using SettingMiB = uint64_t;  // bytes
using SettingKiB = uint64_t;  // bytes

struct Settings {
  // The defaults.
  Settings();

  // From the process's environment. A malformed value is kInvalidArgument, naming the variable, the
  // value and the range; an empty one counts as unset, except for strings. Where a variable and its
  // alias are both set, the variable wins. An alias's number out of range is moved into it, so that
  // a script written for Horovod runs; `warnings` (may be null) is told, a line each, for the log.
  static Result<Settings> from_environment(std::vector<std::string>* warnings = nullptr);
  // The same from any source: `get` gives a variable's value or null. For tests.
  static Result<Settings> from(const std::function<const char*(const char*)>& get,
                               std::vector<std::string>* warnings = nullptr);

#define SETTING(field, kind, ...) Setting##kind field;
#define CHOICE_SETTING(field, type, ...) type field;
#include "base/settings_table.inc"
#undef CHOICE_SETTING
#undef SETTING

  // Names of those that somebody has given, in the order of the table.
  std::vector<std::string> given;
  bool is_given(std::string_view name) const;
};

// Those that the tuner changes unless they are given.
inline constexpr std::string_view kTunedSettings[] = {
    "PERSEUS_ALLREDUCE_SHARD", "PERSEUS_ALLREDUCE_STREAMS", "PERSEUS_ALLREDUCE_FUSION",
    "PERSEUS_CREDIT", "PERSEUS_CHUNK"};

// One row as text, for --help, docs/settings.md and the C ABI.
struct SettingRow {
  std::string name, type, default_value, range, since, aliases, help, value;
};
// The whole table in its order, with the values of `settings`.
std::vector<SettingRow> describe(const Settings& settings);

// A name of Horovod's that is accepted and has no meaning here, and why in one line.
struct IgnoredVariable {
  const char* name;
  const char* reason;
};
const std::vector<IgnoredVariable>& ignored_variables();

// A line of warning for each variable of `environment` ("NAME=value" strings, a null at the end)
// that looks like a setting mistyped: "PERSEUS_ALLREDUCE_STREAM is no setting; did you mean
// PERSEUS_ALLREDUCE_STREAMS?". Other people's PERSEUS_* variables are left alone.
std::vector<std::string> unknown_variables(const char* const* environment);

}  // namespace perseus
