#include "model/tool_reader.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "boost/json/array.hpp"
#include "boost/json/object.hpp"
#include "model/call_deltas.h"
#include "model/held_text.h"
#include "model/json_scanner.h"
#include "model/marked_text.h"
#include "model/reading.h"
#include "model/tool_values.h"

namespace gyre {
namespace {

namespace json = boost::json;

using Kind = AnswerDelta::Kind;

constexpr size_t kNone = std::string_view::npos;

// GCC 12 takes no lists in braces behind co_await.
template <typename... T>
std::vector<std::string> AnyOf(const T&... texts) {
  return {std::string(texts)...};
}

bool IsJsonForm(ToolForm form) {
  return form != ToolForm::kXmlParameters && form != ToolForm::kArgKeys && form != ToolForm::kInvoke &&
         form != ToolForm::kBraces && form != ToolForm::kPythonic && form != ToolForm::kTaggedPythonic;
}

}  // namespace

// Marked content to deltas.
class ToolReader::Calls {
 public:
  Calls(const AnswerFormat& format, DeclaredTools tools, Options options)
      : options_(options),
        controls_(format.controls),
        form_(format.tools->form),
        tools_(std::move(tools)),
        open_(Marked(format.tools->open)),
        close_(Marked(format.tools->close)),
        call_(IsJsonForm(form_)) {
    for (const char* inner : format.tools->inner) inner_.push_back(Marked(inner));
    starts_ = form_ == ToolForm::kLlamaJson || form_ == ToolForm::kPythonic || form_ == ToolForm::kRecipient;
    // The other ones have their calls at the beginning of the answer alone.
    if (form_ == ToolForm::kHarmony || form_ == ToolForm::kLlamaJson || form_ == ToolForm::kPythonic)
      opening_ = {};
    else
      opening_ = open_;
  }

  void Piece(const AnswerSplitter::Piece& piece, std::vector<AnswerDelta>* out) {
    out_ = out;
    if (piece.call != message_) EndMessage();
    if (piece.reasoning) return Add(Kind::kReasoning, Unmarked(piece.text));
    if (piece.call != message_) starts_ = true;
    message_ = piece.call;
    text_.Append(piece.text);
    Read();
  }

  void Finish(bool cut, std::vector<AnswerDelta>* out) {
    out_ = out;
    cut_ = cut;
    text_.End();
    Read();
    if (!called_) Add(Kind::kContent, space_);
    space_.clear();
  }

  const Begun& begun() const { return call_.begun(); }

 private:
  std::string Marked(std::string_view marker) const {
    std::string out;
    while (!marker.empty()) {
      const auto found = std::find_if(controls_.begin(), controls_.end(),
                                      [&](const auto& control) { return marker.starts_with(control.text); });
      out += found == controls_.end() ? std::string(marker.substr(0, 1)) : MarkedControl(found->text);
      marker.remove_prefix(found == controls_.end() ? 1 : found->text.size());
    }
    return out;
  }

  // ---- What is given out

  void Add(Kind kind, std::string_view text) {
    if (text.empty() && kind != Kind::kCall && kind != Kind::kCallEnd) return;
    const bool goes_on = !out_->empty() && out_->back().kind == kind && kind != Kind::kCall && kind != Kind::kCallEnd;
    if (!goes_on) out_->push_back({.kind = kind, .text = {}});
    out_->back().text += text;
  }

  void AddContent(std::string_view marked) {
    const std::string text = Unmarked(marked);
    const size_t last = text.find_last_not_of(kJsonSpace);
    if (last == kNone) {
      space_ += text;
      return;
    }
    Add(Kind::kContent, space_);
    Add(Kind::kContent, std::string_view(text).substr(0, last + 1));
    space_ = text.substr(last + 1);
  }

  void Begin(std::string_view name) { call_.Begin(name, tools_.contains(name)); }
  void Flush() {
    for (const AnswerDelta& delta : call_.Take()) {
      if (delta.kind == Kind::kCall) {
        space_.clear();
        called_ = true;
      }
      Add(delta.kind, delta.text);
    }
  }
  // What was read is a call, with its markers; or, of an unknown tool, text.
  void Settle() {
    call_.End();
    if (call_.known()) {
      Flush();
    } else {
      AddContent(text_.taken());
    }
    call_.Forget();
    committed_ = false;
    text_.ForgetFailure();
    settled_ = true;
    text_.Forget();
  }

  bool IsText(std::string_view key) const {
    const auto tool = tools_.find(call_.name());
    return tool != tools_.end() && tool->second.contains(key);
  }

  // ---- What a form waits for

  // Whether the call is given out, however wrong it is from this place on: it does not depend on how the text is cut.
  bool CommittedAt(size_t at) {
    committed_ |= call_.known() && call_.waiting() && at > kHeldCall;
    return committed_;
  }

  // Takes arguments that are a JSON object. Nothing before `close` is one without members.
  auto Json(std::string close) {
    return text_.Wait([this, close = std::move(close), scanner = JsonScanner(options_.names_may_repeat),
                       raw = false]() mutable -> std::optional<bool> {
      if (raw) return Raw(close);
      if (scanner.expects() == JsonScanner::Expects::kValue && scanner.depth() == 0) {
        const std::string_view rest = text_.rest();
        if ((!close.empty() && rest.starts_with(close)) || (rest.empty() && text_.ended() && !cut_)) {
          call_.Arguments("{}");
          return true;
        }
        if (!text_.ended() && !close.empty() && std::string_view(close).starts_with(rest)) return std::nullopt;
        if (!rest.empty() && rest[0] != '{') return text_.Fails(text_.at());
      }
      const size_t first = text_.at();
      auto state = JsonScanner::State::kMore;
      while (!text_.rest().empty() && state == JsonScanner::State::kMore) {
        state = scanner.Feed(text_.rest()[0]);
        if (state != JsonScanner::State::kWrong) text_.Skip(1);
      }
      call_.Arguments(text_.taken().substr(first));
      if (state == JsonScanner::State::kDone) return true;
      if (state == JsonScanner::State::kWrong) {
        if (!CommittedAt(text_.at())) return false;
        raw = true;
        return Raw(close);
      }
      if (text_.ended()) return text_.RanOut();
      return std::nullopt;
    });
  }
  // The rest of a call that was given out and is wrong.
  std::optional<bool> Raw(const std::string& close) {
    const std::string_view rest = text_.rest();
    const size_t end = close.empty() ? kNone : rest.find(close);
    const size_t sure = end != kNone ? end : rest.size() - (text_.ended() ? 0 : BegunAtEnd(rest, close));
    call_.Arguments(Unmarked(rest.substr(0, sure)));
    text_.Skip(sure);
    if (end != kNone || text_.ended()) return true;
    return std::nullopt;
  }

  // An object {"name": ..., "arguments": {...}}, whose members come in any order.
  struct Object {
    explicit Object(bool names_may_repeat) : scanner(names_may_repeat) {}
    JsonScanner scanner;
    std::string key, name;
    std::string kept;  // arguments before the name is known
    bool in_arguments = false, has_arguments = false, has_name = false, raw = false;
  };
  static bool IsNameKey(std::string_view key) { return key == "name" || key == "tool_name"; }
  static bool IsArgumentsKey(std::string_view key) { return key == "arguments" || key == "parameters"; }
  void MayBegin(Object* o) {
    if (!o->has_name || !o->has_arguments || call_.open() || !call_.known()) return;
    Begin(o->name);
    call_.Arguments(o->kept);
    o->kept.clear();
  }
  JsonScanner::State Byte(char c, Object* o) {
    using Expects = JsonScanner::Expects;
    using State = JsonScanner::State;
    JsonScanner& s = o->scanner;
    if (s.depth() == 0 && c != '{') return State::kWrong;
    const bool value = s.depth() == 1 && s.expects() == Expects::kValue && !IsJsonSpace(c);
    const bool colon = s.depth() == 1 && s.expects() == Expects::kColon && c == ':';
    if (value && IsArgumentsKey(o->key)) {
      if (c != '{') return State::kWrong;
      o->in_arguments = true;
    }
    if (value && IsNameKey(o->key) && c != '"') return State::kWrong;
    const State state = s.Feed(c);
    if (state == State::kWrong) return state;
    if (o->in_arguments) (call_.open() || !call_.known() ? taken_ : o->kept) += c;
    if (s.depth() != 1) return state;
    if (s.expects() == Expects::kColon) o->key = s.string();
    if (colon && IsArgumentsKey(o->key)) {
      if (o->has_arguments) return State::kWrong;  // under both names
      o->has_arguments = true;
      MayBegin(o);
    }
    if (s.expects() == Expects::kNext && o->in_arguments) {
      o->in_arguments = false;
    } else if (s.expects() == Expects::kNext && IsNameKey(o->key) && !o->has_name) {
      o->name = JsonText(s.string());
      o->has_name = true;
      MayBegin(o);
    }
    return state;
  }
  auto CallObject() {
    return text_.Wait([this, o = Object(options_.names_may_repeat)]() mutable -> std::optional<bool> {
      if (o.raw) return Raw(close_);
      auto state = JsonScanner::State::kMore;
      while (!text_.rest().empty() && state == JsonScanner::State::kMore) {
        state = Byte(text_.rest()[0], &o);
        if (state != JsonScanner::State::kWrong) text_.Skip(1);
      }
      call_.Arguments(taken_);
      taken_.clear();
      if (state == JsonScanner::State::kDone) return o.has_name && o.has_arguments;
      if (state == JsonScanner::State::kWrong) {
        if (!CommittedAt(text_.at())) return false;
        o.raw = true;
        return Raw(close_);
      }
      if (text_.ended()) return text_.RanOut();
      return std::nullopt;
    });
  }

  // Takes the value of the member that was begun, up to `close` with one of `follows` behind it. `lines`: a line feed
  // before it belongs to the form. `text`: it is one, whatever it looks like.
  auto Value(std::string close, std::vector<std::string> follows, bool lines, bool text) {
    return text_.Wait([this, close = std::move(close), follows = std::move(follows), lines, text,
                       begun = false]() mutable -> std::optional<bool> {
      if (text && !begun) call_.Arguments(call_.MemberBegin() + '"');
      begun = true;
      for (;;) {
        const std::string_view rest = text_.rest();
        const size_t end = rest.find(close);
        if (end == kNone) {
          if (text_.ended()) {
            TakeValue(rest.size(), text);
            return text_.RanOut();
          }
          TakeValue(Sure(rest, rest.size() - BegunAtEnd(rest, close), lines), text);
          return std::nullopt;
        }
        const Follows next = FollowsAt(rest.substr(end + close.size()), follows);
        if (next == Follows::kMore && !text_.ended()) {
          TakeValue(Sure(rest, end, lines), text);
          return std::nullopt;
        }
        if (next == Follows::kNo) {
          TakeValue(end + 1, text);
          continue;
        }
        const size_t size = Sure(rest, end, lines);
        TakeValue(size, text);
        text_.Skip(end - size + close.size());
        if (text) {
          call_.Arguments("\"");
          call_.EndMember();
        } else {
          call_.Member(JsonOrText(call_.begun().value, options_.names_may_repeat));
        }
        return true;
      }
    });
  }
  static size_t Sure(std::string_view rest, size_t size, bool lines) {
    return lines && size > 0 && rest[size - 1] == '\n' ? size - 1 : size;
  }
  void TakeValue(size_t size, bool text) {
    const std::string_view taken = text_.rest().substr(0, size);
    if (text) call_.Arguments(JsonEscaped(Unmarked(taken)));
    call_.AddToValue(taken);
    text_.Skip(size);
  }
  enum class Follows { kYes, kNo, kMore };
  static Follows FollowsAt(std::string_view rest, const std::vector<std::string>& follows) {
    if (follows.empty()) return Follows::kYes;
    rest.remove_prefix(std::min(rest.find_first_not_of(kJsonSpace), rest.size()));
    bool more = false;
    for (const std::string& follow : follows) {
      if (rest.starts_with(follow)) return Follows::kYes;
      more |= std::string_view(follow).starts_with(rest);
    }
    return more ? Follows::kMore : Follows::kNo;
  }
  // The same for a literal of Python, or one of Gemma's form if there is a quote.
  auto Value(const std::string* quote) {
    return text_.Wait([this, quote,
                       end = quote == nullptr ? LiteralEnd() : LiteralEnd(*quote)]() mutable -> std::optional<bool> {
      const std::string_view rest = text_.rest();
      const size_t size = end.Find(rest);
      if (size == kNone) {
        if (!text_.ended()) return std::nullopt;
        call_.AddToValue(Unmarked(rest));
        text_.MoveTo(text_.size());
        return text_.RanOut();
      }
      const std::string_view written = rest.substr(0, size);
      const std::optional<std::string> value = quote == nullptr ? PythonToJson(written) : BracesToJson(*quote, written);
      if (!value) return text_.Fails(text_.at() + size);
      text_.Skip(size);
      call_.Member(*value);
      return true;
    });
  }
  auto Close() { return text_.Close(close_); }

  // ---- The forms

  Reading Jsons() {
    if (!co_await text_.Literal(open_)) co_return false;
    co_await text_.Space();
    if (co_await text_.Next() != '[') {
      if (!co_await CallObject()) co_return false;
      co_await text_.Space();
      if (!close_.empty() && !co_await Close()) co_return false;
      Settle();
      co_return true;
    }
    text_.Skip(1);
    for (bool first = true;; first = false) {
      co_await text_.Space();
      if (co_await text_.Literal("]")) break;
      if (!first && !co_await text_.Literal(",")) co_return false;
      co_await text_.Space();
      if (!co_await CallObject()) co_return false;
      Settle();
    }
    if (!close_.empty()) {
      co_await text_.Space();
      co_await Close();
    }
    Settle();
    co_return true;
  }

  Reading XmlParameters() {
    if (!co_await text_.Literal(open_)) co_return false;
    co_await text_.Space();
    if (!co_await text_.Literal("<function=")) co_return false;
    Begin(co_await text_.Name(AnyOf(">")));
    if (!co_await text_.Literal(">")) co_return false;
    for (;;) {
      co_await text_.Space();
      if (co_await text_.Literal("</function>")) break;
      if (!co_await text_.Literal("<parameter=")) co_return false;
      call_.BeginMember(co_await text_.Name(AnyOf(">"), true));
      if (!co_await text_.Literal(">")) co_return false;
      co_await text_.Literal("\n");
      const bool value = co_await Value("</parameter>", AnyOf("<parameter=", "</function>"), true, IsText(begun().key));
      if (!value) co_return false;
    }
    call_.EndMembers();
    co_await text_.Space();
    if (!co_await Close()) co_return false;
    Settle();
    co_return true;
  }

  Reading ArgKeys() {
    const std::string key = inner_[0], key_end = inner_[1], value = inner_[2], value_end = inner_[3];
    if (!co_await text_.Literal(open_)) co_return false;
    Begin(co_await text_.Name(AnyOf("\n", key, close_)));
    for (;;) {
      co_await text_.Space();
      if (co_await text_.Literal(key)) {
        call_.BeginMember(co_await text_.Name(AnyOf(key_end), true));
        if (!co_await text_.Literal(key_end)) co_return false;
        co_await text_.Space();
        if (!co_await text_.Literal(value)) co_return false;
        const bool taken = co_await Value(value_end, AnyOf(key, close_), false, IsText(begun().key));
        if (!taken) co_return false;
      } else if (co_await text_.Literal(close_)) {
        break;
      } else {
        co_return false;
      }
    }
    call_.EndMembers();
    Settle();
    co_return true;
  }

  Reading Invokes() {
    // DeepSeek's tags have a token in them.
    const std::string in = inner_.empty() ? "" : inner_[0];
    const std::string parameter = "<" + in + "parameter", parameter_end = "</" + in + "parameter>";
    const std::string invoke_end = "</" + in + "invoke>";
    if (!co_await text_.Literal(open_)) co_return false;
    for (;;) {
      co_await text_.Space();
      if (co_await text_.Literal(close_)) break;
      if (!co_await text_.Literal("<" + in + "invoke name=\"")) co_return text_.ended() && settled_;
      Begin(co_await text_.Name(AnyOf("\"")));
      if (!co_await text_.Literal("\">")) co_return false;
      for (;;) {
        co_await text_.Space();
        if (co_await text_.Literal(invoke_end)) break;
        if (!co_await text_.Literal(parameter + " name=\"")) co_return false;
        call_.BeginMember(co_await text_.Name(AnyOf("\""), true));
        if (!co_await text_.Literal("\"")) co_return false;
        bool text = IsText(begun().key);
        if (co_await text_.Literal(" string=\"")) {
          const std::string is_text = co_await text_.Name(AnyOf("\""));
          text = is_text == "true";
          if (!co_await text_.Literal("\"")) co_return false;
        }
        if (!co_await text_.Literal(">")) co_return false;
        const bool taken = co_await Value(parameter_end, AnyOf(parameter, invoke_end), false, text);
        if (!taken) co_return false;
      }
      call_.EndMembers();
      Settle();
    }
    Settle();
    co_return true;
  }

  Reading Kimi() {
    const std::string begin = inner_[0], arguments = inner_[1], end = inner_[2];
    if (!co_await text_.Literal(open_)) co_return false;
    for (;;) {
      co_await text_.Space();
      if (co_await text_.Literal(close_)) break;
      if (!co_await text_.Literal(begin)) co_return text_.ended() && settled_;
      std::string id = co_await text_.Name(AnyOf(arguments));
      if (!co_await text_.Literal(arguments)) co_return false;
      id.resize(std::min(id.rfind(':'), id.size()));
      if (id.starts_with("functions.")) id.erase(0, 10);
      Begin(id);
      co_await text_.Space();
      if (!co_await Json(end)) co_return false;
      co_await text_.Space();
      if (!co_await text_.Literal(end)) co_return false;
      Settle();
    }
    Settle();
    co_return true;
  }

  Reading DeepSeek() {
    const bool fenced = form_ == ToolForm::kDeepSeekFenced;
    const std::string begin = inner_[0], separator = inner_[1], end = inner_[2];
    if (!co_await text_.Literal(open_)) co_return false;
    for (;;) {
      co_await text_.Space();
      if (co_await text_.Literal(close_)) break;
      if (!co_await text_.Literal(begin)) co_return text_.ended() && settled_;
      std::string name = co_await text_.Name(AnyOf(separator));
      if (!co_await text_.Literal(separator)) co_return false;
      if (fenced) {  // before the separator stands a type
        name = co_await text_.Name(AnyOf("\n"));
        co_await text_.Space();
        if (!co_await text_.Literal("```json")) co_return false;
      }
      Begin(name);
      co_await text_.Space();
      const std::string close = fenced ? "```" : end;
      if (!co_await Json(close)) co_return false;
      co_await text_.Space();
      if (fenced && !co_await text_.Literal("```")) co_return false;
      co_await text_.Space();
      if (!co_await text_.Literal(end)) co_return false;
      Settle();
    }
    Settle();
    co_return true;
  }

  Reading MistralArgs() {
    const std::string arguments = inner_[0], call_id = inner_[1];
    if (!co_await text_.Literal(open_)) co_return false;
    const std::string name = co_await text_.Name(AnyOf(arguments, call_id));
    if (co_await text_.Literal(call_id)) co_await text_.Name(AnyOf(arguments));
    if (!co_await text_.Literal(arguments)) co_return false;
    Begin(name);
    co_await text_.Space();
    if (!co_await Json(open_)) co_return false;
    Settle();
    co_return true;
  }

  Reading Braces() {
    const std::string quote = inner_[0];
    if (!co_await text_.Literal(open_)) co_return false;
    co_await text_.Space();
    if (!co_await text_.Literal("call:")) co_return false;
    Begin(co_await text_.Name(AnyOf("{")));
    if (!co_await text_.Literal("{")) co_return false;
    for (bool first = true;; first = false) {
      co_await text_.Space();
      if (co_await text_.Literal("}")) break;
      if (!first && !co_await text_.Literal(",")) co_return false;
      co_await text_.Space();
      const bool quoted = co_await text_.Literal(quote);
      const std::string key_end = quoted ? quote : ":";
      call_.BeginMember(co_await text_.Name(AnyOf(key_end), true));
      if (quoted && !co_await text_.Literal(quote)) co_return false;
      if (!co_await text_.Literal(":")) co_return false;
      co_await text_.Space();
      bool taken = false;
      if (co_await text_.Literal(quote)) {
        taken = co_await Value(quote, AnyOf(), false, true);
      } else {
        taken = co_await Value(&quote);
      }
      if (!taken) co_return false;
    }
    call_.EndMembers();
    co_await text_.Space();
    if (!co_await Close()) co_return false;
    Settle();
    co_return true;
  }

  Reading FunctionTag() {
    if (!co_await text_.Literal(open_)) co_return false;
    const std::string name = co_await text_.Name(AnyOf(">"));
    if (!co_await text_.Literal(">")) co_return false;
    Begin(name);
    co_await text_.Space();
    if (!co_await Json(close_)) co_return false;
    co_await text_.Space();
    if (!co_await Close()) co_return false;
    Settle();
    co_return true;
  }

  Reading Recipient() {
    // The prompt ends with the marker of the first one.
    if (!std::exchange(starts_, false) && !co_await text_.Literal(open_)) co_return false;
    const std::string name = co_await text_.Name(AnyOf("\n"));
    if (name != "all" && !tools_.contains(name)) co_return false;
    if (!co_await text_.Literal("\n")) co_return false;
    if (name != "all") {
      Begin(name);
      co_await text_.Space();
      if (!co_await Json("")) co_return false;
    }
    Settle();
    co_return true;
  }

  Reading Message() {
    const std::string message = Marked("<|message|>"), call_end = Marked("<|call|>");
    const size_t end = text_.all().find(message);  // the header comes as a whole
    if (end == kNone) co_return false;
    std::string name(text_.all().substr(0, end));
    name.erase(0, std::min(name.find("to="), name.size() - 3) + 3);
    if (name.starts_with("functions.")) name.erase(0, 10);
    name.resize(std::min(name.find_first_of(std::string(kJsonSpace) + '<' + kMarkBegin), name.size()));
    if (!tools_.contains(name)) co_return false;
    text_.MoveTo(end + message.size());
    Begin(name);
    co_await text_.Space();
    if (!co_await Json(call_end)) co_return false;
    co_await text_.Space();
    if (!co_await text_.Literal(call_end) && co_await text_.Next() != '\0') co_return false;
    Settle();
    co_return true;
  }

  // The whole answer is a call in JSON, or in Python's way.
  Reading Whole() {
    co_await text_.Space();
    co_await text_.Literal(open_);
    co_await text_.Space();
    bool fits = false, list = false;
    if (co_await text_.Next() == '{') {
      fits = co_await CallObject();
      if (!fits) co_return false;
    } else {
      call_.SetJson(false);
      list = co_await text_.Literal("[");
      for (bool first = true;; first = false) {
        co_await text_.Space();
        if (list && co_await text_.Literal("]")) break;
        if (!first && !list) break;
        if (!first && !co_await text_.Literal(",")) co_return false;
        co_await text_.Space();
        // A call that is not known makes the whole a text.
        const std::string name = CalledName(co_await text_.Name(AnyOf("(")));
        if (!tools_.contains(name)) co_return false;
        if (!co_await text_.Literal("(")) co_return false;
        Begin(name);
        for (bool first_value = true;; first_value = false) {
          co_await text_.Space();
          if (co_await text_.Literal(")")) break;
          if (!first_value && !co_await text_.Literal(",")) co_return false;
          co_await text_.Space();
          if (co_await text_.Literal(")")) break;
          call_.BeginMember(co_await text_.Name(AnyOf("=")));
          if (begun().key.empty() || !co_await text_.Literal("=")) co_return false;
          fits = co_await Value(nullptr);
          if (!fits) co_return false;
        }
        call_.EndMembers();
        call_.End();
      }
      if (begun().key.empty() && !call_.waiting() && !committed_) co_return false;
    }
    co_await text_.Space();
    if (form_ == ToolForm::kPythonic) co_await Close();
    co_await text_.Space();
    if (co_await text_.Next() != '\0') co_return false;
    Settle();
    co_return true;
  }

  Reading TaggedPythonic() {
    if (!co_await text_.Literal(open_)) co_return false;
    co_await text_.Space();
    const bool list = co_await text_.Literal("[");
    for (bool first = true;; first = false) {
      co_await text_.Space();
      if (list && co_await text_.Literal("]")) break;
      if (!list && !first && co_await Close()) break;
      if (list && !first && !co_await text_.Literal(",")) co_return false;
      co_await text_.Space();
      const std::string name = CalledName(co_await text_.Name(AnyOf("(")));
      if (!co_await text_.Literal("(")) co_return false;
      Begin(name);
      for (bool first_value = true;; first_value = false) {
        co_await text_.Space();
        if (co_await text_.Literal(")")) break;
        if (!first_value && !co_await text_.Literal(",")) co_return false;
        co_await text_.Space();
        if (co_await text_.Literal(")")) break;
        call_.BeginMember(co_await text_.Name(AnyOf("=")));
        if (begun().key.empty() || !co_await text_.Literal("=")) co_return false;
        const bool fits = co_await Value(nullptr);
        if (!fits) co_return false;
      }
      call_.EndMembers();
      Settle();
    }
    co_await text_.Space();
    if (list) co_await Close();
    Settle();
    co_return true;
  }
  static std::string CalledName(std::string name) {
    if (name.ends_with(".call")) name.resize(name.size() - 5);
    return name;
  }

  Reading Start() {
    switch (form_) {
      case ToolForm::kJson: return Jsons();
      case ToolForm::kXmlParameters: return XmlParameters();
      case ToolForm::kLlamaJson:
      case ToolForm::kPythonic: return Whole();
      case ToolForm::kTaggedPythonic: return TaggedPythonic();
      case ToolForm::kMistralArgs: return MistralArgs();
      case ToolForm::kHarmony: return Message();
      case ToolForm::kDeepSeek:
      case ToolForm::kDeepSeekFenced: return DeepSeek();
      case ToolForm::kInvoke: return Invokes();
      case ToolForm::kArgKeys: return ArgKeys();
      case ToolForm::kKimi: return Kimi();
      case ToolForm::kBraces: return Braces();
      case ToolForm::kFunctionTag: return FunctionTag();
      case ToolForm::kRecipient: return Recipient();
    }
    return Recipient();
  }

  // ---- The content and the calls in it

  void Read() {
    for (;;) {
      if (reading_) {
        if (!GoOn()) return;
        EndReading();
      } else if (starts_ && (form_ != ToolForm::kHarmony || message_ > 0)) {
        Begins(false);
        if (form_ != ToolForm::kRecipient) starts_ = false;
      } else if (!FindOpening()) {
        return;
      }
    }
  }
  void Begins(bool at_marker) {
    at_marker_ = at_marker;
    reading_ = Start();
    call_.Forget();
    text_.Begin();
    committed_ = settled_ = false;
  }
  // True: there is one, and its reading begins.
  bool FindOpening() {
    const std::string_view all = text_.all();
    const size_t at = opening_.empty() ? kNone : all.find(opening_);
    const size_t begun = text_.ended() || opening_.empty() ? 0 : BegunAtEnd(all, opening_);
    text_.MoveTo(at != kNone ? at : all.size() - begun);
    AddContent(text_.taken());
    text_.Forget();
    if (at == kNone) return false;
    Begins(true);
    return true;
  }
  // False: it waits for more text.
  bool GoOn() {
    for (;;) {
      if (text_.Waits()) {
        // A long call is given out as it comes.
        if (CommittedAt(text_.size())) {
          Flush();
          text_.Forget();
        }
        return false;
      }
      if (reading_.Go()) return true;
    }
  }
  void EndReading() {
    const bool fits = reading_.fits();
    reading_ = Reading();
    text_.StopWaiting();
    starts_ = false;
    if (fits) return;
    if (!text_.ran_out()) CommittedAt(std::max(text_.failed_at(), text_.at()));
    const bool was_cut = cut_ && text_.ran_out();
    if (was_cut && !committed_ && call_.known() && call_.waiting()) committed_ = true;
    if (committed_) {  // the call goes as far as it was written
      if (was_cut) {
        text_.MoveTo(text_.size());
      } else {
        call_.End();
      }
      Flush();
      call_.Leave();
      return text_.Forget();
    }
    call_.Drop();
    text_.MoveTo(at_marker_ && !settled_ ? opening_.size() : 0);
    if (form_ == ToolForm::kHarmony) text_.MoveTo(text_.size());
    AddContent(text_.taken());
    text_.Forget();
  }
  // What follows is no part of the message to a tool that is read.
  void EndMessage() {
    if (!reading_) return;
    text_.End();
    Read();
    text_.End(false);
  }

  const Options options_;
  const std::vector<AnswerFormat::Control> controls_;
  const ToolForm form_;
  const DeclaredTools tools_;
  const std::string open_, close_;
  std::vector<std::string> inner_;
  std::string opening_;  // what begins a call anywhere; "": nothing does
  bool starts_ = false;  // a call may begin here without a marker

  std::vector<AnswerDelta>* out_ = nullptr;
  std::string space_;  // at the end of the content
  bool called_ = false;
  int message_ = 0;

  HeldText text_;  // that is not given out yet
  bool cut_ = false;
  Reading reading_;
  bool at_marker_ = false;  // it began with the marker
  bool settled_ = false;    // it has read a whole call

  CallDeltas call_;
  bool committed_ = false;  // it is given out as it comes
  std::string taken_;       // of its arguments, by the object that is read
};

// Whether a parameter's schema says that it is a text: by its type, or by that of a definition that it names.
static bool IsText(const json::value& property, const json::value& schema, int deeper = 8) {
  const json::object* fields = property.if_object();
  if (fields == nullptr || deeper == 0) return false;
  if (const json::value* type = fields->if_contains("type")) {
    const json::array* types = type->if_array();
    return *type == "string" || (types != nullptr && types->size() == 1 && types->front() == "string");
  }
  if (const json::value* reference = fields->if_contains("$ref"); reference != nullptr && reference->is_string()) {
    const json::string_view path = reference->get_string();
    boost::system::error_code error;
    const json::value* named = path.starts_with("#/") ? schema.find_pointer(path.substr(1), error) : nullptr;
    return named != nullptr && IsText(*named, schema, deeper - 1);
  }
  const json::value* all = fields->if_contains("allOf");
  return all != nullptr && all->is_array() &&
         std::any_of(all->get_array().begin(), all->get_array().end(),
                     [&](const json::value& one) { return IsText(one, schema, deeper - 1); });
}

DeclaredTools DeclareTools(const json::value& tools) {
  DeclaredTools out;
  if (!tools.is_array()) return out;
  for (const json::value& tool : tools.get_array()) {
    const json::object* object = tool.if_object();
    const json::value* function = object == nullptr ? nullptr : object->if_contains("function");
    if (function != nullptr && function->is_object()) object = &function->get_object();
    const json::value* name = object == nullptr ? nullptr : object->if_contains("name");
    if (name == nullptr || !name->is_string()) continue;
    auto& texts = out[std::string(name->get_string())];
    const json::value* parameters = object->if_contains("parameters");
    const json::object* schema = parameters == nullptr ? nullptr : parameters->if_object();
    const json::value* properties = schema == nullptr ? nullptr : schema->if_contains("properties");
    if (properties == nullptr || !properties->is_object()) continue;
    for (const auto& [key, property] : properties->get_object()) {
      if (IsText(property, *parameters)) texts.emplace(key);
    }
  }
  return out;
}

ToolReader::ToolReader(AnswerFormat format, DeclaredTools tools, Options options)
    : splitter_([&] {
        AnswerFormat parts = format;
        if (tools.empty() || format.tools == nullptr) return AnswerSplitter(std::move(parts));
        parts.call_open.clear();
        parts.call_close.clear();
        return AnswerSplitter(std::move(parts), true);
      }()) {
  if (!tools.empty() && format.tools != nullptr) calls_ = std::make_unique<Calls>(format, std::move(tools), options);
}
ToolReader::ToolReader(ToolReader&&) noexcept = default;
ToolReader& ToolReader::operator=(ToolReader&&) noexcept = default;
ToolReader::~ToolReader() = default;

std::vector<AnswerDelta> ToolReader::Take(std::vector<AnswerSplitter::Piece> pieces) {
  std::vector<AnswerDelta> out;
  for (AnswerSplitter::Piece& piece : pieces) {
    if (calls_ != nullptr) {
      calls_->Piece(piece, &out);
    } else {
      out.push_back({.kind = piece.reasoning ? Kind::kReasoning : Kind::kContent, .text = std::move(piece.text)});
    }
  }
  return out;
}

std::vector<AnswerDelta> ToolReader::Push(TokenId token, std::string_view text) {
  return Take(splitter_.Push(token, text));
}

std::vector<AnswerDelta> ToolReader::Finish(std::string_view text, bool cut) {
  std::vector<AnswerDelta> out = Take(splitter_.Finish(text));
  if (calls_ != nullptr) calls_->Finish(cut, &out);
  return out;
}

const ToolReader::Begun& ToolReader::begun() const {
  static const Begun kNothing;
  return calls_ == nullptr ? kNothing : calls_->begun();
}

}  // namespace gyre
