#include "transport/tcp/tcp_channel.h"

#include <gtest/gtest.h>
#include <sys/socket.h>

#include <chrono>
#include <cstddef>
#include <memory>
#include <string>
#include <vector>

#include "transport/framed_link.h"

namespace perseus {
namespace {

constexpr uint64_t kChunk = 4096;
constexpr WireChoice kWires[] = {WireChoice::kPlain, WireChoice::kAuthenticated,
                                 WireChoice::kEncrypted};

// The peer of a link over a TcpChannel, and what has become of the link.
class Peer : private LinkObserver {
 public:
  explicit Peer(WireChoice wire = WireChoice::kPlain)
      : guard_(make_frame_guard(protection(wire), Session("secret", "nonces", Role::kInitiator))) {
    int ends[2];
    EXPECT_EQ(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, ends), 0);
    peer_ = FileDescriptor(ends[1]);
    ProvenConnection connection{FileDescriptor(ends[0]),
                                Session("secret", "nonces", Role::kAcceptor)};
    link_.attach(0,
                 std::make_unique<TcpChannel>(loop_, buffers_, std::move(connection), link_.port(0),
                                              std::chrono::seconds(30), protection(wire)));
  }
  ~Peer() { link_.abort(Status::aborted("the end")); }

  std::string control(const std::string& text) {
    FrameHeader header;
    header.magic_and_kind = FrameHeader::kMagic | FrameHeader::kControl;
    header.length = static_cast<uint32_t>(text.size());
    header.size = text.size();
    return frame(header, text);
  }
  std::string data(const Tag& tag, const std::string& text) {
    FrameHeader header;
    header.magic_and_kind = FrameHeader::kMagic | FrameHeader::kData;
    header.length = static_cast<uint32_t>(text.size());
    header.size = text.size();
    header.tag = tag;
    return frame(header, text);
  }

  void send(const std::string& bytes, size_t piece = SIZE_MAX) {
    for (size_t at = 0; at < bytes.size(); at += std::min(piece, bytes.size())) {
      const std::string part = bytes.substr(at, piece);
      EXPECT_TRUE(send_bytes(peer_.get(), part.data(), part.size()));
      loop_.run_once(std::chrono::milliseconds(0));
    }
    loop_.run_once(std::chrono::milliseconds(0));
  }

  void expect_lost() {
    EXPECT_TRUE(messages.empty());
    EXPECT_NE(lost.message().find("something between the hosts has changed it"), std::string::npos)
        << lost.message();
    EXPECT_EQ(lost.peer(), Status::kNobody);
  }

  Link& link() { return link_; }

  std::vector<std::string> messages;
  Status lost;

 private:
  static WireProtection protection(WireChoice wire) {
    if (wire == WireChoice::kPlain) return {};
    return {wire, load_openssl("").value()};
  }
  // The bytes that the frame is on the wire.
  std::string frame(const FrameHeader& header, std::string text) {
    Frame frame{header, reinterpret_cast<const std::byte*>(text.data()), nullptr};
    std::string sealed(text.size(), '\0');
    MessageTag tag;
    EXPECT_TRUE(guard_->seal(frame, reinterpret_cast<std::byte*>(sealed.data()), tag));
    return std::string(bytes_of(header)) + (guard_->encrypts() ? sealed : text) +
           std::string(view(tag)).substr(0, guard_->tag_bytes(header));
  }
  void connection_needed(int) override {}
  void link_control(int, std::span<const std::byte> message) override {
    messages.emplace_back(reinterpret_cast<const char*>(message.data()), message.size());
  }
  void link_lost(int, const Status& why) override { lost = why; }
  void link_closed(int) override {}

  const std::unique_ptr<FrameGuard> guard_;
  EventLoop loop_;
  BufferPool buffers_;
  TrafficCounters counters_;
  LinkEnvironment environment_{loop_, buffers_, *this, counters_, kChunk, kChunk};
  FileDescriptor peer_;
  FramedLink link_{environment_, 1, "rank 1 on host", /*control_channels=*/1,
                   /*has_data_channel=*/false};
};

TEST(TcpChannelTest, ControlMessagesArriveHoweverTheyAreCut) {
  const std::vector<std::string> texts = {"one", "", std::string(kChunk, 'x'), "the last one"};
  for (const WireChoice wire : kWires) {
    for (const size_t piece : {1, 7, 40, 57, 1000}) {
      Peer peer(wire);
      std::string bytes;
      for (const std::string& text : texts) bytes += peer.control(text);
      peer.send(bytes, piece);
      EXPECT_EQ(peer.messages, texts) << "pieces of " << piece;
    }
  }
}

TEST(TcpChannelTest, AChangedByteAnywhereEndsTheLink) {
  const std::string text = "a ballot";
  const size_t end = sizeof(FrameHeader) + text.size() + sizeof(MessageTag);
  for (const WireChoice wire : kWires) {
    for (const size_t where : {sizeof(FrameHeader) - 1, sizeof(FrameHeader), end - 1}) {
      Peer peer(wire);
      std::string changed = peer.control(text);
      ASSERT_EQ(changed.size(), end);
      changed[where] ^= 1;
      peer.send(changed);
      peer.expect_lost();
    }
  }
}

// A receive of data, and what becomes of it.
struct Receive {
  Receive(Peer& peer, uint64_t operation, size_t size) : target(size, '\0') {
    peer.link().receive(transfer, Tag{operation, 0, 0}, target.data(), size);
  }
  std::string target;
  Transfer transfer;
};

TEST(TcpChannelTest, DataArrivesHoweverItIsCutAndWhetherOrNotItIsAwaited) {
  const std::string early = "early", large(kChunk, 'x');
  for (const WireChoice wire : kWires) {
    for (const size_t piece : {1, 7, 40, 57, 1000, 100000}) {
      Peer peer(wire);
      Receive awaited(peer, 1, large.size());
      std::string bytes = peer.data({1, 0, 0}, large);
      bytes += peer.data({2, 0, 0}, early);
      bytes += peer.control("end");
      peer.send(bytes, piece);
      EXPECT_EQ(peer.messages, std::vector<std::string>{"end"}) << peer.lost.message();
      Receive late(peer, 2, early.size());
      EXPECT_TRUE(awaited.transfer.done() && late.transfer.done());
      EXPECT_EQ(awaited.target, large);
      EXPECT_EQ(late.target, early);
    }
  }
}

TEST(TcpChannelTest, AChangedByteOfProtectedDataEndsItsReceiveInAnError) {
  const std::string large(kChunk, 'x');
  const size_t end = sizeof(FrameHeader) + large.size() + sizeof(MessageTag);
  for (const WireChoice wire : {WireChoice::kAuthenticated, WireChoice::kEncrypted}) {
    for (const size_t where :
         {offsetof(FrameHeader, tag) + 8, sizeof(FrameHeader), end - 17, end - 1}) {
      Peer peer(wire);
      Receive receive(peer, 1, large.size());
      std::string changed = peer.data({1, 0, 0}, large);
      ASSERT_EQ(changed.size(), end);
      changed[where] ^= 1;
      peer.send(changed, 1000);
      peer.expect_lost();
      EXPECT_TRUE(receive.transfer.done());
      EXPECT_FALSE(receive.transfer.await_resume().is_ok());
    }
  }
}

TEST(TcpChannelTest, EncryptedDataCannotBeRead) {
  const std::string text = "weights of the model";
  Peer authenticated(WireChoice::kAuthenticated), encrypted(WireChoice::kEncrypted);
  EXPECT_NE(authenticated.data({1, 0, 0}, text).find(text), std::string::npos);
  EXPECT_EQ(encrypted.data({1, 0, 0}, text).find(text), std::string::npos);
  EXPECT_EQ(encrypted.control(text).find(text), std::string::npos);
}

TEST(TcpChannelTest, ARepeatedMessageEndsTheLink) {
  Peer peer;
  const std::string bytes = peer.control("a ballot");
  peer.send(bytes);
  EXPECT_EQ(peer.messages, std::vector<std::string>{"a ballot"});
  peer.messages.clear();
  peer.send(bytes);
  peer.expect_lost();
}

TEST(TcpChannelTest, AMessageThatWasLeftOutEndsTheLink) {
  Peer peer;
  peer.control("never sent");
  peer.send(peer.control("a ballot"));
  peer.expect_lost();
}

// With a plain wire, a data frame has no tag. The next frame that has one tells.
TEST(TcpChannelTest, PlainDataThatWasLeftOutAddedDivertedOrRepeatedEndsTheLink) {
  for (int what = 0; what < 5; ++what) {
    Peer peer;
    const std::string first = peer.data({1, 0, 0}, "first"),
                      second = peer.data({2, 0, 0}, "second");
    std::string diverted = first;
    diverted[offsetof(FrameHeader, tag)] ^= 64;
    const std::string bytes[] = {second, first + second + second, diverted + second, second + first,
                                 Peer().data({3, 0, 0}, "third") + first + second};
    peer.send(bytes[what] + peer.control("a ballot"));
    peer.expect_lost();
  }
}

// Otherwise a stranger could make a rank look as if it had shut down.
TEST(TcpChannelTest, AGoodbyeThatThePeerHasNotSaidEndsTheLink) {
  Peer peer;
  FrameHeader header;
  header.magic_and_kind = FrameHeader::kMagic | FrameHeader::kGoodbye;
  peer.send(std::string(bytes_of(header)) + std::string(sizeof(MessageTag), '\0'));
  peer.expect_lost();
}

}  // namespace
}  // namespace perseus
