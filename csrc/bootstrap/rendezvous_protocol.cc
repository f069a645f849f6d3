#include "bootstrap/rendezvous_protocol.h"

#include <algorithm>

#include "base/hmac.h"

namespace perseus::rendezvous {
namespace {

void put_u32(std::string& out, uint32_t value) {
  for (int shift = 0; shift < 32; shift += 8) out += static_cast<char>(value >> shift);
}

// Takes fields off the front. `good` becomes false for good when too few bytes are left.
struct Reader {
  std::string_view rest;
  bool good = true;

  std::string_view bytes(size_t count) {
    if (count > rest.size()) good = false;
    if (!good) return {};
    const std::string_view taken = rest.substr(0, count);
    rest.remove_prefix(count);
    return taken;
  }
  uint32_t u32() {
    uint32_t value = 0;
    int shift = 0;
    for (const char c : bytes(4)) {
      value |= uint32_t{static_cast<unsigned char>(c)} << shift;
      shift += 8;
    }
    return value;
  }
  std::string_view remainder() { return bytes(rest.size()); }
  bool ended_well() const { return good && rest.empty(); }
};

}  // namespace

size_t max_hello_bytes(uint32_t job_size) {
  return kChallengeBytes + kCallerBytes + kMaxAddressBytes + 24 + size_t{4} * job_size + kMacBytes;
}

size_t max_contribution_frame_bytes() { return 8 + kMaxContributionBytes + sizeof(MessageTag); }

size_t max_answer_bytes(uint32_t size) {
  return 8 + std::max(size * (4 + kMaxContributionBytes), kMaxTextBytes) + sizeof(MessageTag);
}

std::string frame(std::string_view payload) {
  std::string out;
  out.reserve(4 + payload.size());
  put_u32(out, static_cast<uint32_t>(payload.size()));
  out += payload;
  return out;
}

std::string frame(std::string_view payload, MessageSequence& outgoing) {
  const MessageTag tag = outgoing.next({payload});
  std::string out;
  out.reserve(4 + payload.size() + tag.size());
  put_u32(out, static_cast<uint32_t>(payload.size() + tag.size()));
  out += payload;
  out += view(tag);
  return out;
}

bool open_frame(std::string& payload, MessageSequence& incoming) {
  if (payload.size() < sizeof(MessageTag)) return false;
  const size_t size = payload.size() - sizeof(MessageTag);
  const std::string_view whole = payload;
  if (!incoming.is_next(whole.substr(size), {whole.substr(0, size)})) return false;
  payload.resize(size);
  return true;
}

std::string client_mac(std::string_view secret, std::string_view server_challenge,
                       std::string_view hello_body) {
  const Mac mac = HmacKey(secret).of("perseus rendezvous client", {server_challenge, hello_body});
  return std::string(mac.begin(), mac.end());
}

Session make_session(std::string_view secret, std::string_view server_challenge,
                     std::string_view hello, Role mine) {
  std::string transcript = "rendezvous";
  transcript += server_challenge;
  transcript += hello;
  return Session(secret, transcript, mine);
}

std::string encode(const Hello& hello) {
  std::string out = hello.challenge + hello.caller;
  out.resize(kChallengeBytes + kCallerBytes);
  put_u32(out, static_cast<uint32_t>(hello.called.size()));
  out += hello.called;
  put_u32(out, hello.generation);
  put_u32(out, hello.rank);
  put_u32(out, hello.size);
  put_u32(out, hello.is_numbered ? 1 : 0);
  put_u32(out, static_cast<uint32_t>(hello.ranks.size()));
  for (const uint32_t rank : hello.ranks) put_u32(out, rank);
  return out;
}

bool decode(std::string_view body, Hello& hello) {
  Reader reader{body};
  hello.challenge = reader.bytes(kChallengeBytes);
  hello.caller = reader.bytes(kCallerBytes);
  const uint32_t address_bytes = reader.u32();
  if (address_bytes > kMaxAddressBytes) return false;
  hello.called = reader.bytes(address_bytes);
  hello.generation = reader.u32();
  hello.rank = reader.u32();
  hello.size = reader.u32();
  const uint32_t is_numbered = reader.u32();
  if (is_numbered > 1) return false;
  hello.is_numbered = is_numbered == 1;
  const uint32_t count = reader.u32();
  if (!reader.good || reader.rest.size() != size_t{4} * count) return false;
  hello.ranks.clear();
  for (uint32_t i = 0; i < count; ++i) hello.ranks.push_back(reader.u32());
  return reader.ended_well();
}

std::string encode(const Contribution& contribution) {
  std::string out;
  put_u32(out, contribution.round);
  put_u32(out, contribution.time_out_ms);
  out += contribution.bytes;
  return out;
}

bool decode(std::string_view payload, Contribution& contribution) {
  Reader reader{payload};
  contribution.round = reader.u32();
  contribution.time_out_ms = reader.u32();
  contribution.bytes = reader.remainder();
  return reader.good;
}

std::string encode_welcome() { return std::string(1, static_cast<char>(Answer::kWelcome)); }

std::string encode_gathered(const std::vector<std::string>& contributions) {
  std::string out(1, static_cast<char>(Answer::kGathered));
  put_u32(out, static_cast<uint32_t>(contributions.size()));
  for (const std::string& contribution : contributions) {
    put_u32(out, static_cast<uint32_t>(contribution.size()));
    out += contribution;
  }
  return out;
}

std::string encode_error(Answer answer, const Status& why) {
  std::string out(1, static_cast<char>(answer));
  put_u32(out, static_cast<uint32_t>(why.code()));
  out += std::string_view(why.message()).substr(0, kMaxTextBytes);
  return out;
}

bool decode(std::string_view payload, Decoded& decoded) {
  Reader reader{payload};
  const std::string_view kind = reader.bytes(1);
  if (!reader.good) return false;
  decoded.kind = static_cast<Answer>(kind[0]);
  switch (decoded.kind) {
    case Answer::kWelcome: return reader.ended_well();
    case Answer::kGathered: {
      const uint32_t count = reader.u32();
      for (uint32_t i = 0; i < count && reader.good; ++i) {
        const uint32_t bytes = reader.u32();
        decoded.gathered.emplace_back(reader.bytes(bytes));
      }
      return reader.ended_well();
    }
    case Answer::kRefused:
    case Answer::kFailed: {
      const StatusCode code = error_code(reader.u32());
      decoded.error = Status(code, std::string(reader.remainder()));
      return reader.good;
    }
  }
  return false;
}

}  // namespace perseus::rendezvous
