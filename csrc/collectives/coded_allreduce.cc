#include "collectives/coded_allreduce.h"

#include <algorithm>

#include "base/buffer_pool.h"
#include "codec/residuals.h"
#include "collectives/parts.h"
#include "collectives/scratch_array.h"
#include "device/cpu/kernels.h"

namespace perseus {
namespace {

// The numbers of the collectives that this one is built of; see options_of_part.
constexpr uint32_t kScatter = 0;
constexpr uint32_t kGather = 1;

// Encoded parts lie one after the other. Each begins at a multiple of 8, where a codec may store
// doubles.
uint64_t padded_size(const Codec& codec, size_t elements) {
  return (codec.encoded_size(elements) + 7) / 8 * 8;
}

}  // namespace

Task coded_allreduce(const Group& group, CollectiveOptions options, float* data, size_t elements,
                     const Codec& codec, float* lost) {
  ScratchArray<uint64_t> sizes(*options.buffers, group.size);      // of each part, encoded
  ScratchArray<uint64_t> own_sizes(*options.buffers, group.size);  // our part, from each rank
  if (!sizes || !own_sizes) co_return out_of_scratch(group.size * sizeof(uint64_t));
  const Range own = even_part(elements, group.size, group.index);
  uint64_t total = 0;
  for (int i = 0; i < group.size; ++i) {
    const uint64_t bytes = padded_size(codec, even_part(elements, group.size, i).size);
    sizes.emplace(bytes);
    own_sizes.emplace(padded_size(codec, own.size));
    total += bytes;
  }
  const uint64_t own_bytes = sizes[group.index];
  const uint64_t arriving_bytes = own_bytes * group.size;
  Buffer encoded = options.buffers->take(std::max<uint64_t>(total, 1));
  Buffer arriving = options.buffers->take(std::max<uint64_t>(arriving_bytes, 1));
  Buffer decoded = options.buffers->take(std::max<size_t>(own.size * sizeof(float), 1));
  if (!encoded || !arriving || !decoded) co_return out_of_scratch(total + arriving_bytes);

  std::byte* at = encoded.data();
  for (int i = 0; i < group.size; ++i) {
    const Range part = even_part(elements, group.size, i);
    codec.encode(data + part.begin, part.size, at);
    if (lost != nullptr) {
      codec.decode(at, lost + part.begin, part.size);
      float* lost_of_part = lost + part.begin;
      keep_residual(lost_of_part, data + part.begin, lost_of_part, part.size);
    }
    at += sizes[i];
  }
  Task scatter = alltoall(group, options_of_part(options, kScatter), encoded.data(),
                          arriving.data(), sizes.span(), own_sizes.span());
  Status status = co_await std::move(scatter);
  if (!status.is_ok()) co_return status;

  float* sum = data + own.begin;
  auto* addend = reinterpret_cast<float*>(decoded.data());
  const Reduction add = reduction(DataType::kFloat32, ReduceOp::kSum);
  for (int i = 0; i < group.size; ++i) {
    codec.decode(arriving.data() + i * own_bytes, i == 0 ? sum : addend, own.size);
    if (i > 0) add.kernel(sum, addend, own.size);
  }
  codec.encode(sum, own.size, arriving.data());

  Task gather = allgather(group, options_of_part(options, kGather), arriving.data(), encoded.data(),
                          sizes.span());
  status = co_await std::move(gather);
  if (!status.is_ok()) co_return status;
  at = encoded.data();
  for (int i = 0; i < group.size; ++i) {
    const Range part = even_part(elements, group.size, i);
    codec.decode(at, data + part.begin, part.size);
    at += sizes[i];
  }
  co_return Status::ok();
}

}  // namespace perseus
