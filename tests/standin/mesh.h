// One rank's sockets to all others of its communicator. They are abstract Unix sockets, named after
// the unique id: nothing is left behind, however the processes end.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

namespace perseus::standin {

// Bytes from or to a peer. Those with one peer go in the order of the list.
struct Transfer {
  int peer;
  void* bytes;
  size_t count;
};

// One thread at a time, but for abort().
class Mesh {
 public:
  enum class End { kDone, kAborted, kLost };  // kLost: a peer is gone

  Mesh(std::string name, int rank, int ranks);
  ~Mesh();
  Mesh(const Mesh&) = delete;
  Mesh& operator=(const Mesh&) = delete;

  // Waits for all others, without a time-out.
  End connect();
  // Sends and receives all concurrently.
  End exchange(const std::vector<Transfer>& sends, const std::vector<Transfer>& receives);
  // Ends current and later calls. Any thread.
  void abort();

 private:
  struct Flow;

  bool is_aborted_within(int milliseconds);
  End connect_to(int peer);
  End accept_one();

  const std::string name_;
  const int rank_;
  const int abort_event_;
  int listener_ = -1;
  std::vector<int> sockets_;  // by rank
};

}  // namespace perseus::standin
