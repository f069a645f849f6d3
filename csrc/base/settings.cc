// The table's values, read from their text.
#include "base/settings.h"

#include <algorithm>
#include <cassert>
#include <charconv>
#include <cmath>
#include <cstdlib>
#include <optional>
#include <string_view>

#include "base/settings_rows.h"

namespace perseus {
namespace {

std::string_view trimmed(std::string_view text) {
  const char* const blanks = " \t\r\n";
  size_t first = text.find_first_not_of(blanks);
  if (first == std::string_view::npos) return {};
  return text.substr(first, text.find_last_not_of(blanks) - first + 1);
}

// A number that is well-formed but too large for its type reads as the nearest that the type holds,
// and then fails the range check.
std::optional<int64_t> parse_whole(std::string_view text) {
  int64_t number = 0;
  auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (end != text.data() + text.size() || error == std::errc::invalid_argument) return {};
  if (error == std::errc::result_out_of_range) return text[0] == '-' ? INT64_MIN : INT64_MAX;
  return number;
}

std::optional<double> parse_real(std::string_view text) {
  double number = 0;
  auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (end != text.data() + text.size() || error == std::errc::invalid_argument) return {};
  if (error == std::errc::result_out_of_range) return HUGE_VAL;
  if (std::isnan(number)) return {};
  return number;
}

std::optional<bool> parse_bool(std::string_view text) {
  for (const char* word : {"1", "true", "yes", "on"}) {
    if (same_word(text, word)) return true;
  }
  for (const char* word : {"0", "false", "no", "off"}) {
    if (same_word(text, word)) return false;
  }
  return {};
}

// Horovod's switches are numbers, and on if the number is above zero.
std::optional<bool> parse_alias_bool(std::string_view text) {
  if (std::optional<int64_t> number = parse_whole(text)) return *number > 0;
  return parse_bool(text);
}

// Assigns the text of one variable to one field.
class Assignment {
 public:
  // alias: null for the setting's own name.
  Assignment(const TableRow& row, const SettingAlias* alias, std::string_view text,
             std::vector<std::string>* warnings)
      : row_(row), alias_(alias), text_(text), warnings_(warnings) {}

  Status assign(Settings& settings) const {
    const std::string_view text = trimmed(text_);
    switch (row_.kind) {
      case SettingKind::kInt: {
        std::optional<int64_t> number = parse_whole(text);
        if (!number) return malformed("is not a whole number");
        const auto low = static_cast<int64_t>(row_.low), high = static_cast<int64_t>(row_.high);
        PERSEUS_RETURN_IF_ERROR(bring_into_range(*number, low, high));
        settings.*std::get<int64_t Settings::*>(row_.field) = *number;
        return {};
      }
      case SettingKind::kBool: {
        std::optional<bool> on = alias_ != nullptr ? parse_alias_bool(text) : parse_bool(text);
        if (!on) return malformed("is neither true nor false");
        const bool is_opposite = alias_ != nullptr && alias_->is_opposite;
        settings.*std::get<bool Settings::*>(row_.field) = *on != is_opposite;
        return {};
      }
      case SettingKind::kString:
        settings.*std::get<std::string Settings::*>(row_.field) = text;
        return {};
      case SettingKind::kChoice: return assign_choice(settings, text);
      case SettingKind::kMiB:
      case SettingKind::kKiB: return assign_bytes(settings, text);
    }
    return Status::internal("a setting of unknown kind: " + std::string(row_.name));
  }

 private:
  Status assign_choice(Settings& settings, std::string_view text) const {
    if (alias_ != nullptr && !alias_->choice_when_on.empty()) {
      std::optional<bool> on = parse_alias_bool(text);
      if (!on) {
        return Status::invalid_argument(variable() + " is neither true nor false; it takes 0 or 1");
      }
      if (!*on) return {};
      text = alias_->choice_when_on;
    }
    std::optional<size_t> choice = find_choice(row_, text);
    if (!choice) return malformed("is not one of its choices");
    std::get<ChoiceField>(row_.field).set(settings, *choice);
    return {};
  }

  Status assign_bytes(Settings& settings, std::string_view text) const {
    const auto unit = static_cast<double>(unit_of(row_));
    uint64_t& field = settings.*std::get<uint64_t Settings::*>(row_.field);
    if (alias_ != nullptr && alias_->in_bytes) {
      std::optional<int64_t> bytes = parse_whole(text);
      if (!bytes) return malformed("is not a whole number of bytes");
      PERSEUS_RETURN_IF_ERROR(bring_into_range(*bytes, static_cast<int64_t>(row_.low * unit),
                                               static_cast<int64_t>(row_.high * unit)));
      field = static_cast<uint64_t>(*bytes);
      return {};
    }
    std::optional<double> number = parse_real(text);
    if (!number) return malformed("is not a number");
    PERSEUS_RETURN_IF_ERROR(bring_into_range(*number, row_.low, row_.high));
    field = static_cast<uint64_t>(std::llround(*number * unit));
    return {};
  }

  template <typename Number>
  Status bring_into_range(Number& number, Number low, Number high) const {
    const Number nearest = std::clamp(number, low, high);
    if (nearest == number) return {};
    if (alias_ == nullptr) return malformed("is out of range");
    if (warnings_ != nullptr) {
      warnings_->push_back(variable() + " is out of the range that " + row_.name + " takes (" +
                           range_of(row_) + "); the " + (nearest == low ? "minimum" : "maximum") +
                           " is used");
    }
    number = nearest;
    return {};
  }

  std::string variable() const {
    std::string name(alias_ != nullptr ? alias_->name : std::string_view(row_.name));
    return name + "='" + std::string(text_) + "'";
  }

  Status malformed(const char* what) const {
    std::string message = variable() + " " + what + "; it takes ";
    if (alias_ != nullptr && alias_->in_bytes) {
      message += "bytes, and " + std::string(row_.name) + " ";
    }
    return Status::invalid_argument(message + range_of(row_) + " (default " + default_of(row_) +
                                    ")");
  }

  const TableRow& row_;
  const SettingAlias* alias_;
  std::string_view text_;
  std::vector<std::string>* warnings_;
};

// Sets the row's field from its own variable or, if that is not set, from the first alias that is.
Status read_row(const TableRow& row, const std::function<const char*(const char*)>& get,
                std::vector<std::string>* warnings, Settings& settings) {
  auto find = [&](const char* name) -> const char* {
    const char* text = get(name);
    if (text == nullptr) return nullptr;
    const bool counts = row.kind == SettingKind::kString || !trimmed(text).empty();
    return counts ? text : nullptr;
  };
  const auto given = [&] { settings.given.emplace_back(row.name); };
  if (const char* text = find(row.name)) {
    given();
    return Assignment(row, nullptr, text, warnings).assign(settings);
  }
  for (const SettingAlias& alias : aliases_of(row)) {
    const char* text = find(std::string(alias.name).c_str());
    if (text == nullptr) continue;
    PERSEUS_RETURN_IF_ERROR(Assignment(row, &alias, text, warnings).assign(settings));
    // A switch that is off leaves it to the next alias.
    if (alias.choice_when_on.empty() || *parse_alias_bool(trimmed(text))) {
      given();
      return {};
    }
  }
  return {};
}

// Call once it is known which settings are given.
void set_gpu_fields(Settings& settings) {
  for (const GpuDefault& row : kGpuDefaults) {
    settings.*row.field = settings.is_given(row.name) ? settings.*row.cpu_field : row.mib << 20;
  }
}

// A job that can go on without a rank does not wait for one for ever.
void set_stall_default(const std::function<const char*(const char*)>& get, Settings& settings) {
  if (get("PERSEUS_DRIVER_FD") == nullptr) return;
  if (settings.is_given("PERSEUS_STALL_SHUTDOWN_TIME_SECONDS")) return;
  settings.stall_shutdown_time = std::max(kElasticStallShutdownTime, settings.stall_check_time);
}

// A stall must not end a job before the report that says why.
Status check_stall_times(const std::function<const char*(const char*)>& get,
                         std::vector<std::string>* warnings, Settings& settings) {
  if (settings.stall_check_disable || settings.stall_shutdown_time == 0 ||
      settings.stall_shutdown_time >= settings.stall_check_time) {
    return {};
  }
  const std::string text = "=" + std::to_string(settings.stall_shutdown_time) +
                           " is less than the " + std::to_string(settings.stall_check_time) +
                           " s after which a stall is reported (PERSEUS_STALL_CHECK_TIME_SECONDS)";
  const char* own = get("PERSEUS_STALL_SHUTDOWN_TIME_SECONDS");
  if (own != nullptr && !trimmed(own).empty()) {
    return Status::invalid_argument("PERSEUS_STALL_SHUTDOWN_TIME_SECONDS" + text +
                                    "; it takes 0 (never) or at least as much");
  }
  settings.stall_shutdown_time = 0;
  if (warnings != nullptr) {
    warnings->push_back("HOROVOD_STALL_SHUTDOWN_TIME_SECONDS" + text +
                        "; no stall ends the job, as with Horovod");
  }
  return {};
}

}  // namespace

Settings::Settings() {
  for (const TableRow& row : table_rows()) {
    [[maybe_unused]] Status status =
        Assignment(row, nullptr, row.default_value, nullptr).assign(*this);
    assert(status.is_ok());  // the table's defaults are within its ranges
  }
  set_gpu_fields(*this);
}

bool Settings::is_given(std::string_view name) const {
  return std::find(given.begin(), given.end(), name) != given.end();
}

Result<Settings> Settings::from_environment(std::vector<std::string>* warnings) {
  return from([](const char* name) { return std::getenv(name); }, warnings);
}

Result<Settings> Settings::from(const std::function<const char*(const char*)>& get,
                                std::vector<std::string>* warnings) {
  Settings settings;
  for (const TableRow& row : table_rows()) {
    PERSEUS_RETURN_IF_ERROR(read_row(row, get, warnings, settings));
  }
  set_gpu_fields(settings);
  set_stall_default(get, settings);
  PERSEUS_RETURN_IF_ERROR(check_stall_times(get, warnings, settings));
  return settings;
}

}  // namespace perseus
