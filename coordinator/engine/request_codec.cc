#include "coordinator/engine/request_codec.h"

#include <span>

#include "base/coding.h"

namespace gyre {

v1::AnswerFormat EncodeFormat(const AnswerFormat& format) {
  v1::AnswerFormat out;
  out.set_channels(format.channels);
  out.set_open(format.open);
  out.set_close(format.close);
  out.set_call_open(format.call_open);
  out.set_call_close(format.call_close);
  out.set_begins(static_cast<v1::AnswerFormat::Begins>(format.begins));
  for (const AnswerFormat::Control& control : format.controls) {
    v1::AnswerFormat::Control* marker = out.add_controls();
    marker->set_id(control.id);
    marker->set_text(control.text);
  }
  if (format.tools != nullptr) out.set_calls(format.tools->name);
  return out;
}

AnswerFormat DecodeFormat(const v1::AnswerFormat& format) {
  AnswerFormat out{.channels = format.channels(),
                   .open = format.open(),
                   .close = format.close(),
                   .call_open = format.call_open(),
                   .call_close = format.call_close(),
                   .begins = {},
                   .controls = {}};
  if (format.begins() == v1::AnswerFormat::IN_REASONING) out.begins = AnswerFormat::Begins::kInReasoning;
  if (format.begins() == v1::AnswerFormat::IN_CONTENT) out.begins = AnswerFormat::Begins::kInContent;
  for (const auto& control : format.controls()) out.controls.push_back({control.id(), control.text()});
  out.tools = ToolFormatNamed(format.calls());
  return out;
}

namespace {

const google::protobuf::FieldDescriptor* FieldOf(const SamplingOption& option) {
  return v1::Sampling::descriptor()->FindFieldByName(std::string(option.name));
}

void EncodeSampling(const SamplingParams& params, v1::Sampling* out) {
  const auto* reflection = out->GetReflection();
  for (const SamplingOption& option : SamplingOptions()) {
    if (const auto* real = std::get_if<float SamplingParams::*>(&option.field)) {
      reflection->SetFloat(out, FieldOf(option), params.**real);
    } else {
      reflection->SetInt32(out, FieldOf(option), params.*std::get<int SamplingParams::*>(option.field));
    }
  }
  out->set_seed(params.seed);
  if (params.draw != DrawMethod::kUniform) out->set_draw(static_cast<int32_t>(params.draw));
  for (const auto& [id, bias] : params.logit_bias) (*out->mutable_logit_bias())[id] += bias;
}

SamplingParams DecodeSampling(const v1::Sampling& s) {
  SamplingParams out;
  const auto* reflection = s.GetReflection();
  for (const SamplingOption& option : SamplingOptions()) {
    if (!reflection->HasField(s, FieldOf(option))) continue;
    if (const auto* real = std::get_if<float SamplingParams::*>(&option.field)) {
      out.** real = reflection->GetFloat(s, FieldOf(option));
    } else {
      out.*std::get<int SamplingParams::*>(option.field) = reflection->GetInt32(s, FieldOf(option));
    }
  }
  if (s.has_seed()) out.seed = s.seed();
  out.draw = static_cast<DrawMethod>(s.draw());
  out.logit_bias.assign(s.logit_bias().begin(), s.logit_bias().end());
  return out;
}

void EncodeSettings(const RequestSettings& s, v1::GenerateRequest* out) {
  EncodeSampling(s.sampling, out->mutable_sampling());
  for (const std::string& stop : s.stops) out->add_stops(stop);
  out->mutable_stop_ids()->Add(s.stop_ids.begin(), s.stop_ids.end());
  out->set_ignore_end(s.ignore_end);
  out->set_min_new_tokens(s.min_new_tokens);
  if (s.logprobs) out->set_logprobs(*s.logprobs);
  if (s.prompt_logprobs) out->set_prompt_logprobs(*s.prompt_logprobs);
  if (s.embedding) {
    out->set_embedding(s.embedding == Pooling::kMean   ? v1::POOLING_MEAN
                       : s.embedding == Pooling::kLast ? v1::POOLING_LAST
                                                       : v1::POOLING_FIRST);
  }
  out->set_priority(s.priority);
  out->set_tenant(s.tenant);
  out->set_cache_salt(s.cache_salt);
  out->set_adapter(s.adapter);
  out->mutable_boundaries()->Add(s.boundaries.begin(), s.boundaries.end());
  if (s.one_call) {
    for (const auto& [name, texts] : *s.one_call) {
      v1::OneCall::Tool* tool = out->mutable_one_call()->add_tools();
      tool->set_name(name);
      for (const std::string& text : texts) tool->add_texts(text);
    }
    *out->mutable_one_call()->mutable_format() = EncodeFormat(s.answer_format);
  }
  if (s.speculation != SpeculationSettings()) {
    v1::Speculation* speculation = out->mutable_speculation();
    speculation->set_n_max(s.speculation.n_max);
    speculation->set_n_min(s.speculation.n_min);
    speculation->set_p_min(s.speculation.p_min);
  }
  if (!s.grammar_source) return;
  out->mutable_grammar()->set_kind(static_cast<uint32_t>(s.grammar_source->kind));
  out->mutable_grammar()->set_text(s.grammar_source->text);
  out->mutable_grammar()->set_compact(s.compact_json);
  out->mutable_grammar()->set_no_jump_ahead(!s.jump_ahead);
  *out->mutable_grammar()->mutable_after() = EncodeFormat(s.answer_format);
}

}  // namespace

RequestSettings DecodeSettings(const v1::GenerateRequest& m) {
  RequestSettings s;
  s.sampling = DecodeSampling(m.sampling());
  s.stops.assign(m.stops().begin(), m.stops().end());
  s.stop_ids.assign(m.stop_ids().begin(), m.stop_ids().end());
  s.ignore_end = m.ignore_end();
  s.min_new_tokens = m.min_new_tokens();
  if (m.has_logprobs()) s.logprobs = m.logprobs();
  if (m.has_prompt_logprobs()) s.prompt_logprobs = m.prompt_logprobs();
  if (m.embedding() == v1::POOLING_MEAN) s.embedding = Pooling::kMean;
  if (m.embedding() == v1::POOLING_LAST) s.embedding = Pooling::kLast;
  if (m.embedding() == v1::POOLING_FIRST) s.embedding = Pooling::kFirst;
  s.priority = m.priority();
  s.tenant = m.tenant();
  s.cache_salt = m.cache_salt();
  s.adapter = m.adapter();
  s.boundaries.assign(m.boundaries().begin(), m.boundaries().end());
  if (m.has_one_call()) {
    DeclaredTools& tools = s.one_call.emplace();
    for (const auto& tool : m.one_call().tools()) tools[tool.name()].insert(tool.texts().begin(), tool.texts().end());
    s.answer_format = DecodeFormat(m.one_call().format());
  }
  if (m.has_speculation()) {
    s.speculation = {
        .n_max = m.speculation().n_max(), .n_min = m.speculation().n_min(), .p_min = m.speculation().p_min()};
  }
  if (!m.has_grammar()) return s;
  // An unknown kind is one of a later release: kept as it is, it is refused when it is read.
  s.grammar_source =
      grammar::Source{.kind = static_cast<grammar::SourceKind>(m.grammar().kind()), .text = m.grammar().text()};
  s.compact_json = m.grammar().compact();
  s.jump_ahead = !m.grammar().no_jump_ahead();
  s.answer_format = DecodeFormat(m.grammar().after());
  return s;
}

v1::GenerateRequest EncodeRequest(const Request& r) {
  v1::GenerateRequest out;
  out.mutable_ids()->Add(r.prompt.begin(), r.prompt.end());
  out.set_max_new_tokens(r.max_new_tokens);
  for (const TokenEvent& token : r.generated) out.add_generated(token.token);
  out.mutable_prediction()->Add(r.prediction.begin(), r.prediction.end());
  EncodeSettings(r, &out);
  return out;
}

Request DecodeRequest(const v1::GenerateRequest& m) {
  Request r;
  static_cast<RequestSettings&>(r) = DecodeSettings(m);
  r.prompt.assign(m.ids().begin(), m.ids().end());
  r.max_new_tokens = m.max_new_tokens();
  for (const TokenId id : m.generated()) r.generated.push_back({.token = id});
  r.prediction.assign(m.prediction().begin(), m.prediction().end());
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
