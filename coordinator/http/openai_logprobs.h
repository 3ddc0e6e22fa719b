// Log-probabilities of tokens in the form of OpenAI's routes.
#pragma once

#include <cstddef>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "coordinator/engine/logprobs.h"
#include "coordinator/service/service.h"

namespace gyre::http {

struct TokenScore {
  TokenId token = 0;
  std::optional<float> logprob;   // nullopt: the first token of a prompt has none
  std::vector<TokenLogprob> top;  // best first
  bool shown = false;             // the text has it, even if it is a control token
};

// The scores of one choice wait for its text: those of tokens that a stop string removes are never sent.
class HeldScores {
 public:
  // `parted`: the text may lack the first part of the tokens' text (reasoning and its markers).
  HeldScores(const Service& service, bool parted) : service_(&service), parted_(parted) {}
  void Hold(TokenScore score) { held_.push_back(std::move(score)); }
  // Drops the held scores, as none of them belongs to the text.
  void Drop() { held_.clear(); }
  // Returns the held scores that belong to this text, which is not empty.
  std::vector<TokenScore> Release(std::string_view text);
  // Ends the choice, with the last of the text.
  std::vector<TokenScore> Finish(const Finished& finished, std::string_view text);

 private:
  size_t Bytes(const TokenScore& score) const;

  const Service* service_;
  bool parted_;
  std::vector<TokenScore> held_;
};

// {"content":[{"token":...,"logprob":...,"bytes":[...],"top_logprobs":[...]},...],"refusal":null}
void AppendChatLogprobs(const Service& service, std::span<const TokenScore> scores, std::string* out);

// {"tokens":[...],"token_logprobs":[...],"top_logprobs":[{...},...],"text_offset":[...]}. `offset`: characters of the
// choice's text before the first token; it is moved past the last one.
void AppendTextLogprobs(const Service& service, std::span<const TokenScore> scores, size_t* offset, std::string* out);

}  // namespace gyre::http
