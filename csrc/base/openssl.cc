#include "base/openssl.h"

#include <dlfcn.h>

#include <map>
#include <mutex>

namespace perseus {
namespace {

constexpr const char* kNames[] = {"libcrypto.so.3", "libcrypto.so.1.1"};

// Returns null, and adds to `problem`, if it cannot be opened.
void* open(const std::string& path, std::string& problem) {
  if (!path.empty()) {
    void* library = dlopen(path.c_str(), RTLD_NOW);
    if (library == nullptr) problem = dlerror();
    return library;
  }
  for (const char* name : kNames) {
    if (void* library = dlopen(name, RTLD_NOW | RTLD_NOLOAD)) return library;
  }
  for (const char* name : kNames) {
    if (void* library = dlopen(name, RTLD_NOW)) return library;
    problem += (problem.empty() ? "" : "; ") + std::string(dlerror());
  }
  return nullptr;
}

// Sets `function`; returns whether the library has it.
template <typename Function>
bool find(void* library, const char* name, Function& function, std::string& problem) {
  function = reinterpret_cast<Function>(dlsym(library, name));
  if (function == nullptr) problem = std::string("it has no ") + name;
  return function != nullptr;
}

bool bind(void* library, OpenSsl& out, std::string& problem) {
  return find(library, "EVP_aes_256_gcm", out.aes_256_gcm, problem) &&
         find(library, "EVP_CIPHER_CTX_new", out.new_context, problem) &&
         find(library, "EVP_CIPHER_CTX_free", out.free_context, problem) &&
         find(library, "EVP_CipherInit_ex", out.init, problem) &&
         find(library, "EVP_CipherUpdate", out.update, problem) &&
         find(library, "EVP_CipherFinal_ex", out.finish, problem) &&
         find(library, "EVP_CIPHER_CTX_ctrl", out.control, problem);
}

}  // namespace

Result<const OpenSsl*> load_openssl(const std::string& path) {
  static std::mutex mutex;
  // Never freed: a connection may still use one while the process exits.
  static auto* loaded = new std::map<std::string, const OpenSsl*>;
  std::lock_guard lock(mutex);
  if (const auto found = loaded->find(path); found != loaded->end()) return found->second;
  std::string problem;
  void* library = open(path, problem);
  OpenSsl functions;
  if (library == nullptr || !bind(library, functions, problem)) {
    return Status::unsupported("OpenSSL's libcrypto cannot be used (" + problem +
                               "); install OpenSSL 1.1 or 3, or set PERSEUS_OPENSSL_LIBRARY to the "
                               "path of its libcrypto");
  }
  return loaded->emplace(path, new OpenSsl(functions)).first->second;
}

}  // namespace perseus
