#include "base/step_codec.h"

#include <algorithm>
#include <limits>
#include <unordered_set>

namespace gyre {
namespace {

// Sizes of the fixed parts. A count is checked against them before its elements are read.
constexpr size_t kSeqRowsBytes = 8 + 4 + 4 + 4 + 1 + 4 + 4 + 4 + 4;
constexpr size_t kRequestBytes = 4 + 4 + 1 + 4 + 4 + 4 + 1 + 4;

enum class MaskForm : uint8_t { kNone, kWords, kNumber };
constexpr size_t kAnswerBytes = 8 + 4 + 4 + 1 + 4 + 4 + 8 + 8 + 4 + 4 + 8;

void EncodeRequest(const RowRequest& r, Encoder* out) {
  out->Put(r.first);
  out->Put(r.count);
  out->Put(r.mode);
  out->Put(r.k);
  out->Put(r.temperature);
  out->PutVector(std::span<const TokenId>(r.biased));
  if (r.mask_number) {
    out->Put(MaskForm::kNumber);
    out->Put(*r.mask_number);
  } else if (r.mask.empty()) {
    out->Put(MaskForm::kNone);
  } else {
    out->Put(MaskForm::kWords);
    out->PutVector(std::span<const uint64_t>(r.mask));
  }
  out->Put(r.logprobs ? *r.logprobs + 1 : uint32_t{0});
}

bool KnownMode(RowMode mode) { return mode >= RowMode::kArgmax && mode <= RowMode::kHidden; }

bool DecodeRequest(Decoder& in, uint32_t next_row, uint32_t row_count, RowRequest* r) {
  r->first = in.Get<uint32_t>();
  r->count = in.Get<uint32_t>();
  r->mode = in.Get<RowMode>();
  r->k = in.Get<uint32_t>();
  r->temperature = in.Get<float>();
  in.GetVector(&r->biased);
  const auto form = in.Get<MaskForm>();
  if (form > MaskForm::kNumber) return false;
  r->mask.clear();
  r->mask_number.reset();
  if (form == MaskForm::kWords) in.GetVector(&r->mask);
  if (form == MaskForm::kNumber) r->mask_number = in.Get<uint32_t>();
  if ((form == MaskForm::kWords && r->mask.empty()) || r->mask_number.value_or(0) >= kMaxMasks) return false;
  const auto logprobs = in.Get<uint32_t>();  // 0: none; n + 1: n of the best
  if (!in.ok() || !KnownMode(r->mode)) return false;
  if (logprobs > kMaxTopK + 1 || (logprobs > 0 && r->mode == RowMode::kHidden)) return false;
  r->logprobs.reset();
  if (logprobs > 0) r->logprobs = logprobs - 1;
  if (r->first < next_row || r->count == 0 || r->first >= row_count || r->count > row_count - r->first) return false;
  if (r->mode == RowMode::kTopK && (r->k == 0 || r->k > kMaxTopK)) return false;
  if (!(r->temperature >= 0 && r->temperature <= std::numeric_limits<float>::max())) return false;
  for (size_t i = 0; i < r->biased.size(); ++i) {
    if (r->biased[i] < 0 || (i > 0 && r->biased[i] <= r->biased[i - 1])) return false;
  }
  return true;
}

void EncodeSeqRows(const SeqRows& s, Encoder* out) {
  out->Put(s.seq);
  out->Put(s.incarnation);
  out->Put(s.model);
  out->Put(s.adapter);
  out->Put(s.row_class);
  out->Put(s.first_position);
  out->Put(s.row_count);
  out->Put(static_cast<uint32_t>(s.blocks.size()));
  for (const auto& table : s.blocks) out->PutVector(std::span<const BlockId>(table));
  out->Put(static_cast<uint32_t>(s.requests.size()));
  for (const RowRequest& r : s.requests) EncodeRequest(r, out);
}

bool DecodeSeqRows(Decoder& in, SeqRows* s) {
  s->seq = in.Get<SeqId>();
  s->incarnation = in.Get<uint32_t>();
  s->model = in.Get<uint32_t>();
  s->adapter = in.Get<uint32_t>();
  s->row_class = in.Get<RowClass>();
  s->first_position = in.Get<uint32_t>();
  s->row_count = in.Get<uint32_t>();
  if (!in.ok() || s->row_class > RowClass::kGenerated) return false;
  if (s->row_count == 0 || s->row_count > kMaxStepRows) return false;
  constexpr uint32_t kLast = std::numeric_limits<int32_t>::max();
  if (s->first_position > kLast - s->row_count) return false;
  const uint32_t groups = in.GetCount(4);
  if (!in.ok() || groups == 0 || groups > kMaxKvGroups) return false;
  s->blocks.resize(groups);
  for (auto& table : s->blocks) in.GetVector(&table);
  const uint32_t requests = in.GetCount(kRequestBytes);
  if (!in.ok()) return false;
  s->requests.resize(requests);
  uint32_t next = 0;
  for (RowRequest& r : s->requests) {
    if (!DecodeRequest(in, next, s->row_count, &r)) return false;
    next = r.first + r.count;
  }
  return in.ok();
}

// Behind the sequences, if any of them has drafts of the last stage.
void EncodeMtp(const StepBatch& batch, Encoder* out) {
  const auto count = std::count_if(batch.seqs.begin(), batch.seqs.end(), [](const SeqRows& s) { return s.mtp; });
  if (count == 0) return;
  out->Put(static_cast<uint32_t>(count));
  for (size_t i = 0; i < batch.seqs.size(); ++i) {
    const std::optional<MtpRows>& mtp = batch.seqs[i].mtp;
    if (!mtp) continue;
    out->Put(static_cast<uint32_t>(i));
    out->Put(mtp->first);
    out->Put(mtp->most);
    out->PutVector(std::span<const TokenId>(mtp->next));
  }
}

bool DecodeMtp(Decoder& in, StepBatch* batch) {
  const uint32_t count = in.GetCount(4 * sizeof(uint32_t));
  size_t least = 0;
  for (uint32_t i = 0; i < count; ++i) {
    const auto number = in.Get<uint32_t>();
    if (!in.ok() || number < least || number >= batch->seqs.size()) return false;
    SeqRows& s = batch->seqs[number];
    MtpRows& mtp = s.mtp.emplace();
    mtp.first = in.Get<uint32_t>();
    mtp.most = in.Get<uint32_t>();
    in.GetVector(&mtp.next);
    if (!in.ok() || mtp.next.size() != size_t{s.row_count} + 1 || mtp.first > s.row_count || mtp.most > kMaxMtpDrafts)
      return false;
    least = size_t{number} + 1;
  }
  return in.ok();
}

StatusOr<StepBatch> DecodeBatch(std::span<const std::byte> bytes) {
  Decoder in(bytes);
  StepBatch batch;
  batch.seqs.resize(in.GetCount(kSeqRowsBytes));
  std::unordered_set<uint64_t> seen;
  uint32_t rows = 0;
  for (size_t i = 0; i < batch.seqs.size(); ++i) {
    SeqRows& s = batch.seqs[i];
    if (!DecodeSeqRows(in, &s))
      return DataLoss("step descriptor: sequence {} of {} is malformed", i, batch.seqs.size());
    if (batch.seqs.size() > 1 && !seen.insert(static_cast<uint64_t>(s.seq)).second) {
      return DataLoss("step descriptor: sequence {} stands in it twice", static_cast<uint64_t>(s.seq));
    }
    rows += s.row_count;
    if (rows > kMaxStepRows) return DataLoss("step descriptor: more than {} rows", kMaxStepRows);
  }
  if (in.ok() && in.remaining() > 0 && !DecodeMtp(in, &batch))
    return DataLoss("step descriptor: what it says of drafts is malformed");
  if (!in.Done()) return DataLoss("step descriptor: cut short or {} bytes too long", in.remaining());
  if (batch.seqs.empty()) return DataLoss("step descriptor: no sequences");
  return batch;
}

void PutLogits(const std::vector<TokenLogit>& logits, Encoder* out) {
  out->Put(static_cast<uint32_t>(logits.size()));
  for (const TokenLogit& t : logits) {
    out->Put(t.id);
    out->Put(t.logit);
  }
}

void GetLogits(Decoder& in, std::vector<TokenLogit>* logits) {
  logits->resize(in.GetCount(8));
  for (TokenLogit& t : *logits) {
    t.id = in.Get<TokenId>();
    t.logit = in.Get<float>();
  }
}

void PutQuestion(const FullLogitsRequest& q, Encoder* out) {
  out->Put(q.seq);
  out->Put(q.incarnation);
  out->Put(q.model);
  out->Put(q.position);
}

FullLogitsRequest GetQuestion(Decoder& in) {
  FullLogitsRequest q;
  q.seq = in.Get<SeqId>();
  q.incarnation = in.Get<uint32_t>();
  q.model = in.Get<uint32_t>();
  q.position = in.Get<uint32_t>();
  return q;
}

template <typename T>
StatusOr<T> Whole(const Decoder& in, T value, const char* what) {
  if (!in.ok()) return DataLoss("{}: cut short", what);
  if (in.remaining() != 0) return DataLoss("{}: {} bytes too long", what, in.remaining());
  return value;
}

}  // namespace

void EncodeStepPrefix(const StepBatch& batch, Encoder* out) {
  const size_t begin = out->size();
  out->Put(uint32_t{0});
  out->Put(static_cast<uint32_t>(batch.seqs.size()));
  for (const SeqRows& s : batch.seqs) EncodeSeqRows(s, out);
  EncodeMtp(batch, out);
  out->Patch(begin, static_cast<uint32_t>(out->size() - begin - 4));
  out->PadTo(4);
}

StatusOr<StepPayload> DecodeStepPayload(std::span<const std::byte> payload, size_t width) {
  Decoder in(payload);
  const uint32_t length = in.Get<uint32_t>();
  if (!in.ok() || length > in.remaining()) {
    return DataLoss("step payload: {} bytes do not hold a descriptor of {}", payload.size(), length);
  }
  StepPayload step;
  GYRE_ASSIGN_OR_RETURN(step.batch, DecodeBatch(payload.subspan(4, length)));
  const size_t begin = (size_t{4} + length + 3) / 4 * 4;
  const size_t rows = step.batch.TotalRows();
  if (begin > payload.size() || payload.size() - begin != rows * width) {
    return DataLoss("step payload: {} bytes after the descriptor, expected {} rows of {}",
                    payload.size() - std::min(begin, payload.size()), rows, width);
  }
  step.rows = payload.subspan(begin);
  return step;
}

uint64_t MaxAnswerBytes(const StepBatch& batch, size_t vocab, size_t dim) {
  uint64_t bytes = sizeof(uint32_t);
  for (const SeqRows& s : batch.seqs) {
    for (const RowRequest& r : s.requests) {
      const uint64_t top = r.mode == RowMode::kTopK ? r.k : 1;
      uint64_t row =
          kAnswerBytes + (r.biased.size() + top + r.logprobs.value_or(0)) * (sizeof(TokenId) + sizeof(float));
      if (r.mode == RowMode::kFullLogits) row += vocab * sizeof(float);
      if (r.mode == RowMode::kHidden) row += dim * sizeof(float);
      bytes += r.count * row;
    }
    if (s.mtp) bytes += (6 + kMaxMtpDrafts) * sizeof(uint32_t);
  }
  return bytes;
}

void EncodeStepAnswer(const StepAnswer& answer, Encoder* out) {
  out->Put(static_cast<uint32_t>(answer.rows.size()));
  for (const RowAnswer& r : answer.rows) {
    out->Put(r.seq);
    out->Put(r.incarnation);
    out->Put(r.position);
    out->Put(r.mode);
    PutLogits(r.biased, out);
    PutLogits(r.top, out);
    out->Put(r.log_sum_exp);
    out->Put(r.log_sum_exp_t);
    out->PutVector(std::span<const float>(r.values));
    PutLogits(r.best, out);
    out->Put(r.log_sum_exp_all);
  }
  const auto drafts =
      std::count_if(answer.rows.begin(), answer.rows.end(), [](const RowAnswer& r) { return !r.drafts.empty(); });
  if (drafts == 0 && answer.drafts_us == 0) return;
  out->Put(answer.drafts_us);
  out->Put(static_cast<uint32_t>(drafts));
  for (size_t i = 0; i < answer.rows.size(); ++i) {
    if (answer.rows[i].drafts.empty()) continue;
    out->Put(static_cast<uint32_t>(i));
    out->PutVector(std::span<const TokenId>(answer.rows[i].drafts));
  }
}

// What follows the rows of an answer.
static bool DecodeDrafts(Decoder& in, StepAnswer* answer) {
  answer->drafts_us = in.Get<uint32_t>();
  const uint32_t count = in.GetCount(2 * sizeof(uint32_t));
  for (uint32_t i = 0; i < count; ++i) {
    const auto row = in.Get<uint32_t>();
    if (!in.ok() || row >= answer->rows.size()) return false;
    in.GetVector(&answer->rows[row].drafts);
    if (answer->rows[row].drafts.size() > kMaxMtpDrafts + 1) return false;
  }
  return in.ok();
}

StatusOr<StepAnswer> DecodeStepAnswer(std::span<const std::byte> payload) {
  Decoder in(payload);
  StepAnswer answer;
  answer.rows.resize(in.GetCount(kAnswerBytes));
  for (RowAnswer& r : answer.rows) {
    r.seq = in.Get<SeqId>();
    r.incarnation = in.Get<uint32_t>();
    r.position = in.Get<uint32_t>();
    r.mode = in.Get<RowMode>();
    GetLogits(in, &r.biased);
    GetLogits(in, &r.top);
    r.log_sum_exp = in.Get<double>();
    r.log_sum_exp_t = in.Get<double>();
    in.GetVector(&r.values);
    GetLogits(in, &r.best);
    r.log_sum_exp_all = in.Get<double>();
    if (!in.ok() || !KnownMode(r.mode)) return DataLoss("step answer: a row is malformed");
  }
  if (in.ok() && in.remaining() > 0 && !DecodeDrafts(in, &answer))
    return DataLoss("step answer: its drafts are malformed");
  return Whole(in, std::move(answer), "step answer");
}

void EncodeStepError(const StepError& error, Encoder* out) {
  out->Put(error.stage);
  out->PutString(error.message);
}

StatusOr<StepError> DecodeStepError(std::span<const std::byte> payload) {
  Decoder in(payload);
  StepError error;
  error.stage = in.Get<uint32_t>();
  error.message = in.GetString();
  return Whole(in, std::move(error), "step error");
}

void EncodeFullLogitsRequest(const FullLogitsRequest& question, Encoder* out) { PutQuestion(question, out); }

StatusOr<FullLogitsRequest> DecodeFullLogitsRequest(std::span<const std::byte> payload) {
  Decoder in(payload);
  const FullLogitsRequest question = GetQuestion(in);
  return Whole(in, question, "full-logits request");
}

void EncodeLogitsAnswer(const LogitsAnswer& answer, Encoder* out) {
  PutQuestion(answer.question, out);
  out->PutVector(std::span<const float>(answer.logits));
}

StatusOr<LogitsAnswer> DecodeLogitsAnswer(std::span<const std::byte> payload) {
  Decoder in(payload);
  LogitsAnswer answer;
  answer.question = GetQuestion(in);
  in.GetVector(&answer.logits);
  return Whole(in, std::move(answer), "logits answer");
}

}  // namespace gyre
