// What the transports of a process have that outlives a world: the connections to processes that
// may be in the next one, too, and the memory that these use. A mesh puts the channels of links
// that have parted (framed_link.h) in, and the next mesh takes those to its own peers out, proves
// them (link_renewal.h), and drops the rest.
//
// One thread at a time: the loop's of a mesh from its creation until it has closed.
#pragma once

#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "base/buffer_pool.h"
#include "base/event_loop.h"
#include "base/file_descriptor.h"
#include "transport/channel.h"
#include "transport/handshake.h"
#include "transport/shm/outbox.h"

namespace perseus {

struct Settings;

class KeptLinks {
 public:
  using Channels = std::vector<std::unique_ptr<Channel>>;  // of one link, by index

  KeptLinks();
  KeptLinks(const KeptLinks&) = delete;
  ~KeptLinks();

  // The name of this process among all that it may ever have links with.
  const Nonce& process() const { return memory_->process; }
  // For the loop of each world, since peers ring it in each.
  std::shared_ptr<const FileDescriptor> doorbell();
  BufferPool& buffers() { return memory_->buffers; }
  Outbox& outbox() { return *memory_->outbox; }

  // The next world has these settings and this secret. Drops links that were made with others, and
  // an outbox that is worn. No mesh may use them.
  void prepare_for(const Settings& settings, std::string_view secret);
  // The link to a process, which has no other here. Each channel has parted.
  void put(const Nonce& process, Channels channels);
  // The link to a process; empty if there is none.
  Channels take(const Nonce& process);
  bool is_empty() const { return memory_->links.empty(); }
  // Closes those that nobody has taken.
  void drop_links() { memory_->links.clear(); }
  // Closes all connections, and gives the doorbell and the outbox back.
  void clear();
  // A forked child starts with none, and with a name of its own.
  void after_fork_in_child();

 private:
  struct Memory {
    Nonce process = random_nonce();
    std::shared_ptr<const FileDescriptor> doorbell;
    BufferPool buffers;
    std::unique_ptr<Outbox> outbox = std::make_unique<Outbox>();
    std::map<Nonce, Channels> links;
    std::string terms;  // the settings and the secret that the channels were made with
  };

  std::unique_ptr<Memory> memory_;
};

}  // namespace perseus
