// The settings that take one of several choices, each as an enum. settings_table.inc lists the
// choices of each, in the order of the enumerators, with the spellings that the environment takes.
#pragma once

namespace perseus {

#define SETTING(...)
#define GPU_DEFAULT(...)
#define CHOICE_SETTING(field, type, name, default_value, choices, ...) enum class type { choices };
#define CHOICE(enumerator, spellings) enumerator,
#include "base/settings_table.inc"
#undef CHOICE
#undef CHOICE_SETTING
#undef GPU_DEFAULT
#undef SETTING

}  // namespace perseus
