#include "coordinator/request_codec.h"

#include <span>

#include "base/coding.h"

namespace gyre {

v1::GenerateRequest EncodeRequest(const Request& r) {
  v1::GenerateRequest out;
  out.mutable_ids()->Add(r.prompt.begin(), r.prompt.end());
  out.set_max_new_tokens(r.max_new_tokens);
  out.set_ignore_end(r.ignore_end);
  out.set_priority(r.priority);
  out.set_cache_salt(r.cache_salt);
  out.set_tenant(r.tenant);
  if (r.logprobs) out.set_logprobs(*r.logprobs);
  if (r.prompt_logprobs) out.set_prompt_logprobs(*r.prompt_logprobs);
  if (r.embedding) out.set_embedding(r.embedding == Pooling::kMean ? v1::POOLING_MEAN : v1::POOLING_LAST);
  for (const std::string& stop : r.stops) out.add_stops(stop);
  out.mutable_stop_ids()->Add(r.stop_ids.begin(), r.stop_ids.end());
  for (const TokenEvent& token : r.generated) out.add_generated(token.token);
  v1::Sampling* s = out.mutable_sampling();
  s->set_temperature(r.sampling.temperature);
  s->set_top_k(r.sampling.top_k);
  s->set_top_p(r.sampling.top_p);
  s->set_min_p(r.sampling.min_p);
  s->set_repetition_penalty(r.sampling.repetition_penalty);
  s->set_frequency_penalty(r.sampling.frequency_penalty);
  s->set_presence_penalty(r.sampling.presence_penalty);
  s->set_penalty_last_n(r.sampling.penalty_last_n);
  s->set_seed(r.sampling.seed);
  for (const auto& [id, bias] : r.sampling.logit_bias) (*s->mutable_logit_bias())[id] += bias;
  return out;
}

SamplingParams DecodeSampling(const v1::Sampling& s) {
  SamplingParams out;
  if (s.has_temperature()) out.temperature = s.temperature();
  if (s.has_top_k()) out.top_k = s.top_k();
  if (s.has_top_p()) out.top_p = s.top_p();
  if (s.has_min_p()) out.min_p = s.min_p();
  if (s.has_repetition_penalty()) out.repetition_penalty = s.repetition_penalty();
  if (s.has_frequency_penalty()) out.frequency_penalty = s.frequency_penalty();
  if (s.has_presence_penalty()) out.presence_penalty = s.presence_penalty();
  if (s.has_penalty_last_n()) out.penalty_last_n = s.penalty_last_n();
  if (s.has_seed()) out.seed = s.seed();
  out.logit_bias.assign(s.logit_bias().begin(), s.logit_bias().end());
  return out;
}

Request DecodeRequest(const v1::GenerateRequest& m) {
  Request r;
  r.prompt.assign(m.ids().begin(), m.ids().end());
  r.sampling = DecodeSampling(m.sampling());
  r.max_new_tokens = m.max_new_tokens();
  r.stops.assign(m.stops().begin(), m.stops().end());
  r.stop_ids.assign(m.stop_ids().begin(), m.stop_ids().end());
  r.ignore_end = m.ignore_end();
  r.priority = m.priority();
  r.cache_salt = m.cache_salt();
  r.tenant = m.tenant();
  if (m.has_logprobs()) r.logprobs = m.logprobs();
  if (m.has_prompt_logprobs()) r.prompt_logprobs = m.prompt_logprobs();
  if (m.embedding() == v1::POOLING_MEAN) r.embedding = Pooling::kMean;
  if (m.embedding() == v1::POOLING_LAST) r.embedding = Pooling::kLast;
  for (const TokenId id : m.generated()) r.generated.push_back({.token = id});
  return r;
}

std::string EncodeTokens(std::span<const TokenEvent> tokens) {
  Encoder out;
  for (const TokenEvent& t : tokens) {
    out.Put(t.token);
    out.Put(t.probability);
    out.Put(t.logprob);
    out.Put(static_cast<uint32_t>(t.top.size()));
    for (const TokenLogprob& top : t.top) {
      out.Put(top.id);
      out.Put(top.logprob);
    }
  }
  return {reinterpret_cast<const char*>(out.bytes().data()), out.size()};
}

Status DecodeTokens(std::string_view bytes, std::vector<TokenEvent>* tokens) {
  Decoder in(std::as_bytes(std::span(bytes)));
  while (in.ok() && in.remaining() > 0) {
    TokenEvent t;
    t.token = in.Get<TokenId>();
    t.probability = in.Get<float>();
    t.logprob = in.Get<float>();
    const uint32_t top = in.GetCount(sizeof(TokenId) + sizeof(float));
    for (uint32_t i = 0; i < top; ++i) {
      const auto id = in.Get<TokenId>();
      t.top.push_back({id, in.Get<float>()});
    }
    if (in.ok()) tokens->push_back(std::move(t));
  }
  if (!in.Done()) return DataLoss("the ids that a request generated are cut off");
  return absl::OkStatus();
}

}  // namespace gyre
