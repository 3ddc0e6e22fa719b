#include "model/chat_template.h"

#include <algorithm>
#include <boost/json.hpp>
#include <ctime>
#include <iterator>
#include <optional>
#include <span>

#include "model/message_shapes.h"
#include "model/special_trie.h"
#include "model/thought_messages.h"
#include "model/tool_messages.h"
#include "model/utf8.h"
#include "model/weights.h"

namespace gyre {
namespace {

namespace json = boost::json;

struct Format {
  const char* name;
  const char* marker;  // a token of the vocabulary; "" = always, null = never
  const char* source;
};

constexpr Format kFormats[] = {
    {"chatml", "<|im_start|>",
     "{% for m in messages %}{{ '<|im_start|>' + m.role + '\n' + m.content + '<|im_end|>\n' }}{% endfor %}"
     "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"},
    {"llama3", "<|start_header_id|>",
     "{{ bos_token }}{% for m in messages %}"
     "{{ '<|start_header_id|>' + m.role + '<|end_header_id|>\n\n' + m.content | trim + '<|eot_id|>' }}{% endfor %}"
     "{% if add_generation_prompt %}{{ '<|start_header_id|>assistant<|end_header_id|>\n\n' }}{% endif %}"},
    // A system message has no turn of its own: it is the beginning of the first user message.
    {"gemma", "<start_of_turn>",
     "{{ bos_token }}{% set ns = namespace(system='') %}{% for m in messages %}"
     "{% if m.role == 'system' %}{% set ns.system = m.content + '\n\n' %}{% else %}"
     "{{ '<start_of_turn>' + ('model' if m.role == 'assistant' else m.role) + '\n' + ns.system + m.content | trim + "
     "'<end_of_turn>\n' }}"
     "{% set ns.system = '' %}{% endif %}{% endfor %}"
     "{% if add_generation_prompt %}{{ '<start_of_turn>model\n' }}{% endif %}"},
    {"mistral", "[INST]",
     "{{ bos_token }}{% set ns = namespace(system='') %}{% for m in messages %}"
     "{% if m.role == 'system' %}{% set ns.system = m.content + '\n\n' %}"
     "{% elif m.role == 'assistant' %}{{ ' ' + m.content + eos_token }}"
     "{% else %}{{ '[INST] ' + ns.system + m.content + ' [/INST]' }}{% set ns.system = '' %}{% endif %}{% endfor %}"},
    // As RWKV's authors write conversations. Files have this name in place of a template.
    {"rwkv-world", nullptr,
     "{% for m in messages %}"
     "{{ 'User' if m.role == 'user' else 'Assistant' if m.role == 'assistant' else 'System' }}: "
     "{{ m.content | trim }}{{ '\n\n' }}{% endfor %}{% if add_generation_prompt %}Assistant:{% endif %}"},
    // For models that only continue text: the messages follow each other, and a newline ends each reply.
    {"plain", "", "{{ bos_token }}{% for m in messages %}{{ m.content }}{{ '\n' if m.role != 'user' }}{% endfor %}"},
};

const Format* FindFormat(const std::string& name) {
  for (const Format& f : kFormats) {
    if (name == f.name) return &f;
  }
  return nullptr;
}

bool IsToken(const Tokenizer& t, std::string_view text) {
  const auto ids = t.Encode(text, {.add_special = false, .parse_special = true});
  return ids.size() == 1 && t.Text(ids[0]) == text;
}

// Marks control tokens that messages spell: the guard is put after the first character of each, in every string of a
// value, so that the tokenizer does not recognise it.
class Guard {
 public:
  Guard(const Tokenizer& tokenizer, const Conversation& c) {
    for (TokenId id = 0; id < tokenizer.size(); ++id) {
      if (tokenizer.type(id) == TokenType::kControl || tokenizer.type(id) == TokenType::kUnknown)
        control_.Add(tokenizer.Text(id), id);
    }
    // The sign is a noncharacter of Unicode that the conversation does not contain.
    const std::string all = json::serialize(c.messages) + json::serialize(c.tools) + json::serialize(c.extra);
    char32_t sign = 0xFDD0;
    do {
      sign_.clear();
      AppendUtf8(sign++, &sign_);
    } while (all.find(sign_) != std::string::npos && sign < 0xFDF0);
  }
  const std::string& sign() const { return sign_; }
  json::value Apply(const json::value& v) const {
    if (const json::string* s = v.if_string()) return json::string(Text({s->data(), s->size()}));
    if (const json::array* a = v.if_array()) {
      json::array out;
      for (const auto& item : *a) out.push_back(Apply(item));
      return out;
    }
    if (const json::object* o = v.if_object()) {
      json::object out;
      for (const auto& item : *o) out[Text({item.key().data(), item.key().size()})] = Apply(item.value());
      return out;
    }
    return v;
  }

 private:
  std::string Text(std::string_view text) const {
    std::string out;
    for (size_t at = 0; at < text.size();) {
      const auto match = control_.LongestAt(text, at);
      const size_t first = Utf8Length(text, at);
      out += text.substr(at, first);
      if (match.id >= 0) out += sign_;
      at += first;
    }
    return out;
  }
  SpecialTrie control_;
  std::string sign_;
};

// The messages with a mark behind the last one's text: where it stands in the template's output, the text ends,
// whatever the template does with the spaces before it.
StatusOr<json::array> MarkEnd(const json::array& messages, std::string* mark) {
  json::array out = messages;
  json::object* last = out.empty() ? nullptr : out.back().if_object();
  const json::value* role = last == nullptr ? nullptr : last->if_contains("role");
  json::value* content = last == nullptr ? nullptr : last->if_contains("content");
  if (role == nullptr || *role != "assistant" || content == nullptr || !content->is_string()) {
    return InvalidArgument("the last message can't be continued: expected an assistant's, with a text");
  }
  // The last two code points of each plane are no characters.
  const std::string all = json::serialize(messages);
  char32_t sign = 0xFFFE;
  do {
    mark->clear();
    AppendUtf8(sign, mark);
    sign += 0x10000;
  } while (all.find(*mark) != std::string::npos && sign <= 0x10FFFE);
  content->get_string().append(*mark);
  return out;
}

// Where the last occurrence of the text begins; nullopt: there is none. At both ends its tokens may be joined with what
// stands beside it.
std::optional<uint32_t> FindText(std::span<const TokenId> ids, const std::string& text, const Tokenizer& tokenizer) {
  const std::vector<TokenId> all = tokenizer.Encode(text, {.add_special = false, .parse_special = false});
  if (all.size() < 4) return std::nullopt;
  const std::span<const TokenId> inner = std::span(all).subspan(1, all.size() - 2);
  const auto at = std::find_end(ids.begin(), ids.end(), inner.begin(), inner.end());
  if (at == ids.end() || at == ids.begin()) return std::nullopt;
  return static_cast<uint32_t>(at - ids.begin()) - 1;
}

// Before each control token: what stands before it is the same in the conversation's next turn, which may lack the
// token itself. Texts of messages have none (Guard).
std::vector<uint32_t> FindBoundaries(std::span<const TokenId> ids, const Tokenizer& tokenizer) {
  constexpr std::ptrdiff_t kFirst = 16, kLast = 64;
  std::vector<uint32_t> out;
  for (uint32_t i = 0; i < ids.size(); ++i) {
    if (tokenizer.type(ids[i]) == TokenType::kControl) out.push_back(i);
  }
  if (std::ssize(out) > kFirst + kLast) out.erase(out.begin() + kFirst, out.end() - kLast);
  return out;
}

std::tm LocalNow() {
  const std::time_t now = std::time(nullptr);
  std::tm out{};
  localtime_r(&now, &out);
  return out;
}

}  // namespace

ChatTemplate::ChatTemplate(jinja::Template t, std::string source, std::string name, std::string bos, std::string eos)
    : template_(std::make_shared<const jinja::Template>(std::move(t))),
      source_(std::move(source)),
      name_(std::move(name)),
      bos_(std::move(bos)),
      eos_(std::move(eos)),
      shapes_(std::make_shared<MessageShapes>()) {}

StatusOr<ChatTemplate> ChatTemplate::Parse(std::string_view source, std::string bos, std::string eos) {
  GYRE_ASSIGN_OR_RETURN(jinja::Template t, jinja::Template::Parse(source));
  return ChatTemplate(std::move(t), std::string(source), "model", std::move(bos), std::move(eos));
}

const std::vector<std::string>& ChatTemplate::BuiltIn() {
  static const auto* names = [] {
    auto* out = new std::vector<std::string>;
    for (const Format& f : kFormats) out->emplace_back(f.name);
    return out;
  }();
  return *names;
}

StatusOr<ChatTemplate> ChatTemplate::ForModel(const Model& model, const std::string& format) {
  const Tokenizer* t = model.tokenizer();
  if (t == nullptr) return FailedPrecondition("{}; a chat needs a tokenizer", model.tokenizer_note());
  const std::string bos = t->Text(t->bos()), eos = t->Text(t->eos());
  const Format* chosen = FindFormat(format);
  if (!format.empty() && chosen == nullptr) return InvalidArgument("the chat format '{}' is not known", format);
  const ChatTemplates& own = model.chat_templates();
  if (chosen == nullptr) chosen = FindFormat(own.text);
  if (chosen == nullptr && !own.note.empty()) return FailedPrecondition("{}", own.note);
  if (chosen == nullptr && !own.text.empty()) {
    StatusOr<ChatTemplate> parsed = Parse(own.text, bos, eos);
    GYRE_RETURN_IF_ERROR(Annotate(parsed.status(), "the model's chat template"));
    if (!own.tools.empty())
      parsed->tool_template_ = std::make_shared<const StatusOr<jinja::Template>>(jinja::Template::Parse(own.tools));
    return parsed;
  }
  for (const Format& f : kFormats) {
    if (chosen == nullptr && f.marker != nullptr && (f.marker[0] == '\0' || IsToken(*t, f.marker))) chosen = &f;
  }
  GYRE_ASSIGN_OR_RETURN(ChatTemplate built_in, Parse(chosen->source, bos, eos));
  built_in.name_ = chosen->name;
  return built_in;
}

StatusOr<std::string> ChatTemplate::Render(const Conversation& c, const std::tm* now) const {
  json::object variables = c.extra;
  std::string mark;
  if (c.continue_final) {
    GYRE_ASSIGN_OR_RETURN(variables["messages"], MarkEnd(c.messages, &mark));
  } else {
    variables["messages"] = c.messages;
  }
  variables["tools"] = c.tools;
  variables["documents"] = nullptr;
  variables["add_generation_prompt"] = c.add_generation_prompt && !c.continue_final;
  variables["bos_token"] = bos_;
  variables["eos_token"] = eos_;
  jinja::RenderOptions options;
  options.now = now != nullptr ? *now : LocalNow();
  const jinja::Template* source = template_.get();
  if (tool_template_ != nullptr && !c.tools.is_null()) {
    GYRE_RETURN_IF_ERROR(Annotate(tool_template_->status(), "the model's chat template for tools"));
    source = &**tool_template_;
  }
  GYRE_ASSIGN_OR_RETURN(std::string text, source->Render(variables, options));
  if (!c.continue_final) return text;
  const size_t end = text.rfind(mark);
  if (end == std::string::npos) {
    return InvalidArgument("the last message can't be continued: the chat template does not write its text");
  }
  text.resize(end);
  return text;
}

StatusOr<std::vector<TokenId>> ChatTemplate::Encode(const Conversation& c, const Tokenizer& tokenizer) const {
  const Guard guard(tokenizer, c);
  Conversation guarded;
  guarded.messages = guard.Apply(c.messages).as_array();
  guarded.tools = guard.Apply(c.tools);
  guarded.extra = guard.Apply(c.extra).as_object();
  guarded.add_generation_prompt = c.add_generation_prompt;
  guarded.continue_final = c.continue_final;
  GYRE_ASSIGN_OR_RETURN(const std::string text, Render(guarded));
  std::vector<TokenId> ids =
      tokenizer.Encode(text, {.add_special = false, .parse_special = true, .guard = guard.sign()});
  // Some templates write the begin token, others leave it to the tokenizer.
  if (tokenizer.add_bos() && (ids.empty() || ids[0] != tokenizer.bos())) ids.insert(ids.begin(), tokenizer.bos());
  return ids;
}

TokenId ChatTemplate::EndOfTurn(const Tokenizer& tokenizer) const {
  constexpr std::string_view kReply = "gyre4reply";
  Conversation probe;
  probe.messages = {json::object{{"role", "user"}, {"content", "a"}},
                    json::object{{"role", "assistant"}, {"content", kReply}}};
  probe.add_generation_prompt = false;
  const auto text = Render(probe);
  if (!text.ok()) return -1;
  const size_t at = text->rfind(kReply);
  if (at == std::string::npos) return -1;
  const auto ids = tokenizer.Encode(std::string_view(*text).substr(at + kReply.size()),
                                    {.add_special = false, .parse_special = true});
  return !ids.empty() && tokenizer.type(ids[0]) == TokenType::kControl ? ids[0] : -1;
}

namespace {

// The conversation as the template reads it.
StatusOr<Conversation> AsRead(const ChatTemplate& chat, const Conversation& conversation) {
  if (!conversation.tools.is_null() && !chat.takes_tools()) {
    return Unimplemented("the chat template has no tools, so the model can't be told of them");
  }
  return WithToolMessages(chat, WithThoughts(chat, conversation));
}

}  // namespace

StatusOr<ChatPrompts::Known> ChatPrompts::Template(const std::string& format) const {
  {
    const std::lock_guard lock(mutex_);
    if (const auto known = templates_.find(format); known != templates_.end()) return known->second;
  }
  GYRE_ASSIGN_OR_RETURN(ChatTemplate chat, ChatTemplate::ForModel(model_, format));
  const TokenId end = chat.EndOfTurn(*model_.tokenizer());
  const std::lock_guard lock(mutex_);
  return templates_.emplace(format, Known{std::move(chat), end}).first->second;
}

StatusOr<ChatPrompt> ChatPrompts::Make(const std::string& format, const Conversation& conversation) const {
  GYRE_ASSIGN_OR_RETURN(const Known known, Template(format));
  const ChatTemplate& chat = known.chat;
  const Tokenizer& tokenizer = *model_.tokenizer();
  ChatPrompt prompt{.format = chat.name()};
  GYRE_ASSIGN_OR_RETURN(const Conversation read, AsRead(chat, conversation));
  GYRE_ASSIGN_OR_RETURN(prompt.ids, chat.Encode(read, tokenizer));
  prompt.boundaries = FindBoundaries(prompt.ids, tokenizer);
  if (const auto at = FindText(prompt.ids, conversation.passing_end, tokenizer)) {
    prompt.boundaries.insert(std::upper_bound(prompt.boundaries.begin(), prompt.boundaries.end(), *at), *at);
  }
  if (known.end_of_turn >= 0) prompt.stop_ids.push_back(known.end_of_turn);
  prompt.answer = FindAnswerFormat(model_.chat_template(), tokenizer, prompt.ids);
  return prompt;
}

StatusOr<std::string> ChatPrompts::Text(const std::string& format, const Conversation& conversation) const {
  GYRE_ASSIGN_OR_RETURN(const Known known, Template(format));
  GYRE_ASSIGN_OR_RETURN(const Conversation read, AsRead(known.chat, conversation));
  return known.chat.Render(read);
}

}  // namespace gyre
