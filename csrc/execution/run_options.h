// Derives from an operation and the settings how its shards run: memory, message tags, codec,
// algorithm, factors. Pure functions. Engine thread.
#pragma once

#include "codec/codec.h"
#include "collectives/collective.h"
#include "device/cpu/pack.h"
#include "execution/batch.h"

namespace perseus {

struct Settings;

// The memory of a piece. Null if this rank has not submitted the operation.
Segment segment_of(const ShardRun& run, const Piece& piece);

// Tag::operation of a series of messages of the set.
uint64_t operation_tag(const ProcessSet& set, uint64_t series);
// A shard that runs several collectives gives each a `number` of its own.
CollectiveOptions collective_options(const ShardRun& run, RunContext& context, uint32_t number);

// The codec of an allreduce's shard, or null: only float32 sums are coded.
const Codec* codec_for(const Description& description, DataType dtype, const Settings& settings);

// The algorithm that the user has asked for; kAuto if none.
AllreduceAlgorithm wanted_algorithm(const Settings& settings);

// kAverage is reduced as a sum whose results are divided by the size of the set. result_factor
// returns what the results are multiplied by; wire_op returns the reduction that the ranks do.
double result_factor(const Description& description, int set_size);
ReduceOp wire_op(const Description& description);

}  // namespace perseus
