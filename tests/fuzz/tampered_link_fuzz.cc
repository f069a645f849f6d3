// Fuzzes two links and what lies between them: both ends say things at the same time, and a program
// that has no key passes on what they send, or changes, drops, repeats, swaps, inserts or cuts it.
// What an observer hears is a beginning of what the other end said, and then an error; nothing is
// heard after that. Data that has arrived is what was sent, if the wire is protected
// (PERSEUS_WIRE). Without tampering, all arrives, unless an end leaves.
#include <sys/socket.h>

#include <array>
#include <deque>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "fuzz/caller.h"
#include "fuzz/descriptors.h"
#include "fuzz/input.h"
#include "transport/framed_link.h"
#include "transport/tcp/tcp_channel.h"

using namespace perseus;

namespace {

constexpr uint64_t kChunk = 4096;
constexpr size_t kMostChannels = 3;
constexpr int kMostSteps = 64;
constexpr size_t kMessages = 4;  // of data, in each direction
constexpr int kMostTurns = 2000;

struct SocketPair {
  SocketPair() {
    int fds[2];
    MUST(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, fds) == 0);
    ends = {FileDescriptor(fds[0]), FileDescriptor(fds[1])};
    const int room = 8192;  // so that it is full at times
    setsockopt(fds[0], SOL_SOCKET, SO_SNDBUF, &room, sizeof room);
  }
  std::array<FileDescriptor, 2> ends;
};

// A rank with a link to the other one.
class End final : private LinkObserver {
 public:
  End(EventLoop& loop, size_t channels)
      : loop_(loop),
        environment_{loop, buffers_, *this, counters_, kChunk, kChunk},
        link_(environment_, 1, "rank 1 on host", static_cast<int>(channels),
              /*has_data_channel=*/false) {
    link_.mark_connection_requested();
  }
  void meet(const End& other) { other_ = &other; }
  void attach(size_t index, FileDescriptor socket, Role role, const WireProtection& protection) {
    const std::string nonces = "nonces of channel " + std::to_string(index);
    ProvenConnection connection{std::move(socket), Session("secret", nonces, role)};
    const int channel = static_cast<int>(index);
    link_.attach(channel, std::make_unique<TcpChannel>(
                              loop_, buffers_, std::move(connection), link_.port(channel),
                              std::chrono::seconds(30), protection, link_.is_express(channel)));
  }

  void say(size_t bytes) {
    if (link_.is_over() || is_closing_) return;
    std::string text = std::to_string(said_.size()) + ": ";
    text.resize(bytes, 'x');
    said_.push_back(text);
    link_.send_control(std::as_bytes(std::span(text)));
  }
  void send_data(size_t which) {
    if (has_sent_[which] || link_.is_over() || is_closing_) return;
    has_sent_[which] = true;
    data_[which].assign(kChunk * which + 64, static_cast<std::byte>(which + 1));
    link_.send(sends_[which], tag_of(which), data_[which].data(), data_[which].size(),
               /*priority=*/static_cast<int32_t>(which));
  }
  void receive_data(size_t which) {
    if (has_posted_[which]) return;
    has_posted_[which] = true;
    arrived_[which].resize(kChunk * which + 64);
    link_.receive(receives_[which], tag_of(which), arrived_[which].data(), arrived_[which].size());
  }
  void close() {
    if (is_closing_) return;
    is_closing_ = true;
    link_.close();
  }
  void abort() { link_.abort(Status::aborted("the end")); }

  // Checks what must hold at any time.
  void check() const { MUST(!link_.has_left() || other_->is_closing_); }
  void check_all_arrived() const {
    MUST(!is_lost_);
    MUST(heard_ == other_->said_.size());
    for (size_t which = 0; which < kMessages; ++which) {
      if (!has_posted_[which] || !other_->has_sent_[which]) continue;
      MUST(receives_[which].done() && arrived_[which] == other_->data_[which]);
    }
  }
  void check_transfers_ended() const {
    for (size_t which = 0; which < kMessages; ++which) {
      MUST(!has_sent_[which] || sends_[which].done());
      MUST(!has_posted_[which] || receives_[which].done());
    }
  }
  // Checks what has arrived where nobody can change it unnoticed.
  void check_data() {
    for (size_t which = 0; which < kMessages; ++which) {
      if (!has_posted_[which] || !receives_[which].await_resume().is_ok()) continue;
      MUST(other_->has_sent_[which] && arrived_[which] == other_->data_[which]);
    }
  }
  bool is_closing() const { return is_closing_; }

 private:
  static Tag tag_of(size_t which) { return {1, 0, static_cast<uint32_t>(which)}; }

  void connection_needed(int) override {}
  void link_control(int, std::span<const std::byte> message) override {
    MUST(!is_lost_ && !is_closed_ && heard_ < other_->said_.size());
    MUST(fuzz::Input::as_text(message) == other_->said_[heard_]);
    ++heard_;
  }
  void link_lost(int, const Status& why) override {
    MUST(!is_lost_ && !is_closed_ && !why.is_ok());
    is_lost_ = true;
  }
  void link_closed(int) override {
    MUST(!is_closed_ && is_closing_);
    is_closed_ = true;
  }

  EventLoop& loop_;
  BufferPool buffers_;
  TrafficCounters counters_;
  LinkEnvironment environment_;
  std::array<Transfer, kMessages> sends_, receives_;
  std::array<std::vector<std::byte>, kMessages> data_, arrived_;
  FramedLink link_;
  const End* other_ = nullptr;
  std::array<bool, kMessages> has_sent_{}, has_posted_{};
  std::vector<std::string> said_;
  size_t heard_ = 0;  // how many of the other's messages
  bool is_closing_ = false, is_lost_ = false, is_closed_ = false;
};

// One channel from one end to the other, with the program in between.
struct Way {
  std::deque<std::string> pieces;  // what was sent at once, one or more frames
  std::vector<std::string> past;   // what was passed on
  bool is_cut = false;
};

// The two connections of one channel, as the program in between holds them, by the end.
struct Middle {
  std::array<std::optional<fuzz::Caller>, 2> to;
  std::array<Way, 2> ways;  // by the end that sends
};

class Scene {
 public:
  Scene(const uint8_t* data, size_t size)
      : input_(data, size),
        shape_(input_.number<uint8_t>()),
        middles_(shape_ % 2 == 0 ? 1 : kMostChannels),
        protection_(protection_of(shape_ / 2 % 3)),
        ends_{End(loop_, middles_.size()), End(loop_, middles_.size())} {
    for (size_t end = 0; end < 2; ++end) ends_[end].meet(ends_[1 - end]);
    for (size_t channel = 0; channel < middles_.size(); ++channel) {
      for (size_t end = 0; end < 2; ++end) {
        SocketPair pair;
        middles_[channel].to[end].emplace(std::move(pair.ends[1]));
        ends_[end].attach(channel, std::move(pair.ends[0]),
                          end == 0 ? Role::kInitiator : Role::kAcceptor, protection_);
      }
    }
  }

  void run() {
    for (int step = 0; step < kMostSteps && !input_.empty(); ++step) {
      const auto what = input_.number<uint8_t>();
      take_step(what & 0x3f, middles_[what / 64 % 2 * (middles_.size() - 1)]);
      if (what < 0x80) settle();
    }
    settle();
    while (pass_all_on()) settle();
    // An end that leaves need not hear what the other one is about to say.
    if (!is_tampered_ && !ends_[0].is_closing() && !ends_[1].is_closing()) {
      for (const End& end : ends_) end.check_all_arrived();
    }
    for (End& end : ends_) end.abort();
    for (End& end : ends_) {
      end.check_transfers_ended();
      if (protection_.choice != WireChoice::kPlain) end.check_data();
    }
  }

 private:
  void take_step(uint8_t what, Middle& middle) {
    const size_t from = what & 1;
    End& end = ends_[from];
    Way& way = middle.ways[from];
    std::deque<std::string>& pieces = way.pieces;
    const auto how = input_.number<uint8_t>();
    switch (what / 2 % 16) {
      case 0: return end.say(how < 0x80 ? how : how * 100u);
      case 1: return end.send_data(how % kMessages);
      case 2: return end.receive_data(how % kMessages);
      case 3: return how == 0xff ? end.close() : end.say(how);
      case 4: return cut(middle, 1 - from);
      case 5: return insert(middle, from, how);
      default: break;
    }
    if (pieces.empty()) return;
    const size_t at = input_.number<uint16_t>() % pieces.front().size();
    switch (what / 2 % 16) {
      case 6: return split(pieces, at);
      case 7: pieces.front()[at] = static_cast<char>(pieces.front()[at] ^ 1 << how % 8); break;
      case 8: pieces.pop_front(); break;
      case 9: pieces.push_front(pieces.front()); break;
      case 10: std::swap(pieces.front(), pieces[how % pieces.size()]); break;
      case 11: pieces.front().erase(0, at); break;
      default: return pass_on(middle, from);
    }
    is_tampered_ = true;
  }

  void cut(Middle& middle, size_t end) {
    middle.to[end]->close();
    middle.ways[end].is_cut = is_tampered_ = true;
  }

  // Something from the past, from any way, or new.
  void insert(Middle& middle, size_t from, uint8_t how) {
    const Middle& other = (how & 2) != 0 ? middles_.back() : middle;
    const std::vector<std::string>& past = other.ways[how & 1].past;
    is_tampered_ = true;
    const bool is_new = how < 0x40 || past.empty();
    const std::string piece = is_new ? input_.text() : past[(how >> 2) % past.size()];
    if (!piece.empty()) middle.ways[from].pieces.push_front(piece);
  }

  static void split(std::deque<std::string>& pieces, size_t at) {
    const std::string whole = pieces.front();
    pieces.front() = whole.substr(at);
    if (at > 0) pieces.push_front(whole.substr(0, at));
  }

  void pass_on(Middle& middle, size_t from) {
    Way& way = middle.ways[from];
    std::string piece = std::move(way.pieces.front());
    way.pieces.pop_front();
    middle.to[1 - from]->send(piece);
    way.past.push_back(std::move(piece));
  }

  // Returns whether there was anything.
  bool pass_all_on() {
    bool any = false;
    for (Middle& middle : middles_) {
      for (size_t from = 0; from < 2; ++from) {
        if (middle.ways[from].pieces.empty()) continue;
        pass_on(middle, from);
        any = true;
      }
    }
    return any;
  }

  // Has the ends send and receive what they can.
  void settle() {
    bool moves = true;
    for (int turn = 0; moves; ++turn) {
      MUST(turn < kMostTurns);
      moves = loop_.run_once(std::chrono::milliseconds(0));
      for (Middle& middle : middles_) {
        for (auto& to : middle.to) {
          moves = to->flush() || moves;
          moves = to->read() || moves;
        }
      }
    }
    for (Middle& middle : middles_) {
      for (size_t end = 0; end < 2; ++end) {
        Way& way = middle.ways[end];
        std::string sent = middle.to[end]->take_received(middle.to[end]->received().size());
        if (!sent.empty() && !way.is_cut) way.pieces.push_back(std::move(sent));
      }
    }
    for (const End& end : ends_) end.check();
  }

  static WireProtection protection_of(int choice) {
    if (choice == 0) return {};
    return {static_cast<WireChoice>(choice), load_openssl("").value()};
  }

  fuzz::Input input_;
  const uint8_t shape_;
  EventLoop loop_{std::chrono::microseconds(0)};
  std::vector<Middle> middles_;  // by channel
  const WireProtection protection_;
  std::array<End, 2> ends_;
  bool is_tampered_ = false;
};

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const size_t descriptors = fuzz::open_descriptors();
  Scene(data, size).run();
  MUST(fuzz::open_descriptors() == descriptors);
  return 0;
}
