// Guides the texts that obey a grammar (docs/grammar.md): it knows the state of each text in its grammar, which texts
// wait for a mask, and which masks the last stage has.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <unordered_map>
#include <vector>

#include "base/clock.h"
#include "base/coding.h"
#include "base/ids.h"
#include "base/mask_codec.h"
#include "base/step.h"
#include "base/work_pool.h"
#include "coordinator/engine/mask_numbers.h"
#include "coordinator/engine/request.h"
#include "model/answer_splitter.h"
#include "model/tokenizer.h"

namespace gyre {

// Masks that are not known yet are found on threads of its own, as that may take milliseconds; all else belongs to the
// engine's loop and its thread.
class GrammarGuide {
 public:
  using Mask = MaskNumbers::Mask;
  struct Options {
    const Tokenizer* tokenizer = nullptr;  // outlives it; null: no answer has reasoning
    int vocab = 0;
    // Runs work on the loop's thread, soon. Any thread.
    std::function<void(std::function<void()>)> post;
    // The mask that a text waited for is known after so long, or can't be found: an error ends the text. On the loop's
    // thread.
    std::function<void(SeqId, const Status&, Duration)> found;
  };
  explicit GrammarGuide(Options options) : options_(std::move(options)) {}

  // The text of a request with a grammar begins. generated: its tokens so far, of a process before. kResourceExhausted:
  // there is no thread for masks.
  Status Begin(SeqId seq, const Request& request, std::span<const TokenId> generated);
  // It has one token more. Texts that have no grammar are left alone.
  Status Advance(SeqId seq, TokenId token);
  void End(SeqId seq) { texts_.erase(seq); }
  // The makers of masks end.
  void Stop() { makers_.reset(); }

  // Whether its next mask is not known yet: `found` follows.
  bool Awaits(SeqId seq) const;
  // What may come next; null: any id, or it is not known yet.
  Mask MaskOf(SeqId seq) const;
  // The same as words; none: any id.
  std::span<const uint64_t> WordsOf(SeqId seq) const;
  // Whether the text may end here as far as its grammar has not begun: thoughts without an answer obey none.
  bool MayEnd(SeqId seq) const;
  // Whether nothing but an end may come.
  bool OnlyEnds(SeqId seq) const;
  // The id that must come, and needs no answer; -1: there is none.
  TokenId Forced(SeqId seq) const;

  // The masks behind the text and behind each of these tokens, as far as they are known and each mask has the token
  // that follows. Null: any id may come. Empty: the next mask is not known.
  std::vector<Mask> Ahead(SeqId seq, std::span<const TokenId> tokens) const;
  // Puts a mask into a request of a step, by its number if there is one left. REQUIRES: the request has its words, if
  // there are any; steps rise.
  void Name(const Mask& mask, StepId step, RowRequest* request);
  // The payload of the frame that must go before the step which was named; false: there is none.
  bool TakeNews(Encoder* out);
  // The last stage knows no mask: it is another one, or it may have lost some.
  void ForgetNumbers() {
    numbers_.Clear();
    news_.clear();
  }

 private:
  struct Text {
    std::shared_ptr<grammar::CompiledGrammar> grammar;
    grammar::GrammarState state;
    Mask mask;
    bool awaits = false;
    bool jumps = false;  // what must come needs no answer
    // Until the grammar begins: reasoning goes on, or may be opened by this token (-1: that is over).
    std::optional<AnswerSplitter> reasoning;
    TokenId open_token = -1;
  };
  struct Found {
    grammar::GrammarState state;
    Mask mask;
  };

  void BeginReasoning(const Request& request, Text* text) const;
  void EndReasoning(TokenId token, Text* text, std::string* content) const;
  Status Reason(SeqId seq, Text* text);
  Status Find(SeqId seq, Text* text, std::string bytes, std::vector<TokenId> tokens);
  Status Search(SeqId seq, Text* text, std::function<StatusOr<Found>()> find);
  Status Post(const grammar::CompiledGrammar* grammar, std::function<void()> search);
  void OnSearched(const grammar::CompiledGrammar* grammar);
  void OnFound(SeqId seq, const StatusOr<Found>& found, Duration took);
  const Text* TextOf(SeqId seq) const;

  const Options options_;
  std::unordered_map<SeqId, Text> texts_;
  MaskNumbers numbers_;
  std::vector<NumberedMask> news_;  // that the step which is being made names
  // The searches that wait for each grammar that a maker works with. A grammar has one maker at a time: a second one
  // would wait for its lock, while texts of other grammars need a maker.
  std::unordered_map<const grammar::CompiledGrammar*, std::deque<std::function<void()>>> searches_;
  std::optional<WorkPool> makers_;  // from the first grammar on
};

}  // namespace gyre
