#include "mxnet_api.h"

#include <dlfcn.h>

#include <atomic>
#include <string_view>

namespace perseus::mxnet {
namespace {

// 1.9. Version 2 has another engine.
constexpr int kOldest = 10900, kTooNew = 20000;

Api the_one;

template <typename Function>
bool find(void* library, const char* name, Function& function) {
  function = reinterpret_cast<Function>(dlsym(library, name));
  return function != nullptr;
}

std::string missing_functions(void* library) {
  std::string missing;
#define PERSEUS_FIND(name, parameters) \
  if (!find(library, #name, the_one.name)) missing += missing.empty() ? #name : ", " #name;
  PERSEUS_MXNET_FUNCTIONS(PERSEUS_FIND)
  PERSEUS_FIND(MXGetLastError, ())
#undef PERSEUS_FIND
  return missing;
}

void find_layout_functions(void* library) {
#ifdef __x86_64__  // whose ABI passes the place of a result before the other arguments
  find(library, "_ZN5mxnet7NDArray5Chunk15Reorder2DefaultEv", the_one.to_default_layout);
  find(library, "_ZNK5mxnet7NDArray15Reorder2DefaultEv", the_one.make_default_copy);
#endif
}

// Returns the file that this address was loaded from; "" for none.
std::string_view file_of(const void* address) {
  Dl_info info{};
  return dladdr(address, &info) != 0 ? info.dli_fname : "";
}

// True if the completion callback is a function of MXNet. If it is not, nothing can tell the engine
// that an operation is complete.
std::atomic<bool> has_complete{false};

void probe(void*, void* on_complete, void*) {
  const OnComplete complete = *static_cast<const OnComplete*>(on_complete);
  has_complete = file_of(reinterpret_cast<const void*>(complete.callback)) ==
                 file_of(reinterpret_cast<const void*>(the_one.MXEnginePushAsyncND));
  if (has_complete) complete(nullptr);
}

// Returns whether an operation can be completed; waits for it only if it can.
bool can_complete(NDArrayHandle array) {
  // The probe runs while it is pushed, since its array is not in use.
  const int while_pushed = 4;  // FnProperty::kAsync
  const Context cpu;
  return the_one.MXEnginePushAsyncND(probe, nullptr, nullptr, &cpu, nullptr, 0, &array, 1,
                                     &while_pushed, 0, "PerseusProbe", false) == 0 &&
         has_complete && the_one.MXNDArrayWaitToRead(array) == 0;
}

// Tries it with an array, a slice of that, and another array.
bool tells_chunks_apart(NDArrayHandle array, NDArrayHandle other) {
  NDArrayHandle slice = nullptr;
  if (the_one.MXNDArrayAt(array, 1, &slice) != 0) return false;
  const bool tells = chunk_of(slice) == chunk_of(array) && chunk_of(array) != chunk_of(other);
  the_one.MXNDArrayFree(slice);
  return tells;
}

bool looks_as_expected() {
  const uint32_t shape = 2;
  const Context cpu;
  NDArrayHandle arrays[2] = {};
  bool is_well = true;
  for (NDArrayHandle& array : arrays) {
    is_well &=
        the_one.MXNDArrayCreateEx(&shape, 1, cpu.device_type, cpu.device_id, 0, 0, &array) == 0;
  }
  is_well = is_well && tells_chunks_apart(arrays[0], arrays[1]) && can_complete(arrays[0]);
  for (NDArrayHandle array : arrays) {
    if (array != nullptr) the_one.MXNDArrayFree(array);
  }
  return is_well;
}

}  // namespace

const Api& api() { return the_one; }

std::string find_api(const char* path) {
  void* const library = dlopen(path, RTLD_LAZY | RTLD_NOLOAD);
  if (library == nullptr) return std::string(path) + " is not in the process";
  const std::string missing = missing_functions(library);
  find_layout_functions(library);
  dlclose(library);  // MXNet keeps it
  if (!missing.empty()) return std::string(path) + " lacks " + missing;
  int version = 0;
  the_one.MXGetVersion(&version);
  if (version < kOldest || version >= kTooNew) return "its engine is a different one";
  return looks_as_expected() ? "" : "its engine differs from that of 1.9";
}

}  // namespace perseus::mxnet
