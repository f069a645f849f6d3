// The form in which the elements of a message travel: as they are, or encoded by a codec. Large
// messages that are encoded, or have an end on a GPU, are divided into runs, so that one run is
// encoded or copied while others travel. Any thread.
#pragma once

#include <cstddef>
#include <cstdint>

#include "base/status.h"
#include "codec/codec.h"
#include "negotiation/description.h"

namespace perseus {

class MessageForm {
 public:
  static constexpr uint64_t kRunElements = 256 << 10;

  // `codec`: kCodecNone for elements as they are. The error says why this rank cannot read or write
  // the form: it lacks the codec, or the codec does not fit the tensor.
  static Result<MessageForm> of(const TensorDescription& tensor, int codec);

  bool is_encoded() const { return codec_ != nullptr; }
  DataType dtype() const { return dtype_; }
  uint64_t elements() const { return elements_; }
  uint64_t bytes() const { return bytes_; }  // on the wire
  // As many as fill the elements; each is encoded by itself.
  uint32_t runs() const {
    return static_cast<uint32_t>((elements_ + kRunElements - 1) / kRunElements);
  }

  struct Run {
    uint64_t first;     // element
    uint64_t elements;  // in it
    uint64_t offset;    // of its bytes on the wire
    uint64_t bytes;     // likewise
  };
  Run run(uint32_t index) const;

  // Between the elements of a run and its bytes on the wire.
  void encode(const Run& run, const std::byte* elements, std::byte* wire) const;
  void decode(const Run& run, const std::byte* wire, std::byte* elements) const;
  // The same for all runs.
  void encode_all(const std::byte* elements, std::byte* wire) const;
  void decode_all(const std::byte* wire, std::byte* elements) const;

 private:
  MessageForm(DataType dtype, uint64_t elements, const Codec* codec)
      : dtype_(dtype), elements_(elements), codec_(codec) {}
  uint64_t encoded_size(uint64_t elements) const;

  DataType dtype_;
  uint64_t elements_;
  const Codec* codec_;  // null: none
  uint64_t bytes_ = 0;
};

}  // namespace perseus
