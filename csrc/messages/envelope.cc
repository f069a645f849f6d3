#include "messages/envelope.h"

#include "state/control.h"

namespace perseus {

uint64_t Envelope::bytes() const {
  if (codec != kCodecNone) return encoded_bytes;
  return static_cast<uint64_t>(tensor.elements()) * size_of(tensor.dtype);
}

void Envelope::write(ByteWriter& writer) const {
  writer.put(ControlKind::kEnvelope);
  writer.put(process_set);
  writer.put(tag);
  writer.put(number);
  writer.put<uint8_t>(is_whole);
  writer.put<uint8_t>(in_runs);
  tensor.write(writer);
  writer.put(codec);
  if (codec != kCodecNone) writer.put(encoded_bytes);
  writer.put_string(refusal);
}

std::optional<Envelope> Envelope::read(ByteReader& reader) {
  Envelope envelope;
  envelope.process_set = reader.get<int32_t>();
  envelope.tag = reader.get<int32_t>();
  envelope.number = reader.get<uint64_t>();
  envelope.is_whole = reader.get<uint8_t>() != 0;
  envelope.in_runs = reader.get<uint8_t>() != 0;
  if (!envelope.tensor.read(reader) || envelope.tag < 0) return {};
  envelope.codec = reader.get<int32_t>();
  if (envelope.codec != kCodecNone) envelope.encoded_bytes = reader.get<uint64_t>();
  envelope.refusal = reader.get_string();
  if (reader.failed()) return {};
  int64_t bytes = 0;
  if (__builtin_mul_overflow(envelope.tensor.elements(),
                             static_cast<int64_t>(size_of(envelope.tensor.dtype)), &bytes)) {
    return {};
  }
  if (envelope.codec != kCodecNone && !envelope.may_be_encoded()) return {};
  return envelope;
}

// The place where the message meets its receive checks that the codec gives so many bytes: this
// rank may not have that codec.
bool Envelope::may_be_encoded() const {
  return codec > kCodecNone && tensor.dtype == DataType::kFloat32 && tensor.elements() > 0 &&
         encoded_bytes > 0 && encoded_bytes <= INT64_MAX && (is_whole || in_runs) &&
         refusal.empty();
}

void Clearance::write(ByteWriter& writer) const {
  writer.put(ControlKind::kClearance);
  writer.put(number);
  writer.put<uint8_t>(in_runs);
  writer.put(static_cast<uint32_t>(refusal.code()));
  writer.put_string(refusal.message());
}

std::optional<Clearance> Clearance::read(ByteReader reader) {
  Clearance clearance;
  clearance.number = reader.get<uint64_t>();
  clearance.in_runs = reader.get<uint8_t>() != 0;
  const auto code = reader.get<uint32_t>();
  const std::string why = reader.get_string();
  if (code != 0) clearance.refusal = Status(error_code(code), why);
  if (reader.failed()) return {};
  return clearance;
}

void Withdrawal::write(ByteWriter& writer) const {
  writer.put(ControlKind::kWithdrawal);
  writer.put(number);
}

std::optional<Withdrawal> Withdrawal::read(ByteReader reader) {
  Withdrawal withdrawal;
  withdrawal.number = reader.get<uint64_t>();
  if (reader.failed()) return {};
  return withdrawal;
}

void Credit::write(ByteWriter& writer) const {
  writer.put(ControlKind::kCredit);
  writer.put(bytes);
}

std::optional<Credit> Credit::read(ByteReader reader) {
  Credit credit;
  credit.bytes = reader.get<uint64_t>();
  if (reader.failed()) return {};
  return credit;
}

}  // namespace perseus
