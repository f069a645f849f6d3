#include "messages/envelope.h"

#include "state/control.h"

namespace perseus {

uint64_t Envelope::bytes() const {
  return static_cast<uint64_t>(tensor.elements()) * size_of(tensor.dtype);
}

void Envelope::write(ByteWriter& writer) const {
  writer.put(ControlKind::kEnvelope);
  writer.put(process_set);
  writer.put(tag);
  writer.put(number);
  writer.put<uint8_t>(is_whole);
  tensor.write(writer);
  writer.put_string(refusal);
}

std::optional<Envelope> Envelope::read(ByteReader& reader) {
  Envelope envelope;
  envelope.process_set = reader.get<int32_t>();
  envelope.tag = reader.get<int32_t>();
  envelope.number = reader.get<uint64_t>();
  envelope.is_whole = reader.get<uint8_t>() != 0;
  if (!envelope.tensor.read(reader) || envelope.tag < 0) return {};
  envelope.refusal = reader.get_string();
  if (reader.failed()) return {};
  int64_t bytes = 0;
  if (__builtin_mul_overflow(envelope.tensor.elements(),
                             static_cast<int64_t>(size_of(envelope.tensor.dtype)), &bytes)) {
    return {};
  }
  return envelope;
}

void Clearance::write(ByteWriter& writer) const {
  writer.put(ControlKind::kClearance);
  writer.put(number);
  writer.put(static_cast<uint32_t>(refusal.code()));
  writer.put_string(refusal.message());
}

std::optional<Clearance> Clearance::read(ByteReader reader) {
  Clearance clearance;
  clearance.number = reader.get<uint64_t>();
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
