// gyre template: reads conversations, prints the text that a model continues.
#include <unistd.h>

#include <boost/json.hpp>
#include <cstdio>
#include <string>

#include "cli/commands.h"
#include "cli/exit_code.h"
#include "cli/json_lines.h"
#include "cli/session.h"
#include "cli/terminal_text.h"
#include "fmt/core.h"
#include "model/chat_template.h"
#include "model/weights.h"

namespace gyre {
namespace {

namespace json = boost::json;

std::string Text(const json::value* v) {
  const json::string* s = v != nullptr ? v->if_string() : nullptr;
  return s != nullptr ? std::string(s->data(), s->size()) : std::string();
}

// One case: messages, tools, add_generation_prompt, bos_token, eos_token, now, extra.
StatusOr<std::string> RenderCase(const std::string& source, const ChatTemplate* own, const json::object& o) {
  Conversation c;
  const json::value* messages = o.if_contains("messages");
  if (messages == nullptr || !messages->is_array()) return InvalidArgument("expected an array \"messages\"");
  c.messages = messages->get_array();
  if (const json::value* tools = o.if_contains("tools")) c.tools = *tools;
  if (const json::value* add = o.if_contains("add_generation_prompt"))
    c.add_generation_prompt = add->is_bool() && add->get_bool();
  if (const json::value* extra = o.if_contains("extra"); extra != nullptr && extra->is_object())
    c.extra = extra->get_object();
  std::tm now{};
  const std::string time = Text(o.if_contains("now"));
  if (!time.empty() && strptime(time.c_str(), "%Y-%m-%dT%H:%M:%S", &now) == nullptr) {
    return InvalidArgument("\"now\" is {}, expected YYYY-MM-DDTHH:MM:SS", time);
  }
  if (own != nullptr && o.if_contains("bos_token") == nullptr) return own->Render(c, time.empty() ? nullptr : &now);
  GYRE_ASSIGN_OR_RETURN(const ChatTemplate t, ChatTemplate::Parse(source, Text(o.if_contains("bos_token")),
                                                                  Text(o.if_contains("eos_token"))));
  return t.Render(c, time.empty() ? nullptr : &now);
}

}  // namespace

Status TemplateCommand(const TemplateOptions& options) {
  std::string source;
  std::unique_ptr<ChatTemplate> own;
  if (!options.file.empty()) {
    GYRE_ASSIGN_OR_RETURN(source, ReadFile(options.file));
    GYRE_RETURN_IF_ERROR(Annotate(ChatTemplate::Parse(source, "", "").status(), options.file));
  } else if (!options.model.empty()) {
    GYRE_ASSIGN_OR_RETURN(const auto model, OpenVocabulary(options.model, options.open));
    GYRE_ASSIGN_OR_RETURN(ChatTemplate t, ChatTemplate::ForModel(*model));
    source = model->chat_template();
    own = std::make_unique<ChatTemplate>(std::move(t));
  } else {
    return UsageError("a MODEL or --template FILE is needed");
  }
  if (!options.jsonl) {
    TerminalText shown;
    fmt::print("{}", isatty(STDOUT_FILENO) != 0 ? shown.Push(source) + shown.End() : source);
    return absl::OkStatus();
  }
  return EachInputLine([&](const std::string& line) -> Status {
    boost::system::error_code error;
    const json::value value = json::parse(line, error);
    if (error || !value.is_object()) return InvalidArgument("expected a JSON object");
    const StatusOr<std::string> text = RenderCase(source, own.get(), value.get_object());
    const json::object out =
        text.ok() ? json::object{{"text", *text}} : json::object{{"error", Message(text.status())}};
    fmt::print("{}\n", json::serialize(out));
    return absl::OkStatus();
  });
}

}  // namespace gyre
