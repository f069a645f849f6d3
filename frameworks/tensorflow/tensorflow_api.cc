#include "tensorflow_api.h"

#include <dlfcn.h>

namespace perseus::tensorflow {
namespace {

Api the_one;

template <typename Function>
bool find(void* library, const char* name, Function& function) {
  function = reinterpret_cast<Function>(dlsym(library, name));
  return function != nullptr;
}

}  // namespace

const Api& api() { return the_one; }

std::string find_api() {
  constexpr const char* kLibrary = "libtensorflow_framework.so.2";
  void* const library = dlopen(kLibrary, RTLD_LAZY | RTLD_NOLOAD);
  if (library == nullptr) return std::string(kLibrary) + " is not in the process";
  std::string missing;
#define PERSEUS_FIND(result, name, parameters) \
  if (!find(library, #name, the_one.name)) missing += missing.empty() ? #name : ", " #name;
  PERSEUS_TENSORFLOW_FUNCTIONS(PERSEUS_FIND)
#undef PERSEUS_FIND
  dlclose(library);  // TensorFlow keeps it
  return missing.empty() ? "" : std::string(kLibrary) + " lacks " + missing;
}

}  // namespace perseus::tensorflow
