#include "bootstrap/slurm.h"

namespace perseus {

Result<std::string> first_slurm_host(std::string_view node_list) {
  const Status malformed = Status::invalid_argument(
      "'" + std::string(node_list) + "' is not a node list such as node[01-04,7],gpu3");
  std::string host;
  std::string_view rest = node_list;
  while (!rest.empty() && rest.front() != ',') {
    const size_t plain = rest.find_first_of("[],");
    host += rest.substr(0, plain);
    if (plain == rest.npos) break;
    rest.remove_prefix(plain);
    if (rest.front() == ']') return malformed;
    if (rest.front() == '[') {
      const size_t close = rest.find(']');
      if (close == rest.npos) return malformed;
      const std::string_view first = rest.substr(1, rest.find_first_of("-,]") - 1);
      if (first.empty() || first.find_first_not_of("0123456789") != first.npos) return malformed;
      host += first;
      rest.remove_prefix(close + 1);
    }
  }
  if (host.empty()) return malformed;
  return host;
}

}  // namespace perseus
