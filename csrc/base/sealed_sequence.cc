#include "base/sealed_sequence.h"

#include <climits>
#include <cstring>

namespace perseus {
namespace {

constexpr uint64_t kOverheadBytes = 64;  // a message's header and the cipher's own blocks

const unsigned char* bytes(const void* data) { return static_cast<const unsigned char*>(data); }

Mac derive(const Mac& chain, std::string_view purpose) {
  return HmacKey({reinterpret_cast<const char*>(chain.data()), chain.size()}).of(purpose);
}

}  // namespace

SealedSequence::SealedSequence(const OpenSsl& library, const Mac& key, uint64_t bytes_per_key)
    : library_(&library),
      context_(library.new_context(), Free{library.free_context}),
      chain_(key),
      bytes_per_key_(bytes_per_key) {}

bool SealedSequence::take_key(bool encrypts) {
  if (has_key_) {
    chain_ = derive(chain_, "perseus next key");
    bytes_ = 0;
  }
  const Mac key = derive(chain_, "perseus cipher key");
  has_key_ = library_->init(context_.get(), library_->aes_256_gcm(), nullptr, key.data(), nullptr,
                            encrypts ? 1 : 0) == 1;
  return has_key_;
}

bool SealedSequence::begin(bool encrypts, size_t size) {
  if (context_ == nullptr || size > INT_MAX) return false;
  if (!has_key_ || bytes_ >= bytes_per_key_) {
    if (!take_key(encrypts)) return false;
  }
  bytes_ += size + kOverheadBytes;
  std::array<unsigned char, 12> nonce{};
  std::memcpy(nonce.data() + nonce.size() - sizeof counter_, &counter_, sizeof counter_);
  ++counter_;
  return library_->init(context_.get(), nullptr, nullptr, nullptr, nonce.data(), -1) == 1;
}

bool SealedSequence::add(const void* data, size_t size) {
  int done;
  return size == 0 ||
         library_->update(context_.get(), nullptr, &done, bytes(data), static_cast<int>(size)) == 1;
}

bool SealedSequence::get_tag(MessageTag& tag) {
  unsigned char nothing[16];
  int done;
  return library_->finish(context_.get(), nothing, &done) == 1 &&
         library_->control(context_.get(), OpenSsl::kGetTag, static_cast<int>(tag.size()),
                           tag.data()) == 1;
}

bool SealedSequence::has_tag(std::string_view tag) {
  unsigned char nothing[16];
  int done;
  MessageTag given;
  if (tag.size() != given.size()) return false;
  std::memcpy(given.data(), tag.data(), given.size());
  return library_->control(context_.get(), OpenSsl::kSetTag, static_cast<int>(given.size()),
                           given.data()) == 1 &&
         library_->finish(context_.get(), nothing, &done) == 1;
}

bool SealedSequence::encrypt(std::string_view header, const std::byte* body, size_t size,
                             std::byte* sealed, MessageTag& tag) {
  int done;
  return begin(true, size) && add(header.data(), header.size()) &&
         (size == 0 || library_->update(context_.get(), reinterpret_cast<unsigned char*>(sealed),
                                        &done, bytes(body), static_cast<int>(size)) == 1) &&
         get_tag(tag);
}

bool SealedSequence::authenticate(std::string_view header, const std::byte* body, size_t size,
                                  MessageTag& tag) {
  return begin(true, size) && add(header.data(), header.size()) && add(body, size) && get_tag(tag);
}

bool SealedSequence::decrypt(std::string_view header, std::byte* body, size_t size,
                             std::string_view tag) {
  int done;
  return begin(false, size) && add(header.data(), header.size()) &&
         (size == 0 || library_->update(context_.get(), reinterpret_cast<unsigned char*>(body),
                                        &done, bytes(body), static_cast<int>(size)) == 1) &&
         has_tag(tag);
}

bool SealedSequence::verify(std::string_view header, const std::byte* body, size_t size,
                            std::string_view tag) {
  return begin(false, size) && add(header.data(), header.size()) && add(body, size) && has_tag(tag);
}

}  // namespace perseus
