#include "coordinator/engine/grammar_guide.h"

#include <exception>
#include <system_error>
#include <utility>

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

Status GrammarGuide::Begin(SeqId seq, const Request& request, std::span<const TokenId> generated) {
  if (request.grammar == nullptr) return absl::OkStatus();
  Text& text = texts_[seq];
  text.grammar = request.grammar;
  text.state = request.grammar->start();
  // Where log-probabilities are asked for, each row has to be answered.
  text.jumps = request.grammar->jumps_ahead() && !request.logprobs;
  BeginReasoning(request, &text);
  std::string content;
  size_t at = 0;
  while (text.reasoning && at < generated.size()) EndReasoning(generated[at++], &text, &content);
  if (text.reasoning && text.open_token < 0) return Reason(seq, &text);
  return Find(seq, &text, std::move(content), {generated.begin() + static_cast<std::ptrdiff_t>(at), generated.end()});
}

// Where an answer may begin with reasoning, the grammar begins behind it.
void GrammarGuide::BeginReasoning(const Request& request, Text* text) const {
  const AnswerFormat& format = request.answer_format;
  if (options_.tokenizer == nullptr || !(format.channels || !format.close.empty())) return;
  text->reasoning.emplace(format);
  if (text->reasoning->part() == AnswerSplitter::Part::kReasoning) return;
  // The model decides, if one token opens reasoning.
  if (text->reasoning->part() == AnswerSplitter::Part::kBefore) {
    const auto ids = options_.tokenizer->Encode(format.open, {.add_special = false, .parse_special = true});
    if (ids.size() == 1) text->open_token = ids.front();
  }
  if (text->open_token < 0) text->reasoning.reset();
}

// Takes in a token while the grammar has not begun. `content`: what stands behind the end of reasoning in it.
void GrammarGuide::EndReasoning(TokenId token, Text* text, std::string* content) const {
  if (text->open_token >= 0 && token != text->open_token) {
    *content += grammar::PieceOf(*options_.tokenizer, token);
    text->reasoning.reset();
  } else {
    for (const AnswerSplitter::Piece& piece : text->reasoning->Push(token, options_.tokenizer->Piece(token))) {
      if (!piece.reasoning) *content += piece.text;
    }
    if (text->reasoning->part() == AnswerSplitter::Part::kContent) text->reasoning.reset();
  }
  text->open_token = -1;
}

Status GrammarGuide::Advance(SeqId seq, TokenId token) {
  const auto at = texts_.find(seq);
  if (at == texts_.end()) return absl::OkStatus();
  Text& text = at->second;
  text.mask = nullptr;
  if (text.reasoning) {
    std::string content;
    EndReasoning(token, &text, &content);
    return text.reasoning ? Reason(seq, &text) : Find(seq, &text, std::move(content), {});
  }
  const auto next = text.grammar->CachedAdvance(text.state, token);
  if (!next) return Find(seq, &text, {}, {token});
  text.state = *next;
  text.mask = text.grammar->CachedMask(text.state);
  return text.mask == nullptr ? Find(seq, &text, {}, {}) : absl::OkStatus();
}

// In reasoning any id may come, but none that ends it and has an answer behind its end that is no beginning of the
// grammar.
Status GrammarGuide::Reason(SeqId seq, Text* text) {
  const std::string_view marker = text->reasoning->to_end();
  if (!text->grammar->MayPass(marker)) return absl::OkStatus();
  return Search(seq, text, [g = text->grammar, at = text->state, marker = std::string(marker)]() -> StatusOr<Found> {
    GYRE_ASSIGN_OR_RETURN(auto mask, g->MaskBefore(marker, AnswerSplitter::kSpace));
    return Found{.state = at, .mask = std::move(mask)};
  });
}

// Finds the state behind further bytes and tokens, and its mask.
Status GrammarGuide::Find(SeqId seq, Text* text, std::string bytes, std::vector<TokenId> tokens) {
  return Search(seq, text,
                [g = text->grammar, from = text->state, bytes = std::move(bytes), tokens = std::move(tokens),
                 opens = text->open_token]() -> StatusOr<Found> {
                  GYRE_ASSIGN_OR_RETURN(grammar::GrammarState state, g->Advance(from, bytes));
                  for (const TokenId token : tokens) {
                    GYRE_ASSIGN_OR_RETURN(state, g->Advance(state, token));
                  }
                  GYRE_ASSIGN_OR_RETURN(auto mask, g->Mask(state));
                  return Found{.state = state, .mask = opens < 0 ? std::move(mask) : WithToken(*mask, opens)};
                });
}

// Finds the next state and mask on another thread.
Status GrammarGuide::Search(SeqId seq, Text* text, std::function<StatusOr<Found>()> find) {
  text->awaits = true;
  try {
    if (!makers_) makers_.emplace("masks", "masks are to be made", WorkPool::Limits{.threads = 2});
  } catch (const std::system_error& e) {
    return ResourceExhausted("no thread for the grammar's masks: {}", e.what());
  }
  const std::shared_ptr<grammar::CompiledGrammar> g = text->grammar;
  return Post(g.get(), [this, seq, g, find = std::move(find), began = Clock::now()] {
    StatusOr<Found> found = Internal("it was not looked for");
    try {
      found = find();
    } catch (const std::exception& e) {
      found = ResourceExhausted("a mask could not be made: {}", e.what());
    }
    options_.post([this, seq, g, found = std::move(found), took = Duration(Clock::now() - began)] {
      OnSearched(g.get());
      OnFound(seq, found, took);
    });
  });
}

Status GrammarGuide::Post(const grammar::CompiledGrammar* grammar, std::function<void()> search) {
  const auto [waiting, idle] = searches_.try_emplace(grammar);
  if (idle) return makers_->Post(std::move(search));
  waiting->second.push_back(std::move(search));
  return absl::OkStatus();
}

void GrammarGuide::OnSearched(const grammar::CompiledGrammar* grammar) {
  const auto waiting = searches_.find(grammar);
  if (waiting->second.empty()) {
    searches_.erase(waiting);
    return;
  }
  // A pool without bounds takes all.
  (void)makers_->Post(std::move(waiting->second.front()));
  waiting->second.pop_front();
}

void GrammarGuide::OnFound(SeqId seq, const StatusOr<Found>& found, Duration took) {
  const auto at = texts_.find(seq);
  if (at == texts_.end()) return;  // its request ended meanwhile
  Text& text = at->second;
  text.awaits = false;
  if (found.ok()) {
    text.state = found->state;
    text.mask = found->mask;
  }
  options_.found(seq, Annotate(found.status(), "the grammar"), took);
}

const GrammarGuide::Text* GrammarGuide::TextOf(SeqId seq) const {
  const auto at = texts_.find(seq);
  return at == texts_.end() ? nullptr : &at->second;
}

bool GrammarGuide::Awaits(SeqId seq) const {
  const Text* text = TextOf(seq);
  return text != nullptr && text->awaits;
}

GrammarGuide::Mask GrammarGuide::MaskOf(SeqId seq) const {
  const Text* text = TextOf(seq);
  return text == nullptr ? nullptr : text->mask;
}

std::span<const uint64_t> GrammarGuide::WordsOf(SeqId seq) const {
  const Mask mask = MaskOf(seq);
  return mask == nullptr ? std::span<const uint64_t>() : std::span(mask->words);
}

bool GrammarGuide::MayEnd(SeqId seq) const {
  const Text* text = TextOf(seq);
  return text == nullptr || !text->reasoning || text->open_token >= 0 || text->grammar->takes_nothing();
}

bool GrammarGuide::OnlyEnds(SeqId seq) const {
  const Mask mask = MaskOf(seq);
  return mask != nullptr && mask->only_ends;
}

TokenId GrammarGuide::Forced(SeqId seq) const {
  const Text* text = TextOf(seq);
  return text == nullptr || !text->jumps || text->mask == nullptr || text->mask->only_ends ? -1 : text->mask->forced;
}

std::vector<GrammarGuide::Mask> GrammarGuide::Ahead(SeqId seq, std::span<const TokenId> tokens) const {
  const Text* text = TextOf(seq);
  if (text == nullptr) return std::vector<Mask>(tokens.size() + 1);
  if (text->awaits) return {};
  std::vector<Mask> masks{text->mask};
  // Where reasoning goes on, a token may end it, and what follows is not known.
  if (text->reasoning || text->mask == nullptr) return masks;
  grammar::GrammarState state = text->state;
  for (const TokenId token : tokens) {
    const uint64_t word = masks.back()->words[static_cast<size_t>(token) / 64];
    if ((word >> static_cast<size_t>(token) % 64 & 1) == 0) break;
    const auto next = text->grammar->CachedAdvance(state, token);
    Mask mask = next ? text->grammar->CachedMask(*next) : nullptr;
    if (mask == nullptr) break;
    state = *next;
    masks.push_back(std::move(mask));
  }
  return masks;
}

void GrammarGuide::Name(const Mask& mask, StepId step, RowRequest* request) {
  if (request->mask.empty() || mask == nullptr) return;
  const auto named = numbers_.Name(mask, static_cast<uint64_t>(step));
  if (!named) return;
  request->mask.clear();
  request->mask_number = named->number;
  if (named->is_new) news_.push_back({.number = named->number, .words = mask->words});
}

bool GrammarGuide::TakeNews(Encoder* out) {
  if (news_.empty()) return false;
  EncodeMasks(std::exchange(news_, {}), static_cast<uint32_t>(options_.vocab), out);
  return true;
}

}  // namespace gyre
