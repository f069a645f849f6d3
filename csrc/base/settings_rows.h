// The settings table as data, to be read row by row. Private to the settings' own files.
#pragma once

#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "base/settings.h"

namespace perseus {

enum class SettingKind { kInt, kBool, kString, kChoice, kMiB, kKiB };

// Access to a field of an enum type by the choice's index in its row.
struct ChoiceField {
  size_t (*get)(const Settings& settings);
  void (*set)(Settings& settings, size_t choice);
};

struct TableRow {
  SettingKind kind;
  const char* name;
  const char* default_value;
  double low, high;                       // in the variable's unit
  std::vector<std::string_view> choices;  // spellings, separated by '='
  const char* since;
  const char* aliases;
  const char* help;
  std::variant<int64_t Settings::*, bool Settings::*, std::string Settings::*, uint64_t Settings::*,
               ChoiceField>
      field;
};

// The table, in its order.
std::span<const TableRow> table_rows();

struct SettingAlias {
  std::string_view name;
  bool in_bytes = false;
  bool is_opposite = false;
  std::string_view choice_when_on;  // empty: the alias's values are the setting's own
};
std::vector<SettingAlias> aliases_of(const TableRow& row);

// The spellings of each choice; the last one is shown: {"0", "flat"}.
std::vector<std::vector<std::string_view>> choices_of(const TableRow& row);
// Returns the choice's index. Case does not matter.
std::optional<size_t> find_choice(const TableRow& row, std::string_view spelling);
// Compares without regard to case.
bool same_word(std::string_view a, std::string_view b);

// The values that the variable accepts: "1 .. 64", "0 .. 4096 MiB", "auto, flat (0), hierarchical
// (1)"; empty for a string.
std::string range_of(const TableRow& row);
// The value as text; the variable accepts it.
std::string value_of(const TableRow& row, const Settings& settings);
std::string default_of(const TableRow& row);

// Returns the bytes in the unit of a MiB or KiB row; 1 for other rows.
uint64_t unit_of(const TableRow& row);

}  // namespace perseus
