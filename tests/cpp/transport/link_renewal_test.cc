// Tests that a connection of an earlier world is trusted only once its other end has said the same
// of it. The test drives both ends.
#include "transport/link_renewal.h"

#include <gtest/gtest.h>
#include <sys/socket.h>

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "transport/tcp/tcp_channel.h"

namespace perseus {
namespace {

using namespace std::chrono_literals;

// A port of the world before: takes and sends nothing.
struct NoPort final : FramePort {
  bool next(Frame&, uint64_t) override { return false; }
  void sent(const Frame&) override {}
  bool arrived(const FrameHeader&, const std::byte*, Lease) override { return false; }
  std::byte* target(const FrameHeader&) override { return nullptr; }
  bool landed(const FrameHeader&) override { return false; }
  bool awaits_data() const override { return false; }
  uint64_t max_length() const override { return 4096; }
  void failed(const Status&) override {}
  void disturbed(const std::string&) override {}
};

// One end of a connection: a renewal, and how it has ended.
class End final : private LinkRenewalOwner {
 public:
  End(EventLoop& loop, BufferPool& buffers, FileDescriptor fd, Role role) : loop_(loop) {
    channel_ = std::make_unique<TcpChannel>(
        loop, buffers, ProvenConnection{std::move(fd), Session("secret", "nonces", role)}, no_port_,
        30s);
    channel_->start();
    EXPECT_TRUE(channel_->part());
  }

  void renew(const Renewal& mine, std::chrono::milliseconds patience = 20s) {
    LinkRenewalOwner& owner = *this;
    renewal_ = std::make_unique<LinkRenewal>(loop_, std::move(channel_), mine, patience, owner);
    renewal_->start();
  }
  LinkRenewal& renewal() { return *renewal_; }

  bool has_ended() const { return has_ended_; }
  bool has_channel() const { return channel_ != nullptr; }

 private:
  void on_renewal_ended(int, int, std::unique_ptr<Channel> channel) override {
    has_ended_ = true;
    channel_ = std::move(channel);
    renewal_ = nullptr;
  }

  EventLoop& loop_;
  NoPort no_port_;
  std::unique_ptr<Channel> channel_;
  std::unique_ptr<LinkRenewal> renewal_;
  bool has_ended_ = false;
};

struct LinkRenewalTest : testing::Test {
  void SetUp() override { connect(); }
  void connect() {
    int fds[2];
    EXPECT_EQ(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, fds), 0);
    b.reset();
    a.emplace(loop, buffers, FileDescriptor(fds[0]), Role::kAcceptor);
    other = FileDescriptor(fds[1]);
  }
  void make_other_end() { b.emplace(loop, buffers, std::move(other), Role::kInitiator); }
  static Renewal renewal(uint8_t world) {
    Renewal mine;
    mine.job = {world, 2, 3};
    mine.from = 4;
    mine.to = 5;
    mine.index = 1;
    mine.total = 3;
    return mine;
  }
  void run_until(const std::function<bool()>& done) {
    const auto deadline = Clock::now() + 20s;
    while (!done() && Clock::now() < deadline) loop.run_once(10ms);
    EXPECT_TRUE(done());
  }
  void expect_refused() {
    run_until([this] { return a->has_ended(); });
    EXPECT_FALSE(a->has_channel());
  }
  // Sends a frame to `a` with the keys of the connection.
  void send_frame(uint32_t kind, const std::string& payload) {
    Frame frame;
    frame.header.magic_and_kind = FrameHeader::kMagic | kind;
    frame.header.length = static_cast<uint32_t>(payload.size());
    frame.header.size = payload.size();
    frame.data = reinterpret_cast<const std::byte*>(payload.data());
    MessageTag tag;
    const auto guard = make_frame_guard({}, Session("secret", "nonces", Role::kInitiator));
    EXPECT_TRUE(guard->seal(frame, nullptr, tag));
    std::string bytes = std::string(bytes_of(frame.header)) + payload;
    bytes += std::string(view(tag)).substr(0, guard->tag_bytes(frame.header));
    EXPECT_TRUE(send_bytes(other.get(), bytes.data(), bytes.size()));
  }

  EventLoop loop;
  BufferPool buffers;
  FileDescriptor other;  // of `b`, unless that is made
  std::optional<End> a, b;
};

TEST_F(LinkRenewalTest, BothEndsGetTheirChannelOnceOneOfThemNeedsIt) {
  make_other_end();
  a->renew(renewal(1));
  b->renew(renewal(1).mirrored());
  loop.run_once(0ms);
  EXPECT_FALSE(a->has_ended() || b->has_ended());
  a->renewal().ask();
  run_until([this] { return a->has_ended() && b->has_ended(); });
  EXPECT_TRUE(a->has_channel() && b->has_channel());
}

TEST_F(LinkRenewalTest, TheTwoMayNeedItAtOnce) {
  make_other_end();
  a->renew(renewal(1));
  b->renew(renewal(1).mirrored());
  a->renewal().ask();
  b->renewal().ask();
  run_until([this] { return a->has_ended() && b->has_ended(); });
  EXPECT_TRUE(a->has_channel() && b->has_channel());
}

TEST_F(LinkRenewalTest, AnEndOfAnotherWorldIsRefused) {
  make_other_end();
  a->renew(renewal(2));
  b->renew(renewal(1).mirrored());
  b->renewal().ask();
  expect_refused();
  run_until([this] { return b->has_ended(); });
  EXPECT_FALSE(b->has_channel());
}

TEST_F(LinkRenewalTest, AnotherRankOrChannelIsRefused) {
  Renewal theirs = renewal(1).mirrored();
  const std::function<void()> changes[] = {[&] { theirs.from = 6; }, [&] { theirs.to = 6; },
                                           [&] { theirs.index = 2; }, [&] { theirs.total = 4; }};
  const Renewal right = theirs;
  for (const auto& change : changes) {
    theirs = right;
    change();
    connect();
    make_other_end();
    a->renew(renewal(1));
    b->renew(theirs);
    b->renewal().ask();
    expect_refused();
  }
}

TEST_F(LinkRenewalTest, AFrameOfTheWorldBeforeIsRefused) {
  for (const uint32_t kind :
       {FrameHeader::kData, FrameHeader::kControl, FrameHeader::kMark, FrameHeader::kGoodbye}) {
    connect();
    a->renew(renewal(1));
    const Renewal theirs = renewal(1).mirrored();
    send_frame(kind, kind == FrameHeader::kGoodbye ? "" : std::string(bytes_of(theirs)));
    expect_refused();
  }
}

TEST_F(LinkRenewalTest, ARenewalThatSomebodyElseHasMadeIsRefused) {
  a->renew(renewal(1));
  const Renewal theirs = renewal(1).mirrored();
  FrameHeader header;
  header.magic_and_kind = FrameHeader::kMagic | FrameHeader::kRenewal;
  header.length = sizeof theirs;
  header.size = sizeof theirs;
  const std::string bytes = std::string(bytes_of(header)) + std::string(bytes_of(theirs)) +
                            std::string(sizeof(MessageTag), 'x');
  EXPECT_TRUE(send_bytes(other.get(), bytes.data(), bytes.size()));
  expect_refused();
}

TEST_F(LinkRenewalTest, AFrameThatIsTooLongIsRefusedUnread) {
  a->renew(renewal(1));
  send_frame(FrameHeader::kRenewal, std::string(8192, 'x'));
  expect_refused();
}

TEST_F(LinkRenewalTest, AnEndThatIsGoneIsRefused) {
  other.reset();
  a->renew(renewal(1));
  expect_refused();
}

TEST_F(LinkRenewalTest, AnEndThatSaysNothingIsRefusedAfterAWhile) {
  a->renew(renewal(1), 50ms);
  loop.run_once(100ms);
  EXPECT_FALSE(a->has_ended());  // nobody has needed it
  a->renewal().ask();
  expect_refused();
}

TEST_F(LinkRenewalTest, OnlyAConnectionThatNobodyNeededGoesBack) {
  make_other_end();
  a->renew(renewal(1));
  b->renew(renewal(1).mirrored());
  b->renewal().ask();
  EXPECT_NE(a->renewal().take_back(), nullptr);
  EXPECT_EQ(b->renewal().take_back(), nullptr);
}

}  // namespace
}  // namespace perseus
