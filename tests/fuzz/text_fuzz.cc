// Fuzzes text from users and launchers: settings, addresses, node lists, secrets.
#include <tuple>

#include "base/secret.h"
#include "base/settings.h"
#include "bootstrap/slurm.h"
#include "bootstrap/socket.h"
#include "fuzz/input.h"

using namespace perseus;

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  fuzz::Input input(data, size);
  const auto which = input.number<uint16_t>();
  std::string text = fuzz::Input::as_text(input.remainder());
  text = text.c_str();  // cut at the first null, as in the environment
  const auto rows = describe(Settings());
  const std::string& name = rows[which % rows.size()].name;
  const auto settings =
      Settings::from([&](const char* asked) { return asked == name ? text.c_str() : nullptr; });
  if (settings.is_ok()) describe(settings.value());
  const std::string entry = text + "=1";
  const char* const environment[] = {entry.c_str(), nullptr};
  std::ignore = unknown_variables(environment);
  std::ignore = from_hex(text);
  std::ignore = first_slurm_host(text);
  if (const auto where = parse_host_port(text); where.is_ok()) {
    const auto again = parse_host_port(to_string(where.value()));
    MUST(again.is_ok() && again.value().port == where.value().port);
  }
  return 0;
}
