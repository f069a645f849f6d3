#include "ops.h"

#include <memory>
#include <vector>

#include "status.h"

namespace perseus::tensorflow {
namespace {

using Infer = void (*)(TF_ShapeInferenceContext*, TF_Status*);

struct DeleteShape {
  void operator()(TF_ShapeHandle* shape) const { api().TF_DeleteShapeHandle(shape); }
};
using Shape = std::unique_ptr<TF_ShapeHandle, DeleteShape>;

Shape new_shape() { return Shape(api().TF_NewShapeHandle()); }

bool failed(const TF_Status* status) { return api().TF_GetCode(status) != kOk; }

// Each output has the shape of the input with the same number.
void same_as_inputs(TF_ShapeInferenceContext* context, TF_Status* status) {
  const auto inputs = static_cast<int>(api().TF_ShapeInferenceContextNumInputs(context));
  for (int i = 0; i < inputs && !failed(status); ++i) {
    const Shape shape = new_shape();
    api().TF_ShapeInferenceContextGetInput(context, i, shape.get(), status);
    if (!failed(status)) {
      api().TF_ShapeInferenceContextSetOutput(context, i, shape.get(), status);
    }
  }
}

Shape vector_of_unknown_length(TF_ShapeInferenceContext* context) {
  return Shape(api().TF_ShapeInferenceContextVectorFromSize(context, static_cast<size_t>(-1)));
}

// Output i has the shape of input i, except for the number of rows, which depends on all ranks.
void with_unknown_rows(TF_ShapeInferenceContext* context, int i, TF_Status* status) {
  const Shape input = new_shape();
  api().TF_ShapeInferenceContextGetInput(context, i, input.get(), status);
  if (failed(status)) return;
  if (!api().TF_ShapeInferenceContextRankKnown(context, input.get())) {
    return api().TF_ShapeInferenceContextSetOutput(context, i, input.get(), status);
  }
  const int64_t rank = api().TF_ShapeInferenceContextRank(context, input.get());
  if (rank == 0) {
    constexpr const char* kScalar = "a scalar has no rows: give it a dimension, as in [x]";
    return api().TF_SetStatus(status, kInvalidArgument, kScalar);
  }
  const Shape row = new_shape();
  api().TF_ShapeInferenceContextSubshape(context, input.get(), 1, rank, row.get(), status);
  if (failed(status)) return;
  const Shape rows = vector_of_unknown_length(context);
  const Shape output = new_shape();
  api().TF_ShapeInferenceContextConcatenateShapes(context, rows.get(), row.get(), output.get(),
                                                  status);
  if (!failed(status)) {
    api().TF_ShapeInferenceContextSetOutput(context, i, output.get(), status);
  }
}

void all_with_unknown_rows(TF_ShapeInferenceContext* context, TF_Status* status) {
  const auto inputs = static_cast<int>(api().TF_ShapeInferenceContextNumInputs(context));
  for (int i = 0; i < inputs && !failed(status); ++i) with_unknown_rows(context, i, status);
}

void alltoall_shapes(TF_ShapeInferenceContext* context, TF_Status* status) {
  with_unknown_rows(context, 0, status);
  if (failed(status)) return;
  const Shape received = vector_of_unknown_length(context);
  api().TF_ShapeInferenceContextSetOutput(context, 1, received.get(), status);
}

void scalar(TF_ShapeInferenceContext* context, TF_Status* status) {
  const Shape none(api().TF_ShapeInferenceContextScalar(context));
  api().TF_ShapeInferenceContextSetOutput(context, 0, none.get(), status);
}

using Specs = std::vector<const char*>;

struct Op {
  const char* name;
  Specs inputs;
  Specs outputs;
  Specs attributes;
  Infer infer;
};

#define PERSEUS_TYPE \
  "T: {uint8, int8, uint16, int16, int32, int64, half, bfloat16, float, double, bool}"

// tensor_name: ranks match calls by it; "": the node's name, without its scopes if
// ignore_name_scope.
// *_rest: the part of a double that does not fit into float32.
#define PERSEUS_NAMED                                                                       \
  "tensor_name: string = ''", "ignore_name_scope: bool = false", "process_set_id: int = 0", \
      "priority: int = 0"
#define PERSEUS_REDUCING                                                          \
  "reduce_op: int", "prescale_factor: float = 1.0", "prescale_rest: float = 0.0", \
      "postscale_factor: float = 1.0", "postscale_rest: float = 0.0"

const Op kOps[] = {
    {"HorovodAllreduce",
     {"tensor: T"},
     {"sum: T"},
     {PERSEUS_TYPE, PERSEUS_REDUCING, PERSEUS_NAMED},
     same_as_inputs},
    {"HorovodGroupedAllreduce",
     {"tensors: num_tensors * T"},
     {"sum: num_tensors * T"},
     {PERSEUS_TYPE, "num_tensors: int >= 1", PERSEUS_REDUCING, PERSEUS_NAMED},
     same_as_inputs},
    {"PerseusAllreduceEach",
     {"tensors: num_tensors * T"},
     {"sums: num_tensors * T"},
     {PERSEUS_TYPE, "num_tensors: int >= 1", PERSEUS_REDUCING, "names: list(string) >= 1",
      "priorities: list(int) >= 1", "process_set_id: int = 0"},
     same_as_inputs},
    {"HorovodReducescatter",
     {"tensor: T"},
     {"output: T"},
     {PERSEUS_TYPE, PERSEUS_REDUCING, PERSEUS_NAMED},
     all_with_unknown_rows},
    {"HorovodGroupedReducescatter",
     {"tensors: num_tensors * T"},
     {"output: num_tensors * T"},
     {PERSEUS_TYPE, "num_tensors: int >= 1", PERSEUS_REDUCING, PERSEUS_NAMED},
     all_with_unknown_rows},
    {"HorovodAllgather",
     {"tensor: T"},
     {"output: T"},
     {PERSEUS_TYPE, PERSEUS_NAMED},
     all_with_unknown_rows},
    {"HorovodGroupedAllgather",
     {"tensors: num_tensors * T"},
     {"output: num_tensors * T"},
     {PERSEUS_TYPE, "num_tensors: int >= 1", PERSEUS_NAMED},
     all_with_unknown_rows},
    {"HorovodBroadcast",
     {"tensor: T"},
     {"output: T"},
     {PERSEUS_TYPE, "root_rank: int", PERSEUS_NAMED},
     same_as_inputs},
    {"HorovodAlltoall",
     {"tensor: T", "splits: int32"},
     {"output: T", "received_splits: int32"},
     {PERSEUS_TYPE, PERSEUS_NAMED},
     alltoall_shapes},
    {"HorovodJoin", {}, {"last_rank: int32"}, {}, scalar},
    {"HorovodSize", {}, {"size: int32"}, {"process_set_id: int = 0"}, scalar},
    {"HorovodProcessSetIncluded", {}, {"included: int32"}, {"process_set_id: int = 0"}, scalar},
    {"HorovodLocalSize", {}, {"local_size: int32"}, {}, scalar},
    {"HorovodRank", {}, {"rank: int32"}, {}, scalar},
    {"HorovodLocalRank", {}, {"local_rank: int32"}, {}, scalar},
};

std::string register_op(const Op& op) {
  TF_OpDefinitionBuilder* const builder = api().TF_NewOpDefinitionBuilder(op.name);
  for (const char* spec : op.inputs) api().TF_OpDefinitionBuilderAddInput(builder, spec);
  for (const char* spec : op.outputs) api().TF_OpDefinitionBuilderAddOutput(builder, spec);
  for (const char* spec : op.attributes) api().TF_OpDefinitionBuilderAddAttr(builder, spec);
  // Otherwise TensorFlow would merge two ops of the same input, and fold an op of a constant.
  api().TF_OpDefinitionBuilderSetIsStateful(builder, true);
  api().TF_OpDefinitionBuilderSetShapeInferenceFunction(builder, op.infer);
  const StatusHolder status = new_status();
  api().TF_RegisterOpDefinition(builder, status.get());
  return is_ok(status) ? "" : std::string(op.name) + ": " + api().TF_Message(status.get());
}

}  // namespace

std::string register_ops() {
  for (const Op& op : kOps) {
    if (std::string wrong = register_op(op); !wrong.empty()) return wrong;
  }
  return "";
}

}  // namespace perseus::tensorflow
