// The two sides of a messenger, and what they do with words that no messenger says. The other rank
// is the test.
#include "messages/messenger.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <memory>
#include <random>
#include <set>
#include <stdexcept>
#include <string>
#include <vector>

#include "codec/function_codec.h"

namespace perseus {
namespace {

constexpr int kOther = 1;
constexpr uint64_t kCredit = 64 << 10;
constexpr int kUnknownCodec = 1 << 30;

// Keeps the transfers that are begun.
class OpenLink final : public Link {
 public:
  OpenLink() : Link(kOther) {}
  std::vector<Transfer*> sends, receives;

 private:
  void start_send(Transfer& transfer) override { sends.push_back(&transfer); }
  void start_receive(Transfer& transfer) override { receives.push_back(&transfer); }
};

// Two ranks, of which this is the first.
class OneSidedMesh final : public Mesh {
 public:
  OneSidedMesh() {
    topology_.rank = 0;
    topology_.size = 2;
    topology_.host_of = {0, 0};
    topology_.host_names = {"here"};
  }

  void listen(MeshListener&) override {}
  const Topology& topology() const override { return topology_; }
  const WorldKey& world_key() const override { throw std::logic_error("nobody asks for it"); }
  const std::string& experience() const override { return experience_; }
  bool shares_all_memory() const override { return true; }
  std::vector<SharedBoard> boards() override { return {}; }
  Link& link(int) override { return open; }
  bool needs_one_thread() const override { return false; }
  bool is_connected(int) const override { return true; }
  bool has_left(int) const override { return false; }
  std::vector<int> awaited_peers() const override { return {}; }
  void send_control(int, std::span<const std::byte> message) override {
    said.emplace_back(message.begin(), message.end());
  }
  void set_chunk(uint64_t) override {}
  void set_connections(int) override {}
  void fail_all(const Status&) override {}
  void cut_all(const Status&, const std::set<int>&) override {}
  void close(std::chrono::milliseconds, std::function<void()>) override {}
  Counters counters() const override { return {}; }

  OpenLink open;
  std::vector<std::vector<std::byte>> said;

 private:
  Topology topology_;
  std::string experience_;
};

class Outcomes final : public MessengerHost {
 public:
  void message_done(const OperationPtr& operation, const Status& status) override {
    operation->status = status;
    operation->done.set();
  }
  Status transfer_failed(const Status& status) override { return status; }
  void transfer_ended() override {}
  void on_no_memory(uint64_t) override { ++no_memory; }
  void on_malformed_message(int rank) override {
    EXPECT_EQ(rank, kOther);
    ++malformed;
  }
  Status without(int, int32_t) const override { return Status::aborted("it is gone"); }
  bool has_left(int) const override { return false; }
  bool has_closed(int32_t) const override { return false; }
  std::span<const int> ranks_of(int32_t) const override { return ranks_; }

  int malformed = 0, no_memory = 0;

 private:
  std::vector<int> ranks_ = {0, 1};
};

class MessengerTest : public testing::Test {
 protected:
  ~MessengerTest() override {
    messenger_.end_all(Status::aborted("the test is over"));
    for (auto* transfers : {&mesh_.open.sends, &mesh_.open.receives}) {
      for (Transfer* transfer : *transfers) transfer->finish(loop_, {});
    }
    while (!messenger_.is_idle()) turn();
  }

  void turn() { loop_.run_once(std::chrono::milliseconds(0)); }

  // What the other rank says: the words, and then the elements.
  template <typename Word>
  void hear(const Word& word, size_t elements = 0) {
    ByteWriter writer;
    word.write(writer);
    const std::vector<std::byte> zeros(elements);
    if (elements > 0) writer.put_bytes(zeros.data(), elements);
    hear_bytes(writer.bytes());
  }
  void hear_bytes(std::span<const std::byte> bytes) {
    ByteReader reader(bytes);
    const auto kind = reader.get<ControlKind>();
    messenger_.on_control(kOther, kind, reader);
  }
  template <typename Word>
  Word last_said() {
    EXPECT_FALSE(mesh_.said.empty());
    ByteReader reader(mesh_.said.back());
    EXPECT_EQ(reader.get<ControlKind>(), kind_of<Word>);
    return Word::read(reader).value();
  }
  template <typename Word>
  static constexpr ControlKind kind_of =
      std::is_same_v<Word, Clearance> ? ControlKind::kClearance : ControlKind::kEnvelope;

  OperationPtr receive(size_t elements) { return begin(OperationKind::kReceive, elements); }
  OperationPtr send(size_t elements, int codec = kCodecNone) {
    return begin(OperationKind::kSend, elements, codec);
  }
  OperationPtr receive_anything() {
    auto operation = std::make_shared<Operation>();
    operation->description.kind = OperationKind::kReceive;
    operation->message = {kOther, 7};
    messenger_.submit(operation);
    return operation;
  }

  EventLoop loop_;
  OneSidedMesh mesh_;
  BufferPool buffers_;
  GpuThreads gpus_{loop_, std::chrono::seconds(5)};
  Counters counters_;
  Outcomes host_;
  Messenger messenger_{loop_, mesh_, buffers_, gpus_, counters_, kCredit, host_};
  std::deque<std::vector<float>> memory_;

 private:
  OperationPtr begin(OperationKind kind, size_t elements, int codec = kCodecNone) {
    auto operation = std::make_shared<Operation>();
    operation->description.kind = kind;
    operation->description.codec = codec;
    operation->description.tensors = {{DataType::kFloat32, {static_cast<int64_t>(elements)}}};
    operation->message = {kOther, 7};
    memory_.emplace_back(elements, 1.0f);
    auto* values = reinterpret_cast<std::byte*>(memory_.back().data());
    operation->tensors.resize(1);
    operation->tensors[0].input = operation->tensors[0].output = values;
    messenger_.submit(operation);
    return operation;
  }
};

Envelope envelope(uint64_t number, int64_t elements, bool is_whole) {
  return {.process_set = 0,
          .tag = 7,
          .number = number,
          .is_whole = is_whole,
          .tensor = {DataType::kFloat32, {elements}}};
}

Envelope encoded(uint64_t number, int64_t elements, bool is_whole, uint64_t bytes,
                 int codec = kCodecBf16) {
  Envelope it = envelope(number, elements, is_whole);
  it.codec = codec;
  it.encoded_bytes = bytes;
  it.in_runs = !is_whole;
  return it;
}

TEST_F(MessengerTest, AWholeMessageHasAsManyBytesAsItsEnvelopeSays) {
  hear(envelope(1, 4, true), 15);
  hear(envelope(1, 4, true), 17);
  hear(envelope(1, 4, false), 16);
  hear(encoded(1, 4, true, 8), 16);
  hear(encoded(1, 4, true, 9), 8);
  EXPECT_EQ(host_.malformed, 5);
  hear(encoded(1, 4, true, 8), 8);
  EXPECT_EQ(host_.malformed, 5);
  EXPECT_TRUE(receive(4)->status.is_ok());
}

TEST_F(MessengerTest, MessagesAreCountedAndHaveABound) {
  hear(envelope(2, 4, true), 16);
  EXPECT_EQ(host_.malformed, 1);
  uint64_t number = 1;
  // The window is a quarter of the credit.
  for (; number <= kCredit / 4 / (64 + 4000); ++number) hear(envelope(number, 1000, true), 4000);
  EXPECT_EQ(host_.malformed, 1);
  hear(envelope(number, 1000, true), 4000);
  EXPECT_EQ(host_.malformed, 2);
}

TEST_F(MessengerTest, AnEncodedMessageIsOneThatThisRankCanDecode) {
  // Its size is a lie, or its codec is none of this rank's. Either way it comes, or waits at the
  // sender, and only the receive fails.
  hear(encoded(1, 4, true, 12), 12);
  hear(encoded(2, 4, true, 12, kUnknownCodec), 12);
  hear(encoded(3, 4, false, uint64_t{1} << 62));
  hear(encoded(4, 4, false, 8, kUnknownCodec));
  EXPECT_EQ(host_.malformed, 0);
  EXPECT_TRUE(mesh_.said.empty());  // nothing was cleared ahead
  for (const char* why : {"its codec gives 12 bytes on the sender and 8 on the receiver",
                          "by a codec that this rank does not have",
                          "its codec gives 4611686018427387904 bytes on the sender",
                          "by a codec that this rank does not have"}) {
    const OperationPtr failed = receive(4);
    ASSERT_TRUE(failed->done.is_set());
    EXPECT_EQ(failed->status.code(), StatusCode::kMismatch);
    EXPECT_NE(failed->status.message().find(why), std::string::npos) << failed->status.message();
  }
  // The two senders that waited are told.
  EXPECT_EQ(last_said<Clearance>().number, 4u);
  EXPECT_EQ(last_said<Clearance>().refusal.code(), StatusCode::kMismatch);
  hear(encoded(5, 4, true, 8), 8);
  EXPECT_TRUE(receive_anything()->status.is_ok());
}

TEST_F(MessengerTest, AnEnvelopeThatCannotBeEncodedSoIsMalformed) {
  for (const auto& change : std::initializer_list<void (*)(Envelope&)>{
           [](Envelope& it) { it.codec = 0; },
           [](Envelope& it) { it.codec = -5; },
           [](Envelope& it) { it.tensor.dtype = DataType::kInt32; },
           [](Envelope& it) { it.tensor.shape = {0}; },
           [](Envelope& it) { it.encoded_bytes = 0; },
           [](Envelope& it) { it.encoded_bytes = uint64_t{1} << 63; },
           [](Envelope& it) { it.encoded_bytes = ~uint64_t{0}; },
           [](Envelope& it) { it.in_runs = false; },
           [](Envelope& it) { it.refusal = "no"; },
       }) {
    Envelope wrong = encoded(1, 4, false, 8);
    change(wrong);
    host_.malformed = 0;
    hear(wrong);
    EXPECT_EQ(host_.malformed, 1);
  }
}

TEST_F(MessengerTest, ASmallEncodedMessageGoesWithItsEnvelope) {
  const OperationPtr small = send(1000, kCodecBf16);
  EXPECT_TRUE(small->done.is_set() && small->status.is_ok());
  const Envelope told = last_said<Envelope>();
  EXPECT_TRUE(told.is_whole);
  EXPECT_EQ(told.codec, kCodecBf16);
  EXPECT_EQ(told.bytes(), 2000u);
  EXPECT_EQ(counters_.message_bytes_sent.value(), 2000u);
  // 12,000 bytes of elements, and 6,000 encoded.
  EXPECT_TRUE(send(3000, kCodecBf16)->done.is_set());
  EXPECT_FALSE(send(3000)->done.is_set());
}

TEST_F(MessengerTest, ALargeEncodedMessageMovesInRuns) {
  const size_t elements = MessageForm::kRunElements + 5;
  const OperationPtr sending = send(elements, kCodecBf16);
  EXPECT_FALSE(last_said<Envelope>().is_whole);
  EXPECT_TRUE(last_said<Envelope>().in_runs);
  hear(Clearance{.number = 1, .in_runs = true});
  ASSERT_EQ(mesh_.open.sends.size(), 2u);
  EXPECT_EQ(mesh_.open.sends[0]->bytes, 2 * MessageForm::kRunElements);
  EXPECT_EQ(mesh_.open.sends[1]->bytes, 10u);
  EXPECT_FALSE(mesh_.open.sends[0]->tag == mesh_.open.sends[1]->tag);
  for (Transfer* transfer : std::exchange(mesh_.open.sends, {})) transfer->finish(loop_, {});
  while (!messenger_.is_idle()) turn();
  EXPECT_TRUE(sending->done.is_set() && sending->status.is_ok());
}

TEST_F(MessengerTest, ARunThatFailsEndsTheMessage) {
  const OperationPtr receiving = receive(6 * MessageForm::kRunElements);
  hear(encoded(1, 6 * int64_t{MessageForm::kRunElements}, false, 12 * MessageForm::kRunElements));
  EXPECT_TRUE(last_said<Clearance>().in_runs);
  ASSERT_EQ(mesh_.open.receives.size(), 4u);  // at once
  auto begun = std::exchange(mesh_.open.receives, {});
  begun[1]->finish(loop_, Status::aborted("it broke"));
  turn();
  EXPECT_FALSE(receiving->done.is_set());  // the others still write
  for (const size_t i : {0, 2, 3}) begun[i]->finish(loop_, {});
  for (int i = 0; i < 20 && !messenger_.is_idle(); ++i) {
    turn();
    // The first may have made room for a further one.
    for (Transfer* transfer : std::exchange(mesh_.open.receives, {})) transfer->finish(loop_, {});
  }
  EXPECT_EQ(receiving->status.message(), "it broke");
}

TEST_F(MessengerTest, WhatIsEncodedIsNotAskedForInOnePiece) {
  const OperationPtr sending = send(10'000, kCodecFp16);
  hear(Clearance{.number = 1, .in_runs = false});
  EXPECT_EQ(host_.malformed, 1);
  EXPECT_FALSE(sending->status.is_ok());
  EXPECT_TRUE(mesh_.open.sends.empty());
}

TEST_F(MessengerTest, NobodyAnswersWhatWasNotSent) {
  hear(Clearance{.number = 1});
  hear(Credit{.bytes = 1});
  EXPECT_EQ(host_.malformed, 2);
  send(4);
  hear(Credit{.bytes = 64 + 17});
  EXPECT_EQ(host_.malformed, 3);
  hear(Credit{.bytes = 64 + 16});
  hear(Credit{.bytes = 1});
  EXPECT_EQ(host_.malformed, 4);
}

// Words that are changed in a few bytes, while there are receives that match some of them.
TEST_F(MessengerTest, ChangedWordsDoNoHarm) {
  std::mt19937 random(1);
  const auto below = [&](uint32_t limit) { return random() % limit; };
  uint64_t number = 1;
  for (int step = 0; step < 20'000; ++step) {
    ByteWriter writer;
    const int64_t elements = below(40);
    size_t bytes = 0;
    if (below(2) == 0) {
      envelope(number, elements, true).write(writer);
      bytes = 4 * static_cast<size_t>(elements);
    } else {
      encoded(number, elements, below(2) == 0, 2 * static_cast<uint64_t>(elements)).write(writer);
      bytes = below(2) * 2 * static_cast<size_t>(elements);
    }
    std::vector<std::byte> said(writer.bytes().begin(), writer.bytes().end());
    said.resize(said.size() + bytes);
    for (uint32_t changes = below(3); changes > 0; --changes) {
      said[1 + below(static_cast<uint32_t>(said.size()) - 1)] = std::byte(below(256));
    }
    const int before = host_.malformed;
    hear_bytes(said);
    number += host_.malformed == before;
    if (below(3) == 0) receive_anything();
    for (Transfer* transfer : std::exchange(mesh_.open.receives, {})) transfer->finish(loop_, {});
    turn();
    if (step % 100 == 0) messenger_.end_set(0, Status::aborted("enough"));
  }
  EXPECT_GT(host_.malformed, 1000);
  EXPECT_GT(number, 1000u);
}

}  // namespace
}  // namespace perseus
