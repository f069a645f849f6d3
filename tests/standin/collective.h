// A launch of a rank: a collective, or the sends and receives of a group.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "memory.h"
#include "mesh.h"

namespace perseus::standin {

struct Message {
  bool is_send;
  void* bytes;
  size_t count;
  int type;
  int peer;
};

struct Collective {
  enum class Kind { kAllReduce, kBroadcast, kReduceScatter, kAllGather, kMessages };

  Kind kind;
  const char* name;
  const void* source = nullptr;
  void* target = nullptr;
  size_t count = 0;  // as given in the call
  int type = 0;
  int op = 0;
  double factor = 1.0;  // by which values are multiplied before they are summed
  int root = 0;
  bool is_registered = false;          // all of the memory is; then it must be on all ranks
  std::vector<Message> messages = {};  // of a group's sends and receives, nothing else then

  std::vector<Access> accesses(int rank, int ranks) const;
  // Returns whether it needs the peer.
  bool involves(int peer) const;
  // A text of the call that must be the same on both ranks of a pair.
  std::string description(int rank, int peer) const;
  Mesh::End run(Mesh& mesh, int rank, int ranks) const;

 private:
  Mesh::End all_reduce(Mesh& mesh, int rank, int ranks) const;
  Mesh::End reduce_scatter(Mesh& mesh, int rank, int ranks) const;
  Mesh::End all_gather(Mesh& mesh, int rank, int ranks) const;
  Mesh::End broadcast(Mesh& mesh, int rank, int ranks) const;
  Mesh::End exchange_messages(Mesh& mesh, int rank) const;
};

}  // namespace perseus::standin
