// Questions for the full logits of rows whose candidates did not decide the draw (docs/structure.md). Pure.
#pragma once

#include <map>
#include <utility>
#include <vector>

#include "base/ids.h"
#include "base/step.h"

namespace gyre {

// At most one of each sequence. Not thread-safe: the engine's loop owns it.
class FullLogitsRequests {
 public:
  bool empty() const { return open_.empty(); }
  bool Asks(SeqId seq) const { return open_.count(seq) > 0; }
  void Ask(const FullLogitsRequest& question) { open_[question.seq] = {.question = question}; }
  void Drop(SeqId seq) { open_.erase(seq); }
  // Drops those of sequences that have another incarnation now: a replay samples the row again.
  template <typename IncarnationOf>
  void DropStale(const IncarnationOf& incarnation_of) {
    std::erase_if(open_,
                  [&](const auto& entry) { return entry.second.question.incarnation != incarnation_of(entry.first); });
  }
  // One that was not sent yet counts as sent from now on; null: there is none.
  const FullLogitsRequest* NextToSend() {
    for (auto& [seq, open] : open_) {
      if (!std::exchange(open.sent, true)) return &open.question;
    }
    return nullptr;
  }
  // False: nobody waits for this answer.
  bool Answered(const FullLogitsRequest& question) {
    const auto open = open_.find(question.seq);
    if (open == open_.end() || open->second.question != question) return false;
    open_.erase(open);
    return true;
  }
  // The sequences that asked, and those of them whose question was sent.
  std::vector<SeqId> Asking() const { return Asking(false); }
  std::vector<SeqId> Asked() const { return Asking(true); }
  void Clear() { open_.clear(); }

 private:
  struct Open {
    FullLogitsRequest question;
    bool sent = false;
  };
  std::vector<SeqId> Asking(bool sent) const {
    std::vector<SeqId> out;
    for (const auto& [seq, open] : open_) {
      if (open.sent || !sent) out.push_back(seq);
    }
    return out;
  }
  std::map<SeqId, Open> open_;
};

}  // namespace gyre
