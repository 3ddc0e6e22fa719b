// Real files: the trained model in three formats, the golden models, the vocabularies' token cases.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <boost/json.hpp>
#include <cstdlib>
#include <cstring>
#include <fstream>

#include <unistd.h>

#include "model/chat_template.h"
#include "model/mapped_file.h"
#include "model/tokenizer.h"
#include "model/unicode_form.h"
#include "model/weights.h"
#include "tests/testing/shared_data.h"

namespace gyre {
namespace {

using ::testing::HasSubstr;

class SharedTest : public ::testing::Test {
 protected:
  void SetUp() override {
    if (!testing::HaveSharedData()) GTEST_SKIP() << "no ../shared beside the checkout: the real files are not there";
  }
};

TEST_F(SharedTest, StoriesOpensInEveryFormat) {
  for (const char* name : {"stories260K.gguf", "stories260K.bin", "stories260K-q8.bin"}) {
    const auto model = OpenModel(testing::SharedData(std::string("models/") + name));
    ASSERT_TRUE(model.ok()) << model.status();
    const ModelSpec& s = (*model)->spec();
    EXPECT_EQ(s.dim, 64);
    EXPECT_EQ(s.vocab, 512);
    ASSERT_EQ(s.layers.size(), 5u);
    EXPECT_EQ(s.layers[0].attention()->kv_heads, 4);
    EXPECT_EQ(s.layers[0].dense()->width, 172);
    EXPECT_EQ((*model)->float_weights(), std::string(name) != "stories260K-q8.bin");
    const Tokenizer* t = (*model)->tokenizer();
    ASSERT_NE(t, nullptr) << name << ": " << (*model)->tokenizer_note();
    EXPECT_EQ(t->size(), 512);
    EXPECT_EQ(t->bos(), 1);
    const std::string text = "Once upon a time, there was a little girl named Lily.\n";
    const auto ids = t->Encode(text, {.add_special = true});
    EXPECT_EQ(ids[0], 1);
    EXPECT_EQ(ids[1], 403);
    EXPECT_EQ(t->Decode(ids), text);
  }
}

TEST_F(SharedTest, FormatsOfStoriesAgree) {
  const auto gguf = OpenModel(testing::SharedData("models/stories260K.gguf"));
  const auto bin = OpenModel(testing::SharedData("models/stories260K.bin"));
  ASSERT_TRUE(gguf.ok() && bin.ok());
  const auto a = (*gguf)->Layer(3), b = (*bin)->Layer(3);
  ASSERT_TRUE(a.ok() && b.ok());
  EXPECT_EQ(a->vector(Slot::kFfnNorm), b->vector(Slot::kFfnNorm));
  for (const Slot slot : {Slot::kV, Slot::kDown, Slot::kGate}) {
    const WeightView &x = a->matrix(slot), &y = b->matrix(slot);
    ASSERT_EQ(x.n, y.n);
    ASSERT_EQ(x.k, y.k);
    EXPECT_EQ(std::memcmp(x.data, y.data, x.n * x.k * 4), 0);
  }
  for (const char* text : {"Hello  world", " a", "Tom's caf\xC3\xA9 \xF0\x9F\x98\x80"}) {
    EXPECT_EQ((*gguf)->tokenizer()->Encode(text, {}), (*bin)->tokenizer()->Encode(text, {})) << text;
  }
}

TEST_F(SharedTest, GoldenModelsOpen) {
  for (const char* name :
       {"llama-s0-f16",  "llama-s0-bf16", "llama-s0-Q8_0",  "llama-s0-Q4_0",   "llama-s0-Q4_1",   "llama-s0-Q5_0",
        "llama-s0-Q5_1", "llama-s0-Q4_K", "llama-s0-Q5_K",  "llama-s0-Q6_K",   "llama-s0-IQ4_NL", "llama-s0-IQ4_XS",
        "llama-s0-Q2_K", "llama-s0-Q3_K", "llama3-s0-f16",  "qwen2-s0-f16",    "qwen3-s0-f16",    "gemma2-s0-f16",
        "gemma3-s0-f16", "phi3-s0-f16",   "mixtral-s0-f16", "qwen2moe-s0-f16", "qwen3moe-s0-f16"}) {
    const auto model = OpenModel(testing::SharedData(fmt::format("golden/tiny-{}.gguf", name)));
    ASSERT_TRUE(model.ok()) << model.status();
    EXPECT_EQ((*model)->tokenizer(), nullptr);
    EXPECT_EQ((*model)->float_weights(), std::string(name).find("f16") != std::string::npos);
  }
}

TEST_F(SharedTest, Gemma3AndLlama3SpecsAreTheirs) {
  const auto gemma = OpenModel(testing::SharedData("golden/tiny-gemma3-s0-f16.gguf"));
  ASSERT_TRUE(gemma.ok());
  const ModelSpec& s = (*gemma)->spec();
  EXPECT_EQ(s.embedding_scale, 16.0f);
  for (size_t i = 0; i < 7; ++i) {
    EXPECT_EQ(s.layers[i].attention()->window, i == 5 ? 0 : 32);
    EXPECT_EQ(s.layers[i].attention()->rope.base, i == 5 ? 1e6 : 1e4);
  }
  const auto llama3 = OpenModel(testing::SharedData("golden/tiny-llama3-s0-f16.gguf"));
  ASSERT_TRUE(llama3.ok());
  EXPECT_EQ((*llama3)->spec().layers[0].attention()->rope.frequency_factors.size(), 16u);
  EXPECT_TRUE((*llama3)->spec().tied_head);
}

class TokenCasesTest : public SharedTest, public ::testing::WithParamInterface<const char*> {};

TEST_P(TokenCasesTest, EveryCaseGivesItsIdsAndComesBack) {
  const std::string base = testing::SharedData(std::string("tokenizers/") + GetParam());
  const auto tokenizer = OpenTokenizer(base + ".vocab.gguf");
  ASSERT_TRUE(tokenizer.ok()) << tokenizer.status();
  const bool nfc = std::string(GetParam()).substr(0, 4) == "qwen";
  std::ifstream in(base + ".cases.jsonl");
  int cases = 0, wrong = 0;
  for (std::string line; std::getline(in, line); ++cases) {
    const auto object = boost::json::parse(line).as_object();
    const std::string text(object.at("text").as_string().c_str(), object.at("text").as_string().size());
    std::vector<TokenId> expected;
    for (const auto& id : object.at("ids").as_array()) expected.push_back(static_cast<TokenId>(id.to_number<int>()));
    const bool special = object.at("parse_special").as_bool();
    const auto ids = (*tokenizer)->Encode(text, {.add_special = false, .parse_special = special});
    if (ids != expected && ++wrong <= 5) {
      ADD_FAILURE() << "case " << cases << ": " << line.substr(0, 200) << "\n got " << ::testing::PrintToString(ids);
    }
    // A literal U+2581 reads as a space, and control tokens have no text.
    if (!special && text.find("\xE2\x96\x81") == std::string::npos) {
      EXPECT_EQ((*tokenizer)->Decode(ids), nfc ? NormalizeNfc(text) : text);
    }
  }
  EXPECT_EQ(wrong, 0);
  EXPECT_GT(cases, 20);
}

INSTANTIATE_TEST_SUITE_P(Vocabularies, TokenCasesTest,
                         ::testing::Values("llama-spm", "phi-3", "gemma3", "llama3", "qwen2", "qwen3", "gpt-2",
                                           "deepseek-llm", "deepseek-coder"),
                         [](const auto& info) {
                           std::string name = info.param;
                           std::erase(name, '-');
                           return name;
                         });

TEST_F(SharedTest, EndsOfGenerationAreKnown) {
  const auto gemma = OpenTokenizer(testing::SharedData("tokenizers/gemma3.vocab.gguf"));
  ASSERT_TRUE(gemma.ok()) << gemma.status();
  for (TokenId id : {1, 106}) EXPECT_TRUE((*gemma)->IsEndOfGeneration(id)) << id;
  EXPECT_FALSE((*gemma)->IsEndOfGeneration(212));  // "</s>" is an HTML tag there
  const auto phi = OpenTokenizer(testing::SharedData("tokenizers/phi-3.vocab.gguf"));
  ASSERT_TRUE(phi.ok()) << phi.status();
  for (TokenId id : {32000, 32007}) EXPECT_TRUE((*phi)->IsEndOfGeneration(id)) << id;
  const auto llama3 = OpenTokenizer(testing::SharedData("tokenizers/llama3.vocab.gguf"));
  ASSERT_TRUE(llama3.ok()) << llama3.status();
  for (TokenId id : {128001, 128009}) EXPECT_TRUE((*llama3)->IsEndOfGeneration(id)) << id;
  EXPECT_EQ((*llama3)->Encode("", {.add_special = true}), (std::vector<TokenId>{128000}));
  const auto qwen = OpenTokenizer(testing::SharedData("tokenizers/qwen2.vocab.gguf"));
  ASSERT_TRUE(qwen.ok()) << qwen.status();
  for (TokenId id : {151643, 151645}) EXPECT_TRUE((*qwen)->IsEndOfGeneration(id)) << id;
  EXPECT_TRUE((*qwen)->Encode("", {.add_special = true}).empty());
}

// Rendered with Python's Jinja2, as the transformers library does.
TEST_F(SharedTest, EveryRenderedChatIsTheSame) {
  std::ifstream in(testing::SharedData("tokenizers/chat.cases.jsonl"));
  int cases = 0, wrong = 0;
  for (std::string line; std::getline(in, line); ++cases) {
    const auto object = boost::json::parse(line).as_object();
    auto text = [&](const char* key) {
      const auto* v = object.if_contains(key);
      return v != nullptr && v->is_string() ? std::string(v->as_string().data(), v->as_string().size()) : std::string();
    };
    std::ifstream file(testing::SharedData("tokenizers/templates/" + text("template")), std::ios::binary);
    const std::string source((std::istreambuf_iterator<char>(file)), {});
    const auto chat = ChatTemplate::Parse(source, text("bos_token"), text("eos_token"));
    ASSERT_TRUE(chat.ok()) << text("template") << ": " << chat.status();
    Conversation c;
    c.messages = object.at("messages").as_array();
    c.tools = object.at("tools");
    c.add_generation_prompt = object.at("add_generation_prompt").as_bool();
    if (const auto* extra = object.if_contains("extra")) c.extra = extra->as_object();
    std::tm now{};
    strptime(text("now").c_str(), "%Y-%m-%dT%H:%M:%S", &now);
    const auto got = chat->Render(c, &now);
    const bool right =
        object.if_contains("expected_error") != nullptr ? !got.ok() : got.ok() && *got == text("expected");
    if (!right && ++wrong <= 5) {
      ADD_FAILURE() << "case " << cases << " of " << text("template") << "\n got "
                    << (got.ok() ? *got : Message(got.status())) << "\n expected " << text("expected");
    }
  }
  EXPECT_EQ(wrong, 0);
  EXPECT_GT(cases, 200);
}

TEST_F(SharedTest, ConversationsCannotForgeControlTokens) {
  for (const char* name : {"qwen2", "llama3", "gemma3"}) {
    const auto model = OpenVocabulary(testing::SharedData(std::string("tokenizers/") + name + ".vocab.gguf"));
    ASSERT_TRUE(model.ok()) << model.status();
    const Tokenizer& t = *(*model)->tokenizer();
    const auto chat = ChatTemplate::ForModel(**model);
    ASSERT_TRUE(chat.ok()) << chat.status();
    EXPECT_EQ(chat->name(), "model");
    const TokenId end = chat->EndOfTurn(t);
    ASSERT_GE(end, 0) << name;
    EXPECT_TRUE(t.IsEndOfGeneration(end)) << name << t.Text(end);
    auto count = [&](const std::string& said) {
      Conversation c;
      c.messages = {boost::json::object{{"role", "user"}, {"content", said}}};
      const auto ids = chat->Encode(c, t);
      EXPECT_TRUE(ids.ok()) << ids.status();
      EXPECT_NE(t.Decode(*ids).find(said), std::string::npos) << t.Decode(*ids);
      return std::count(ids->begin(), ids->end(), end);
    };
    const auto plain = count("hello");
    EXPECT_GT(plain, 0);
    EXPECT_EQ(count("hello" + t.Text(end) + t.Text(end) + "x"), plain) << name;
    for (const std::string& format : ChatTemplate::BuiltIn()) {
      const auto built_in = ChatTemplate::ForModel(**model, format);
      ASSERT_TRUE(built_in.ok()) << built_in.status();
      Conversation c;
      c.messages = {boost::json::object{{"role", "system"}, {"content", "be brief"}},
                    boost::json::object{{"role", "user"}, {"content", "hello"}},
                    boost::json::object{{"role", "assistant"}, {"content", "hi"}},
                    boost::json::object{{"role", "user"}, {"content", "bye"}}};
      const auto text = built_in->Render(c);
      ASSERT_TRUE(text.ok()) << text.status();
      for (const char* said : {"be brief", "hello", "hi", "bye"}) EXPECT_THAT(*text, HasSubstr(said)) << format;
    }
    EXPECT_FALSE(ChatTemplate::ForModel(**model, "telegram").ok());
  }
}

TEST(MappedFileTest, HintsTakeAnyRange) {
  char path[] = "/tmp/gyre-hints-XXXXXX";
  const int fd = mkstemp(path);
  ASSERT_GE(fd, 0);
  const std::string text(3 * 4096 + 17, 'x');
  ASSERT_EQ(write(fd, text.data(), text.size()), static_cast<ssize_t>(text.size()));
  close(fd);
  const auto file = MappedFile::Open(path);
  ASSERT_TRUE(file.ok()) << file.status();
  const auto bytes = (*file)->bytes();
  const std::vector<std::byte> elsewhere(100);
  for (const ReadHint hint : {ReadHint::kSequential, ReadHint::kSoon}) {
    errno = 0;
    HintRead(bytes, hint);
    HintRead(bytes.subspan(5, 1), hint);
    HintRead(bytes.subspan(4095, 2), hint);
    HintRead(bytes.last(1), hint);
    EXPECT_EQ(errno, 0);
    HintRead(bytes.first(0), hint);
    HintRead({}, hint);
    HintRead(elsewhere, hint);
  }
  EXPECT_TRUE(std::all_of(bytes.begin(), bytes.end(), [](std::byte b) { return b == std::byte{'x'}; }));
  EXPECT_TRUE((*file)->SameAs(path));
  EXPECT_FALSE((*file)->SameAs("/dev/null"));
  unlink(path);
  EXPECT_FALSE((*file)->SameAs(path));
}

TEST(MappedFileTest, FilesThatAreNoneSaySo) {
  EXPECT_TRUE(absl::IsNotFound(OpenModel("/nonexistent/model.gguf").status()));
  EXPECT_THAT(Message(OpenModel("/").status()), HasSubstr("folder"));
  EXPECT_THAT(Message(OpenModel("/dev/null").status()), HasSubstr("regular"));
  char path[] = "/tmp/gyre-empty-XXXXXX";
  const int fd = mkstemp(path);
  ASSERT_GE(fd, 0);
  EXPECT_THAT(Message(OpenModel(path).status()), HasSubstr("empty"));
  std::ofstream(path) << "This is a text and no model at all, as anyone can see.";
  EXPECT_THAT(Message(OpenModel(path).status()), HasSubstr("looks like plain text, not a model file"));
  unlink(path);
}

}  // namespace
}  // namespace gyre
