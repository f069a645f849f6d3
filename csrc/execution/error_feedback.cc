#include "execution/error_feedback.h"

#include "codec/codec.h"
#include "execution/run_options.h"

namespace perseus {
namespace {

// Sets have other members in another world, and other ids.
void name_residual(std::string& name, const Batch& batch, uint32_t operation, uint32_t tensor) {
  name = std::to_string(batch.set->id);
  name += '/';
  name += batch.agreed[operation].key();
  name += '/';
  name += std::to_string(tensor);
}

}  // namespace

Residuals::Parts residual_of(ShardRun& run, const RunContext& context, const Piece& piece) {
  const Batch& batch = *run.batch;
  if (batch.operations[piece.operation] == nullptr) return {};
  const Agreement::Ready& agreed = batch.agreed[piece.operation];
  name_residual(run.residual_name, batch, piece.operation, piece.tensor);
  const auto elements = static_cast<size_t>(agreed.description().tensors[piece.tensor].elements());
  // An operation without a name of its own gets a number, and in another world another one.
  const bool outlives_world = batch.set->id == ProcessSet::kWorld && !is_numbered(agreed.key());
  const Residuals::Parts whole =
      context.residuals.of({run.residual_name, elements, outlives_world});
  return {whole.last.subspan(piece.offset, piece.elements),
          whole.next.subspan(piece.offset, piece.elements)};
}

void end_error_feedback(const Batch& batch, uint32_t operation, const RunContext& context,
                        bool is_ok, std::string& name) {
  const Description& description = batch.agreed[operation].description();
  if (description.kind != OperationKind::kAllreduce) return;
  for (uint32_t i = 0; i < description.tensors.size(); ++i) {
    const Codec* coding = codec_for(description, description.tensors[i].dtype, context.settings);
    if (coding == nullptr || !coding->has_error_feedback()) continue;
    name_residual(name, batch, operation, i);
    context.residuals.operation_ended(name, is_ok);
  }
}

}  // namespace perseus
