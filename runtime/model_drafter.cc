#include "runtime/model_drafter.h"

#include <algorithm>
#include <exception>
#include <utility>

#include "base/log.h"
#include "base/thread.h"
#include "coordinator/cluster/planner.h"
#include "coordinator/engine/learned_time.h"
#include "coordinator/engine/sampler.h"
#include "model/tokenizer.h"

namespace gyre {

StatusOr<uint64_t> DraftModelBytes(const Model& draft, uint64_t positions) {
  MemoryCounts counts;
  counts[kPageGroup] = counts[kWindowGroup] = static_cast<uint32_t>((positions + kDraftBlock - 1) / kDraftBlock);
  GYRE_ASSIGN_OR_RETURN(const ModelSizes sizes, SizesOf(draft, counts, static_cast<int>(kDraftBlock), KvType::kF16));
  uint64_t bytes = sizes.both + sizes.MemoryOf(LayerRange{0, sizes.num_layers()});
  for (const uint64_t layer : sizes.layers) bytes += layer;
  return bytes;
}

TokenList TokensOf(const Model& model) {
  TokenList out{.ids = model.spec().vocab, .tokens = {}};
  const Tokenizer* t = model.tokenizer();
  for (TokenId id = 0; t != nullptr && id < t->size(); ++id) out.tokens.push_back({t->Text(id), t->type(id)});
  return out;
}

std::string VocabularyDifference(const TokenList& target, const TokenList& draft) {
  const auto &t = target.tokens, &d = draft.tokens;
  if (t.empty() || d.empty()) {
    if (target.ids == draft.ids) return "";
    return fmt::format("it has {} ids, the model has {}", draft.ids, target.ids);
  }
  for (size_t id = 0; id < std::max(t.size(), d.size()); ++id) {
    const std::string of_target = id < t.size() ? t[id].text : "", of_draft = id < d.size() ? d[id].text : "";
    if (of_target == of_draft) continue;
    // Vocabularies are filled up to round sizes.
    const bool padding =
        (id >= t.size() && d[id].type != TokenType::kNormal) || (id >= d.size() && t[id].type != TokenType::kNormal);
    if (padding) continue;
    return fmt::format("its token {} is '{}', the model's is '{}'", id, of_draft, of_target);
  }
  return "";
}

ModelDrafter::ModelDrafter(const ModelDrafterOptions& options) : options_(options) {}

ModelDrafter::~ModelDrafter() { Stop(); }

StatusOr<std::shared_ptr<ModelDrafter>> ModelDrafter::Open(const ModelDrafterOptions& options) {
  const std::string difference = VocabularyDifference(options.target, TokensOf(*options.model));
  if (!difference.empty()) {
    return FailedPrecondition("{} can't draft for {}: {}", options.model->path(), options.target_name, difference);
  }
  if (options.model->spec().has_slots) {
    return FailedPrecondition("{} can't draft: it has recurrent state, which can't go back behind a wrong guess",
                              options.model->path());
  }
  std::shared_ptr<ModelDrafter> drafter(new ModelDrafter(options));
  GYRE_RETURN_IF_ERROR(drafter->Load());
  GYRE_ASSIGN_OR_RETURN(drafter->thread_, StartThread("drafter", [d = drafter.get()] { d->Loop(); }));
  return drafter;
}

Status ModelDrafter::Load() {
  const Model& model = *options_.model;
  const uint64_t wanted = uint64_t{options_.texts} * ((uint64_t{options_.context} + kDraftBlock - 1) / kDraftBlock);
  if (wanted > (1u << 30))
    return InvalidArgument("{} texts of {} positions are too many", options_.texts, options_.context);
  const auto blocks = static_cast<uint32_t>(wanted);
  backend_ = options_.device->NewBackend();
  StageParts parts{.model = options_.model,
                   .range = {0, static_cast<int>(model.spec().layers.size())},
                   .first = true,
                   .last = true,
                   .layers = {},
                   .ends = {}};
  for (int i = 0; i < parts.range.end; ++i) {
    GYRE_ASSIGN_OR_RETURN(auto layer, LoadLayer(model, i, *backend_, [](size_t) {}));
    PrepareRequest sizes;
    sizes.memory.units = {blocks, 0, blocks};
    sizes.block_size = kDraftBlock;
    sizes.kv_type = KvType::kF16;
    GYRE_ASSIGN_OR_RETURN(layer->pages,
                          PagePool::For(layer->spec, model.spec().dim, PoolSizes(sizes), *options_.device));
    parts.layers.push_back(std::move(layer));
  }
  GYRE_ASSIGN_OR_RETURN(parts.ends, LoadEnds(model, true, true, *backend_, [](size_t) {}));
  stage_ = std::make_unique<Stage>(std::move(parts), *backend_, false, WireType::kF32);
  blocks_ = blocks;
  Forget();
  return absl::OkStatus();
}

void ModelDrafter::Draft(DraftQuestion question, std::function<void(std::vector<TokenId>)> answer) {
  std::function<void(std::vector<TokenId>)> unwanted;
  {
    MutexLock lock(&mutex_);
    const auto older = std::find_if(asked_.begin(), asked_.end(),
                                    [&question](const Asked& a) { return a.question.seq == question.seq; });
    if (older != asked_.end()) {
      // Only the newer answer is of use. Its question goes on from what the older one told of the text.
      std::vector<TokenId>& told = older->question.tokens;
      told.resize(std::min(told.size(), question.first - std::min(question.first, older->question.first)));
      question.tokens.insert(question.tokens.begin(), told.begin(), told.end());
      question.first = older->question.first;
      unwanted = std::move(older->answer);
      asked_.erase(older);
    }
    if (!stopping_) asked_.push_back({.question = std::move(question), .answer = std::move(answer), .drafts = {}});
  }
  changed_.Signal();
  if (unwanted) unwanted({});
}

void ModelDrafter::End(SeqId seq) {
  MutexLock lock(&mutex_);
  ended_.push_back(seq);
}

void ModelDrafter::Stop() {
  {
    MutexLock lock(&mutex_);
    stopping_ = true;
  }
  changed_.Signal();
  if (thread_.joinable()) thread_.join();
}

void ModelDrafter::Loop() {
  for (;;) {
    std::vector<Asked> asked;
    std::vector<SeqId> ended;
    {
      MutexLock lock(&mutex_);
      while (!stopping_ && asked_.empty() && !behind_) changed_.Wait(&mutex_);
      if (stopping_) return;
      asked.assign(std::make_move_iterator(asked_.begin()), std::make_move_iterator(asked_.end()));
      asked_.clear();
      ended = std::exchange(ended_, {});
    }
    // The edge of the thread: without drafts texts go on more slowly, and what was computed is not trusted any more.
    try {
      if (asked.empty()) {
        Advance();
      } else {
        Serve(&asked);
      }
    } catch (const std::exception& e) {
      Log(LogLevel::kWarn, "the draft model failed, and begins anew: {}", e.what());
      Forget();
    }
    // Every question gets an answer, as its sequence has no rows until then.
    for (Asked& a : asked) a.answer(std::move(a.drafts));
    // Texts end after the questions are answered, as a question may have come before its text's end.
    for (const SeqId seq : ended) {
      const auto text = texts_.find(seq);
      if (text == texts_.end()) continue;
      free_.insert(free_.end(), text->second.blocks.begin(), text->second.blocks.end());
      texts_.erase(text);
    }
  }
}

void ModelDrafter::Forget() {
  texts_.clear();
  behind_.reset();
  free_.clear();
  for (BlockId block = blocks_; block > 0; --block) free_.push_back(block - 1);
}

SeqRows ModelDrafter::RowsOf(const Text& text, size_t first, size_t count) const {
  SeqRows rows{.seq = text.seq,
               .row_class = RowClass::kGenerated,
               .first_position = static_cast<uint32_t>(first),
               .row_count = static_cast<uint32_t>(count),
               .blocks = {text.blocks},
               .requests = {}};
  const ModelSpec& spec = options_.model->spec();
  rows.blocks.resize(static_cast<size_t>(spec.kv_groups));
  if (spec.window > 0) rows.blocks[kWindowGroup] = WindowTable{.first = 0, .blocks = text.blocks}.Entries();
  return rows;
}

// Takes blocks for `positions` positions; other texts give theirs up, the longest unused first.
bool ModelDrafter::Hold(Text* text, size_t positions) {
  const auto most = static_cast<size_t>(options_.model->spec().most_context);
  if (positions > options_.context || (most > 0 && positions > most)) return false;
  while (text->blocks.size() * kDraftBlock < positions) {
    if (free_.empty()) {
      Text* victim = nullptr;
      for (auto& [seq, other] : texts_) {
        if (&other == text || other.blocks.empty() || other.used == text->used) continue;
        if (victim == nullptr || other.used < victim->used) victim = &other;
      }
      if (victim == nullptr) return false;
      free_.swap(victim->blocks);
      victim->computed.clear();
    }
    text->blocks.push_back(free_.back());
    free_.pop_back();
  }
  return true;
}

bool ModelDrafter::CatchUp(Text* text, const DraftQuestion& question) {
  text->seq = question.seq;
  text->used = served_;
  // Without its beginning nothing can be said of a text.
  if (question.first > text->tokens.size()) return false;
  text->tokens.resize(question.first);
  text->tokens.insert(text->tokens.end(), question.tokens.begin(), question.tokens.end());
  // The model's vocabulary may be longer than this one's.
  const TokenId vocab = options_.model->spec().vocab;
  if (std::any_of(question.tokens.begin(), question.tokens.end(), [vocab](TokenId id) { return id >= vocab; })) {
    text->tokens.clear();
    return false;
  }
  if (!Hold(text, text->tokens.size() + question.most)) return false;
  const auto [computed, token] =
      std::mismatch(text->computed.begin(), text->computed.end(), text->tokens.begin(), text->tokens.end() - 1);
  text->computed.erase(computed, text->computed.end());
  if (!ComputeChunk(text)) return false;
  if (text->computed.size() + 1 == text->tokens.size()) return true;
  // A long prompt is computed while nobody asks, so that no other text waits for it.
  behind_ = text->seq;
  return false;
}

// Up to a chunk of what the text has more than its pages. False: it failed.
bool ModelDrafter::ComputeChunk(Text* text) {
  const size_t first = text->computed.size();
  const size_t count = std::min<size_t>(options_.chunk, text->tokens.size() - 1 - first);
  if (count == 0) return true;
  const StepBatch batch{.seqs = {RowsOf(*text, first, count)}};
  const std::span<const TokenId> ids = std::span(text->tokens).subspan(first, count);
  StepAnswer none;
  if (!stage_->Run(batch, std::as_bytes(ids), ++step_, &none).ok()) return false;
  text->computed.insert(text->computed.end(), ids.begin(), ids.end());
  return true;
}

void ModelDrafter::Advance() {
  const auto text = texts_.find(*std::exchange(behind_, std::nullopt));
  // Another text may have taken its blocks.
  if (text == texts_.end() || text->second.blocks.size() * kDraftBlock < text->second.tokens.size()) return;
  if (ComputeChunk(&text->second) && text->second.computed.size() + 1 < text->second.tokens.size())
    behind_ = text->first;
}

// One more token for each of these texts, by the settings and the random numbers of the text's own draws.
void ModelDrafter::Compute(const std::vector<Asked*>& round) {
  StepBatch batch;
  std::vector<TokenId> ids;
  for (const Asked* a : round) {
    Text& text = texts_[a->question.seq];
    batch.seqs.push_back(RowsOf(text, text.computed.size(), 1));
    ids.push_back(text.tokens[text.computed.size()]);
    batch.seqs.back().requests.push_back(
        MakeRowRequest(a->question.sampling, {.tokens = text.tokens, .prompt_length = a->question.prompt}, {}));
  }
  StepAnswer answer;
  const Status status = stage_->Run(batch, std::as_bytes(std::span(ids)), ++step_, &answer);
  if (!status.ok()) {
    Log(LogLevel::kWarn, "the draft model failed: {}", Message(status));
    return;
  }
  for (size_t i = 0; i < round.size(); ++i) {
    Text& text = texts_[round[i]->question.seq];
    text.computed.push_back(ids[i]);
    const SamplingParams& params = round[i]->question.sampling;
    const TokenHistory history{.tokens = text.tokens, .prompt_length = round[i]->question.prompt};
    const RowAnswer& row = answer.rows[i];
    TokenId token = -1;
    if (row.mode == RowMode::kFullLogits) {
      const auto draw = SampleFull(params, history, {}, row.values, row.position);
      if (draw.ok()) token = draw->token;
    } else {
      const auto draw = SampleCandidates(params, history, batch.seqs[i].requests[0], row, options_.model->spec().vocab);
      if (draw.ok() && draw->has_value()) token = (*draw)->token;
      if (token < 0 && !row.top.empty()) token = row.top.front().id;
    }
    if (token < 0) continue;
    round[i]->drafts.push_back(token);
    text.tokens.push_back(token);
  }
}

void ModelDrafter::Serve(std::vector<Asked>* asked) {
  ++served_;
  const Deadline began = Clock::now();
  std::vector<Asked*> able;
  for (Asked& a : *asked) {
    if (CatchUp(&texts_[a.question.seq], a.question)) able.push_back(&a);
  }
  uint32_t rounds = 0;
  for (; !stopping_; ++rounds) {
    std::vector<Asked*> round;
    for (Asked* a : able) {
      if (a->drafts.size() == rounds && rounds < a->question.most) round.push_back(a);
    }
    if (round.empty()) break;
    Compute(round);
  }
  if (rounds > 0) {
    LearnGuess(&each_, std::chrono::nanoseconds(Clock::now() - began).count() / rounds);
  }
  for (Asked& a : *asked) {
    Text& text = texts_[a.question.seq];
    // The guesses are no tokens of the text yet.
    text.tokens.resize(text.tokens.size() - a.drafts.size());
  }
}

}  // namespace gyre
