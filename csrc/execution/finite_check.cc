#include "execution/finite_check.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <string>

#include "base/rank_names.h"
#include "base/settings.h"
#include "collectives/parts.h"
#include "device/cpu/kernels.h"
#include "execution/run_options.h"

namespace perseus {
namespace {

// The exchange of findings takes the last part of a shard's message numbers; the shard's own
// collective begins with the first.
constexpr uint32_t kFindingsPart = 127;

// A code is the element's index times four, plus one of these.
enum Kind : uint64_t { kNan, kInfinity };
constexpr uint64_t kKinds = 4;
constexpr uint64_t kAllFinite = UINT64_MAX;
constexpr uint64_t kNothingSubmitted = UINT64_MAX - 1;  // the rank has joined

bool is_found(uint64_t code) { return code < kNothingSubmitted; }

uint64_t code_of(uint64_t element, const std::byte* value, DataType type) {
  double number = 0.0;
  convert(&number, DataType::kFloat64, value, type, 1);
  return element * kKinds + (std::isnan(number) ? kNan : kInfinity);
}
uint64_t element_of(uint64_t code) { return code / kKinds; }
std::string name_of(uint64_t code) { return code % kKinds == kNan ? "NaN" : "infinity"; }

void put_zeros(std::byte* values, size_t first, size_t elements, DataType type) {
  const size_t size = size_of(type);
  for (size_t at = first; at < elements;) {
    std::memset(values + at * size, 0, size);
    ++at;
    at += find_non_finite(values + at * size, elements - at, type);
  }
}

// In a minimum or maximum infinity is not a mistake.
NanCheck mode_for(const ShardRun& run, const Settings& settings) {
  const ReduceOp op = run.description().reduce_op;
  if (op == ReduceOp::kMin || op == ReduceOp::kMax) return NanCheck::kOff;
  return settings.nan_check;
}

}  // namespace

struct FiniteCheck::PieceReport {
  std::vector<int> submitters;             // world ranks that submitted something not finite
  ValueCode first_submitted = kAllFinite;  // found by the first of them
  ValueCode first_in_result = kAllFinite;
  bool is_logged_here = false;
  bool is_agreed = false;  // all ranks know

  std::string text(const ShardRun& run, const Piece& piece, DataType dtype, bool put_zeros) const {
    const ValueCode code = submitters.empty() ? first_in_result : first_submitted;
    const size_t tensors = run.batch->agreed[piece.operation].description().tensors.size();
    std::string where = " in step " + std::to_string(run.batch->step) + ", first at element " +
                        std::to_string(element_of(code));
    if (tensors > 1) where += " of tensor " + std::to_string(piece.tensor);
    std::string text;
    if (submitters.empty()) {
      text = "the reduction of finite values made " + name_of(code) + where +
             ": it is out of the range of " + std::string(to_string(dtype));
    } else {
      text = name_ranks({submitters.front()}) + " submitted " + name_of(code) + where;
      if (submitters.size() > 1)
        text += "; so did " + name_ranks({submitters.begin() + 1, submitters.end()});
      if (!is_found(first_in_result) && !put_zeros) text += "; the result is finite all the same";
    }
    if (put_zeros) text += "; 0 was put in its place";
    return text;
  }
};

bool FiniteCheck::is_on(const Settings& settings) { return settings.nan_check != NanCheck::kOff; }

FiniteCheck::FiniteCheck(ShardRun& run, RunContext& context, std::span<const Piece> pieces)
    : run_(run),
      context_(context),
      mode_(mode_for(run, context.settings)),
      pieces_(pieces),
      findings_(context.buffers, is_on() ? pieces.size() : 0) {
  if (!is_on() || !findings_) return;
  for (const Piece& piece : pieces_) {
    const ValueCode submitted = operation(piece) != nullptr ? kAllFinite : kNothingSubmitted;
    findings_.emplace(Finding{{submitted, kAllFinite}});
  }
}

Status FiniteCheck::ready() const {
  return !is_on() || findings_ ? Status::ok() : out_of_scratch(pieces_.size() * sizeof(Finding));
}

DataType FiniteCheck::dtype(const Piece& piece) const {
  return run_.batch->agreed[piece.operation].description().tensors[piece.tensor].dtype;
}

Operation* FiniteCheck::operation(const Piece& piece) const {
  return run_.batch->operations[piece.operation].get();
}

void FiniteCheck::search(Side side, size_t piece, std::byte* values, size_t elements,
                         size_t offset) {
  if (!is_on()) return;
  const size_t first = find_non_finite(values, elements, dtype(pieces_[piece]));
  if (first != elements) found(side, piece, values, first, values, elements, offset);
}

void FiniteCheck::found(Side side, size_t piece, const std::byte* source, size_t first,
                        std::byte* copy, size_t elements, size_t offset) {
  const DataType type = dtype(pieces_[piece]);
  const uint64_t element = pieces_[piece].offset + offset + first;
  found_[side] = true;
  findings_[piece].side[side] = code_of(element, source + first * size_of(type), type);
  if (puts_zeros()) put_zeros(copy, first, elements, type);
}

void FiniteCheck::found_on_gpu(Side side, size_t piece, uint64_t offset, bool is_infinity) {
  found_[side] = true;
  findings_[piece].side[side] =
      (pieces_[piece].offset + offset) * kKinds + (is_infinity ? kInfinity : kNan);
}

bool FiniteCheck::has_to_conclude(bool is_shared) const {
  return is_on() && (found_[kInput] || found_[kResult] || (!is_shared && !puts_zeros()));
}

Task FiniteCheck::conclude(bool is_shared) {
  // With zeros in place there is nothing left to ask others about. And if an input was not finite
  // but the result is (some codecs do that), only this rank knows.
  if (puts_zeros() || (is_shared && !found_[kResult])) {
    conclude_alone(is_shared);
    co_return Status::ok();
  }
  const ProcessSet& set = *run_.batch->set;
  const Group& group = set.group;
  const auto is_asked = [&](size_t i) {
    return !is_shared || is_found(findings_[i].side[kResult]);
  };
  ScratchArray<Finding> mine(context_.buffers, pieces_.size());
  if (!mine) co_return out_of_scratch(pieces_.size() * sizeof(Finding));
  for (size_t i = 0; i < pieces_.size(); ++i) {
    if (is_asked(i)) mine.emplace(findings_[i]);
  }
  const size_t asked = mine.size();
  ScratchArray<Finding> all(context_.buffers, asked * group.size, Finding{});
  ScratchArray<uint64_t> bytes_of(context_.buffers, group.size, asked * sizeof(Finding));
  if (!all || !bytes_of) co_return out_of_scratch(all.size() * sizeof(Finding));
  CollectiveOptions options =
      options_of_part(collective_options(run_, context_, run_.index), kFindingsPart);
  Task gathering = allgather(group, options, mine.data(), all.data(), bytes_of.span());
  const Status status = co_await std::move(gathering);
  PERSEUS_CO_RETURN_IF_ERROR(status);

  size_t place = 0;
  for (size_t i = 0; i < pieces_.size(); ++i) {
    if (!is_asked(i)) continue;
    PieceReport report;
    report.is_agreed = true;
    int logging_rank = -1;
    for (int r = 0; r < group.size; ++r) {
      const Finding& theirs = all[r * asked + place];
      const ValueCode submitted = theirs.side[kInput];
      if (is_found(submitted)) {
        if (report.submitters.empty()) report.first_submitted = submitted;
        if (report.submitters.empty()) logging_rank = r;
        report.submitters.push_back(set.ranks[r]);
      }
      if (logging_rank < 0 && submitted != kNothingSubmitted) logging_rank = r;
      report.first_in_result = std::min(report.first_in_result, theirs.side[kResult]);
    }
    ++place;
    report.is_logged_here = logging_rank == group.index;
    record(pieces_[i], report);
  }
  co_return Status::ok();
}

void FiniteCheck::conclude_alone(bool is_shared) {
  const ProcessSet& set = *run_.batch->set;
  for (size_t i = 0; i < pieces_.size(); ++i) {
    const auto [submitted, first_in_result] = findings_[i].side;
    PieceReport report;
    report.first_in_result = first_in_result;
    report.is_logged_here = is_found(submitted) || !is_shared || set.index == 0;
    if (is_found(submitted)) {
      report.submitters = {set.ranks[set.index]};
      report.first_submitted = submitted;
    }
    record(pieces_[i], report);
  }
}

void FiniteCheck::record(const Piece& piece, const PieceReport& report) {
  Operation* here = operation(piece);
  if (here == nullptr || (report.submitters.empty() && !is_found(report.first_in_result))) return;
  const ValueCode code =
      report.submitters.empty() ? report.first_in_result : report.first_submitted;
  const std::pair place(piece.tensor, element_of(code));
  std::optional<NonFinite>& kept = here->non_finite;
  if (kept && kept->place <= place) return;
  kept = {place, report.text(run_, piece, dtype(piece), puts_zeros()), report.is_logged_here,
          report.is_agreed};
}

}  // namespace perseus
