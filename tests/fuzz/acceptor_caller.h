// A connection to an acceptor, on which anything may be said. It reads along what it says, as the
// acceptor must, and so knows what the acceptor may make of it.
#pragma once

#include <cstring>
#include <optional>
#include <string>

#include "fuzz/caller.h"
#include "fuzz/input.h"
#include "transport/acceptor.h"
#include "transport/handshake.h"

namespace perseus::fuzz {

class AcceptorCaller {
 public:
  // `acceptors`: the credentials of the acceptor at `where`.
  AcceptorCaller(const Endpoint& where, const Credentials& acceptors)
      : caller_(where), where_(where), acceptors_(acceptors) {}

  Caller& caller() { return caller_; }
  bool has_greeting() const { return has_greeting_; }
  const Greeting& greeting() const { return greeting_; }
  const std::string& said() const { return said_; }
  const std::string& received() const { return received_; }
  // Returns whether this has proved to be a rank of the job that has called this very acceptor.
  bool is_proven() const { return is_proven_; }
  bool is_confirmed() const { return is_confirmed_; }
  const Hello& hello() const { return introduction_.hello; }

  Introduction introduction(Hello hello, const std::string& secret) const {
    return {hello, prove(secret, greeting_, hello)};
  }
  // With the first tag of the session, if there is one.
  Confirmation confirmation() const {
    if (!initiators_) return {};
    Session session = *initiators_;
    return {session.outgoing.next({})};
  }

  void say(std::string_view bytes) {
    said_ += bytes;
    understand();
    caller_.send(bytes);
  }

  // Checks all that has come. Returns whether something has.
  bool read() {
    const bool came = caller_.read();
    received_ += caller_.take_received(caller_.received().size());
    if (!has_greeting_ && received_.size() >= sizeof greeting_) {
      std::memcpy(&greeting_, received_.data(), sizeof greeting_);
      MUST(greeting_.magic == Greeting::kMagic);
      has_greeting_ = true;
      understand();
    }
    // It answers only those who know the secret.
    if (received_.size() > sizeof greeting_) MUST(knows_secret_);
    if (received_.size() == sizeof greeting_ + sizeof(Welcome)) check_welcome();
    MUST(received_.size() <= sizeof greeting_ + sizeof(Welcome));
    return came;
  }

 private:
  void understand() {
    if (has_greeting_ && !initiators_ && said_.size() >= sizeof introduction_) {
      std::memcpy(&introduction_, said_.data(), sizeof introduction_);
      const Hello& hello = introduction_.hello;
      knows_secret_ = perseus::is_proven(acceptors_.secret, greeting_, introduction_) &&
                      hello.job == acceptors_.job && hello.to == acceptors_.rank;
      is_proven_ = knows_secret_ && hello.called == digest_of(where_);
      initiators_.emplace(
          make_session(acceptors_.secret, greeting_, introduction_, Role::kInitiator));
    }
    if (is_proven_ && said_.size() >= sizeof introduction_ + sizeof(Confirmation)) {
      const MessageTag tag = confirmation().tag;
      is_confirmed_ = said_.compare(sizeof introduction_, tag.size(), view(tag)) == 0;
    }
  }

  void check_welcome() const {
    Welcome welcome;
    std::memcpy(&welcome, received_.data() + sizeof greeting_, sizeof welcome);
    Session session = *initiators_;
    MUST(session.incoming.is_next(view(welcome.tag), {bytes_of(welcome.verdict)}));
    MUST((welcome.verdict == Welcome::kNotCalledHere) == !is_proven_);
  }

  Caller caller_;
  const Endpoint where_;
  const Credentials& acceptors_;
  std::string said_, received_;
  bool has_greeting_ = false;
  Greeting greeting_;
  Introduction introduction_;
  std::optional<Session> initiators_;  // once an introduction has been said
  bool knows_secret_ = false, is_proven_ = false, is_confirmed_ = false;
};

}  // namespace perseus::fuzz
