#include "coordinator/engine/sequence.h"

#include <algorithm>

namespace gyre {

Sequence::Sequence(SeqId id, Request r, EventSink sink, Deadline now)
    : id(id),
      request(std::move(r)),
      tokens(request.prompt),
      sink_(std::make_shared<const EventSink>(std::move(sink))),
      stream_(request.stops),
      submitted_(now) {
  if (request.one_call) calls_.emplace(request.answer_format, *request.one_call);
}

std::string Sequence::log_id() const {
  return request.id.empty() ? std::to_string(static_cast<uint64_t>(id)) : request.id;
}

Sequence::Accepted Sequence::Accept(const Draw& draw, const Tokenizer* tokenizer, Deadline now) {
  if (!first_token_) first_token_ = now;
  last_token_ = now;
  const TokenId previous = tokens.back();
  tokens.push_back(draw.token);
  if (drafts) drafts->Drawn(draw.token);
  bool ends = std::find(request.stop_ids.begin(), request.stop_ids.end(), draw.token) != request.stop_ids.end();
  // A drawn BOS begins another document, so it ends this one.
  if (tokenizer != nullptr) ends |= tokenizer->IsEndOfGeneration(draw.token) || draw.token == tokenizer->bos();
  if (ends && !request.ignore_end) {
    stop_id_ = draw.token;
    return {.text = "", .stopped = true};
  }
  if (tokenizer == nullptr) return {};
  const std::string piece = tokenizer->Piece(draw.token, previous == tokenizer->bos());
  const bool unstopped = generated() <= request.min_new_tokens;
  TextStream::Result result;
  if (unstopped) {
    result.text = stream_.PushUnstopped(piece);
  } else {
    result = stream_.Push(piece);
  }
  if (result.stopped) stop_ = request.stops[static_cast<size_t>(result.stop)];
  return {.text = result.text, .stopped = result.stopped || EndsCall(draw.token, result.text)};
}

bool Sequence::EndsCall(TokenId token, const std::string& text) {
  if (!calls_) return false;
  const std::vector<AnswerDelta> deltas = calls_->Push(token, text);
  return std::any_of(deltas.begin(), deltas.end(),
                     [](const AnswerDelta& delta) { return delta.kind == AnswerDelta::Kind::kCallEnd; });
}

Finished Sequence::MakeFinished(FinishReason reason, Deadline now) {
  TextStream::Result rest = stream_.Flush();
  // A character that is cut off becomes U+FFFD, which may be a stop string or the end of one.
  if (rest.stopped) {
    reason = FinishReason::kStop;
    stop_ = request.stops[static_cast<size_t>(rest.stop)];
  }
  return {.reason = reason,
          .text = std::move(rest.text),
          .usage = {.prompt_tokens = static_cast<uint32_t>(request.prompt.size()),
                    .cached_tokens = cached.value_or(0),
                    .generated_tokens = generated(),
                    .context_shifts = window.shifts(),
                    .drafted_tokens = drafted,
                    .accepted_drafts = accepted_drafts,
                    .to_first_token = first_token_.value_or(now) - submitted_,
                    .total = now - submitted_},
          .stop = stop_,
          .stop_id = stop_id_};
}

}  // namespace gyre
