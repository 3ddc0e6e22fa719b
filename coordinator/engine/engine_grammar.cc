// Texts that obey a grammar: which ids may come next, found beside the loop's thread, and how the last stage learns it
// (docs/grammar.md).
#include <system_error>
#include <utility>

#include "coordinator/engine/engine_state.h"

namespace gyre {
namespace {

std::shared_ptr<const grammar::TokenMask> WithToken(grammar::TokenMask mask, TokenId token) {
  uint64_t& word = mask.words[static_cast<size_t>(token) / 64];
  const uint64_t bit = uint64_t{1} << static_cast<size_t>(token) % 64;
  mask.allowed += (word & bit) == 0 ? 1 : 0;
  word |= bit;
  if (mask.allowed != 1) mask.forced = -1;
  mask.only_ends = false;
  return std::make_shared<const grammar::TokenMask>(std::move(mask));
}

}  // namespace

// The request's text so far may have tokens of a process before.
void Engine::Impl::BeginGrammar(Sequence& s) {
  if (s.request.grammar == nullptr) return;
  s.grammar_state = s.request.grammar->start();
  BeginReasoning(s);
  auto token = s.tokens.begin() + static_cast<std::ptrdiff_t>(s.request.prompt.size());
  std::string content;
  if (token != s.tokens.end()) BeginUnopened(s, *token);
  while (s.reasoning && token != s.tokens.end()) EndReasoning(s, *token++, &content);
  if (s.reasoning && s.open_token < 0) return;  // any id may come
  FindMask(s, std::move(content), {token, s.tokens.end()});
}

// Where an answer may begin with reasoning, the grammar begins behind it.
void Engine::Impl::BeginReasoning(Sequence& s) {
  const AnswerFormat& format = s.request.answer_format;
  if (options_.tokenizer == nullptr || !(format.channels || !format.close.empty())) return;
  s.reasoning.emplace(format);
  if (s.reasoning->part() == AnswerSplitter::Part::kReasoning) return;
  // The model decides, if one token opens reasoning.
  if (s.reasoning->part() == AnswerSplitter::Part::kBefore) {
    const auto ids = options_.tokenizer->Encode(format.open, {.add_special = false, .parse_special = true});
    if (ids.size() == 1) s.open_token = ids.front();
  }
  if (s.open_token < 0) s.reasoning.reset();
}

// The grammar begins with the answer's first token, unless that opens reasoning.
void Engine::Impl::BeginUnopened(Sequence& s, TokenId first) {
  if (s.open_token >= 0 && first != s.open_token) s.reasoning.reset();
  s.open_token = -1;
}

// Takes in a token while the grammar has not begun. `content`: what stands behind the end of reasoning in it.
void Engine::Impl::EndReasoning(Sequence& s, TokenId token, std::string* content) {
  for (const AnswerSplitter::Piece& piece : s.reasoning->Push(token, options_.tokenizer->Piece(token))) {
    if (!piece.reasoning) *content += piece.text;
  }
  if (s.reasoning->part() == AnswerSplitter::Part::kContent) s.reasoning.reset();
}

// The text has one token more.
void Engine::Impl::AdvanceGrammar(Sequence& s, TokenId token) {
  grammar::CompiledGrammar& g = *s.request.grammar;
  s.mask = nullptr;
  BeginUnopened(s, token);
  if (s.reasoning) {
    std::string content;
    EndReasoning(s, token, &content);
    if (!s.reasoning) FindMask(s, std::move(content), {});
    return;
  }
  const auto next = g.CachedAdvance(s.grammar_state, token);
  if (!next) return FindMask(s, {}, {token});
  s.grammar_state = *next;
  s.mask = g.CachedMask(s.grammar_state);
  if (s.mask == nullptr) FindMask(s, {}, {});
}

// Finds the state behind further bytes and tokens, and its mask, on another thread: that may take milliseconds.
void Engine::Impl::FindMask(Sequence& s, std::string bytes, std::vector<TokenId> tokens) {
  scheduler_->AwaitMask(s.id);
  try {
    if (!mask_makers_) mask_makers_.emplace("masks", "masks are to be made", WorkPool::Limits{.threads = 2});
  } catch (const std::system_error& e) {
    return Fail(s, ResourceExhausted("no thread for the grammar's masks: {}", e.what()));
  }
  const Status posted =
      mask_makers_->Post([this, seq = s.id, g = s.request.grammar, from = s.grammar_state, bytes = std::move(bytes),
                          tokens = std::move(tokens), opens = s.open_token] {
        auto found = [&]() -> StatusOr<GrammarStep> {
          GYRE_ASSIGN_OR_RETURN(grammar::GrammarState state, g->Advance(from, bytes));
          for (const TokenId token : tokens) {
            GYRE_ASSIGN_OR_RETURN(state, g->Advance(state, token));
          }
          GYRE_ASSIGN_OR_RETURN(auto mask, g->Mask(state));
          return GrammarStep{.state = state, .mask = opens < 0 ? std::move(mask) : WithToken(*mask, opens)};
        }();
        Post([this, seq, found = std::move(found)] { OnMask(seq, found); });
      });
  if (!posted.ok()) Fail(s, posted);
}

void Engine::Impl::OnMask(SeqId seq, const StatusOr<GrammarStep>& found) {
  Sequence* s = Find(seq);
  if (s == nullptr) return;
  if (!found.ok()) return Fail(*s, Annotate(found.status(), "the grammar"));
  s->grammar_state = found->state;
  s->mask = found->mask;
  scheduler_->MaskReady(seq);
  // The token before was drawn: if it has no rows on their way, those that must follow can go with it.
  if (s->generated() > 0) ForceTokens(*s);
}

// Tokens that must come whatever the model says need no answer: their rows go in one step. Where log-probabilities are
// asked for, each row has to be answered.
void Engine::Impl::ForceTokens(Sequence& s) {
  if (s.request.logprobs) return;
  while (s.mask != nullptr && s.mask->forced >= 0 && s.generated() > 0) {
    const TokenId token = s.mask->forced;
    if (s.mask->only_ends) return;
    if (!scheduler_->AppendForced(s.id, token).ok()) return;
    ++counts_.forced_tokens;
    const SeqId id = s.id;
    if (!Accept(s, {.token = token, .probability = 1}, 0)) return;
    if (Find(id) == nullptr) return;
  }
}

// Puts the mask for the next token into a step's request, by its number if there is one left.
void Engine::Impl::NameMask(const Sequence& s, StepId step, RowRequest* request) {
  if (request->mask.empty()) return;
  const auto named = mask_numbers_.Name(s.mask, static_cast<uint64_t>(step));
  if (!named) return;
  request->mask.clear();
  request->mask_number = named->number;
  if (named->is_new) new_masks_.push_back({.number = named->number, .words = s.mask->words});
}

Status Engine::Impl::SendMasks() {
  if (new_masks_.empty()) return absl::OkStatus();
  encoder_.Reset();
  EncodeMasks(std::exchange(new_masks_, {}), static_cast<uint32_t>(options_.vocab), &encoder_);
  counts_.mask_bytes_sent += kFrameHeaderBytes + encoder_.size();
  const ByteSpan parts[] = {encoder_.bytes()};
  return ring_.Send(FrameKind::kMasks, parts, RealTime(ring_.silence_deadline()));
}

}  // namespace gyre
