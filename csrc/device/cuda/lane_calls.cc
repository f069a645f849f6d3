#include "device/cuda/lane_calls.h"

#include "device/cpu/kernels.h"
#include "device/cuda/cuda_error.h"

namespace perseus {
namespace {

CuPointer address(const void* pointer) { return reinterpret_cast<CuPointer>(pointer); }

}  // namespace

Status LaneCalls::move(std::span<const Move> moves, DataType dtype, double factor,
                       const NonFiniteSearch& search) const {
  const MoveKernels* const kernels = gpu_.kernels();
  if (kernels != nullptr && (moves.size() > 1 || factor != 1.0 || search.words != nullptr)) {
    return kernels->launch(moves, dtype, dtype, factor, search, stream());
  }
  for (const Move& move : moves) {
    if (move.elements == 0 || move.source == move.target) continue;
    const CuResult copied = gpu_.driver().copy_on_device(address(move.target), address(move.source),
                                                         move.elements * size_of(dtype), stream());
    PERSEUS_RETURN_IF_ERROR(cuda_status(gpu_.driver(), copied, "copying on the GPU"));
  }
  return {};
}

Status LaneCalls::unpack(std::byte* buffer, uint64_t elements, std::span<const Move> moves,
                         DataType dtype, double factor, const NonFiniteSearch& search) const {
  if (search.words == nullptr || factor == 1.0) return move(moves, dtype, factor, search);
  // A kernel searches the elements that it reads, so the products must be written first.
  const Move in_place{buffer, buffer, elements, 0};
  PERSEUS_RETURN_IF_ERROR(move({&in_place, 1}, dtype, factor, {}));
  return move(moves, dtype, 1.0, search);
}

template <typename Reduce>
Status LaneCalls::with_op(ReduceOp op, DataType dtype, double factor, Reduce reduce) const {
  if (factor == 1.0) return reduce(*nccl_op(op));
  alignas(8) std::byte scalar[8];
  scale_convert(scalar, dtype, &factor, DataType::kFloat64, 1, 1.0);
  int scaled = 0;
  const NcclResult made =
      table().create_premul_sum(&scaled, scalar, *nccl_type(dtype), kNcclScalarOfHost, comm_.get());
  PERSEUS_RETURN_IF_ERROR(nccl_status(table(), made, "making a scaled sum"));
  const Status status = reduce(scaled);
  table().destroy_op(scaled, comm_.get());
  return status;
}

Status LaneCalls::all_reduce(const void* source, void* target, uint64_t elements, DataType dtype,
                             ReduceOp op, double factor) const {
  return with_op(op, dtype, factor, [&](int number) {
    return comm_.finish_call(
        table().all_reduce(source, target, elements, *nccl_type(dtype), number, handle(), stream()),
        "ncclAllReduce");
  });
}

Status LaneCalls::reduce_scatter(const void* source, void* target, uint64_t elements_of_each,
                                 DataType dtype, ReduceOp op, double factor) const {
  return with_op(op, dtype, factor, [&](int number) {
    return comm_.finish_call(table().reduce_scatter(source, target, elements_of_each,
                                                    *nccl_type(dtype), number, handle(), stream()),
                             "ncclReduceScatter");
  });
}

Status LaneCalls::all_gather(const void* source, void* target, uint64_t bytes_of_each) const {
  return comm_.finish_call(
      table().all_gather(source, target, bytes_of_each, kNcclUint8, handle(), stream()),
      "ncclAllGather");
}

Status LaneCalls::broadcast(const void* source, void* target, uint64_t bytes, int root) const {
  return comm_.finish_call(
      table().broadcast(source, target, bytes, kNcclUint8, root, handle(), stream()),
      "ncclBroadcast");
}

}  // namespace perseus
