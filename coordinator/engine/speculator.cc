#include "coordinator/engine/speculator.h"

#include <algorithm>
#include <chrono>
#include <utility>

#include "coordinator/engine/learned_time.h"

namespace gyre {
namespace {

// Drafts at most, where so many are in flight.
size_t MostBehind(const Sequence& s, size_t ahead) {
  const size_t most = s.request.max_new_tokens - s.generated() - 1;
  return most - std::min(most, ahead);
}

}  // namespace

void Speculator::Prepare(Sequence* s) const {
  const Request& r = s->request;
  if (options_.speculation != Speculation::kOff && r.speculation.n_max > 0 && r.max_new_tokens > 1)
    s->drafts.emplace(r.prompt, r.prediction);
}

void Speculator::Begin(Sequence* s) {
  if (s->drafts) s->drafts->Begin(&chances_);
}

void Speculator::Speculate(Sequence* s, Scheduler* scheduler) const {
  if (!s->drafts || s->generated() + 1 >= s->request.max_new_tokens) return;
  if (scheduler->AllLaunched(s->id)) return GoOn(s, scheduler);
  const size_t most = MostBehind(*s, 0);
  Drafts drafts = OwnDrafts(s, most);
  const double own_chance = drafts.chances.empty() ? 0 : drafts.chances.front();
  if (ProposeMtp(s, own_chance, most, scheduler)) return;
  if (!AskDrafter(s, own_chance, most, scheduler)) Propose(s, std::move(drafts), scheduler);
}

// Drafts from the text itself.
Drafts Speculator::OwnDrafts(Sequence* s, size_t most, std::span<const TokenId> ahead) const {
  if (!Uses(options_.speculation, Speculation::kNgram)) return {};
  return s->drafts->Propose(s->request.speculation, most, ahead);
}

Speculator::MtpWish Speculator::WishOf(Sequence* s, bool samples, const Scheduler& scheduler) const {
  if (!options_.mtp || !s->drafts || !Uses(options_.speculation, Speculation::kMtp)) return {};
  // Rows of a prompt go through the layer, too: what follows reads their keys and values.
  if (!samples) return {.rows = s->drafts->mtp_chance() >= DraftDepth::kLeastBehind};
  if (!scheduler.MayDraft(s->id)) return {};
  constexpr size_t kUntimed = 2;  // drafts, before it is known how long one takes
  const size_t most = std::min({MostBehind(*s, 0), size_t{s->request.speculation.n_max}, size_t{options_.draft_tokens},
                                mtp_each_ > 0 ? size_t{kMaxMtpDrafts} : kUntimed});
  if (most == 0) return {};
  const auto each = std::chrono::duration_cast<Duration>(std::chrono::duration<double>(mtp_each_));
  size_t count = scheduler.DraftsAhead(s->drafts->mtp_chance(), most, each, false).count;
  if (count == 0 && (s->generated() == 0 || s->drafts->TriesMtp())) count = 1;
  return {.rows = count > 0, .drafts = static_cast<uint32_t>(count)};
}

void Speculator::NoteMtp(Duration took, size_t made) {
  if (made > 0) Learn(&mtp_each_, SecondsOf(took) / static_cast<double>(made));
}

// Proposes what the last stage guessed, where nothing else is likelier. False: it guessed nothing, or wrongly.
bool Speculator::ProposeMtp(Sequence* s, double own_chance, size_t most, Scheduler* scheduler) const {
  const std::vector<TokenId> guesses = s->drafts->TakeGuesses();
  const double chance = s->drafts->mtp_chance();
  if (guesses.empty() || own_chance > chance) return false;
  if (UsesDrafter(*s, *scheduler) && s->drafts->drafter_chance() > chance) return false;
  Propose(s, s->drafts->Take(DraftChances::kMtp, guesses, s->request.speculation, most), scheduler);
  return true;
}

void Speculator::GoOn(Sequence* s, Scheduler* scheduler) const {
  // The masks of rows behind a grammar's drafts are known only for those.
  if (!s->drafts || s->request.grammar != nullptr || !scheduler->MayGoOn(s->id)) return;
  const std::vector<TokenId> ahead = scheduler->Undecided(s->id);
  const size_t most = MostBehind(*s, ahead.size());
  if (most == 0) return;
  Drafts drafts = OwnDrafts(s, most, ahead);
  if (!AskBehind(s, drafts.chances.empty() ? 0 : drafts.chances.front(), most, ahead, *scheduler))
    Propose(s, std::move(drafts), scheduler);
}

bool Speculator::UsesDrafter(const Sequence& s, const Scheduler& scheduler) const {
  return options_.drafter != nullptr && Uses(options_.speculation, Speculation::kDraft) && options_.drafter->ready() &&
         !guide_.Awaits(s.id) && scheduler.MayDraft(s.id);
}

// Asks the drafter for better guesses than the text's own. Where no others follow while they are in flight, the
// sequence gets no rows until they come.
bool Speculator::AskDrafter(Sequence* s, double own_chance, size_t most, Scheduler* scheduler) const {
  if (!UsesDrafter(*s, *scheduler)) return false;
  const double chance = s->drafts->drafter_chance();
  if (own_chance > chance) return false;
  most = std::min({most, size_t{s->request.speculation.n_max}, size_t{options_.draft_tokens}});
  DraftsWanted wanted = scheduler->DraftsAhead(chance, most, options_.drafter->each());
  if (wanted.count == 0 && s->drafts->TriesDrafter()) wanted.count = 1;
  if (wanted.count == 0) return false;
  if (!wanted.goes_on || s->request.grammar != nullptr) scheduler->AwaitDrafts(s->id);
  Ask(s, wanted.count, {});
  return true;
}

// Asks for what follows the drafts in flight. True: the text's own guesses are not wanted.
bool Speculator::AskBehind(Sequence* s, double own_chance, size_t most, const std::vector<TokenId>& ahead,
                           const Scheduler& scheduler) const {
  if (!UsesDrafter(*s, scheduler)) return false;
  const double chance = s->drafts->drafter_chance(), next = s->drafts->ChanceOfFirst(ahead.size()) * chance;
  if (own_chance > next) return false;
  most = std::min({most, size_t{s->request.speculation.n_max}, size_t{options_.draft_tokens}});
  const DraftsWanted wanted = scheduler.DraftsAhead(chance, most, options_.drafter->each());
  if (!wanted.goes_on) return false;
  if (s->drafts->question.open) return true;
  if (next < DraftDepth::kLeastBehind) return false;
  Ask(s, wanted.count, ahead);
  return true;
}

void Speculator::Ask(Sequence* s, size_t most, std::vector<TokenId> ahead) const {
  const size_t first = std::exchange(s->drafts->told, s->tokens.size());
  std::vector<TokenId> tokens(s->tokens.begin() + static_cast<std::ptrdiff_t>(first), s->tokens.end());
  tokens.insert(tokens.end(), ahead.begin(), ahead.end());
  const size_t assumed = ahead.size();
  RequestDrafts::Question& question = s->drafts->question;
  question = {.number = question.number + 1, .known = s->tokens.size(), .assumed = std::move(ahead), .open = true};
  options_.drafter->Draft({.seq = s->id,
                           .first = first,
                           .tokens = std::move(tokens),
                           .assumed = assumed,
                           .prompt = s->request.prompt.size(),
                           .most = static_cast<uint32_t>(most),
                           .sampling = s->request.sampling},
                          [answered = options_.answered, id = s->id, number = question.number](
                              std::vector<TokenId> drafts) { answered(id, number, std::move(drafts)); });
}

void Speculator::Take(Sequence* s, uint64_t number, std::vector<TokenId> drafts, Scheduler* scheduler) const {
  RequestDrafts::Question& question = s->drafts->question;
  if (number != question.number) return;
  question.open = false;
  scheduler->DraftsCame(s->id);
  const auto unknown =
      std::find_if(drafts.begin(), drafts.end(), [this](TokenId id) { return id < 0 || id >= options_.vocab; });
  drafts.erase(unknown, drafts.end());
  // What came since, and what is in flight, must be what was assumed, or guessed.
  const std::vector<TokenId> ahead = scheduler->Undecided(s->id);
  std::vector<TokenId> since(s->tokens.begin() + static_cast<std::ptrdiff_t>(question.known), s->tokens.end());
  since.insert(since.end(), ahead.begin(), ahead.end());
  std::vector<TokenId> guessed = std::move(question.assumed);
  const bool none = drafts.empty();
  guessed.insert(guessed.end(), drafts.begin(), drafts.end());
  if (guessed.size() < since.size() || !std::equal(since.begin(), since.end(), guessed.begin())) return;
  guessed.erase(guessed.begin(), guessed.begin() + static_cast<std::ptrdiff_t>(since.size()));
  // Where all of them came too late, the next ones are asked for.
  if (guessed.empty() && !none) return GoOn(s, scheduler);
  const size_t most = MostBehind(*s, ahead.size());
  Propose(s, s->drafts->Take(DraftChances::kDrafter, guessed, s->request.speculation, most, ahead), scheduler);
}

void Speculator::Propose(Sequence* s, Drafts drafts, Scheduler* scheduler) const {
  if (s->request.grammar != nullptr) {
    s->masks = guide_.Ahead(s->id, drafts.tokens);
    drafts.tokens.resize(s->masks.empty() ? 0 : s->masks.size() - 1);
    drafts.in_one_step = true;
  }
  drafts.least = s->request.speculation.n_min;
  if (!drafts.tokens.empty()) scheduler->Propose(s->id, std::move(drafts));
}

void Speculator::End(const Sequence& s) const {
  if (options_.drafter != nullptr && s.drafts && s.drafts->told > 0) options_.drafter->End(s.id);
}

void Speculator::Stop() const {
  if (options_.drafter != nullptr) options_.drafter->Stop();
}

}  // namespace gyre
