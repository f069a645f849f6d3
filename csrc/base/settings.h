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
using SettingBool = bool;
using SettingString = std::string;
using SettingMiB = uint64_t;  // bytes
using SettingKiB = uint64_t;  // bytes

struct Settings {
  // The defaults.
  Settings();

  // Reads the process's environment. A malformed value is kInvalidArgument, naming the variable,
  // the value and the range; an empty one counts as unset, except for strings. If a variable and
  // its alias are both set, the variable wins. A number out of range is an error, but an alias's
  // number is moved into the range, so that scripts written for Horovod run; `warnings`, which may
  // be null, gets a line for the log about each.
  static Result<Settings> from_environment(std::vector<std::string>* warnings = nullptr);
  // Reads any other source: `get` returns a variable's value or null. For tests.
  static Result<Settings> from(const std::function<const char*(const char*)>& get,
                               std::vector<std::string>* warnings = nullptr);

#define SETTING(field, kind, ...) Setting##kind field;
#define CHOICE_SETTING(field, type, ...) type field;
#define GPU_DEFAULT(field, ...) uint64_t field;
#include "base/settings_table.inc"
#undef GPU_DEFAULT
#undef CHOICE_SETTING
#undef SETTING

  // Names of the settings that are set, by their own variable or an alias, in the table's order.
  std::vector<std::string> given;
  bool is_given(std::string_view name) const;
};

// The settings that the tuner changes unless they are given.
inline constexpr std::string_view kTunedSettings[] = {
    "PERSEUS_ALLREDUCE_SHARD", "PERSEUS_ALLREDUCE_STREAMS", "PERSEUS_ALLREDUCE_FUSION",
    "PERSEUS_CREDIT", "PERSEUS_CHUNK"};

// The default of PERSEUS_STALL_SHUTDOWN_TIME_SECONDS in a job that goes on when ranks fail. It is
// as long as PyTorch lets a collective of NCCL take.
inline constexpr int64_t kElasticStallShutdownTime = 600;

// A setting that has a different default for tensors on GPUs, and that default.
struct GpuDefault {
  std::string_view name;
  uint64_t Settings::* field;
  uint64_t Settings::* cpu_field;
  uint64_t mib;
};
inline constexpr GpuDefault kGpuDefaults[] = {
#define SETTING(...)
#define CHOICE_SETTING(...)
#define GPU_DEFAULT(field, cpu_field, name, mib) \
  {name, &Settings::field, &Settings::cpu_field, mib},
#include "base/settings_table.inc"
#undef GPU_DEFAULT
#undef CHOICE_SETTING
#undef SETTING
};

// A row as text, for --help, docs/settings.md and the C ABI.
struct SettingRow {
  std::string name, type, default_value, range, since, aliases, help, value;
};
// The whole table, in its order, with the values of `settings`.
std::vector<SettingRow> describe(const Settings& settings);

// A Horovod variable that is accepted but has no effect here, and the reason in one line.
struct IgnoredVariable {
  const char* name;
  const char* reason;
};
const std::vector<IgnoredVariable>& ignored_variables();

// Returns a warning for each variable of `environment` ("NAME=value" strings, ended by a null) that
// looks like a mistyped setting: "PERSEUS_ALLREDUCE_STREAM is not a setting; did you mean
// PERSEUS_ALLREDUCE_STREAMS?". PERSEUS_* variables of other programs are left alone.
std::vector<std::string> unknown_variables(const char* const* environment);

}  // namespace perseus
