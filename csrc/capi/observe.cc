// perseus.h: codecs, timeline, counters, settings, what was found on this machine.
#include <cstring>
#include <string>

#include "base/core_distance.h"
#include "base/settings.h"
#include "base/thread_placement.h"
#include "capi/c_status.h"
#include "capi/process.h"
#include "codec/codec.h"
#include "codec/function_codec.h"
#include "device/cpu/kernels.h"
#include "device/cuda/kernels_image.h"
#include "device/cuda/libraries.h"
#include "mpi/mpi_library.h"

using perseus::Process;
using perseus::Status;
using perseus::to_c;

extern "C" {

perseus_status_t perseus_register_codec(const perseus_codec_t* codec, int32_t* id) {
  if (codec == nullptr || id == nullptr || codec->struct_size < sizeof(perseus_codec_t)) {
    return to_c(Status::invalid_argument("the codec is missing, or its struct_size is not set"));
  }
  const perseus::CodecFunctions functions{codec->encoded_size, codec->encode, codec->decode,
                                          codec->user};
  auto made = perseus::FunctionCodec::create(codec->name == nullptr ? "" : codec->name, functions,
                                             codec->error_feedback != 0);
  if (!made.is_ok()) return to_c(made.status());
  const auto registered = perseus::register_codec(std::move(made).value());
  if (registered.is_ok()) *id = registered.value();
  return to_c(registered.status());
}

void perseus_commit_residuals(void) { Process::instance().learned.residuals.commit(); }

void perseus_restore_residuals(void) { Process::instance().learned.residuals.restore(); }

void perseus_forget_residuals(void) { Process::instance().learned.residuals.forget(); }

perseus_status_t perseus_find_codec(const char* name, int32_t* id) {
  if (name == nullptr || id == nullptr) return to_c(Status::invalid_argument("no codec was named"));
  const auto found = perseus::find_codec(name);
  if (found.is_ok()) *id = found.value();
  return to_c(found.status());
}

perseus_status_t perseus_start_timeline(const char* path, int32_t mark_cycles) {
  const auto engine = Process::instance().engine();
  if (engine == nullptr) return to_c(perseus::not_initialized());
  if (path == nullptr) return to_c(Status::invalid_argument("no timeline file was named"));
  if (engine->topology().rank != 0) return PERSEUS_OK;
  return to_c(Process::instance().timeline.start(path, mark_cycles != 0));
}

perseus_status_t perseus_stop_timeline(void) {
  if (Process::instance().engine() == nullptr) return to_c(perseus::not_initialized());
  Process::instance().timeline.stop();
  return PERSEUS_OK;
}

perseus_status_t perseus_counters(void (*visit)(void* user, const char* name, uint64_t value),
                                  void* user) {
  if (visit == nullptr) return to_c(Status::invalid_argument("the function is a null pointer"));
  Process& process = Process::instance();
  perseus::visit_counters(process.counters,
                          [&](const char* name, uint64_t value) { visit(user, name, value); });
  perseus::Mesh::Counters mesh;
  if (const auto engine = process.engine()) mesh = engine->mesh_counters();
#define COUNTER(name, help)
#define MESH_COUNTER(name, help) visit(user, #name, mesh.name);
#include "observe/counters_table.inc"
#undef COUNTER
#undef MESH_COUNTER
  return PERSEUS_OK;
}

perseus_status_t perseus_settings(void (*visit)(void* user, const perseus_setting_t* setting),
                                  void* user) {
  if (visit == nullptr) return to_c(Status::invalid_argument("the function is a null pointer"));
  perseus::Settings settings;
  if (const auto engine = Process::instance().engine()) {
    settings = engine->settings();
  } else {
    auto read = perseus::Settings::from_environment();
    if (!read.is_ok()) return to_c(read.status());
    settings = std::move(read).value();
  }
  for (const perseus::SettingRow& row : perseus::describe(settings)) {
    perseus_setting_t setting;
    setting.struct_size = sizeof setting;
    setting.name = row.name.c_str();
    setting.type = row.type.c_str();
    setting.default_value = row.default_value.c_str();
    setting.range = row.range.c_str();
    setting.since = row.since.c_str();
    setting.aliases = row.aliases.c_str();
    setting.help = row.help.c_str();
    setting.value = row.value.c_str();
    visit(user, &setting);
  }
  return PERSEUS_OK;
}

perseus_status_t perseus_check_environment(const char* const* environment) {
  if (environment == nullptr) {
    return to_c(Status::invalid_argument("the environment is a null pointer"));
  }
  const auto value_of = [environment](const char* name) -> const char* {
    const size_t length = std::strlen(name);
    for (const char* const* entry = environment; *entry != nullptr; ++entry) {
      const bool is_it = std::strncmp(*entry, name, length) == 0 && (*entry)[length] == '=';
      if (is_it) return *entry + length + 1;
    }
    return nullptr;
  };
  const auto settings = perseus::Settings::from(value_of);
  if (!settings.is_ok()) return to_c(settings.status());
  return to_c(perseus::check_thread_placement(settings.value().thread_affinity,
                                              settings.value().cache_groups));
}

void perseus_add_library_folders(const char* folders) {
  if (folders != nullptr) perseus::add_library_folders(folders);
}

perseus_status_t perseus_core_distance(int32_t first, int32_t second, double* nanoseconds) {
  if (nanoseconds == nullptr) return to_c(Status::invalid_argument("the result is a null pointer"));
  const auto distance = perseus::core_distance(first, second);
  if (distance.is_ok()) *nanoseconds = distance.value();
  return to_c(distance.status());
}

perseus_status_t perseus_check_build(void (*visit)(void* user, const char* what, const char* found),
                                     void* user) {
  if (visit == nullptr) return to_c(Status::invalid_argument("the function is a null pointer"));
  const std::string instructions(perseus::instruction_set());
  visit(user, "CPU instructions", instructions.c_str());
  const auto settings = perseus::Settings::from_environment();
  if (!settings.is_ok()) return to_c(settings.status());
  const auto mpi = perseus::load_mpi(settings.value().mpi_library);
  const std::string version = mpi.is_ok() ? mpi.value()->version() : "none found";
  visit(user, "MPI", version.substr(0, version.find('\n')).c_str());
  for (const auto& [what, found] :
       perseus::describe_cuda(perseus::load_cuda(settings.value().cuda_library_path))) {
    visit(user, what.c_str(), found.c_str());
  }
  visit(user, "CUDA kernels",
        perseus::kernels_image().empty() ? "not built: there was no nvcc" : "built");
  return PERSEUS_OK;
}

perseus_status_t perseus_gpu_support(perseus_gpu_support_t* support) {
  if (support == nullptr || support->struct_size < sizeof(perseus_gpu_support_t)) {
    return to_c(
        Status::invalid_argument("the structure is missing, or its struct_size is not set"));
  }
  const auto settings = perseus::Settings::from_environment();
  if (!settings.is_ok()) return to_c(settings.status());
  const perseus::CudaLibraries& found = perseus::load_cuda(settings.value().cuda_library_path);
  const auto usable = [](const auto& library) { return library.is_usable() ? library.version : 0; };
  support->cuda_driver = usable(found.driver);
  support->cuda_runtime = usable(found.runtime);
  support->nccl = found.driver.is_usable() ? usable(found.nccl) : 0;
  support->has_kernels = !perseus::kernels_image().empty();
  return PERSEUS_OK;
}

}  // extern "C"
