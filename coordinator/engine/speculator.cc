#include "coordinator/engine/speculator.h"

#include <algorithm>
#include <utility>

namespace gyre {
namespace {

uint32_t MostBehind(const Sequence& s) { return s.request.max_new_tokens - s.generated() - 1; }

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
  const uint32_t most = MostBehind(*s);
  Drafts drafts = s->drafts->Propose(s->request.speculation, most);
  if (!AskDrafter(s, drafts.chances.empty() ? 0 : drafts.chances.front(), most, scheduler))
    Propose(s, std::move(drafts), scheduler);
}

// Asks the drafter for better guesses than the text's own; the sequence gets no rows until they come.
bool Speculator::AskDrafter(Sequence* s, double own_chance, size_t most, Scheduler* scheduler) const {
  if (options_.drafter == nullptr || options_.speculation == Speculation::kNgram || guide_.Awaits(s->id)) return false;
  if (!scheduler->MayDraft(s->id)) return false;
  const double chance = s->drafts->drafter_chance();
  if (own_chance > chance) return false;
  most = std::min({most, size_t{s->request.speculation.n_max}, size_t{options_.draft_tokens}});
  size_t n = scheduler->DraftsAhead(chance, most, options_.drafter->each());
  if (n == 0 && s->drafts->TriesDrafter()) n = 1;
  if (n == 0) return false;
  const size_t first = std::exchange(s->drafts->told, s->tokens.size());
  scheduler->AwaitDrafts(s->id);
  options_.drafter->Draft({.seq = s->id,
                           .first = first,
                           .tokens = {s->tokens.begin() + static_cast<std::ptrdiff_t>(first), s->tokens.end()},
                           .prompt = s->request.prompt.size(),
                           .most = static_cast<uint32_t>(n),
                           .sampling = s->request.sampling},
                          [answered = options_.answered, id = s->id, size = s->tokens.size()](
                              std::vector<TokenId> drafts) { answered(id, size, std::move(drafts)); });
  return true;
}

void Speculator::Take(Sequence* s, size_t size, std::vector<TokenId> drafts, Scheduler* scheduler) const {
  scheduler->DraftsCame(s->id);
  if (s->tokens.size() != size) return;
  const auto unknown =
      std::find_if(drafts.begin(), drafts.end(), [this](TokenId id) { return id < 0 || id >= options_.vocab; });
  drafts.erase(unknown, drafts.end());
  Propose(s, s->drafts->Take(std::move(drafts), s->request.speculation, MostBehind(*s)), scheduler);
}

void Speculator::Propose(Sequence* s, Drafts drafts, Scheduler* scheduler) const {
  s->masks = guide_.Ahead(s->id, drafts.tokens);
  drafts.tokens.resize(s->masks.empty() ? 0 : s->masks.size() - 1);
  if (!drafts.tokens.empty()) scheduler->Propose(s->id, std::move(drafts));
}

void Speculator::End(const Sequence& s) const {
  if (options_.drafter != nullptr && s.drafts && s.drafts->told > 0) options_.drafter->End(s.id);
}

void Speculator::Stop() const {
  if (options_.drafter != nullptr) options_.drafter->Stop();
}

}  // namespace gyre
