#include "worker/mtp_drafter.h"

#include <algorithm>
#include <chrono>

#include "base/clock.h"

namespace gyre {
namespace {

// The id that a greedy text has behind the row; MtpRows::kUnknown: the answer does not say.
TokenId Likeliest(const RowAnswer& answer) {
  TokenLogit best{.id = MtpRows::kUnknown};
  for (const auto* logits : {&answer.top, &answer.biased}) {
    for (const TokenLogit& t : *logits) {
      if (best.id == MtpRows::kUnknown || t.logit > best.logit) best = t;
    }
  }
  if (answer.mode != RowMode::kFullLogits || answer.values.empty()) return best.id;
  return static_cast<TokenId>(std::max_element(answer.values.begin(), answer.values.end()) - answer.values.begin());
}

}  // namespace

bool MtpDrafter::Drafts(const StepBatch& batch) {
  return std::any_of(batch.seqs.begin(), batch.seqs.end(), [](const SeqRows& s) { return s.mtp.has_value(); });
}

Status MtpDrafter::Check(const SeqRows& s) const {
  if (!s.mtp) return absl::OkStatus();
  const auto seq = static_cast<uint64_t>(s.seq);
  if (s.mtp->next.size() != size_t{s.row_count} + 1 || s.mtp->most > kMaxMtpDrafts)
    return InvalidArgument("sequence {}: {} drafts of {} tokens behind {} rows", seq, s.mtp->most, s.mtp->next.size(),
                           s.row_count);
  for (size_t i = 0; i < s.mtp->next.size(); ++i) {
    const TokenId id = s.mtp->next[i];
    const bool unknown = id == MtpRows::kUnknown && i == s.row_count;  // only what is behind the last row may be
    if (unknown || (id >= 0 && id < static_cast<TokenId>(vocab_))) continue;
    return InvalidArgument("sequence {}: token id {}, the vocabulary has 0-{}", seq, id, vocab_ - 1);
  }
  const PagePool& pool = *ends_.mtp->layer->pages;
  const std::vector<BlockId>& table = s.blocks[kPageGroup];
  const size_t end = size_t{s.first_position} + s.row_count, block = static_cast<size_t>(pool.view().block_size);
  if (table.size() * block < end)
    return InvalidArgument("sequence {}: {} blocks for {} positions", seq, table.size(), end);
  for (const BlockId page : table) {
    if (page < pool.num_blocks()) continue;
    return InvalidArgument("sequence {}: block {}, this stage has 0-{}", seq, page, pool.num_blocks() - 1);
  }
  return absl::OkStatus();
}

// Behind the step's rows there is room for one more of each sequence: RepeatGuess takes it.
void MtpDrafter::KeepHidden(float* x, size_t rows, size_t sequences, const RowPlaces& logit_rows) {
  float* hidden = hidden_.EnsureCapacity(backend_.device(), (rows + sequences) * dim_);
  forward_.FinalNorm(x, rows, ends_, spec_, hidden);
  if (logit_rows.count() > 0 && logit_rows.count() < rows) backend_.GatherRows(x, dim_, logit_rows.numbers(), dim_, x);
}

// The embeddings of tokens, on the device. Few, or rows of a prompt, which cost more elsewhere.
const float* MtpDrafter::Embedded(std::span<const TokenId> ids) {
  const WeightView& embedding = ends_.mtp->embedding;
  host_.resize(ids.size() * dim_);
  for (size_t r = 0; r < ids.size(); ++r) DequantizeRow(embedding, static_cast<size_t>(ids[r]), &host_[r * dim_]);
  const float scale = spec_.embedding_scale;
  for (float& v : host_) v *= scale;
  return backend_.Upload(std::span<const float>(host_)).data();
}

// The row before the item's first one goes through the layer again, if the token that it was given was a guess and
// another one was drawn. Returns whether it does; its hidden state is then that of row number `at`.
bool MtpDrafter::RepeatGuess(const SeqRows& s, size_t at) {
  for (size_t i = 1; i <= guesses_.size(); ++i) {
    const size_t place = (next_guess_ + kGuesses - i) % kGuesses;
    const Guess& guess = guesses_[place];
    if (guess.seq != s.seq || guess.incarnation != s.incarnation || guess.position + 1 != s.first_position) continue;
    if (guess.token == s.mtp->next[0]) return false;
    backend_.Copy(kept_.data() + place * dim_, hidden_.data() + at * dim_, dim_ * sizeof(float));
    return true;
  }
  return false;
}

void MtpDrafter::KeepGuess(const Guess& guess, size_t row) {
  float* kept = kept_.EnsureCapacity(backend_.device(), kGuesses * dim_);
  if (guesses_.size() < kGuesses) guesses_.emplace_back();
  guesses_[next_guess_] = guess;
  backend_.Copy(hidden_.data() + row * dim_, kept + next_guess_ * dim_, dim_ * sizeof(float));
  next_guess_ = (next_guess_ + 1) % kGuesses;
}

// Rows of a sequence, which begin at row `before` of the step, go through the layer. `answers`: those of its rows.
// `extra`: the number of the row that RepeatGuess may take.
void MtpDrafter::AddRows(const SeqRows& s, size_t before, size_t extra, std::span<RowAnswer> answers,
                         std::vector<Drafted>* drafted) {
  std::vector<TokenId> next(s.mtp->next.begin() + 1, s.mtp->next.end());
  SeqRows rows{.seq = s.seq,
               .incarnation = s.incarnation,
               .model = s.model,
               .row_class = s.row_class,
               .first_position = s.first_position,
               .blocks = {s.blocks[kPageGroup]},
               .requests = {}};
  // A greedy text goes on behind the first row whose likeliest token is not the one that stands there.
  RowAnswer* turn = nullptr;
  for (RowAnswer& answer : answers) {
    const uint32_t row = answer.position - s.first_position;
    if (row < s.mtp->first || turn != nullptr) continue;
    const TokenId likeliest = Likeliest(answer);
    if (likeliest < 0 || static_cast<size_t>(likeliest) >= vocab_) break;
    if (next[row] == likeliest) continue;
    next[row] = likeliest;
    turn = &answer;
    if (s.mtp->most > 0) rows.requests = {{.first = row, .count = 1}};
    const Guess guess{.seq = s.seq, .incarnation = s.incarnation, .position = answer.position, .token = likeliest};
    made_.push_back({guess, before + row});
  }
  const auto unknown = std::find(next.begin(), next.end(), MtpRows::kUnknown);
  next.erase(unknown, next.end());
  rows.row_count = static_cast<uint32_t>(next.size());
  if (next.empty()) return;
  if (s.first_position > 0 && RepeatGuess(s, extra)) {
    rows_.push_back(static_cast<uint32_t>(extra));
    ids_.push_back(s.mtp->next[0]);
    --rows.first_position;
    ++rows.row_count;
    for (RowRequest& r : rows.requests) ++r.first;
  }
  for (size_t i = 0; i < next.size(); ++i) rows_.push_back(static_cast<uint32_t>(before + i));
  ids_.insert(ids_.end(), next.begin(), next.end());
  batch_.seqs.push_back(std::move(rows));
  if (turn == nullptr || s.mtp->most == 0) return;
  turn->drafts = {next[turn->position - s.first_position]};
  drafted->push_back({.rows = &s, .answer = turn});
}

void MtpDrafter::Draft(const StepBatch& batch, StepAnswer* answer) {
  const Deadline began = Clock::now();
  const MtpHead& mtp = *ends_.mtp;
  batch_.seqs.clear();
  ids_.clear();
  rows_.clear();
  made_.clear();
  std::vector<Drafted> drafted;
  size_t row = 0, first_answer = 0;
  const size_t count = batch.TotalRows();
  size_t extra = count;
  for (const SeqRows& s : batch.seqs) {
    size_t answers = 0;
    for (const RowRequest& r : s.requests) answers += r.count;
    if (s.mtp) AddRows(s, row, extra++, std::span(answer->rows).subspan(first_answer, answers), &drafted);
    row += s.row_count;
    first_answer += answers;
  }
  if (ids_.empty()) return;
  for (const auto& [guess, at] : made_) KeepGuess(guess, at);
  const size_t rows = ids_.size();
  places_.Fill(batch_, backend_);
  logit_rows_.FillLogitRows(batch_, places_, backend_);
  const float* hidden = hidden_.data();
  bool all = rows == count;  // in their order
  for (size_t i = 0; all && i < rows; ++i) all = rows_[i] == i;
  if (!all) {
    float* gathered = gathered_.EnsureCapacity(backend_.device(), rows * dim_);
    backend_.GatherRows(hidden, dim_, backend_.Upload(std::span<const uint32_t>(rows_)), dim_, gathered);
    hidden = gathered;
  }
  float* x = x_.EnsureCapacity(backend_.device(), rows * dim_);
  forward_.JoinForDrafts(mtp, Embedded(ids_), hidden, places_, x);
  forward_.RunLayer(*mtp.layer, mtp.layer->pages.get(), places_, logit_rows_.count() < rows ? logit_rows_ : places_, x);
  if (!drafted.empty()) {
    forward_.DraftNorm(mtp, x, drafted.size(), x);
    DraftNext(drafted, x);
  }
  backend_.Finish();
  const auto us = std::chrono::duration_cast<std::chrono::microseconds>(Clock::now() - began).count();
  answer->drafts_us = static_cast<uint32_t>(std::clamp<int64_t>(us, 1, UINT32_MAX));
}

// Reads each text's next draft from the layer's normed output, `hidden` in x_, and goes on with the texts that want
// more and have pages for them.
void MtpDrafter::DraftNext(std::span<const Drafted> drafted, const float* hidden) {
  const MtpHead& mtp = *ends_.mtp;
  const PackedWeight& output = mtp.output != nullptr ? *mtp.output : *ends_.output;
  std::vector<Drafted> left(drafted.begin(), drafted.end());
  while (!left.empty()) {
    float* logits = logits_.EnsureCapacity(backend_.device(), left.size() * vocab_);
    forward_.Head(hidden, left.size(), output, ends_, spec_, logits);
    selected_.Clear();
    for (size_t i = 0; i < left.size(); ++i) selected_.AskBest(logits + i * vocab_, 1, {}, {});
    selected_.Find(vocab_, backend_);
    backend_.Finish();
    std::vector<Drafted> more;
    rows_.clear();
    ids_.clear();
    batch_.seqs.clear();
    for (size_t i = 0; i < left.size(); ++i) {
      const auto& [rows, answer] = left[i];
      const std::vector<TokenLogit> best = selected_.Best(i);
      if (best.empty() || best[0].id < 0 || static_cast<size_t>(best[0].id) >= vocab_) continue;
      answer->drafts.push_back(best[0].id);
      // The guess is one token, and the row that it was read from has the position before that of the next row.
      const size_t made = answer->drafts.size() - 1, position = answer->position + made;
      const auto block = static_cast<size_t>(mtp.layer->pages->view().block_size);
      if (made >= rows->mtp->most || position >= rows->blocks[kPageGroup].size() * block) continue;
      rows_.push_back(static_cast<uint32_t>(i));
      ids_.push_back(best[0].id);
      batch_.seqs.push_back({.seq = rows->seq,
                             .row_class = RowClass::kGenerated,
                             .first_position = static_cast<uint32_t>(position),
                             .row_count = 1,
                             .blocks = {rows->blocks[kPageGroup]},
                             .requests = {}});
      more.push_back(left[i]);
    }
    left = std::move(more);
    if (left.empty()) return;
    float* gathered = gathered_.EnsureCapacity(backend_.device(), left.size() * dim_);
    backend_.GatherRows(hidden, dim_, backend_.Upload(std::span<const uint32_t>(rows_)), dim_, gathered);
    places_.Fill(batch_, backend_);
    float* x = x_.data();
    forward_.JoinForDrafts(mtp, Embedded(ids_), gathered, places_, x);
    forward_.RunLayer(*mtp.layer, mtp.layer->pages.get(), places_, places_, x);
    forward_.DraftNorm(mtp, x, left.size(), x);
    hidden = x;
  }
}

}  // namespace gyre
