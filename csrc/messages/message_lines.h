// The part that both sides of a messenger share: how they speak with other ranks,
// how much a rank keeps for each other one, and how many messages are being moved. Engine thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "base/buffer_pool.h"
#include "device/cuda/gpu_thread.h"
#include "messages/envelope.h"
#include "messages/message_form.h"
#include "messages/messenger_host.h"
#include "observe/counters.h"
#include "transport/mesh.h"

namespace perseus {

// The most that a rank keeps for each other one, in bytes. An envelope has a cost, too.
struct MessageCredit {
  explicit MessageCredit(uint64_t credit);

  const uint64_t window;  // that came with envelopes, and have not been taken
  const uint64_t held;    // of announced messages that are here or arriving

  static uint64_t cost_of(uint64_t bytes);
};

class MessageLines {
 public:
  MessageLines(Mesh& mesh, BufferPool& buffers, GpuThreads& gpus, Counters& counters,
               uint64_t credit, MessengerHost& host)
      : mesh(mesh),
        buffers(buffers),
        gpus(gpus),
        counters(counters),
        host(host),
        rank(mesh.topology().rank),
        credit(credit) {}

  // Sends a control message.
  template <typename Message>
  void tell(int to, const Message& message) {
    writer_.clear();
    message.write(writer_);
    mesh.send_control(to, writer_.bytes());
  }
  // The same with the elements of a message.
  void tell(int to, const Envelope& envelope, std::span<const std::byte> elements);

  // A message begins to move, and has ended. `ended` returns what its operation ends with.
  void begun() { ++moving_; }
  Status ended(int peer, int32_t set, const Status& status);
  // Returns whether nothing is being moved.
  bool is_idle() const { return moving_ == 0; }

  Mesh& mesh;
  BufferPool& buffers;
  GpuThreads& gpus;
  Counters& counters;
  MessengerHost& host;
  const int rank;
  const MessageCredit credit;

 private:
  int moving_ = 0;
  ByteWriter writer_;
};

// The tag of a message's elements, or of a run of them; differs from those of collectives.
Tag tag_of_message(uint64_t number, uint32_t run = 0);

// Returns the form in which a send's elements travel to another rank, and their envelope, which
// comes first. A send that its program cannot make has a reason in place of a tensor.
MessageForm form_of(const Operation& send);
Envelope envelope_of(const Operation& send, uint64_t number);
// Returns what a send ends with once its receiver has taken it.
Status taken(const Operation& send);

}  // namespace perseus
