#include "base/settings.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <map>
#include <set>
#include <string>

#include "base/settings_rows.h"

namespace perseus {
namespace {

constexpr uint64_t kMiB = uint64_t{1} << 20;
using Variables = std::map<std::string, std::string>;

Result<Settings> read(const Variables& variables, std::vector<std::string>* warnings = nullptr) {
  return Settings::from(
      [&](const char* name) -> const char* {
        auto found = variables.find(name);
        return found == variables.end() ? nullptr : found->second.c_str();
      },
      warnings);
}

std::string error_of(const Variables& variables) {
  Result<Settings> result = read(variables);
  if (result.is_ok()) return "accepted";
  EXPECT_EQ(result.status().code(), StatusCode::kInvalidArgument);
  return result.status().message();
}

SettingRow described(const std::string& name, const Settings& settings = Settings()) {
  for (SettingRow& row : describe(settings)) {
    if (row.name == name) return row;
  }
  ADD_FAILURE() << name << " is not described";
  return {};
}

TEST(SettingsTest, DefaultsAreThoseOfTheTable) {
  Settings settings;
  EXPECT_EQ(settings.streams, 4);
  EXPECT_EQ(settings.fusion_bytes, kMiB / 2);
  EXPECT_EQ(settings.chunk_bytes, 128u * 1024);
  EXPECT_EQ(settings.transport, TransportChoice::kAuto);
  EXPECT_EQ(settings.wire_dtype, WireDtype::kNone);
  EXPECT_EQ(settings.log_level, LogLevel::kWarning);
  EXPECT_FALSE(settings.disable_stream_tuning);
  EXPECT_EQ(settings.timeline, "");
}

TEST(SettingsTest, EveryDefaultIsAcceptedAsAValue) {
  for (const SettingRow& row : describe(Settings())) {
    Result<Settings> result = read({{row.name, row.default_value}});
    EXPECT_TRUE(result.is_ok()) << result.status().message();
  }
}

TEST(SettingsTest, ForGpusAGivenValueCountsAndTheDefaultsAreLarger) {
  const Settings defaults;
  EXPECT_EQ(defaults.gpu_fusion_bytes, 16 * kMiB);
  EXPECT_EQ(defaults.gpu_shard_bytes, 16 * kMiB);
  EXPECT_EQ(defaults.gpu_credit_bytes, 64 * kMiB);
  Result<Settings> given = read({{"HOROVOD_FUSION_THRESHOLD", "4096"},
                                 {"PERSEUS_ALLREDUCE_SHARD", "1"},
                                 {"PERSEUS_CREDIT", "2"}});
  ASSERT_TRUE(given.is_ok()) << given.status().message();
  EXPECT_EQ(given.value().gpu_fusion_bytes, 4096u);
  EXPECT_EQ(given.value().gpu_shard_bytes, kMiB);
  EXPECT_EQ(given.value().gpu_credit_bytes, 2 * kMiB);
}

TEST(SettingsTest, HelpNamesTheDefaultsForGpus) {
  for (const GpuDefault& row : kGpuDefaults) {
    const std::string help = described(std::string(row.name)).help;
    EXPECT_NE(help.find("Not set: " + std::to_string(row.mib) + " "), std::string::npos)
        << row.name;
  }
}

TEST(SettingsTest, EveryDescribedValueIsAcceptedBack) {
  Result<Settings> set = read({{"PERSEUS_ALLREDUCE_FUSION", "0.3"},
                               {"PERSEUS_ALLREDUCE_DTYPE", "2"},
                               {"PERSEUS_CHUNK", "64.5"},
                               {"PERSEUS_LOG_HIDE_TIME", "yes"}});
  ASSERT_TRUE(set.is_ok());
  Variables described_values;
  for (const SettingRow& row : describe(set.value())) described_values[row.name] = row.value;
  Result<Settings> again = read(described_values);
  ASSERT_TRUE(again.is_ok()) << again.status().message();
  for (const SettingRow& row : describe(again.value())) {
    EXPECT_EQ(row.value, described_values[row.name]) << row.name;
  }
  EXPECT_EQ(again.value().fusion_bytes, set.value().fusion_bytes);
}

TEST(SettingsTest, NamesAndAliasesAreSetByOneRowOnly) {
  std::set<std::string_view> names;
  for (const TableRow& row : table_rows()) {
    EXPECT_TRUE(names.insert(row.name).second) << row.name;
    for (const SettingAlias& alias : aliases_of(row)) {
      EXPECT_TRUE(names.insert(alias.name).second) << alias.name;
      if (!alias.choice_when_on.empty()) {
        EXPECT_TRUE(find_choice(row, alias.choice_when_on).has_value()) << alias.name;
      }
    }
  }
  for (const IgnoredVariable& ignored : ignored_variables()) {
    EXPECT_TRUE(names.insert(ignored.name).second) << ignored.name;
  }
}

TEST(SettingsTest, EveryMalformedNumberIsNamedWithItsRange) {
  EXPECT_EQ(error_of({{"PERSEUS_ALLREDUCE_STREAMS", "abc"}}),
            "PERSEUS_ALLREDUCE_STREAMS='abc' is not a whole number; it takes 1 .. 64 (default 4)");
  for (const char* value : {"4x", "4 4", "4.5", "0x4", "nan", "inf", "+4", "--4", "1e1", "four"}) {
    EXPECT_NE(error_of({{"PERSEUS_ALLREDUCE_STREAMS", value}}).find("is not a whole number"),
              std::string::npos)
        << value;
  }
  for (const char* value : {"0", "65", "-1", "99999999999999999999", "-99999999999999999999"}) {
    EXPECT_EQ(error_of({{"PERSEUS_ALLREDUCE_STREAMS", value}}),
              "PERSEUS_ALLREDUCE_STREAMS='" + std::string(value) +
                  "' is out of range; it takes 1 .. 64 (default 4)");
  }
}

TEST(SettingsTest, EveryMalformedSizeIsNamedWithItsRange) {
  EXPECT_EQ(error_of({{"PERSEUS_ALLREDUCE_FUSION", "4MB"}}),
            "PERSEUS_ALLREDUCE_FUSION='4MB' is not a number; it takes 0 .. 4096 MiB (default 0.5)");
  EXPECT_NE(error_of({{"PERSEUS_ALLREDUCE_FUSION", "nan"}}).find("is not a number"),
            std::string::npos);
  for (const char* value : {"-1", "-0.001", "4096.5", "inf", "-inf", "1e400", "1e30"}) {
    EXPECT_NE(error_of({{"PERSEUS_ALLREDUCE_FUSION", value}}).find("is out of range"),
              std::string::npos)
        << value;
  }
  EXPECT_NE(error_of({{"PERSEUS_CHUNK", "0"}}).find("it takes 4 .. 65536 KiB (default 128)"),
            std::string::npos);
}

TEST(SettingsTest, SizesAreReadInTheirUnitAndKeptInBytes) {
  Result<Settings> settings = read({{"PERSEUS_ALLREDUCE_FUSION", "0.5"},
                                    {"PERSEUS_ALLREDUCE_SHARD", " 2e1 "},
                                    {"PERSEUS_CHUNK", "64"}});
  ASSERT_TRUE(settings.is_ok()) << settings.status().message();
  EXPECT_EQ(settings.value().fusion_bytes, kMiB / 2);
  EXPECT_EQ(settings.value().shard_bytes, 20 * kMiB);
  EXPECT_EQ(settings.value().chunk_bytes, 64u * 1024);
}

TEST(SettingsTest, SwitchesTakeEveryUsualWord) {
  for (const char* on : {"1", "true", "True", "YES", "on"}) {
    Result<Settings> settings = read({{"PERSEUS_LOG_HIDE_TIME", on}});
    ASSERT_TRUE(settings.is_ok()) << settings.status().message();
    EXPECT_TRUE(settings.value().log_hide_time) << on;
  }
  for (const char* off : {"0", "false", "No", "OFF"}) {
    Result<Settings> settings =
        read({{"PERSEUS_LOG_HIDE_TIME", off}, {"HOROVOD_LOG_HIDE_TIME", "1"}});
    ASSERT_TRUE(settings.is_ok()) << settings.status().message();
    EXPECT_FALSE(settings.value().log_hide_time) << off;
  }
  EXPECT_EQ(error_of({{"PERSEUS_LOG_HIDE_TIME", "2"}}),
            "PERSEUS_LOG_HIDE_TIME='2' is neither true nor false; it takes 0 or 1 (default 0)");
}

TEST(SettingsTest, HorovodSwitchesAreOnAboveZero) {
  for (auto [text, on] : std::map<std::string, bool>{
           {"1", true}, {"2", true}, {"0", false}, {"-1", false}, {"true", true}, {"off", false}}) {
    Result<Settings> settings = read({{"HOROVOD_STALL_CHECK_DISABLE", text}});
    ASSERT_TRUE(settings.is_ok()) << settings.status().message();
    EXPECT_EQ(settings.value().stall_check_disable, on) << text;
  }
  EXPECT_NE(error_of({{"HOROVOD_STALL_CHECK_DISABLE", "maybe"}})
                .find("HOROVOD_STALL_CHECK_DISABLE='maybe' is neither true nor false"),
            std::string::npos);
}

TEST(SettingsTest, ChoicesTakeEverySpellingInAnyCase) {
  for (const char* spelling : {"0", "fp16", "FP16"}) {
    Result<Settings> settings = read({{"PERSEUS_ALLREDUCE_DTYPE", spelling}});
    ASSERT_TRUE(settings.is_ok()) << settings.status().message();
    EXPECT_EQ(settings.value().wire_dtype, WireDtype::kFp16) << spelling;
  }
  EXPECT_EQ(error_of({{"PERSEUS_ALLREDUCE_DTYPE", "3"}}),
            "PERSEUS_ALLREDUCE_DTYPE='3' is not one of its choices; it takes fp16 (0), none (1), "
            "bf16 (2) (default none)");
  EXPECT_NE(error_of({{"PERSEUS_TRANSPORT", "tc"}}).find("auto, shm, tcp, mpi (default auto)"),
            std::string::npos);
}

TEST(SettingsTest, EveryChoiceIsReadAndShown) {
  for (const TableRow& row : table_rows()) {
    for (const std::vector<std::string_view>& spellings : choices_of(row)) {
      for (const std::string_view spelling : spellings) {
        Result<Settings> settings = read({{row.name, std::string(spelling)}});
        ASSERT_TRUE(settings.is_ok()) << settings.status().message();
        EXPECT_EQ(described(row.name, settings.value()).value, spellings.back()) << row.name;
      }
    }
  }
}

TEST(SettingsTest, EmptyValuesCountAsUnset) {
  Result<Settings> settings =
      read({{"PERSEUS_ALLREDUCE_STREAMS", ""}, {"HOROVOD_NUM_NCCL_STREAMS", "2"}});
  ASSERT_TRUE(settings.is_ok()) << settings.status().message();
  EXPECT_EQ(settings.value().streams, 2);
}

TEST(SettingsTest, AnEmptyStringOverridesItsAlias) {
  Result<Settings> settings =
      read({{"PERSEUS_TIMELINE", ""}, {"HOROVOD_TIMELINE", "/tmp/timeline.json"}});
  ASSERT_TRUE(settings.is_ok());
  EXPECT_EQ(settings.value().timeline, "");
}

TEST(SettingsTest, AVariableWinsOverItsAlias) {
  Result<Settings> settings = read({{"HOROVOD_FUSION_THRESHOLD", "1048576"},
                                    {"PERSEUS_ALLREDUCE_FUSION", "8"},
                                    {"HOROVOD_LOG_LEVEL", "DEBUG"}});
  ASSERT_TRUE(settings.is_ok()) << settings.status().message();
  EXPECT_EQ(settings.value().fusion_bytes, 8 * kMiB);
  EXPECT_EQ(settings.value().log_level, LogLevel::kDebug);
}

TEST(SettingsTest, AliasesInBytesAreNotScaled) {
  Result<Settings> settings = read({{"HOROVOD_FUSION_THRESHOLD", "33554432"}});
  ASSERT_TRUE(settings.is_ok()) << settings.status().message();
  EXPECT_EQ(settings.value().fusion_bytes, 32 * kMiB);
  EXPECT_NE(error_of({{"HOROVOD_FUSION_THRESHOLD", "32M"}})
                .find("HOROVOD_FUSION_THRESHOLD='32M' is not a whole number of bytes"),
            std::string::npos);
}

TEST(SettingsTest, AnAliasOutOfRangeIsMovedIntoItAndToldOf) {
  std::vector<std::string> warnings;
  Result<Settings> settings = read({{"HOROVOD_CACHE_CAPACITY", "0"},
                                    {"HOROVOD_NUM_NCCL_STREAMS", "1000"},
                                    {"HOROVOD_FUSION_THRESHOLD", "-1"}},
                                   &warnings);
  ASSERT_TRUE(settings.is_ok()) << settings.status().message();
  EXPECT_EQ(settings.value().cache_capacity, 64);
  EXPECT_EQ(settings.value().streams, 64);
  EXPECT_EQ(settings.value().fusion_bytes, 0u);
  ASSERT_EQ(warnings.size(), 3u);
  EXPECT_NE(std::find(warnings.begin(), warnings.end(),
                      "HOROVOD_CACHE_CAPACITY='0' is out of the range that PERSEUS_CACHE_CAPACITY "
                      "takes (64 .. 1048576); the minimum is used"),
            warnings.end());
  EXPECT_NE(error_of({{"HOROVOD_CACHE_CAPACITY", "many"}}).find("HOROVOD_CACHE_CAPACITY='many'"),
            std::string::npos);
}

TEST(SettingsTest, HorovodsHierarchySwitchesPickTheMode) {
  struct Case {
    Variables variables;
    AllreduceMode mode;
  };
  const Case cases[] = {
      {{{"HOROVOD_HIERARCHICAL_ALLREDUCE", "1"}}, AllreduceMode::kHierarchical},
      {{{"HOROVOD_HIERARCHICAL_ALLREDUCE", "0"}}, AllreduceMode::kAuto},
      {{{"HOROVOD_HIERARCHICAL_ALLREDUCE", "0"}, {"HOROVOD_TORUS_ALLREDUCE", "1"}},
       AllreduceMode::kHierarchical},
      {{{"HOROVOD_HIERARCHICAL_ALLREDUCE", "1"}, {"PERSEUS_ALLREDUCE_MODE", "0"}},
       AllreduceMode::kFlat},
  };
  for (const Case& c : cases) {
    Result<Settings> settings = read(c.variables);
    ASSERT_TRUE(settings.is_ok()) << settings.status().message();
    EXPECT_EQ(settings.value().mode, c.mode);
  }
  EXPECT_EQ(error_of({{"HOROVOD_TORUS_ALLREDUCE", "ring"}}),
            "HOROVOD_TORUS_ALLREDUCE='ring' is neither true nor false; it takes 0 or 1");
}

TEST(SettingsTest, AStallEndsNoJobBeforeItIsReported) {
  EXPECT_EQ(error_of({{"PERSEUS_STALL_SHUTDOWN_TIME_SECONDS", "10"}}),
            "PERSEUS_STALL_SHUTDOWN_TIME_SECONDS=10 is less than the 30 s after which a stall is "
            "reported (PERSEUS_STALL_CHECK_TIME_SECONDS); it takes 0 (never) or at least as much");
  EXPECT_EQ(error_of({{"PERSEUS_STALL_SHUTDOWN_TIME_SECONDS", "30"}}), "accepted");
  std::vector<std::string> warnings;
  Result<Settings> settings = read({{"HOROVOD_STALL_SHUTDOWN_TIME_SECONDS", "10"}}, &warnings);
  ASSERT_TRUE(settings.is_ok()) << settings.status().message();
  EXPECT_EQ(settings.value().stall_shutdown_time, 0);
  EXPECT_EQ(warnings.size(), 1u);
}

TEST(SettingsTest, AnElasticJobDoesNotWaitForARankForEver) {
  const auto limit = [](const Variables& variables) {
    return read(variables).value().stall_shutdown_time;
  };
  EXPECT_EQ(limit({}), 0);
  EXPECT_EQ(limit({{"PERSEUS_DRIVER_FD", "7"}}), 600);
  EXPECT_EQ(limit({{"PERSEUS_DRIVER_FD", "7"}, {"PERSEUS_STALL_CHECK_TIME_SECONDS", "900"}}), 900);
  for (const char* name :
       {"PERSEUS_STALL_SHUTDOWN_TIME_SECONDS", "HOROVOD_STALL_SHUTDOWN_TIME_SECONDS"}) {
    EXPECT_EQ(limit({{"PERSEUS_DRIVER_FD", "7"}, {name, "0"}}), 0) << name;
    EXPECT_EQ(limit({{"PERSEUS_DRIVER_FD", "7"}, {name, "45"}}), 45) << name;
  }
}

TEST(SettingsTest, ReadsTheProcessEnvironment) {
  ASSERT_EQ(setenv("PERSEUS_SPIN_US", "77", 1), 0);
  Result<Settings> settings = Settings::from_environment();
  unsetenv("PERSEUS_SPIN_US");
  ASSERT_TRUE(settings.is_ok()) << settings.status().message();
  EXPECT_EQ(settings.value().spin_us, 77);
}

TEST(DescribeTest, ShowsRangesChoicesAndAliases) {
  SettingRow streams = described("PERSEUS_ALLREDUCE_STREAMS");
  EXPECT_EQ(streams.type, "int");
  EXPECT_EQ(streams.range, "1 .. 64");
  EXPECT_EQ(streams.default_value, "4");
  EXPECT_EQ(streams.aliases, "HOROVOD_NUM_NCCL_STREAMS");

  SettingRow fusion = described("PERSEUS_ALLREDUCE_FUSION");
  EXPECT_EQ(fusion.type, "float");
  EXPECT_EQ(fusion.range, "0 .. 4096 MiB");
  EXPECT_EQ(fusion.aliases, "HOROVOD_FUSION_THRESHOLD (bytes)");
  EXPECT_EQ(described("PERSEUS_ALLREDUCE_SHARD").range, "0.0625 .. 4096 MiB");

  SettingRow mode = described("PERSEUS_ALLREDUCE_MODE");
  EXPECT_EQ(mode.range, "auto, flat (0), hierarchical (1)");
  EXPECT_EQ(mode.aliases,
            "HOROVOD_HIERARCHICAL_ALLREDUCE (1: hierarchical), HOROVOD_TORUS_ALLREDUCE (1: "
            "hierarchical)");
  EXPECT_EQ(described("PERSEUS_ALLREDUCE_NANCHECK").default_value, "off");
  EXPECT_EQ(described("PERSEUS_ALLREDUCE_DTYPE").value, "none");
  EXPECT_EQ(described("PERSEUS_LOG_HIDE_TIME").range, "0 or 1");
  EXPECT_EQ(described("PERSEUS_TIMELINE").range, "");
}

TEST(DescribeTest, ShowsTheValueInForce) {
  Result<Settings> settings =
      read({{"HOROVOD_FUSION_THRESHOLD", "1572864"}, {"PERSEUS_ALLREDUCE_MODE", "1"}});
  ASSERT_TRUE(settings.is_ok());
  EXPECT_EQ(described("PERSEUS_ALLREDUCE_FUSION", settings.value()).value, "1.5");
  EXPECT_EQ(described("PERSEUS_ALLREDUCE_MODE", settings.value()).value, "hierarchical");
}

TEST(UnknownVariablesTest, NamesATypoAndTheSettingNearest) {
  const char* environment[] = {"PATH=/bin",
                               "PERSEUS_ALLREDUCE_STREAM=4",
                               "PERSEUS_ALREDUCE_FUSION=4",
                               "PERSEUS_ALLREDUCE_COLOUR=red",
                               "PERSEUS_ALLREDUCE_STREAMS=4",
                               "PERSEUS_RANK=0",
                               "PERSEUS_WITH_K8S=1",
                               "PERSEUS_DATA_FOLDER=/data",
                               "HOROVOD_CYCLE_TIME=1",
                               "HOROVOD_FUSION_TRESHOLD=1",
                               "HOROVOD_FUSION_THRESHOLD=1",
                               "HOROVOD_GPU_OPERATIONS=NCCL",
                               "HOROVOD_BUILD_ARCH_FLAGS=-O2",
                               nullptr};
  EXPECT_EQ(
      unknown_variables(environment),
      (std::vector<std::string>{
          "PERSEUS_ALLREDUCE_STREAM is not a setting; did you mean PERSEUS_ALLREDUCE_STREAMS?",
          "PERSEUS_ALREDUCE_FUSION is not a setting; did you mean PERSEUS_ALLREDUCE_FUSION?",
          "PERSEUS_ALLREDUCE_COLOUR is not a setting and has no effect",
          "HOROVOD_FUSION_TRESHOLD is not a setting; did you mean HOROVOD_FUSION_THRESHOLD?"}));
}

}  // namespace
}  // namespace perseus
