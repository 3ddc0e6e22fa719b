#include "cli/chat_tools.h"

#include <algorithm>
#include <boost/json.hpp>
#include <cstdio>
#include <utility>

#include "absl/strings/str_join.h"
#include "base/counted.h"
#include "cli/check_arguments.h"
#include "cli/child_process.h"
#include "cli/exit_code.h"
#include "cli/nearest.h"
#include "cli/shell_word.h"
#include "cli/terminal_text.h"
#include "coordinator/http/json_text.h"
#include "fmt/core.h"
#include "model/utf8.h"

namespace gyre {
namespace {

namespace json = boost::json;

// What a call and its result take of the terminal; and a question, since who answers it must know what for.
constexpr char kCall[] = "call    ";
constexpr size_t kShownLines = 6, kShownBytes = 600;
constexpr size_t kAskedLines = 200, kAskedBytes = 16384;

std::string SecondsText(Duration time) { return fmt::format("{:g} s", std::chrono::duration<double>(time).count()); }

// The arguments that are checked against the schema: an optional one that is null counts as absent.
std::string WithoutNulls(const ChatTool& tool, const json::value& arguments) {
  json::object kept;
  for (const auto& [name, value] : arguments.get_object()) {
    const std::string_view key(name.data(), name.size());
    const bool required = std::find(tool.required.begin(), tool.required.end(), key) != tool.required.end();
    if (required || !value.is_null()) kept[name] = value;
  }
  return http::WriteJson(kept);
}

// The sentence for a command that did not succeed; "": it did.
std::string WhyFailed(const ChatTool& tool, const ChildEnd& end) {
  switch (end.how) {
    case ChildEnd::How::kExited: return end.code == 0 ? "" : fmt::format("the command ended with code {}", end.code);
    case ChildEnd::How::kSignal: return fmt::format("the command was ended by signal {}", end.code);
    case ChildEnd::How::kLate:
      return fmt::format("the command did not end within {} and was stopped", SecondsText(tool.time));
    case ChildEnd::How::kStopped: break;
  }
  return "the user stopped the command";
}

// The text that the model gets of a command's end.
std::string ResultOf(const ChatTool& tool, const ChildEnd& end) {
  const std::string why = WhyFailed(tool, end);
  std::string out = why.empty() ? "" : fmt::format("error: {}\n", why);
  out += end.out;
  // A command that succeeds may have said there how far it is.
  if (!why.empty() && !end.err.empty()) out += (out.ends_with('\n') ? "" : "\n") + end.err;
  if (end.cut) {
    out += fmt::format("{}[the rest is left out: the output is longer than {}]\n", out.ends_with('\n') ? "" : "\n",
                       Counted(tool.output_bytes, "byte"));
  }
  while (out.ends_with('\n')) out.pop_back();
  return out.empty() ? "(no output)" : http::ValidUtf8(out);
}

}  // namespace

std::string Folded(std::string_view head, std::string_view text, size_t lines, size_t bytes) {
  while (text.ends_with('\n')) text.remove_suffix(1);
  const std::string below(head.size(), ' ');
  std::string out(head);
  size_t at = 0;
  for (size_t line = 0; line < lines && at < std::min(text.size(), bytes); ++line) {
    const size_t end = std::min(text.find('\n', at), text.size());
    size_t cut = std::min(end, bytes);
    // Not within a character.
    while (cut < end && cut > at && ContinuesUtf8(text[cut])) --cut;
    if (line > 0) out += below;
    TerminalText shown;
    out += shown.Push(text.substr(at, cut - at));
    out += shown.End();
    out += '\n';
    at = cut + (cut == end ? 1 : 0);
    if (cut < end) break;
  }
  if (at == 0) out += '\n';
  if (at < text.size()) out += fmt::format("{}... and {} more\n", below, Counted(text.size() - at, "byte"));
  return out;
}

StatusOr<ChatTools> ChatTools::Open(const std::string& path, const std::vector<std::string>& allowed) {
  StatusOr<ToolFile> file = ReadToolFile(path);
  if (!file.ok()) return AsUsage(Annotate(file.status(), "--tools"));
  ChatTools out;
  out.file_ = *std::move(file);
  std::vector<std::string> names;
  for (const ChatTool& tool : out.file_.tools) names.push_back(tool.name);
  for (const std::string& name : allowed) {
    if (std::find(names.begin(), names.end(), name) == names.end()) {
      return UsageError("--allow-tool {}: {} has no such tool{}; it has {}", name, path, DidYouMean(name, names),
                        absl::StrJoin(names, ", "));
    }
    out.allowed_.insert(name);
  }
  return out;
}

std::string ChatTools::List() const {
  if (file_.tools.empty()) return "There are no tools; `gyre chat --tools FILE` gives some.\n";
  std::string out;
  for (const ChatTool& tool : file_.tools) {
    out += fmt::format("{:<18} {}{}\n", tool.name, ShellLine(tool.command),
                       allowed_.contains(tool.name) ? "" : " (asks first)");
  }
  return out;
}

Status ChatTools::Allow(const ChatTool& tool, const ChatCall& call, const std::vector<std::string>& words,
                        const Ask& ask) {
  if (allowed_.contains(tool.name)) return absl::OkStatus();
  const Status refused = absl::PermissionDeniedError("the user did not allow this call");
  const std::optional<Consent> consent = ask(Folded(kCall, tool.name + " " + call.arguments, kAskedLines, kAskedBytes) +
                                             Folded("runs    ", ShellLine(words), kAskedLines, kAskedBytes) +
                                             Folded("in      ", tool.folder, kAskedLines, kAskedBytes) +
                                             fmt::format("Run it? y: yes, n: no, a: always {}: ", tool.name));
  if (!consent) {
    fmt::print(stderr, "{}", Folded(kCall, tool.name + " " + call.arguments, kShownLines, kShownBytes));
    fmt::print(stderr, "[{0} does not run, as nobody can be asked here; --allow-tool {0} allows it]\n", tool.name);
    return refused;
  }
  if (*consent == Consent::kAlways) allowed_.insert(tool.name);
  return *consent == Consent::kNo ? refused : absl::OkStatus();
}

const ChatTool* ChatTools::Find(const std::string& name) const {
  const auto tool =
      std::find_if(file_.tools.begin(), file_.tools.end(), [&](const ChatTool& t) { return t.name == name; });
  return tool == file_.tools.end() ? nullptr : &*tool;
}

StatusOr<std::string> ChatTools::Result(const ChatCall& call, const Ask& ask, const std::function<bool()>& stopped) {
  const Status interrupted = absl::CancelledError("the user stopped the command");
  if (stopped()) return interrupted;
  const ChatTool* const tool = Find(call.name);
  if (tool == nullptr) return NotFound("there is no tool {}", call.name);
  boost::system::error_code error;
  const json::value arguments = json::parse(call.arguments.empty() ? "{}" : call.arguments, error);
  if (error || !arguments.is_object()) return InvalidArgument("the arguments are no JSON object");
  GYRE_ASSIGN_OR_RETURN(const std::vector<std::string> words, tool->Words(arguments.get_object()));
  // The user is not asked for a call that is wrong.
  if (!tool->schema.empty()) GYRE_RETURN_IF_ERROR(CheckArguments(tool->schema, WithoutNulls(*tool, arguments)));
  GYRE_RETURN_IF_ERROR(Allow(*tool, call, words, ask));
  if (stopped()) return interrupted;
  GYRE_ASSIGN_OR_RETURN(const ChildEnd end, RunChild({.command = words,
                                                      .folder = tool->folder,
                                                      .input = json::serialize(arguments) + "\n",
                                                      .time = tool->time,
                                                      .output_bytes = tool->output_bytes,
                                                      .stopped = stopped}));
  return ResultOf(*tool, end);
}

std::string ChatTools::Run(const ChatCall& call, bool quiet, const Ask& ask, const std::function<bool()>& stopped) {
  const auto show = [quiet](const char* head, const std::string& text) {
    if (!quiet) fmt::print(stderr, "{}", Folded(head, text, kShownLines, kShownBytes));
  };
  // A question shows the call itself.
  if (Find(call.name) == nullptr || allowed_.contains(call.name)) show(kCall, call.name + " " + call.arguments);
  const StatusOr<std::string> result = Result(call, ask, stopped);
  std::string text = result.ok() ? *result : fmt::format("error: {}", Message(result.status()));
  show("result  ", text);
  return text;
}

}  // namespace gyre
