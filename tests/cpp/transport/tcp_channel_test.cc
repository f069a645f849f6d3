#include "transport/tcp/tcp_channel.h"

#include <gtest/gtest.h>
#include <sys/socket.h>

#include <chrono>
#include <memory>
#include <string>
#include <vector>

#include "transport/framed_link.h"

namespace perseus {
namespace {

constexpr uint64_t kChunk = 4096;

// The peer of a link over a TcpChannel, and what has become of the link.
class Peer : private LinkObserver {
 public:
  Peer() {
    int ends[2];
    EXPECT_EQ(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, ends), 0);
    peer_ = FileDescriptor(ends[1]);
    ProvenConnection connection{FileDescriptor(ends[0]),
                                Session("secret", "nonces", Role::kAcceptor)};
    link_.attach(0, std::make_unique<TcpChannel>(loop_, buffers_, std::move(connection),
                                                 link_.port(0), std::chrono::seconds(30)));
  }
  ~Peer() { link_.abort(Status::aborted("the end")); }

  std::string control(const std::string& text) {
    FrameHeader header;
    header.magic_and_kind = FrameHeader::kMagic | FrameHeader::kControl;
    header.length = static_cast<uint32_t>(text.size());
    header.size = text.size();
    const MessageTag tag = session_.outgoing.next({bytes_of(header), text});
    return std::string(bytes_of(header)) + text + std::string(view(tag));
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
  }

  std::vector<std::string> messages;
  Status lost;

 private:
  void connection_needed(int) override {}
  void link_control(int, std::span<const std::byte> message) override {
    messages.emplace_back(reinterpret_cast<const char*>(message.data()), message.size());
  }
  void link_lost(int, const Status& why) override { lost = why; }
  void link_closed(int) override {}

  Session session_{"secret", "nonces", Role::kInitiator};
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
  for (const size_t piece : {1, 7, 40, 57, 1000}) {
    Peer peer;
    std::string bytes;
    for (const std::string& text : texts) bytes += peer.control(text);
    peer.send(bytes, piece);
    EXPECT_EQ(peer.messages, texts) << "pieces of " << piece;
  }
}

TEST(TcpChannelTest, AChangedByteAnywhereEndsTheLink) {
  const std::string text = "a ballot";
  const size_t end = sizeof(FrameHeader) + text.size() + sizeof(MessageTag);
  for (const size_t where : {sizeof(FrameHeader) - 1, sizeof(FrameHeader), end - 1}) {
    Peer peer;
    std::string changed = peer.control(text);
    ASSERT_EQ(changed.size(), end);
    changed[where] ^= 1;
    peer.send(changed);
    peer.expect_lost();
  }
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
