// The functions of OpenSSL's libcrypto that Perseus calls, as one table, opened at run time. They
// are the same in OpenSSL 1.1 and 3. OpenSSL's manual pages EVP_EncryptInit and
// EVP_aes_256_gcm document them.
#pragma once

#include <string>

#include "base/status.h"

namespace perseus {

using EvpCipher = struct evp_cipher_st;
using EvpCipherContext = struct evp_cipher_ctx_st;
using OpenSslEngine = struct engine_st;

struct OpenSsl {
  // EVP_CTRL_AEAD_GET_TAG, EVP_CTRL_AEAD_SET_TAG
  static constexpr int kGetTag = 0x10, kSetTag = 0x11;

  const EvpCipher* (*aes_256_gcm)();
  EvpCipherContext* (*new_context)();
  void (*free_context)(EvpCipherContext*);
  // The last argument: 1 encrypts, 0 decrypts, -1 goes on as before.
  int (*init)(EvpCipherContext*, const EvpCipher*, OpenSslEngine*, const unsigned char* key,
              const unsigned char* nonce, int encrypts);
  int (*update)(EvpCipherContext*, unsigned char* out, int* out_size, const unsigned char* in,
                int in_size);
  int (*finish)(EvpCipherContext*, unsigned char* out, int* out_size);
  int (*control)(EvpCipherContext*, int type, int argument, void* pointer);
};

// Opens the library at `path` (PERSEUS_OPENSSL_LIBRARY), once. If that is empty, it is the one that
// is in the process already, else the system's. kUnsupported if there is none that can be used. Any
// thread.
Result<const OpenSsl*> load_openssl(const std::string& path);

}  // namespace perseus
