#include "execution/size_exchange.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <string>

#include "base/world_key.h"
#include "collectives/scratch_array.h"
#include "execution/run_options.h"

namespace perseus {
namespace {

// The number of this collective in its shard; those of the operation's tensors count from 0.
constexpr uint32_t kSizes = UINT32_MAX;

const Operation* own_operation(const ShardRun& run) {
  return run.batch->operations[run.shard.operation].get();
}

// A count decides how much memory is taken, so it is proven to come from the rank, in this
// operation of this set.
constexpr size_t kTagWords = sizeof(MessageTag) / sizeof(int64_t);
static_assert(kTagWords * sizeof(int64_t) == sizeof(MessageTag));

// The counts that one rank of a set sends: to all others, or to one.
struct Counts {
  static constexpr int kAll = -1;
  const ShardRun& run;
  int from;
  int to = kAll;

  MessageTag tag(const WorldKey& key, std::span<const int64_t> counts) const {
    const ProcessSet& set = *run.batch->set;
    const std::array<int64_t, 4> what = {static_cast<int64_t>(set.id),
                                         static_cast<int64_t>(run.agreed().sequence),
                                         set.ranks[from], to == kAll ? kAll : set.ranks[to]};
    return key.tag("row counts",
                   {{reinterpret_cast<const char*>(what.data()), sizeof what},
                    {reinterpret_cast<const char*>(counts.data()), counts.size_bytes()}});
  }

  // Puts the tag of a block's counts at its end.
  void seal(const WorldKey& key, std::span<int64_t> block) const {
    const MessageTag made = tag(key, block.first(block.size() - kTagWords));
    std::memcpy(block.last(kTagWords).data(), made.data(), made.size());
  }
  bool is_proven(const WorldKey& key, std::span<const int64_t> block) const {
    const MessageTag expected = tag(key, block.first(block.size() - kTagWords));
    const auto given = block.last(kTagWords);
    return equal_in_constant_time(
        view(expected), {reinterpret_cast<const char*>(given.data()), given.size_bytes()});
  }
};

Status forged(const ShardRun& run, int index) {
  return Status::aborted(title(run.agreed().key()) +
                         ": the number of rows that has come from rank " +
                         std::to_string(run.batch->set->ranks[index]) + std::string(kForged));
}

}  // namespace

std::span<const std::byte> sizes_for_agreement(const Operation& operation,
                                               std::vector<std::byte>& scratch) {
  const Description& description = operation.description;
  if (description.kind == OperationKind::kAlltoall) {
    return std::as_bytes(std::span(operation.splits));
  }
  if (description.kind != OperationKind::kAllgather) return {};
  scratch.clear();
  for (const TensorDescription& tensor : description.tensors) {
    // A scalar is an error, which all ranks report together.
    const std::array<int64_t, 1> rows = {tensor.shape.empty() ? 0 : tensor.shape.front()};
    const auto bytes = std::as_bytes(std::span(rows));
    scratch.insert(scratch.end(), bytes.begin(), bytes.end());
  }
  return scratch;
}

Task exchange_row_counts(ShardRun& run, RunContext context, std::span<int64_t> rows) {
  const Group& group = run.batch->set->group;
  if (const std::vector<int64_t>& known = run.batch->sizes; !known.empty()) {
    std::ranges::copy(known, rows.begin());
    co_return Status::ok();
  }
  const WorldKey* key = context.world_key;
  const Operation* operation = own_operation(run);
  const size_t tensors = run.description().tensors.size();
  const size_t words = tensors + (key != nullptr ? kTagWords : 0);
  ScratchArray<int64_t> mine(context.buffers, words, 0);
  ScratchArray<int64_t> of_all(context.buffers, words * group.size, 0);
  ScratchArray<uint64_t> bytes_of(context.buffers, group.size, words * sizeof(int64_t));
  if (!mine || !of_all || !bytes_of) co_return out_of_scratch(words * sizeof(int64_t));
  for (size_t t = 0; operation != nullptr && t < tensors; ++t) {
    mine[t] = operation->description.tensors[t].shape[0];
  }
  if (key != nullptr) Counts{run, group.index}.seal(*key, mine.span());
  const Status status = co_await allgather(group, collective_options(run, context, kSizes),
                                           mine.data(), of_all.data(), bytes_of.span());
  PERSEUS_CO_RETURN_IF_ERROR(status);
  for (int r = 0; r < group.size; ++r) {
    const std::span<const int64_t> theirs = of_all.span().subspan(r * words, words);
    if (key != nullptr && !Counts{run, r}.is_proven(*key, theirs)) co_return forged(run, r);
    std::ranges::copy(theirs.first(tensors), rows.begin() + static_cast<ptrdiff_t>(r * tensors));
  }
  co_return Status::ok();
}

Task exchange_splits(ShardRun& run, RunContext context, std::span<int64_t> send_rows,
                     std::span<int64_t> receive_rows) {
  const Group& group = run.batch->set->group;
  const WorldKey* key = context.world_key;
  const Operation* operation = own_operation(run);
  const size_t size = send_rows.size();
  if (const std::vector<int64_t>& known = run.batch->sizes; !known.empty()) {
    for (size_t r = 0; r < size; ++r) {
      send_rows[r] = known[group.index * size + r];
      receive_rows[r] = known[r * size + group.index];
    }
    co_return Status::ok();
  }
  const size_t words = 1 + (key != nullptr ? kTagWords : 0);
  ScratchArray<int64_t> sent(context.buffers, words * size, 0);
  ScratchArray<int64_t> received(context.buffers, words * size, 0);
  ScratchArray<uint64_t> send_bytes(context.buffers, size, words * sizeof(int64_t));
  ScratchArray<uint64_t> receive_bytes(context.buffers, size, words * sizeof(int64_t));
  if (!sent || !received || !send_bytes || !receive_bytes) {
    co_return out_of_scratch(words * size * sizeof(int64_t));
  }
  for (size_t r = 0; r < size; ++r) {
    if (operation != nullptr) send_rows[r] = operation->splits[r];
    const std::span<int64_t> block = sent.span().subspan(r * words, words);
    block[0] = send_rows[r];
    if (key != nullptr) Counts{run, group.index, static_cast<int>(r)}.seal(*key, block);
  }
  const Status status =
      co_await alltoall(group, collective_options(run, context, kSizes), sent.data(),
                        received.data(), send_bytes.span(), receive_bytes.span());
  PERSEUS_CO_RETURN_IF_ERROR(status);
  for (int r = 0; r < static_cast<int>(size); ++r) {
    const std::span<const int64_t> theirs = received.span().subspan(r * words, words);
    if (key != nullptr && !Counts{run, r, group.index}.is_proven(*key, theirs)) {
      co_return forged(run, r);
    }
    receive_rows[r] = theirs[0];
  }
  co_return Status::ok();
}

}  // namespace perseus
