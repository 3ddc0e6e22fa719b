// Texts of grammars of calls: drawn from their masks, and read as a client's message is.
#pragma once

#include <algorithm>
#include <memory>
#include <random>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <boost/json.hpp>

#include "coordinator/grammar/compiled.h"
#include "coordinator/grammar/source.h"
#include "coordinator/grammar/tool_calls.h"
#include "model/marked_text.h"
#include "model/tool_reader.h"
#include "tests/testing/small_schema.h"

namespace gyre::testing {

// A form's control tokens, then all bytes, then some longer pieces, then the end.
class CallVocabulary {
 public:
  explicit CallVocabulary(const AnswerFormat& format) : controls_(format.controls) {
    std::vector<std::string> pieces;
    for (const auto& control : controls_) pieces.push_back(MarkedControl(control.text));
    for (int b = 0; b < 256; ++b) {
      const char c = static_cast<char>(b);
      pieces.push_back(c == kMarkBegin || c == kMarkEnd ? std::string() : std::string(1, c));
    }
    for (const char* longer : {"</",
                               "\">",
                               ">\n",
                               "\"}",
                               "\",",
                               "\": ",
                               "_call>",
                               "\n</",
                               "<|",
                               "{\"",
                               ", ",
                               "})",
                               "parameter",
                               "a</parameter",
                               "</parameter>",
                               "</arg_value>",
                               "characters",
                               "the clean one",
                               "of many characters",
                               "ab\": "}) {
      pieces.emplace_back(longer);
    }
    pieces.emplace_back();
    end_ = static_cast<TokenId>(pieces.size() - 1);
    trie_ = std::make_shared<grammar::TokenTrie>(std::move(pieces), std::vector<TokenId>{end_});
  }
  const std::shared_ptr<const grammar::TokenTrie>& trie() const { return trie_; }
  TokenId end() const { return end_; }
  bool control(TokenId id) const { return static_cast<size_t>(id) < controls_.size(); }
  TokenId byte(char c) const { return static_cast<TokenId>(controls_.size() + static_cast<uint8_t>(c)); }
  // The tokens of a text of CallText: what is free in it is as short as can be; of bytes, and of controls where their
  // names stand.
  std::vector<TokenId> Tokens(std::string_view text) const {
    std::vector<TokenId> ids;
    while (!text.empty()) {
      size_t size = 1;
      TokenId id = byte(text[0]);
      for (const auto& control : controls_) {
        if (text.starts_with(control.text)) id = control.id, size = control.text.size();
      }
      if (text[0] == CallText::kMayBe) size = text.find(CallText::kMayBe, 1) + 1;
      if (text[0] == CallText::kIndex) id = byte('0');
      if (text[0] != CallText::kMayBe && text[0] != CallText::kMaySpace) ids.push_back(id);
      text.remove_prefix(size);
    }
    return ids;
  }
  std::string TextOf(const std::vector<TokenId>& tokens) const {
    std::string text;
    for (const TokenId id : tokens) text += trie_->piece(id);
    return text;
  }

 private:
  const std::vector<AnswerFormat::Control> controls_;
  TokenId end_ = 0;
  std::shared_ptr<const grammar::TokenTrie> trie_;
};

inline bool Allows(const grammar::TokenMask& mask, TokenId id) {
  return (mask.words[static_cast<size_t>(id) / 64] >> (static_cast<size_t>(id) % 64) & 1) != 0;
}

// The tokens that may come, but often one that ends something, and soon, once a text is long.
template <typename Random>
std::vector<TokenId> LikelyTokens(const grammar::TokenMask& mask, const CallVocabulary& vocabulary, size_t step,
                                  Random* random) {
  std::vector<TokenId> ids;
  if ((*random)() % 4 != 0 || step > 300) {
    for (const char c : std::string_view("\"'}])<>/,\n0a ")) {
      if (Allows(mask, vocabulary.byte(c))) ids.push_back(vocabulary.byte(c));
    }
  }
  const bool any = ids.empty();
  for (TokenId id = 0; any && id < vocabulary.end(); ++id) {
    if (Allows(mask, id)) ids.push_back(id);
  }
  return ids;
}

// Draws a text from the masks behind `tokens`. False: it has no end after 3,000 tokens. Errors: a bound; kInternal: a
// mask allows what may not come.
template <typename Random>
StatusOr<bool> DrawText(grammar::CompiledGrammar* g, const CallVocabulary& vocabulary, Random* random,
                        grammar::GrammarState state, std::vector<TokenId>* tokens) {
  for (size_t step = 0; step < 3000; ++step) {
    GYRE_ASSIGN_OR_RETURN(const auto mask, g->Mask(state));
    if (Allows(*mask, vocabulary.end()) && (step > 400 || (*random)() % 4 == 0)) return true;
    const std::vector<TokenId> ids = LikelyTokens(*mask, vocabulary, step, random);
    if (ids.empty()) return true;  // only the end
    tokens->push_back(ids[(*random)() % ids.size()]);
    GYRE_ASSIGN_OR_RETURN(state, g->Advance(state, tokens->back()));
    if (state.dead()) return Internal("a token that the mask allows may not come: {}", vocabulary.TextOf(*tokens));
  }
  return false;
}

struct ReadCalls {
  std::string content;
  std::vector<std::pair<std::string, std::string>> calls;  // with their arguments
  size_t complete = 0;
};

inline ReadCalls ReadBack(const AnswerFormat& format, const DeclaredTools& tools, const CallVocabulary& vocabulary,
                          const std::vector<TokenId>& tokens) {
  ToolReader reader(format, tools, {.names_may_repeat = true});
  ReadCalls out;
  const auto take = [&out](const std::vector<AnswerDelta>& deltas) {
    for (const AnswerDelta& delta : deltas) {
      switch (delta.kind) {
        case AnswerDelta::Kind::kCall: out.calls.emplace_back(delta.text, ""); break;
        case AnswerDelta::Kind::kArguments: out.calls.back().second += delta.text; break;
        case AnswerDelta::Kind::kCallEnd: ++out.complete; break;
        case AnswerDelta::Kind::kReasoning: break;
        default: out.content += delta.text;
      }
    }
  };
  for (const TokenId id : tokens) take(reader.Push(id, vocabulary.control(id) ? "" : vocabulary.trie()->piece(id)));
  take(reader.Finish("", false));
  return out;
}

// "": the calls are complete and their arguments obey the schemas; else what is wrong.
inline std::string WrongCalls(const boost::json::object& schemas, const ReadCalls& read) {
  namespace json = boost::json;
  if (read.complete != read.calls.size()) return "a call is not complete";
  for (const auto& [name, arguments] : read.calls) {
    const json::value* schema = schemas.if_contains(name);
    boost::system::error_code error;
    const json::value value = json::parse(arguments, error);
    if (schema == nullptr) return "no tool is " + name;
    if (error || !value.is_object()) return "no object: " + arguments;
    if (!Obeys(*schema, value)) return arguments + " does not obey " + json::serialize(*schema);
  }
  return "";
}

inline boost::json::array FunctionsOf(const boost::json::object& schemas) {
  namespace json = boost::json;
  json::array out;
  for (const auto& [name, schema] : schemas) {
    out.push_back(
        json::object{{"type", "function"}, {"function", json::object{{"name", name}, {"parameters", schema}}}});
  }
  return out;
}

inline grammar::ToolCalls CallsOf(const boost::json::object& schemas, bool strict = true) {
  grammar::ToolCalls calls;
  for (const auto& [name, schema] : schemas) {
    calls.tools.push_back({.name = std::string(name), .parameters = boost::json::serialize(schema), .strict = strict});
  }
  return calls;
}

inline StatusOr<std::shared_ptr<grammar::CompiledGrammar>> MadeCalls(
    const grammar::ToolCalls& calls, const AnswerFormat& format,
    std::shared_ptr<const grammar::TokenTrie> trie = nullptr, const grammar::Bounds& bounds = {}) {
  GYRE_ASSIGN_OR_RETURN(const grammar::Source source, grammar::ToolCallSource(calls, format));
  GYRE_ASSIGN_OR_RETURN(grammar::Grammar g, grammar::ReadSource(source, false, bounds));
  return grammar::CompiledGrammar::Make(std::move(g), std::move(trie));
}

}  // namespace gyre::testing
