// What PERSEUS_WIRE does to the frames of a TCP connection, so that nobody between the two ranks
// can change them unnoticed, or read them:
//
//                    tag (MAC)         bytes that follow the header
//   plain            all but data      as they are
//   authenticated    every frame       as they are
//   encrypted        every frame       encrypted
//
// plain's tags are HMAC-SHA-256, which is in the engine; the others' are those of AES-256-GCM, by
// OpenSSL. A header is never encrypted: who watches the network sees sizes and times anyway.
//
// A tag of plain also covers the headers of the data frames before it. So whoever leaves out, adds
// or diverts data is noticed at the next frame that has a tag, and marks see to it that there is
// one (see FrameHeader). Only the data itself can be changed.
#pragma once

#include <cstddef>
#include <memory>
#include <string_view>

#include "base/openssl.h"
#include "base/session.h"
#include "base/setting_choices.h"
#include "transport/channel.h"

namespace perseus {

struct Settings;

struct WireProtection {
  WireChoice choice = WireChoice::kPlain;
  const OpenSsl* openssl = nullptr;  // not null unless `choice` is plain
};

// What PERSEUS_WIRE asks for. kUnsupported if that needs OpenSSL and there is none.
Result<WireProtection> wire_protection(const Settings& settings);

// Both ends of a connection have one, with the same protection. Loop thread.
class FrameGuard {
 public:
  virtual ~FrameGuard() = default;

  // Returns whether seal() writes what is to be sent to memory of the caller.
  virtual bool encrypts() const = 0;
  // Returns how many bytes of tag follow the frame: all of MessageTag or none.
  virtual size_t tag_bytes(const FrameHeader& header) const = 0;
  // Makes the tag, if any, of the next frame to send, and if encrypts() writes header.length bytes
  // to `sealed`. Returns false if this process lacks the memory.
  virtual bool seal(const Frame& frame, std::byte* sealed, MessageTag& tag) = 0;
  // Returns whether the next frame that arrived is what the peer sent, as far as its tag proves
  // that, and decrypts it in place. Call it for every frame, also if it has no tag.
  virtual bool open(const FrameHeader& header, std::byte* payload, std::string_view tag) = 0;
};

std::unique_ptr<FrameGuard> make_frame_guard(const WireProtection& protection, Session session);

}  // namespace perseus
