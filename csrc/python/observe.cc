// Counters, settings, timeline and codecs.

#include "python/observe.h"

#include <array>
#include <cstdint>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "perseus/perseus.h"
#include "python/errors.h"
#include "python/gil.h"

namespace py = pybind11;

namespace perseus::python {
namespace {

using Named = std::vector<std::pair<std::string, std::string>>;

std::vector<std::pair<std::string, uint64_t>> counters() {
  std::vector<std::pair<std::string, uint64_t>> found;
  check(perseus_counters(
      [](void* user, const char* name, uint64_t value) {
        static_cast<decltype(found)*>(user)->emplace_back(name, value);
      },
      &found));
  return found;
}

// In the order of perseus_core.observe.Setting.
using SettingRow = std::array<std::string, 8>;

std::vector<SettingRow> settings() {
  std::vector<SettingRow> found;
  check(perseus_settings(
      [](void* user, const perseus_setting_t* row) {
        static_cast<decltype(found)*>(user)->push_back({row->name, row->type, row->default_value,
                                                        row->range, row->since, row->aliases,
                                                        row->help, row->value});
      },
      &found));
  return found;
}

// `environment`: "NAME=value".
void check_environment(const std::vector<std::string>& environment) {
  std::vector<const char*> entries;
  for (const std::string& entry : environment) entries.push_back(entry.c_str());
  entries.push_back(nullptr);
  check(perseus_check_environment(entries.data()));
}

Named check_build() {
  Named found;
  check(perseus_check_build(
      [](void* user, const char* what, const char* answer) {
        static_cast<Named*>(user)->emplace_back(what, answer);
      },
      &found));
  return found;
}

double core_distance(int32_t first, int32_t second) {
  double nanoseconds = 0;
  perseus_status_t status;
  {
    const Unlocked unlocked;
    status = perseus_core_distance(first, second, &nanoseconds);
  }
  check(status);
  return nanoseconds;
}

// In the order of perseus_core.observe.GpuSupport.
std::tuple<int32_t, int32_t, int32_t, bool> gpu_support() {
  perseus_gpu_support_t found{};
  found.struct_size = sizeof found;
  check(perseus_gpu_support(&found));
  return {found.cuda_driver, found.cuda_runtime, found.nccl, found.has_kernels != 0};
}

// The functions are the addresses of C functions.
int32_t register_codec(const std::string& name, uintptr_t encoded_size, uintptr_t encode,
                       uintptr_t decode, bool error_feedback, uintptr_t user) {
  perseus_codec_t codec{};
  codec.struct_size = sizeof codec;
  codec.name = name.c_str();
  codec.encoded_size = reinterpret_cast<size_t (*)(void*, size_t)>(encoded_size);
  codec.encode = reinterpret_cast<void (*)(void*, const float*, size_t, void*)>(encode);
  codec.decode = reinterpret_cast<void (*)(void*, const void*, float*, size_t)>(decode);
  codec.error_feedback = error_feedback;
  codec.user = reinterpret_cast<void*>(user);
  int32_t id = 0;
  check(perseus_register_codec(&codec, &id));
  return id;
}

int32_t find_codec(const char* name) {
  int32_t id = 0;
  check(perseus_find_codec(name, &id));
  return id;
}

}  // namespace

void bind_observe(py::module_& module) {
  module.def("counters", &counters);
  module.def("settings", &settings);
  module.def("check_environment", &check_environment);
  module.def("check_build", &check_build);
  module.def("core_distance", &core_distance, py::arg("first"), py::arg("second"));
  module.def("gpu_support", &gpu_support);
  module.def(
      "add_library_folders",
      [](const std::string& folders) { perseus_add_library_folders(folders.c_str()); },
      py::arg("folders"));
  module.def(
      "start_timeline",
      [](const char* path, bool mark_cycles) { check(perseus_start_timeline(path, mark_cycles)); },
      py::arg("path"), py::arg("mark_cycles") = false);
  module.def("stop_timeline", [] { check(perseus_stop_timeline()); });
  module.def("register_codec", &register_codec, py::arg("name"), py::arg("encoded_size"),
             py::arg("encode"), py::arg("decode"), py::arg("error_feedback") = false,
             py::arg("user") = 0);
  module.def("find_codec", &find_codec, py::arg("name"));
}

}  // namespace perseus::python
