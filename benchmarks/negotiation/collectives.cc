#include "collectives.h"

#include <algorithm>
#include <bit>
#include <utility>

namespace perseus::simulation {

void linear_gather(int rank, int size, size_t bytes, Nanoseconds work_each, Steps& steps) {
  if (rank != 0) {
    steps.push_back(send_to(0, bytes));
    return;
  }
  for (int from = 1; from < size; ++from) {
    steps.push_back(receive_from(from));
    steps.push_back(work_for(work_each));
  }
}

void linear_broadcast(int rank, int size, size_t bytes, Steps& steps) {
  if (rank != 0) {
    steps.push_back(receive_from(0));
    return;
  }
  for (int to = 1; to < size; ++to) steps.push_back(send_to(to, bytes));
}

void binomial_gather(int rank, int size, size_t bytes_each, Steps& steps) {
  for (int bit = 1; bit < size; bit <<= 1) {
    if (rank & bit) {
      const int subtree = std::min(bit, size - rank);
      steps.push_back(send_to(rank - bit, static_cast<size_t>(subtree) * bytes_each));
      return;
    }
    if (rank + bit < size) steps.push_back(receive_from(rank + bit));
  }
}

void binomial_broadcast(int rank, int size, size_t bytes, Steps& steps) {
  int bit = 1;
  while (bit < size && !(rank & bit)) bit <<= 1;
  if (rank != 0) steps.push_back(receive_from(rank - bit));
  for (bit >>= 1; bit > 0; bit >>= 1) {
    if (rank + bit < size) steps.push_back(send_to(rank + bit, bytes));
  }
}

void recursive_doubling_allreduce(int rank, int size, size_t bytes, Steps& steps) {
  const int power = static_cast<int>(std::bit_floor(static_cast<unsigned>(size)));
  const int extra = size - power;
  // Among the first 2 * extra ranks, the even ones are folded into the odd ones.
  const bool is_paired = rank < 2 * extra;
  if (is_paired && rank % 2 == 0) {
    steps.push_back(send_to(rank + 1, bytes));
    steps.push_back(receive_from(rank + 1));
    return;
  }
  if (is_paired) steps.push_back(receive_from(rank - 1));
  const int position = is_paired ? rank / 2 : rank - extra;
  for (int bit = 1; bit < power; bit <<= 1) {
    const int other = position ^ bit;
    const int peer = other < extra ? 2 * other + 1 : other + extra;
    steps.push_back(send_to(peer, bytes));
    steps.push_back(receive_from(peer));
  }
  if (is_paired) steps.push_back(send_to(rank - 1, bytes));
}

void ring_allreduce(int rank, int size, size_t words, Steps& steps) {
  const auto segments = static_cast<size_t>(2 * size);
  const size_t words_each = (words + segments - 1) / segments;
  const size_t filled = (words + words_each - 1) / words_each;
  const auto iterations = static_cast<int64_t>(segments) - 2;
  const int to = (rank + size - 1) % size, from = (rank + 1) % size;
  // The two halves differ in the segment that a rank starts with. An iteration starts a send, and
  // waits for the receive that the iteration before last started.
  for (const int ahead : {1, 0}) {
    std::vector<std::pair<int64_t, Step>> in_order;
    const auto iteration_of = [&](size_t segment, int shift) {
      return (static_cast<int64_t>(segment) - 2 * (rank + shift) + 4 * size) % (2 * size);
    };
    for (size_t segment = 0; segment < filled; ++segment) {
      const size_t bytes = std::min(words_each, words - segment * words_each) * sizeof(uint64_t);
      const int64_t sends = iteration_of(segment, ahead);
      const int64_t receives = iteration_of(segment, ahead + 1);
      if (sends < iterations) in_order.emplace_back(2 * sends + 1, send_to(to, bytes));
      if (receives < iterations) in_order.emplace_back(2 * (receives + 2), receive_from(from));
    }
    std::sort(in_order.begin(), in_order.end(),
              [](const auto& a, const auto& b) { return a.first < b.first; });
    for (const auto& [order, step] : in_order) steps.push_back(step);
  }
}

void ring_allgather(int rank, int size, size_t bytes_each, Steps& steps) {
  for (int hop = 1; hop < size; ++hop) {
    steps.push_back(send_to((rank + 1) % size, bytes_each));
    steps.push_back(receive_from((rank + size - 1) % size));
  }
}

}  // namespace perseus::simulation
