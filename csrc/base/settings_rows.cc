// The settings table as data and as text.
#include "base/settings_rows.h"

#include <algorithm>
#include <charconv>
#include <cstring>
#include <type_traits>
#include <utility>

namespace perseus {
namespace {

std::vector<std::string_view> split(std::string_view text, char separator) {
  std::vector<std::string_view> parts;
  if (text.empty()) return parts;
  for (size_t start = 0;;) {
    const size_t end = text.find(separator, start);
    parts.push_back(text.substr(start, end - start));
    if (end == std::string_view::npos) return parts;
    start = end + 1;
  }
}

char lower(char c) { return c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c; }

// The shortest text that reads back as the same number, without an exponent.
std::string to_text(double number) {
  char text[64];
  auto [end, error] = std::to_chars(text, text + sizeof(text), number, std::chars_format::fixed);
  return std::string(text, end);
}

std::string unit_name(SettingKind kind) {
  if (kind == SettingKind::kMiB) return " MiB";
  if (kind == SettingKind::kKiB) return " KiB";
  return "";
}

std::string type_name(SettingKind kind) {
  switch (kind) {
    case SettingKind::kInt: return "int";
    case SettingKind::kBool: return "bool";
    case SettingKind::kString: return "string";
    case SettingKind::kChoice: return "choice";
    case SettingKind::kMiB:
    case SettingKind::kKiB: return "float";
  }
  return "";
}

// "auto, flat (0), hierarchical (1)"
std::string choices_text(const TableRow& row) {
  std::string text;
  for (const std::vector<std::string_view>& spellings : choices_of(row)) {
    if (!text.empty()) text += ", ";
    text += spellings.back();
    for (size_t i = 0; i + 1 < spellings.size(); ++i) {
      text += (i == 0 ? " (" : ", ") + std::string(spellings[i]);
    }
    if (spellings.size() > 1) text += ")";
  }
  return text;
}

// "HOROVOD_FUSION_THRESHOLD (bytes), ..."
std::string aliases_text(const TableRow& row) {
  std::string text;
  for (const SettingAlias& alias : aliases_of(row)) {
    if (!text.empty()) text += ", ";
    text += alias.name;
    if (alias.in_bytes) text += " (bytes)";
    if (alias.is_opposite) text += " (the opposite)";
    if (!alias.choice_when_on.empty()) {
      text += " (1: " + std::string(alias.choice_when_on) + ")";
    }
  }
  return text;
}

template <auto kField>
ChoiceField choice_field() {
  using Choice = std::remove_cvref_t<decltype(std::declval<Settings>().*kField)>;
  return {.get = [](const Settings& settings) { return static_cast<size_t>(settings.*kField); },
          .set = [](Settings& settings,
                    size_t choice) { settings.*kField = static_cast<Choice>(choice); }};
}

// A choice's index in its row is read as an enumerator.
template <typename Choice, size_t kCount>
constexpr bool in_order(const Choice (&choices)[kCount]) {
  for (size_t i = 0; i < kCount; ++i) {
    if (static_cast<size_t>(choices[i]) != i) return false;
  }
  return true;
}

#define SETTING(...)
#define GPU_DEFAULT(...)
#define CHOICE(enumerator, spellings) enumerator,
#define CHOICE_SETTING(field, type, name, default_value, choices, ...) \
  static_assert([] {                                                   \
    using enum type;                                                   \
    return in_order({choices});                                        \
  }());
#include "base/settings_table.inc"
#undef CHOICE_SETTING
#undef CHOICE
#undef GPU_DEFAULT
#undef SETTING

}  // namespace

bool same_word(std::string_view a, std::string_view b) {
  return std::equal(a.begin(), a.end(), b.begin(), b.end(),
                    [](char x, char y) { return lower(x) == lower(y); });
}

std::span<const TableRow> table_rows() {
  static const TableRow rows[] = {
#define SETTING(field, kind, name, default_value, low, high, since, aliases, help) \
  {SettingKind::k##kind, name, default_value, low, high, {}, since, aliases, help, \
   &Settings::field},
#define CHOICE_SETTING(field, type, name, default_value, choices, since, aliases, help) \
  {SettingKind::kChoice,                                                                \
   name,                                                                                \
   default_value,                                                                       \
   0,                                                                                   \
   0,                                                                                   \
   {choices},                                                                           \
   since,                                                                               \
   aliases,                                                                             \
   help,                                                                                \
   choice_field<&Settings::field>()},
#define CHOICE(enumerator, spellings) spellings,
#define GPU_DEFAULT(...)
#include "base/settings_table.inc"
#undef GPU_DEFAULT
#undef CHOICE
#undef CHOICE_SETTING
#undef SETTING
  };
  return rows;
}

std::vector<SettingAlias> aliases_of(const TableRow& row) {
  std::vector<SettingAlias> aliases;
  for (std::string_view part : split(row.aliases, ',')) {
    SettingAlias alias;
    const size_t colon = part.find(':');
    alias.name = part.substr(0, colon);
    if (colon != std::string_view::npos) {
      const std::string_view how = part.substr(colon + 1);
      alias.in_bytes = how == "bytes";
      alias.is_opposite = how == "not";
      if (how.starts_with("on=")) alias.choice_when_on = how.substr(std::strlen("on="));
    }
    aliases.push_back(alias);
  }
  return aliases;
}

std::vector<std::vector<std::string_view>> choices_of(const TableRow& row) {
  std::vector<std::vector<std::string_view>> choices;
  for (std::string_view choice : row.choices) choices.push_back(split(choice, '='));
  return choices;
}

std::optional<size_t> find_choice(const TableRow& row, std::string_view spelling) {
  const auto choices = choices_of(row);
  for (size_t i = 0; i < choices.size(); ++i) {
    for (std::string_view known : choices[i]) {
      if (same_word(spelling, known)) return i;
    }
  }
  return {};
}

uint64_t unit_of(const TableRow& row) {
  if (row.kind == SettingKind::kMiB) return uint64_t{1} << 20;
  if (row.kind == SettingKind::kKiB) return uint64_t{1} << 10;
  return 1;
}

std::string range_of(const TableRow& row) {
  switch (row.kind) {
    case SettingKind::kString: return "";
    case SettingKind::kBool: return "0 or 1";
    case SettingKind::kChoice: return choices_text(row);
    case SettingKind::kInt:
    case SettingKind::kMiB:
    case SettingKind::kKiB:
      return to_text(row.low) + " .. " + to_text(row.high) + unit_name(row.kind);
  }
  return "";
}

std::string value_of(const TableRow& row, const Settings& settings) {
  switch (row.kind) {
    case SettingKind::kInt:
      return std::to_string(settings.*std::get<int64_t Settings::*>(row.field));
    case SettingKind::kBool: return settings.*std::get<bool Settings::*>(row.field) ? "1" : "0";
    case SettingKind::kString: return settings.*std::get<std::string Settings::*>(row.field);
    case SettingKind::kChoice: {
      const size_t choice = std::get<ChoiceField>(row.field).get(settings);
      return std::string(choices_of(row)[choice].back());
    }
    case SettingKind::kMiB:
    case SettingKind::kKiB: {
      const uint64_t bytes = settings.*std::get<uint64_t Settings::*>(row.field);
      return to_text(static_cast<double>(bytes) / static_cast<double>(unit_of(row)));
    }
  }
  return "";
}

std::string default_of(const TableRow& row) {
  if (row.kind != SettingKind::kChoice) return row.default_value;
  return std::string(choices_of(row)[*find_choice(row, row.default_value)].back());
}

std::vector<SettingRow> describe(const Settings& settings) {
  std::vector<SettingRow> described;
  for (const TableRow& row : table_rows()) {
    described.push_back({.name = row.name,
                         .type = type_name(row.kind),
                         .default_value = default_of(row),
                         .range = range_of(row),
                         .since = row.since,
                         .aliases = aliases_text(row),
                         .help = row.help,
                         .value = value_of(row, settings)});
  }
  return described;
}

}  // namespace perseus
