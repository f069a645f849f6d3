#include "execution/size_exchange.h"

#include <algorithm>
#include <array>
#include <cstring>

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

MessageTag tag_of(const ShardRun& run, const WorldKey& key, int index,
                  std::span<const int64_t> counts) {
  const ProcessSet& set = *run.batch->set;
  const std::array<uint64_t, 3> what = {static_cast<uint64_t>(set.id), run.agreed().sequence,
                                        static_cast<uint64_t>(set.ranks[index])};
  return key.tag("row counts",
                 {{reinterpret_cast<const char*>(what.data()), sizeof what},
                  {reinterpret_cast<const char*>(counts.data()), counts.size_bytes()}});
}

// `block`: the counts and their tag.
bool is_proven(const ShardRun& run, const WorldKey& key, int index,
               std::span<const int64_t> block) {
  const auto counts = block.first(block.size() - kTagWords);
  const MessageTag expected = tag_of(run, key, index, counts);
  const auto tag = block.last(kTagWords);
  return equal_in_constant_time(view(expected),
                                {reinterpret_cast<const char*>(tag.data()), tag.size_bytes()});
}

Status forged(const ShardRun& run, int index) {
  return Status::aborted(title(run.agreed().key()) +
                         ": the number of rows that has come from rank " +
                         std::to_string(run.batch->set->ranks[index]) + std::string(kForged));
}

}  // namespace

Task exchange_row_counts(ShardRun& run, RunContext context, std::span<int64_t> rows) {
  const Group& group = run.batch->set->group;
  const Operation* operation = own_operation(run);
  const size_t tensors = run.description().tensors.size();
  const size_t words = tensors + (context.world_key != nullptr ? kTagWords : 0);
  ScratchArray<int64_t> mine(context.buffers, words, 0);
  ScratchArray<int64_t> of_all(context.buffers, words * group.size, 0);
  ScratchArray<uint64_t> bytes_of(context.buffers, group.size, words * sizeof(int64_t));
  if (!mine || !of_all || !bytes_of) co_return out_of_scratch(words * sizeof(int64_t));
  for (size_t t = 0; operation != nullptr && t < tensors; ++t) {
    mine[t] = operation->description.tensors[t].shape[0];
  }
  if (context.world_key != nullptr) {
    const MessageTag tag = tag_of(run, *context.world_key, group.index, mine.span().first(tensors));
    std::memcpy(&mine[tensors], tag.data(), tag.size());
  }
  const Status status = co_await allgather(group, collective_options(run, context, kSizes),
                                           mine.data(), of_all.data(), bytes_of.span());
  PERSEUS_CO_RETURN_IF_ERROR(status);
  for (int r = 0; r < group.size; ++r) {
    const std::span<const int64_t> theirs = of_all.span().subspan(r * words, words);
    const auto counts = theirs.first(tensors);
    if (context.world_key != nullptr && !is_proven(run, *context.world_key, r, theirs)) {
      co_return forged(run, r);
    }
    std::ranges::copy(counts, rows.begin() + static_cast<ptrdiff_t>(r * tensors));
  }
  co_return Status::ok();
}

Task exchange_splits(ShardRun& run, RunContext context, std::span<int64_t> send_rows,
                     std::span<int64_t> receive_rows) {
  const Group& group = run.batch->set->group;
  const Operation* operation = own_operation(run);
  const size_t size = send_rows.size();
  ScratchArray<uint64_t> send_bytes(context.buffers, size, sizeof(int64_t));
  ScratchArray<uint64_t> receive_bytes(context.buffers, size, sizeof(int64_t));
  if (!send_bytes || !receive_bytes) co_return out_of_scratch(size * sizeof(int64_t));
  for (size_t r = 0; operation != nullptr && r < size; ++r) send_rows[r] = operation->splits[r];
  const Status status =
      co_await alltoall(group, collective_options(run, context, kSizes), send_rows.data(),
                        receive_rows.data(), send_bytes.span(), receive_bytes.span());
  co_return status;
}

}  // namespace perseus
