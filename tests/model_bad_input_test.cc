// Damaged files of every format, at every place: a model or an error that says what, where and what was expected, as
// one printable line; never a crash.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>

#include "model/chat_template.h"
#include "model/hf/json.h"
#include "model/hf/safetensors.h"
#include "model/hf/tokenizer_json.h"
#include "model/jinja/template.h"
#include "model/weights.h"
#include "tests/testing/charsmap_writer.h"
#include "tests/testing/gguf_writer.h"
#include "tests/testing/sanitized.h"

namespace gyre {
namespace {

using testing::GgufWriter;
using ::testing::HasSubstr;

// An error that people can use: whose fault it was, and where it lies, by a number, a name or a quotation.
void ExpectSentence(const Status& status, const std::string& what) {
  if (status.ok()) return;
  const std::string m = Message(status);
  EXPECT_TRUE(absl::IsDataLoss(status) || absl::IsInvalidArgument(status) || absl::IsUnimplemented(status) ||
              absl::IsResourceExhausted(status) || absl::IsNotFound(status) || absl::IsFailedPrecondition(status))
      << what << ": " << status;
  EXPECT_GE(m.size(), 12u) << what << ": " << m;
  EXPECT_LE(m.size(), 2000u) << what << ": " << m;
  for (char c : m) EXPECT_TRUE(c >= 0x20 && c < 0x7F) << what << ": " << ::testing::PrintToString(m);
  EXPECT_NE(m.find_first_of("0123456789.:\"'"), std::string::npos) << what << ": " << m;
}

// Every cut, and every bit flipped, `step` bits apart.
void Damage(const std::string& good, const std::string& name, size_t step,
            const std::function<Status(const std::string&)>& open) {
  ASSERT_TRUE(open(good).ok()) << name << ": " << open(good);
  int errors = 0;
  const size_t stride = testing::kSanitized ? 7 : 1;
  for (size_t n = 0; n < good.size(); n += stride) {
    const Status status = open(good.substr(0, n));
    ExpectSentence(status, name + fmt::format(" cut at {}", n));
    errors += status.ok() ? 0 : 1;
  }
  for (size_t bit = 0; bit < good.size() * 8; bit += step * stride) {
    std::string bad = good;
    bad[bit / 8] = static_cast<char>(bad[bit / 8] ^ (1 << bit % 8));
    const Status status = open(bad);
    ExpectSentence(status, name + fmt::format(" bit {}", bit));
    errors += status.ok() ? 0 : 1;
  }
  EXPECT_GT(errors, 20) << name;
}

std::string AsString(const std::vector<std::byte>& bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}
Status UseTokenizer(const StatusOr<std::unique_ptr<Tokenizer>>& t) {
  if (!t.ok()) return t.status();
  (void)(*t)->Decode((*t)->Encode("ab </s>\xC3\xA9\xFF <x>", {.add_special = true, .parse_special = true}));
  return absl::OkStatus();
}
Status OpenTokenizerBytes(const std::string& bytes) {
  const auto t = TokenizerFromBytes(std::as_bytes(std::span(bytes)));
  if (!t.ok()) return t.status();
  (void)(*t)->Decode((*t)->Encode("ab </s>\xC3\xA9\xFF <x>", {.add_special = true, .parse_special = true}));
  return absl::OkStatus();
}

std::string BpeGguf(const std::vector<std::string>& merges) {
  GgufWriter w;
  w.String("tokenizer.ggml.model", "gpt2");
  w.String("tokenizer.ggml.pre", "gpt-2");
  w.Strings("tokenizer.ggml.tokens", {"a", "b", "ab", "\xC4\xA0", "</s>"});
  w.Numbers<int32_t>("tokenizer.ggml.token_type", 5, {1, 1, 1, 1, 3});
  w.Strings("tokenizer.ggml.merges", merges);
  w.Uint("tokenizer.ggml.eos_token_id", 4);
  return AsString(w.Finish());
}

std::string UnigramGguf() {
  GgufWriter w;
  w.String("tokenizer.ggml.model", "t5");
  w.Strings("tokenizer.ggml.tokens", {"<unk>", "</s>", "\xE2\x96\x81", "a", "ab", "<0x41>"});
  w.Numbers<float>("tokenizer.ggml.scores", 6, {0, 0, -1, -2, -3, 0});
  w.Numbers<int32_t>("tokenizer.ggml.token_type", 5, {2, 3, 1, 1, 1, 6});
  w.Uint("tokenizer.ggml.eos_token_id", 1);
  // Only its beginning is damaged by this test: the array of 256 places a node is long.
  const std::string map = testing::BuildCharsmap({{"A", "a"}});
  w.Numbers("tokenizer.ggml.precompiled_charsmap", 0, std::vector<uint8_t>(map.begin(), map.end()));
  return AsString(w.Finish());
}

TEST(BadInputTest, GgufTokenizersOfEveryKind) {
  Damage(BpeGguf({"a b"}), "gpt2", 1, OpenTokenizerBytes);
  Damage(UnigramGguf(), "t5", 1, OpenTokenizerBytes);
}

TEST(BadInputTest, GgufModel) {
  testing::TinyOptions o;
  o.dim = 8;
  o.layers = 1;
  o.heads = 2;
  o.kv_heads = 1;
  o.ffn = 8;
  o.vocab = 8;
  size_t header = 0;
  const std::string good = AsString(testing::BuildTinyModel(o, &header));
  Damage(good, "model", 5,
         [&](const std::string& bytes) { return OpenModelFromBytes(std::as_bytes(std::span(bytes))).status(); });
}

TEST(BadInputTest, Safetensors) {
  const std::string json =
      R"({"__metadata__": {"format": "pt"}, "a": {"dtype": "F32", "shape": [2, 3], "data_offsets": [0, 24]}, "b": {"dtype": "BF16", "shape": [4], "data_offsets": [24, 32]}}   )";
  const uint64_t n = json.size();
  const std::string good = std::string(reinterpret_cast<const char*>(&n), 8) + json + std::string(32, '\1');
  Damage(good, "safetensors", 1,
         [](const std::string& s) { return ParseSafetensors(std::as_bytes(std::span(s))).status(); });
  auto error = [&](std::string s) { return Message(ParseSafetensors(std::as_bytes(std::span(s))).status()); };
  std::string bad = good;
  bad[8] = '[';
  EXPECT_THAT(error(bad), HasSubstr("the header: no JSON object: "));
  EXPECT_THAT(error(bad), HasSubstr(" at byte "));
  EXPECT_THAT(error(good.substr(0, good.size() - 1)), HasSubstr("tensor b: bytes 24 to 32 of the 31 that there are"));
  EXPECT_THAT(error(good.substr(0, 5)), HasSubstr("5 bytes are no safetensors file, expected 8 and a header"));
}

std::string TokenizerJson(const std::string& model, const std::string& rest) {
  return R"({"added_tokens": [{"id": 4, "content": "</s>", "special": true}, {"id": 5, "content": "<x>", "special": false}], )" +
         rest + R"("model": )" + model + "}";
}
Status OpenTokenizerJson(const std::string& text) {
  GYRE_ASSIGN_OR_RETURN(const boost::json::object o, ParseObject(text));
  StatusOr<HfTokenizer> t = ReadTokenizerJson(o, boost::json::object{{"eos_token", "</s>"}}, 0);
  if (!t.ok()) return t.status();
  Metadata metadata;
  ExpectSentence(WriteTokenizer(*t, &metadata), "written");
  return UseTokenizer(MakeTokenizer(*std::move(t)));
}

TEST(BadInputTest, TokenizerJsonOfEveryKind) {
  Damage(TokenizerJson(R"({"type": "BPE", "vocab": {"a": 0, "b": 1, "ab": 2, "Ġ": 3}, "merges": ["a b"]})",
                       R"("normalizer": {"type": "NFC"}, "pre_tokenizer": {"type": "Sequence", "pretokenizers": [
                          {"type": "Split", "pattern": {"Regex": "\\p{L}+| ?[0-9]{1,3}"}, "behavior": "Isolated", "invert": false},
                          {"type": "ByteLevel", "add_prefix_space": false, "use_regex": false}]}, )"),
         "byte-level", 1, OpenTokenizerJson);
  Damage(
      TokenizerJson(
          R"({"type": "BPE", "byte_fallback": true, "unk_token": "<unk>", "vocab": {"<unk>": 0, "a": 1, "b": 2, "ab": 3, "<0xFF>": 6},
                           "merges": [["a", "b"]]})",
          R"("normalizer": {"type": "Sequence", "normalizers": [{"type": "Prepend", "prepend": "▁"},
                          {"type": "Replace", "pattern": {"String": " "}, "content": "▁"}]}, )"),
      "pieces that merge", 1, OpenTokenizerJson);
  Damage(
      TokenizerJson(
          R"({"type": "Unigram", "unk_id": 0, "byte_fallback": true, "vocab": [["<unk>", 0], ["a", -1.5], ["▁ab", -2], ["<0xFF>", 0]]})",
          R"("normalizer": {"type": "Sequence", "normalizers": [{"type": "NFKC"}, {"type": "Strip", "strip_left": true},
                          {"type": "Replace", "pattern": {"Regex": " {2,}"}, "content": "▁"}]},
                          "pre_tokenizer": {"type": "Metaspace", "replacement": "▁", "prepend_scheme": "always"}, )"),
      "unigram", 1, OpenTokenizerJson);
  EXPECT_THAT(Message(OpenTokenizerJson("{\"model\": {\"type\": ")),
              HasSubstr("no JSON object: incomplete JSON at byte 19 of 19"));
  EXPECT_THAT(Message(OpenTokenizerJson("{} x")), HasSubstr("more follows its end at byte 3 of 4"));
  EXPECT_THAT(Message(OpenTokenizerJson("[1]")), HasSubstr("no JSON object, expected one at byte 0 of 3"));
}

TEST(BadInputTest, OtherFilesGivenAsModelsAreNamed) {
  auto said = [](std::string_view text) {
    return Message(OpenModelFromBytes(std::as_bytes(std::span(text.data(), text.size())), {}, {}).status());
  };
  const std::string page = "\xEF\xBB\xBF\n <!DOCTYPE HTML><title>404</title>" + std::string(9000, ' ');
  EXPECT_EQ(said(page), "looks like an HTML page, not a model file: download it again");
  EXPECT_THAT(said("<html></html>"), HasSubstr("HTML page"));
  EXPECT_THAT(said("<?xml version=\"1.0\"?><Error><Code>AccessDenied</Code></Error>"), HasSubstr("XML answer"));
  EXPECT_THAT(said("version https://git-lfs.github.com/spec/v1\noid sha256:4d7a\nsize 12345\n"),
              HasSubstr("is a Git LFS pointer"));
  EXPECT_THAT(said("{\"error\": \"Repository not found, and more than twenty-eight bytes of it\"}"),
              HasSubstr("looks like JSON"));
  EXPECT_THAT(said("Entry not found"), HasSubstr("looks like plain text"));
  EXPECT_THAT(said("PK\x03\x04" + std::string(100, '\x08')), HasSubstr("zip archive, as PyTorch's"));
  EXPECT_THAT(said("\x80\x02}q\x01(" + std::string(100, '\x08')), HasSubstr("Python pickle"));
  EXPECT_THAT(said("\x1F\x8B\x08" + std::string(100, '\x08')), HasSubstr("gzip archive"));
  EXPECT_THAT(said("tjgg" + std::string(100, '\x01')), HasSubstr("before GGUF"));
  EXPECT_THAT(said(std::string("\x40\0\0\0\0\0\0\0", 8) + "{\"a\": {\"dtype\": \"F32\"}}" + std::string(99, ' ')),
              HasSubstr("safetensors"));
  EXPECT_THAT(said(std::string(5000, '\0')), HasSubstr("begins with zeros only"));
  EXPECT_THAT(said(std::string("GGUF\x03\0\0\0\x01\0\0\0", 12)), HasSubstr("offset 8: the tensor count"));
}

TEST(BadInputTest, ChatTemplates) {
  const std::string good =
      R"({%- macro turn(m) -%}<|{{ m.role }}|>{{ m['content'] | trim }}{%- endmacro -%}
{% set ns = namespace(n=0) %}{% for m in messages if m.role != 'system' %}{{ turn(m) }}{% set ns.n = ns.n + 1 %}{% else %}none{% endfor %}
{%- if add_generation_prompt and ns.n >= 1 %}{{ "<|assistant|>" ~ [1, {"a": -2.5}] | tojson(indent=2) }}{% endif %}{# end #})";
  const boost::json::object variables{
      {"messages", boost::json::array{boost::json::object{{"role", "user"}, {"content", " h\xC3\xA9 "}}}},
      {"add_generation_prompt", true}};
  int parse_errors = 0, render_errors = 0;
  Damage(good, "template", 1, [&](const std::string& source) -> Status {
    const auto t = jinja::Template::Parse(source);
    if (!t.ok()) {
      EXPECT_THAT(Message(t.status()), HasSubstr("line ")) << source;
      ++parse_errors;
      return t.status();
    }
    const auto text = t->Render(variables, {.max_steps = 20000, .max_bytes = 1 << 20});
    if (text.ok()) return absl::OkStatus();
    // Templates run into what Python would say in as many words; that it is said is enough here.
    EXPECT_FALSE(Message(text.status()).empty());
    ++render_errors;
    return absl::OkStatus();
  });
  EXPECT_GT(parse_errors, 100);
  EXPECT_GT(render_errors, 10);
}

TEST(BadInputTest, TemplatesSendNothingToATerminal) {
  auto error = [](const std::string& source) {
    const auto t = jinja::Template::Parse(source);
    return Message(t.ok() ? t->Render({}, {}).status() : t.status());
  };
  EXPECT_EQ(error("{{ raise_exception('\x1b[2J\xC2\x9B h\xC3\xA9 \xFF') }}"), "\\x1b[2J\\xc2\\x9b h\xC3\xA9 \\xff");
  EXPECT_THAT(error("{{ raise_exception('" + std::string(5000, 'a') + "') }}"), HasSubstr("aaa..."));
  EXPECT_THAT(error("{% end\xFF %}"), HasSubstr("line 1: the block 'end\\xff' is not known"));
}

TEST(BadInputTest, TemplatesThatNeverEndAreStopped) {
  auto error = [](const std::string& source, uint64_t steps) {
    const auto t = jinja::Template::Parse(source);
    EXPECT_TRUE(t.ok()) << t.status();
    const Status status = t->Render({}, {.max_steps = steps}).status();
    EXPECT_TRUE(absl::IsResourceExhausted(status)) << status;
    return Message(status);
  };
  const std::string thousand = "range(1000)";
  EXPECT_EQ(error("{% for a in " + thousand + " %}{% for b in " + thousand + " %}{% for c in " + thousand +
                      " %}{% endfor %}{% endfor %}{% endfor %}",
                  100000),
            "the template takes more than 100000 steps");
  EXPECT_EQ(
      error("{% set x = namespace(l=[1]) %}{% for a in range(40) %}{% set x.l = x.l + x.l %}{% endfor %}", 100000),
      "the template makes more than 67108864 bytes");
  EXPECT_THAT(error("{% macro f(n) %}{{ f(n + 1) }}{% endmacro %}{{ f(0) }}", 100000), HasSubstr("deep"));
}

TEST(BadInputTest, MergesOfTokensThatAreMissing) {
  auto gguf = [](const char* merge) { return Message(OpenTokenizerBytes(BpeGguf({merge}))); };
  EXPECT_THAT(gguf("a c"), HasSubstr("tokenizer.ggml.merges: merge 0 \"a c\" needs the token \"c\""));
  EXPECT_THAT(gguf("c a"), HasSubstr("needs the token \"c\", which the vocabulary has not"));
  EXPECT_THAT(gguf("b a"), HasSubstr("needs the token \"ba\""));
  auto json = [](const std::string& merges, bool bytes) {
    return Message(OpenTokenizerJson(TokenizerJson(
        R"({"type": "BPE", "byte_fallback": true, "vocab": {"a": 0, "b": 1, "ab": 2}, "merges": [)" + merges + "]}",
        bytes ? R"("pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": false}, )" : "")));
  };
  EXPECT_THAT(json(R"(["a", "c"])", true), HasSubstr("model.merges: merge 0 \"a c\" needs the token \"c\""));
  EXPECT_THAT(json(R"("a c")", false), HasSubstr("gives the token \"ac\", which the vocabulary has not"));
  EXPECT_THAT(json(R"("ab")", true), HasSubstr("model.merges: \\x22ab\\x22 is no pair"));
}

// Invalid UTF-8 in a user's text: byte for byte in byte tokens; the unknown token where there are none; and in a
// conversation, where the template engine counts characters, as it came.
TEST(BadInputTest, TextThatIsNoUtf8) {
  const std::string text = "a\xFF\xC3(\xED\xA0\x80\xF0\x9F\x98";
  Vocabulary bytes;
  for (int b = 0; b < 256; ++b) bytes.Add(std::string(1, static_cast<char>(b)), TokenType::kNormal);
  const auto bpe = MakeBpeTokenizer(bytes, {}, *PreTokenizerByName("llama3"));
  ASSERT_TRUE(bpe.ok());
  EXPECT_EQ((*bpe)->Encode(text, {}).size(), text.size());
  EXPECT_EQ((*bpe)->Decode((*bpe)->Encode(text, {})), text);
  for (const bool has_bytes : {true, false}) {
    Vocabulary pieces;
    pieces.Add("<unk>", TokenType::kUnknown);
    pieces.Add("a", TokenType::kNormal);
    for (int b = 0; has_bytes && b < 256; ++b) pieces.Add(fmt::format("<0x{:02X}>", b), TokenType::kByte);
    pieces.scores.assign(pieces.size(), -1);
    const auto spm = MakeSpmTokenizer(pieces, {.add_space_prefix = false});
    const auto unigram = MakeUnigramTokenizer(pieces, {.prefix = UnigramOptions::Prefix::kNone});
    ASSERT_TRUE(spm.ok() && unigram.ok());
    for (const auto* t : {spm->get(), unigram->get()}) {
      const auto ids = t->Encode(text, {});
      EXPECT_EQ(ids[0], 1);
      if (has_bytes) {
        EXPECT_EQ(t->Decode(ids), text) << t->kind();
      } else {
        EXPECT_EQ(std::count(ids.begin(), ids.end(), 0), static_cast<std::ptrdiff_t>(ids.size()) - 1) << t->kind();
      }
    }
  }
}

}  // namespace
}  // namespace gyre
