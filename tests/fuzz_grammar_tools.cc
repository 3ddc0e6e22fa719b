// Tools of any schemas in any form of calls, and a text that their grammar takes: the reader parses it into calls whose
// arguments obey the schemas, by a reading that shares nothing with the grammar; bytes that must come may come.
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <vector>

#include "tests/testing/call_texts.h"
#include "tests/testing/grammar_fuzz.h"

namespace {

namespace json = boost::json;
using gyre::CallText;
using gyre::TokenId;
using gyre::ToolForm;
using gyre::testing::CallVocabulary;

// The input, and then numbers that end texts soon.
class Numbers {
 public:
  Numbers(const uint8_t* data, size_t size) : data_(data), size_(size), more_(size * 2654435761u + 1) {}
  unsigned operator()() {
    if (at_ < size_) return data_[at_++];
    return static_cast<unsigned>((more_ = more_ * 6364136223846793005u + 1442695040888963407u) >> 33);
  }
  bool ran_out() const { return at_ >= size_; }

 private:
  const uint8_t* const data_;
  const size_t size_;
  size_t at_ = 0;
  uint64_t more_;
};

[[noreturn]] void Wrong(const std::string& what, const gyre::ToolFormat& form, const std::string& text,
                        const json::object& schemas) {
  std::fprintf(stderr, "%s\n%s: %s\n%s\n", what.c_str(), form.name, text.c_str(), json::serialize(schemas).c_str());
  std::abort();
}

// What a model may begin to write anywhere: markers, as a whole or in part.
std::vector<std::string> Fragments(const gyre::ToolFormat& form) {
  const CallText& text = form.text;
  const std::string call = std::string(text.begin) + text.before;
  std::vector<std::string> out = {call,
                                  call + "f" + text.after,
                                  form.open,
                                  form.close,
                                  text.behind,
                                  text.between,
                                  text.value_end,
                                  text.key,
                                  text.value,
                                  "\"",
                                  "</",
                                  "{\"",
                                  "all\n",
                                  "[f(",
                                  "{\"name\": \"f\", \"parameters\": {"};
  if (form.form == ToolForm::kHarmony) {
    for (const char* part :
         {"<|channel|>final<|message|>", "<|channel|>analysis<|message|>", "<|end|><|start|>assistant"}) {
      out.emplace_back(part);
    }
  }
  return out;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  Numbers next(data, size);
  const auto forms = gyre::ToolFormats();
  const gyre::ToolFormat& form = forms[next() % forms.size()];
  const gyre::AnswerFormat format = gyre::AnswerFormatOf(form, "");
  const CallVocabulary vocabulary(format);

  json::object schemas;
  const char* const tools[] = {"f", "get.thing", "g-1"};
  const char* const names[] = {"a", "b_1", "text", "n"};
  for (unsigned i = 0, count = 1 + next() % 3; i < count; ++i) {
    json::object properties;
    json::array required;
    for (unsigned k = 0, most = next() % 4; k < most; ++k) {
      properties[names[k]] = gyre::testing::RandomSchema(&next, 2);
      if (next() % 2 == 0) required.emplace_back(names[k]);
    }
    json::object schema{{"type", "object"}, {"properties", std::move(properties)}, {"required", std::move(required)}};
    if (next() % 4 == 0) schema["additionalProperties"] = gyre::testing::RandomSchema(&next, 0);
    schemas[tools[i]] = std::move(schema);
  }
  const unsigned flags = next();
  const bool strict = (flags & 7) != 0;
  gyre::grammar::ToolCalls calls = gyre::testing::CallsOf(schemas, strict);
  calls.required = (flags & 8) != 0;
  calls.parallel = (flags & 16) != 0;
  const json::value answer = {{"enum", {"yes", 1}}};
  if (!calls.required && (flags & 96) == 96) {
    calls.answer = {.kind = gyre::grammar::SourceKind::kJsonSchema, .text = json::serialize(answer)};
  }
  const auto g = gyre::testing::MadeCalls(calls, format, vocabulary.trie(), gyre::testing::FuzzBounds());
  if (!g.ok()) return 0;

  // The text goes on with a fragment where one may come, and else with what the mask allows.
  const std::vector<std::string> fragments = Fragments(form);
  std::vector<TokenId> tokens;
  gyre::grammar::GrammarState state = (*g)->start();
  for (int step = 0; step < 64 && !next.ran_out(); ++step) {
    const std::string forced = (*g)->ForcedBytes(state, 64);
    const auto behind = (*g)->Advance(state, forced);
    if (!behind.ok()) return 0;  // a bound
    if (behind->dead()) Wrong("bytes that must come may not: " + forced, form, vocabulary.TextOf(tokens), schemas);
    const auto mask = (*g)->Mask(state);
    if (absl::IsResourceExhausted(mask.status())) return 0;
    if (!mask.ok()) Wrong(gyre::Message(mask.status()), form, vocabulary.TextOf(tokens), schemas);
    const unsigned choice = next();
    std::vector<TokenId> ids;
    if (choice % 2 == 0) {
      ids = vocabulary.Tokens(fragments[choice / 2 % fragments.size()]);
    } else {
      for (TokenId id = 0; id < vocabulary.end(); ++id) {
        if (gyre::testing::Allows(**mask, id)) ids.push_back(id);
      }
      for (const TokenId id : ids) {
        const std::string& piece = vocabulary.trie()->piece(id);
        if (!forced.starts_with(piece) && !piece.starts_with(forced)) {
          Wrong("a token that is allowed has other bytes than must come", form, vocabulary.TextOf(tokens), schemas);
        }
      }
      if (!ids.empty()) ids = {ids[next() % ids.size()]};
    }
    for (const TokenId id : ids) {
      const auto moved = (*g)->Advance(state, id);
      if (!moved.ok()) return 0;
      if (moved->dead()) break;
      state = *moved;
      tokens.push_back(id);
    }
  }
  const auto drawn = gyre::testing::DrawText(g->get(), vocabulary, &next, state, &tokens);
  const std::string text = vocabulary.TextOf(tokens);
  if (!drawn.ok()) {
    if (absl::IsResourceExhausted(drawn.status())) return 0;
    Wrong(gyre::Message(drawn.status()), form, text, schemas);
  }
  if (!*drawn) return 0;

  const auto functions = gyre::testing::FunctionsOf(schemas);
  const gyre::testing::ReadCalls read = ReadBack(format, gyre::DeclareTools(functions), vocabulary, tokens);
  const json::object any{{"f", true}, {"get.thing", true}, {"g-1", true}};
  const std::string wrong = gyre::testing::WrongCalls(strict || calls.required ? schemas : any, read);
  if (!wrong.empty()) Wrong(wrong, form, text, schemas);
  const size_t blank = read.content.find_first_not_of(" \n\r\t");
  if (calls.required && (read.calls.empty() || blank != std::string::npos))
    Wrong("no calls alone", form, text, schemas);
  if (!calls.parallel && read.calls.size() > 1) Wrong("two calls", form, text, schemas);
  if (calls.answer && read.calls.empty()) {
    boost::system::error_code error;
    const json::value value = json::parse(read.content, error);
    if (error || !gyre::testing::Obeys(answer, value)) Wrong("the answer has not its form", form, text, schemas);
  }
  // A marker that is text, not a token, always begins a call.
  const bool token = std::any_of(format.controls.begin(), format.controls.end(),
                                 [&](const auto& control) { return control.text == form.open; });
  if (!token && form.open[0] != '\0' && read.content.find(form.open) != std::string::npos) {
    Wrong("a call was not read", form, text, schemas);
  }
  return 0;
}
