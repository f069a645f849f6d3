// Verdicts that are the same on every rank, since they rest on what all ranks know.
#pragma once

#include <vector>

#include "base/settings.h"
#include "base/status.h"
#include "bootstrap/bootstrap.h"
#include "negotiation/negotiator.h"

namespace perseus {

// Compares the settings that decide plans and algorithms over all ranks. kMismatch on every rank,
// naming the setting, two ranks and their values.
Status check_settings_agree(const Settings& settings, Bootstrap& bootstrap);

// Mistakes that are seen only once an operation is agreed on; the same verdict on every rank.
// `joined`: ranks that take part without having submitted.
Status check_agreed(const Agreement::Ready& ready, const std::vector<int32_t>& joined);

}  // namespace perseus
