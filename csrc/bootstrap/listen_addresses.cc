#include "bootstrap/listen_addresses.h"

#include <netdb.h>

#include <algorithm>
#include <memory>

#include "base/interfaces.h"

namespace perseus {
namespace {

struct OwnAddress {
  std::string interface;
  std::string text;
};

std::string text_of(const sockaddr* address) {
  char host[NI_MAXHOST] = "";
  getnameinfo(address, address_length(address->sa_family), host, sizeof(host), nullptr, 0,
              NI_NUMERICHOST);
  return host;
}

// Empty if the system does not tell.
std::vector<OwnAddress> own_addresses() {
  std::vector<OwnAddress> own;
  const Result<Interfaces> found = Interfaces::list();
  if (!found.is_ok()) return own;
  for (const InterfaceAddress& one : found.value().addresses) {
    own.push_back({one.interface, text_of(reinterpret_cast<const sockaddr*>(&one.address))});
  }
  return own;
}

bool is_loopback(const std::string& address) {
  return address == "::1" || address.starts_with("127.");
}

// Empty if the name cannot be resolved (yet). `flags` are getaddrinfo's.
std::vector<std::string> resolve(const std::string& host, int flags = 0) {
  addrinfo hints{};
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = flags;
  addrinfo* found = nullptr;
  std::vector<std::string> addresses;
  if (getaddrinfo(host.c_str(), nullptr, &hints, &found) != 0) return addresses;
  const std::unique_ptr<addrinfo, void (*)(addrinfo*)> guard(found, freeaddrinfo);
  for (const addrinfo* a = found; a != nullptr; a = a->ai_next) {
    const std::string address = text_of(a->ai_addr);
    if (std::ranges::find(addresses, address) == addresses.end()) addresses.push_back(address);
  }
  return addresses;
}

bool is_named(const std::string& interface, const std::string& interfaces) {
  return ("," + interfaces + ",").find("," + interface + ",") != std::string::npos;
}

}  // namespace

std::vector<std::string> listen_addresses(const std::string& told, const std::string& interfaces) {
  if (told == "localhost" || is_loopback(told)) return {told};
  const std::vector<OwnAddress> own = own_addresses();
  const auto is_own = [&](const std::string& address) {
    return is_loopback(address) || std::ranges::find(own, address, &OwnAddress::text) != own.end();
  };
  if (const std::vector<std::string> literal = resolve(told, AI_NUMERICHOST);
      !literal.empty() && is_own(literal[0])) {
    return literal;
  }
  std::vector<std::string> chosen;
  for (const OwnAddress& address : own) {
    // Two interfaces may have the same address.
    const bool is_new = std::ranges::find(chosen, address.text) == chosen.end();
    if (is_new && is_named(address.interface, interfaces)) chosen.push_back(address.text);
  }
  // If an interface does not exist, the transports report it, on every rank.
  if (chosen.empty()) return {""};
  std::vector<std::string> here = resolve(told);
  std::erase_if(here, [&](const std::string& address) { return !is_own(address); });
  const bool met = std::ranges::any_of(here, [&](const std::string& address) {
    return std::ranges::find(chosen, address) != chosen.end();
  });
  if (!met) chosen.insert(chosen.end(), here.begin(), here.end());
  return chosen;
}

}  // namespace perseus
