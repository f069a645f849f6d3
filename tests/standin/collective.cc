#include "collective.h"

#include <algorithm>
#include <cstring>

#include "elements.h"
#include "failure.h"

namespace perseus::standin {
namespace {

std::byte* at(const void* start, size_t bytes) {
  return static_cast<std::byte*>(const_cast<void*>(start)) + bytes;
}

// The data of all ranks, in order. The caller's own stays where it is; the others' is received into
// `room`.
std::vector<const void*> sources_of(int rank, int ranks, const void* own, size_t bytes,
                                    std::vector<std::byte>& room, std::vector<Transfer>& receives) {
  room.resize(bytes * static_cast<size_t>(ranks));
  std::vector<const void*> sources;
  for (int peer = 0; peer < ranks; ++peer) {
    std::byte* const theirs = room.data() + bytes * static_cast<size_t>(peer);
    sources.push_back(peer == rank ? own : theirs);
    if (peer != rank) receives.push_back({peer, theirs, bytes});
  }
  return sources;
}

}  // namespace

std::vector<Access> Collective::accesses(int rank, int ranks) const {
  const size_t one = count * size_of_nccl_type(type);
  const size_t all = one * static_cast<size_t>(ranks);
  switch (kind) {
    case Kind::kAllReduce: return {{source, one, false}, {target, one, true}};
    case Kind::kReduceScatter: return {{source, all, false}, {target, one, true}};
    case Kind::kAllGather: return {{source, one, false}, {target, all, true}};
    case Kind::kBroadcast:
      if (rank != root) return {{target, one, true}};
      if (source == target) return {{source, one, false}};
      return {{source, one, false}, {target, one, true}};
    case Kind::kMessages: break;
  }
  std::vector<Access> touched;
  for (const Message& each : messages) {
    touched.push_back({each.bytes, each.count * size_of_nccl_type(each.type), !each.is_send});
  }
  return touched;
}

bool Collective::involves(int peer) const {
  return kind != Kind::kMessages ||
         std::any_of(messages.begin(), messages.end(),
                     [&](const Message& each) { return each.peer == peer; });
}

std::string Collective::description(int rank, int peer) const {
  if (kind != Kind::kMessages) {
    std::string text =
        std::string(name) + " of " + std::to_string(count) + " " + name_of_nccl_type(type);
    if (kind == Kind::kBroadcast) text += " from " + std::to_string(root);
    if (kind == Kind::kAllReduce || kind == Kind::kReduceScatter) {
      text += std::string(" ") + name_of_nccl_op(op);
      if (factor != 1.0) text += " times " + std::to_string(factor);
    }
    return is_registered ? text + ", registered" : text;
  }
  std::string text = "messages";
  // Those from the lower rank come first, so that both sides have the same text.
  for (const bool from_lower : {true, false}) {
    const bool is_mine = from_lower == (rank < peer);
    for (const Message& each : messages) {
      if (each.peer != peer || each.is_send != is_mine) continue;
      text += " " + std::to_string(is_mine ? rank : peer) + "->" +
              std::to_string(is_mine ? peer : rank) + " " + std::to_string(each.count) + " " +
              name_of_nccl_type(each.type);
    }
  }
  return text;
}

Mesh::End Collective::run(Mesh& mesh, int rank, int ranks) const {
  switch (kind) {
    case Kind::kAllReduce: return all_reduce(mesh, rank, ranks);
    case Kind::kReduceScatter: return reduce_scatter(mesh, rank, ranks);
    case Kind::kAllGather: return all_gather(mesh, rank, ranks);
    case Kind::kBroadcast: return broadcast(mesh, rank, ranks);
    case Kind::kMessages: break;
  }
  return exchange_messages(mesh, rank);
}

// Each rank reduces its share for all ranks, so that all get the same bits.
Mesh::End Collective::all_reduce(Mesh& mesh, int rank, int ranks) const {
  const size_t size = size_of_nccl_type(type);
  const auto first_of = [&](int share) {
    return count * static_cast<size_t>(share) / static_cast<size_t>(ranks);
  };
  const auto bytes_of = [&](int share) { return (first_of(share + 1) - first_of(share)) * size; };
  std::vector<std::byte> room;
  std::vector<Transfer> receives;
  const std::byte* const own = at(source, first_of(rank) * size);
  const auto sources = sources_of(rank, ranks, own, bytes_of(rank), room, receives);
  std::vector<Transfer> sends;
  for (int peer = 0; peer < ranks; ++peer) {
    if (peer != rank) sends.push_back({peer, at(source, first_of(peer) * size), bytes_of(peer)});
  }
  if (const Mesh::End end = mesh.exchange(sends, receives); end != Mesh::End::kDone) return end;
  std::byte* const reduced = at(target, first_of(rank) * size);
  reduce(type, op, factor, reduced, sources, bytes_of(rank) / size);
  sends.clear();
  receives.clear();
  for (int peer = 0; peer < ranks; ++peer) {
    if (peer == rank) continue;
    sends.push_back({peer, reduced, bytes_of(rank)});
    receives.push_back({peer, at(target, first_of(peer) * size), bytes_of(peer)});
  }
  return mesh.exchange(sends, receives);
}

Mesh::End Collective::reduce_scatter(Mesh& mesh, int rank, int ranks) const {
  const size_t bytes = count * size_of_nccl_type(type);
  std::vector<std::byte> room;
  std::vector<Transfer> receives;
  const std::byte* const own = at(source, bytes * static_cast<size_t>(rank));
  const auto sources = sources_of(rank, ranks, own, bytes, room, receives);
  std::vector<Transfer> sends;
  for (int peer = 0; peer < ranks; ++peer) {
    if (peer == rank) continue;
    sends.push_back({peer, at(source, bytes * static_cast<size_t>(peer)), bytes});
  }
  const Mesh::End end = mesh.exchange(sends, receives);
  if (end == Mesh::End::kDone) reduce(type, op, factor, target, sources, count);
  return end;
}

Mesh::End Collective::all_gather(Mesh& mesh, int rank, int ranks) const {
  const size_t bytes = count * size_of_nccl_type(type);
  std::vector<Transfer> sends;
  std::vector<Transfer> receives;
  for (int peer = 0; peer < ranks; ++peer) {
    std::byte* const place = at(target, bytes * static_cast<size_t>(peer));
    if (peer == rank) {
      std::memmove(place, source, bytes);
      continue;
    }
    sends.push_back({peer, at(source, 0), bytes});
    receives.push_back({peer, place, bytes});
  }
  return mesh.exchange(sends, receives);
}

Mesh::End Collective::broadcast(Mesh& mesh, int rank, int ranks) const {
  const size_t bytes = count * size_of_nccl_type(type);
  if (rank != root) return mesh.exchange({}, {{root, target, bytes}});
  std::memmove(target, source, bytes);
  std::vector<Transfer> sends;
  for (int peer = 0; peer < ranks; ++peer) {
    if (peer != rank) sends.push_back({peer, at(source, 0), bytes});
  }
  return mesh.exchange(sends, {});
}

Mesh::End Collective::exchange_messages(Mesh& mesh, int rank) const {
  std::vector<Transfer> sends;
  std::vector<Transfer> receives;
  std::vector<Transfer> to_self;
  std::vector<Transfer> from_self;
  for (const Message& each : messages) {
    const Transfer transfer{each.peer, each.bytes, each.count * size_of_nccl_type(each.type)};
    if (each.peer == rank) {
      (each.is_send ? to_self : from_self).push_back(transfer);
    } else {
      (each.is_send ? sends : receives).push_back(transfer);
    }
  }
  for (size_t i = 0; i < std::max(to_self.size(), from_self.size()); ++i) {
    if (to_self.size() != from_self.size() || to_self[i].count != from_self[i].count) {
      fail("rank " + std::to_string(rank) + " sends to itself what it does not receive");
    }
    std::memmove(from_self[i].bytes, to_self[i].bytes, to_self[i].count);
  }
  return mesh.exchange(sends, receives);
}

}  // namespace perseus::standin
