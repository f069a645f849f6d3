#include "transport/tcp/frame_guard.h"

#include <string>
#include <utility>

#include "base/sealed_sequence.h"
#include "base/settings.h"
#include "transport/handshake.h"
#include "transport/tcp/header_digest.h"

namespace perseus {
namespace {

class PlainGuard final : public FrameGuard {
 public:
  explicit PlainGuard(Session session)
      : data_out_(session.outgoing.derive_key(kHeaders)),
        data_in_(session.incoming.derive_key(kHeaders)),
        session_(std::move(session)) {}

  bool encrypts() const override { return false; }
  size_t tag_bytes(const FrameHeader& header) const override {
    return header.kind() == FrameHeader::kData ? 0 : sizeof(MessageTag);
  }
  bool seal(const Frame& frame, std::byte*, MessageTag& tag) override {
    if (tag_bytes(frame.header) == 0) {
      data_out_.add(frame.header);
      return true;
    }
    const uint64_t before = data_out_.take();
    tag = session_.outgoing.next(
        {bytes_of(frame.header), bytes_of(frame.data, frame.header.length), bytes_of(before)});
    return true;
  }
  bool open(const FrameHeader& header, std::byte* payload, std::string_view tag) override {
    if (tag_bytes(header) == 0) {
      data_in_.add(header);
      return true;
    }
    const uint64_t before = data_in_.take();
    return session_.incoming.is_next(
        tag, {bytes_of(header), bytes_of(payload, header.length), bytes_of(before)});
  }

 private:
  static constexpr std::string_view kHeaders = "perseus headers";

  HeaderDigest data_out_, data_in_;  // of the data since the last frame that had a tag
  Session session_;
};

class GcmGuard final : public FrameGuard {
 public:
  GcmGuard(const OpenSsl& openssl, const Session& session, bool encrypts)
      : outgoing_(openssl, session.outgoing.derive_key("perseus frames")),
        incoming_(openssl, session.incoming.derive_key("perseus frames")),
        encrypts_(encrypts) {}

  bool encrypts() const override { return encrypts_; }
  size_t tag_bytes(const FrameHeader&) const override { return sizeof(MessageTag); }
  bool seal(const Frame& frame, std::byte* sealed, MessageTag& tag) override {
    const FrameHeader& header = frame.header;
    return encrypts_ ? outgoing_.encrypt(bytes_of(header), frame.data, header.length, sealed, tag)
                     : outgoing_.authenticate(bytes_of(header), frame.data, header.length, tag);
  }
  bool open(const FrameHeader& header, std::byte* payload, std::string_view tag) override {
    return encrypts_ ? incoming_.decrypt(bytes_of(header), payload, header.length, tag)
                     : incoming_.verify(bytes_of(header), payload, header.length, tag);
  }

 private:
  SealedSequence outgoing_, incoming_;
  const bool encrypts_;
};

}  // namespace

Result<WireProtection> wire_protection(const Settings& settings) {
  WireProtection protection{settings.wire};
  if (settings.wire == WireChoice::kPlain) return protection;
  Result<const OpenSsl*> openssl = load_openssl(settings.openssl_library);
  if (!openssl.is_ok()) {
    const std::string choice =
        settings.wire == WireChoice::kEncrypted ? "encrypted" : "authenticated";
    return Status(openssl.status().code(),
                  "PERSEUS_WIRE is " + choice + ", but " + openssl.status().message());
  }
  protection.openssl = openssl.value();
  return protection;
}

std::unique_ptr<FrameGuard> make_frame_guard(const WireProtection& protection, Session session) {
  if (protection.choice == WireChoice::kPlain) {
    return std::make_unique<PlainGuard>(std::move(session));
  }
  return std::make_unique<GcmGuard>(*protection.openssl, session,
                                    protection.choice == WireChoice::kEncrypted);
}

}  // namespace perseus
