#include "settings.h"

#include <cstdlib>

namespace perseus::standin {
namespace {

std::string text(const char* name) {
  const char* value = std::getenv(name);
  return value == nullptr ? "" : value;
}

int number(const char* name, int otherwise) {
  const std::string value = text(name);
  return value.empty() ? otherwise : std::atoi(value.c_str());
}

Settings read() {
  const std::string on_rank = text("PERSEUS_STANDIN_ON_RANK");
  const bool injects = on_rank.empty() || on_rank == text("PERSEUS_RANK");
  return {
      .gpus = number("PERSEUS_STANDIN_GPUS", 4),
      .shared = number("PERSEUS_STANDIN_SHARED", 0) != 0,
      .driver_version = number("PERSEUS_STANDIN_DRIVER_VERSION", 13000),
      .runtime_version = number("PERSEUS_STANDIN_RUNTIME_VERSION", 13000),
      .nccl_version = number("PERSEUS_STANDIN_NCCL_VERSION", 22900),
      .delay_us = number("PERSEUS_STANDIN_DELAY_US", 0),
      .seed = static_cast<uint64_t>(number("PERSEUS_STANDIN_SEED", 1)),
      .fail = injects ? text("PERSEUS_STANDIN_FAIL") : "",
      .collective = injects ? text("PERSEUS_STANDIN_COLLECTIVE") : "",
      .one_collective = number("PERSEUS_STANDIN_ONE_COLLECTIVE", 0) != 0,
      .cta_policy = number("PERSEUS_STANDIN_CTA_POLICY", -1),
  };
}

}  // namespace

const Settings& settings() {
  static const Settings& settings = *new Settings(read());  // threads may outlive main
  return settings;
}

}  // namespace perseus::standin
