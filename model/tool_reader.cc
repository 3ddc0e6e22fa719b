#include "model/tool_reader.h"

#include <algorithm>
#include <coroutine>
#include <optional>
#include <utility>

#include "boost/json/array.hpp"
#include "boost/json/object.hpp"
#include "model/json_scanner.h"
#include "model/marked_text.h"
#include "model/reading.h"
#include "model/tool_values.h"

namespace gyre {
namespace {

namespace json = boost::json;

using Kind = AnswerDelta::Kind;

constexpr size_t kLongestName = 256;
constexpr size_t kNone = std::string_view::npos;

bool IsNameByte(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_' || c == '-' ||
         c == '.' || c == ':' || c == '/';
}

// How many bytes at the beginning are the same.
size_t Common(std::string_view a, std::string_view b) {
  size_t n = 0;
  while (n < a.size() && n < b.size() && a[n] == b[n]) ++n;
  return n;
}

std::string_view Trimmed(std::string_view text) {
  text.remove_prefix(std::min(text.find_first_not_of(kJsonSpace), text.size()));
  return text.substr(0, text.find_last_not_of(kJsonSpace) + 1);
}

// GCC 12 takes no lists in braces behind co_await.
template <typename... T>
std::vector<std::string> AnyOf(const T&... texts) {
  return {std::string(texts)...};
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
        close_(Marked(format.tools->close)) {
    for (const char* inner : format.tools->inner) inner_.push_back(Marked(inner));
    begun_.json = form_ != ToolForm::kXmlParameters && form_ != ToolForm::kArgKeys && form_ != ToolForm::kInvoke &&
                  form_ != ToolForm::kBraces && form_ != ToolForm::kPythonic && form_ != ToolForm::kTaggedPythonic;
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
    held_ += piece.text;
    Read();
  }

  void Finish(bool cut, std::vector<AnswerDelta>* out) {
    out_ = out;
    cut_ = cut;
    ended_ = true;
    Read();
    if (!called_) Add(Kind::kContent, space_);
    space_.clear();
  }

  const Begun& begun() const { return begun_; }

 private:
  // Waits until `tried` has a value.
  template <typename F>
  class Waiter {
   public:
    Waiter(Calls* calls, F tried) : calls_(calls), tried_(std::move(tried)) {}
    bool await_ready() {
      got_ = tried_();
      return got_.has_value();
    }
    void await_suspend(std::coroutine_handle<>) {
      calls_->retry_ = [this] { return await_ready(); };
    }
    auto await_resume() { return *std::move(got_); }

   private:
    Calls* calls_;
    F tried_;
    std::invoke_result_t<F&> got_;
  };

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

  // The call that is read: nothing is given out before it is certain.
  void Begin(std::string_view name) {
    known_ = tools_.contains(name);
    begun_.complete = arguments_ = 0;
    begun_.key.clear();
    begun_.value.clear();
    name_ = name;
    open_call_ = known_;
    if (known_) pending_.push_back({.kind = Kind::kCall, .text = std::string(name)});
  }
  void Arguments(std::string_view text) {
    if (!known_ || text.empty()) return;
    arguments_ += text.size();
    if (pending_.empty() || pending_.back().kind != Kind::kArguments) {
      pending_.push_back({.kind = Kind::kArguments, .text = {}});
    }
    pending_.back().text += text;
  }
  void End() {
    if (open_call_) pending_.push_back({.kind = Kind::kCallEnd, .text = {}});
    open_call_ = false;
  }
  void Flush() {
    for (const AnswerDelta& delta : pending_) {
      if (delta.kind == Kind::kCall) {
        space_.clear();
        called_ = true;
      }
      Add(delta.kind, delta.text);
    }
    pending_.clear();
  }
  // What was read is a call, with its markers; or, of an unknown tool, text.
  void Settle() {
    End();
    if (known_) {
      Flush();
    } else {
      AddContent(std::string_view(held_).substr(0, pos_));
    }
    known_ = true;
    committed_ = false;
    failed_at_ = 0;
    settled_ = true;
    Forget();
  }
  void Forget() {
    held_.erase(0, pos_);
    pos_ = 0;
  }

  // ---- The members of arguments whose form is not JSON

  bool IsText(std::string_view key) const {
    const auto tool = tools_.find(name_);
    return tool != tools_.end() && tool->second.contains(key);
  }
  void BeginMember(std::string_view key) {
    begun_.key = key;
    begun_.value.clear();
  }
  std::string MemberBegin() const { return (arguments_ == 0 ? "{" : ", ") + JsonQuoted(begun_.key) + ": "; }
  void EndMember() {
    begun_.complete = arguments_;
    begun_.key.clear();
    begun_.value.clear();
  }
  void Member(std::string_view json_value) {
    Arguments(MemberBegin() + std::string(json_value));
    EndMember();
  }
  void EndMembers() { Arguments(arguments_ == 0 ? "{}" : "}"); }

  // ---- What a form waits for

  template <typename F>
  Waiter<F> Wait(F tried) {
    return Waiter<F>(this, std::move(tried));
  }
  std::string_view Rest() const { return std::string_view(held_).substr(pos_); }
  bool RanOut() {
    ran_out_ = true;
    return false;
  }
  // The byte at this place shows that the form does not fit.
  bool Fails(size_t at) {
    failed_at_ = std::max(failed_at_, at);
    return false;
  }
  // Whether the call is given out, however wrong it is from this place on: it does not depend on how the text is cut.
  bool CommittedAt(size_t at) {
    committed_ |= known_ && !pending_.empty() && at > kHeldCall;
    return committed_;
  }

  // Takes the text, if it stands here.
  auto Literal(std::string text) {
    return Wait([this, text = std::move(text)]() -> std::optional<bool> {
      const std::string_view rest = Rest();
      if (rest.starts_with(text)) {
        pos_ += text.size();
        return true;
      }
      if (!std::string_view(text).starts_with(rest)) return Fails(pos_ + Common(text, rest));
      if (ended_) return RanOut();
      return std::nullopt;
    });
  }
  auto Space() {
    return Wait([this]() -> std::optional<bool> {
      while (pos_ < held_.size() && IsJsonSpace(held_[pos_])) ++pos_;
      if (pos_ == held_.size() && !ended_) return std::nullopt;
      return true;
    });
  }
  // The next byte, which stays; 0: the answer ends here.
  auto Next() {
    return Wait([this]() -> std::optional<char> {
      if (pos_ < held_.size()) return held_[pos_];
      if (!ended_) return std::nullopt;
      RanOut();
      return '\0';
    });
  }
  // Takes a name up to one of the delimiters, which stays. "": there is none.
  auto Name(std::vector<std::string> delimiters, bool any = false) {
    return Wait([this, any, delimiters = std::move(delimiters)]() -> std::optional<std::string> {
      const std::string_view rest = Rest();
      size_t end = kNone;
      for (const std::string& delimiter : delimiters) end = std::min(end, rest.find(delimiter));
      if (end == kNone && !ended_ && rest.size() < kLongestName) {
        // A name has no other bytes, so that a text is known as one early.
        const size_t bad = FirstBad(rest, any, delimiters);
        if (bad == kNone) return std::nullopt;
        Fails(pos_ + bad);
        return std::string();
      }
      if (end == kNone || end > kLongestName) {
        const size_t bad = FirstBad(rest, any, delimiters);
        if (end == kNone && bad == kNone && rest.size() < kLongestName) RanOut();
        Fails(pos_ + std::min({bad, rest.size(), kLongestName - 1}));
        return std::string();
      }
      const std::string_view name = rest.substr(0, end);
      if (const size_t bad = FirstBad(name, any, {}); bad != kNone) {
        Fails(pos_ + bad);
        return std::string();
      }
      pos_ += end;
      return std::string(any ? name : Trimmed(name));
    });
  }
  // The first byte of `text` that a name can't have, unless it begins a delimiter at the end.
  static size_t FirstBad(std::string_view text, bool any, const std::vector<std::string>& delimiters) {
    size_t begun = 0;
    for (const std::string& delimiter : delimiters) begun = std::max(begun, BegunAtEnd(text, delimiter));
    const std::string_view sure = text.substr(0, text.size() - begun);
    for (size_t i = 0; i < sure.size(); ++i) {
      const char c = sure[i];
      if (c == kMarkBegin || (!any && !IsNameByte(c) && !IsJsonSpace(c))) return i;
    }
    return kNone;
  }
  // Takes arguments that are a JSON object. Nothing before `close` is one without members.
  auto Json(std::string close) {
    return Wait([this, close = std::move(close), scanner = JsonScanner(options_.names_may_repeat),
                 raw = false]() mutable -> std::optional<bool> {
      if (raw) return Raw(close);
      if (scanner.expects() == JsonScanner::Expects::kValue && scanner.depth() == 0) {
        const std::string_view rest = Rest();
        if ((!close.empty() && rest.starts_with(close)) || (rest.empty() && ended_ && !cut_)) {
          Arguments("{}");
          return true;
        }
        if (!ended_ && !close.empty() && std::string_view(close).starts_with(rest)) return std::nullopt;
        if (!rest.empty() && rest[0] != '{') return Fails(pos_);
      }
      const size_t first = pos_;
      auto state = JsonScanner::State::kMore;
      while (pos_ < held_.size() && state == JsonScanner::State::kMore) {
        state = scanner.Feed(held_[pos_]);
        if (state != JsonScanner::State::kWrong) ++pos_;
      }
      Arguments(std::string_view(held_).substr(first, pos_ - first));
      if (state == JsonScanner::State::kDone) return true;
      if (state == JsonScanner::State::kWrong) {
        if (!CommittedAt(pos_)) return false;
        raw = true;
        return Raw(close);
      }
      if (ended_) return RanOut();
      return std::nullopt;
    });
  }
  // The rest of a call that was given out and is wrong.
  std::optional<bool> Raw(const std::string& close) {
    const std::string_view rest = Rest();
    const size_t end = close.empty() ? kNone : rest.find(close);
    const size_t sure = end != kNone ? end : rest.size() - (ended_ ? 0 : BegunAtEnd(rest, close));
    Arguments(Unmarked(rest.substr(0, sure)));
    pos_ += sure;
    if (end != kNone || ended_) return true;
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
    if (!o->has_name || !o->has_arguments || open_call_ || !known_) return;
    Begin(o->name);
    Arguments(o->kept);
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
    if (o->in_arguments) (open_call_ || !known_ ? taken_ : o->kept) += c;
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
    return Wait([this, o = Object(options_.names_may_repeat)]() mutable -> std::optional<bool> {
      if (o.raw) return Raw(close_);
      auto state = JsonScanner::State::kMore;
      while (pos_ < held_.size() && state == JsonScanner::State::kMore) {
        state = Byte(held_[pos_], &o);
        if (state != JsonScanner::State::kWrong) ++pos_;
      }
      Arguments(taken_);
      taken_.clear();
      if (state == JsonScanner::State::kDone) return o.has_name && o.has_arguments;
      if (state == JsonScanner::State::kWrong) {
        if (!CommittedAt(pos_)) return false;
        o.raw = true;
        return Raw(close_);
      }
      if (ended_) return RanOut();
      return std::nullopt;
    });
  }

  // Takes the value of the member that was begun, up to `close` with one of `follows` behind it. `lines`: a line feed
  // before it belongs to the form. `text`: it is one, whatever it looks like.
  auto Value(std::string close, std::vector<std::string> follows, bool lines, bool text) {
    return Wait([this, close = std::move(close), follows = std::move(follows), lines, text,
                 begun = false]() mutable -> std::optional<bool> {
      if (text && !begun) Arguments(MemberBegin() + '"');
      begun = true;
      for (;;) {
        const std::string_view rest = Rest();
        const size_t end = rest.find(close);
        if (end == kNone) {
          if (ended_) {
            TakeValue(rest.size(), text);
            return RanOut();
          }
          TakeValue(Sure(rest, rest.size() - BegunAtEnd(rest, close), lines), text);
          return std::nullopt;
        }
        const Follows next = FollowsAt(rest.substr(end + close.size()), follows);
        if (next == Follows::kMore && !ended_) {
          TakeValue(Sure(rest, end, lines), text);
          return std::nullopt;
        }
        if (next == Follows::kNo) {
          TakeValue(end + 1, text);
          continue;
        }
        const size_t size = Sure(rest, end, lines);
        TakeValue(size, text);
        pos_ += end - size + close.size();
        if (text) {
          Arguments("\"");
          EndMember();
        } else {
          Member(JsonOrText(begun_.value, options_.names_may_repeat));
        }
        return true;
      }
    });
  }
  static size_t Sure(std::string_view rest, size_t size, bool lines) {
    return lines && size > 0 && rest[size - 1] == '\n' ? size - 1 : size;
  }
  void TakeValue(size_t size, bool text) {
    const std::string_view taken = Rest().substr(0, size);
    if (text) Arguments(JsonEscaped(Unmarked(taken)));
    begun_.value += taken;
    pos_ += size;
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
    return Wait([this, quote,
                 end = quote == nullptr ? LiteralEnd() : LiteralEnd(*quote)]() mutable -> std::optional<bool> {
      const std::string_view rest = Rest();
      const size_t size = end.Find(rest);
      if (size == kNone) {
        if (!ended_) return std::nullopt;
        begun_.value = Unmarked(rest);
        pos_ = held_.size();
        return RanOut();
      }
      const std::string_view written = rest.substr(0, size);
      const std::optional<std::string> value = quote == nullptr ? PythonToJson(written) : BracesToJson(*quote, written);
      if (!value) return Fails(pos_ + size);
      pos_ += size;
      Member(*value);
      return true;
    });
  }
  // The marker behind a call; or the answer ends before it, or in it.
  auto Close() {
    return Wait([this]() -> std::optional<bool> {
      const std::string_view rest = Rest();
      if (rest.starts_with(close_)) {
        pos_ += close_.size();
        return true;
      }
      if (!std::string_view(close_).starts_with(rest)) return Fails(pos_ + Common(close_, rest));
      if (!ended_) return std::nullopt;
      pos_ = held_.size();
      return true;
    });
  }

  // ---- The forms

  Reading Jsons() {
    if (!co_await Literal(open_)) co_return false;
    co_await Space();
    if (co_await Next() != '[') {
      if (!co_await CallObject()) co_return false;
      co_await Space();
      if (!close_.empty() && !co_await Close()) co_return false;
      Settle();
      co_return true;
    }
    ++pos_;
    for (bool first = true;; first = false) {
      co_await Space();
      if (co_await Literal("]")) break;
      if (!first && !co_await Literal(",")) co_return false;
      co_await Space();
      if (!co_await CallObject()) co_return false;
      Settle();
    }
    if (!close_.empty()) {
      co_await Space();
      co_await Close();
    }
    Settle();
    co_return true;
  }

  Reading XmlParameters() {
    if (!co_await Literal(open_)) co_return false;
    co_await Space();
    if (!co_await Literal("<function=")) co_return false;
    Begin(co_await Name(AnyOf(">")));
    if (!co_await Literal(">")) co_return false;
    for (;;) {
      co_await Space();
      if (co_await Literal("</function>")) break;
      if (!co_await Literal("<parameter=")) co_return false;
      BeginMember(co_await Name(AnyOf(">"), true));
      if (!co_await Literal(">")) co_return false;
      co_await Literal("\n");
      const bool value = co_await Value("</parameter>", AnyOf("<parameter=", "</function>"), true, IsText(begun_.key));
      if (!value) co_return false;
    }
    EndMembers();
    co_await Space();
    if (!co_await Close()) co_return false;
    Settle();
    co_return true;
  }

  Reading ArgKeys() {
    const std::string key = inner_[0], key_end = inner_[1], value = inner_[2], value_end = inner_[3];
    if (!co_await Literal(open_)) co_return false;
    Begin(co_await Name(AnyOf("\n", key, close_)));
    for (;;) {
      co_await Space();
      if (co_await Literal(key)) {
        BeginMember(co_await Name(AnyOf(key_end), true));
        if (!co_await Literal(key_end)) co_return false;
        co_await Space();
        if (!co_await Literal(value)) co_return false;
        const bool taken = co_await Value(value_end, AnyOf(key, close_), false, IsText(begun_.key));
        if (!taken) co_return false;
      } else if (co_await Literal(close_)) {
        break;
      } else {
        co_return false;
      }
    }
    EndMembers();
    Settle();
    co_return true;
  }

  Reading Invokes() {
    // DeepSeek's tags have a token in them.
    const std::string in = inner_.empty() ? "" : inner_[0];
    const std::string parameter = "<" + in + "parameter", parameter_end = "</" + in + "parameter>";
    const std::string invoke_end = "</" + in + "invoke>";
    if (!co_await Literal(open_)) co_return false;
    for (;;) {
      co_await Space();
      if (co_await Literal(close_)) break;
      if (!co_await Literal("<" + in + "invoke name=\"")) co_return ended_&& settled_;
      Begin(co_await Name(AnyOf("\"")));
      if (!co_await Literal("\">")) co_return false;
      for (;;) {
        co_await Space();
        if (co_await Literal(invoke_end)) break;
        if (!co_await Literal(parameter + " name=\"")) co_return false;
        BeginMember(co_await Name(AnyOf("\""), true));
        if (!co_await Literal("\"")) co_return false;
        bool text = IsText(begun_.key);
        if (co_await Literal(" string=\"")) {
          const std::string is_text = co_await Name(AnyOf("\""));
          text = is_text == "true";
          if (!co_await Literal("\"")) co_return false;
        }
        if (!co_await Literal(">")) co_return false;
        const bool taken = co_await Value(parameter_end, AnyOf(parameter, invoke_end), false, text);
        if (!taken) co_return false;
      }
      EndMembers();
      Settle();
    }
    Settle();
    co_return true;
  }

  Reading Kimi() {
    const std::string begin = inner_[0], arguments = inner_[1], end = inner_[2];
    if (!co_await Literal(open_)) co_return false;
    for (;;) {
      co_await Space();
      if (co_await Literal(close_)) break;
      if (!co_await Literal(begin)) co_return ended_&& settled_;
      std::string id = co_await Name(AnyOf(arguments));
      if (!co_await Literal(arguments)) co_return false;
      id.resize(std::min(id.rfind(':'), id.size()));
      if (id.starts_with("functions.")) id.erase(0, 10);
      Begin(id);
      co_await Space();
      if (!co_await Json(end)) co_return false;
      co_await Space();
      if (!co_await Literal(end)) co_return false;
      Settle();
    }
    Settle();
    co_return true;
  }

  Reading DeepSeek() {
    const bool fenced = form_ == ToolForm::kDeepSeekFenced;
    const std::string begin = inner_[0], separator = inner_[1], end = inner_[2];
    if (!co_await Literal(open_)) co_return false;
    for (;;) {
      co_await Space();
      if (co_await Literal(close_)) break;
      if (!co_await Literal(begin)) co_return ended_&& settled_;
      std::string name = co_await Name(AnyOf(separator));
      if (!co_await Literal(separator)) co_return false;
      if (fenced) {  // before the separator stands a type
        name = co_await Name(AnyOf("\n"));
        co_await Space();
        if (!co_await Literal("```json")) co_return false;
      }
      Begin(name);
      co_await Space();
      const std::string close = fenced ? "```" : end;
      if (!co_await Json(close)) co_return false;
      co_await Space();
      if (fenced && !co_await Literal("```")) co_return false;
      co_await Space();
      if (!co_await Literal(end)) co_return false;
      Settle();
    }
    Settle();
    co_return true;
  }

  Reading MistralArgs() {
    const std::string arguments = inner_[0], call_id = inner_[1];
    if (!co_await Literal(open_)) co_return false;
    const std::string name = co_await Name(AnyOf(arguments, call_id));
    if (co_await Literal(call_id)) co_await Name(AnyOf(arguments));
    if (!co_await Literal(arguments)) co_return false;
    Begin(name);
    co_await Space();
    if (!co_await Json(open_)) co_return false;
    Settle();
    co_return true;
  }

  Reading Braces() {
    const std::string quote = inner_[0];
    if (!co_await Literal(open_)) co_return false;
    co_await Space();
    if (!co_await Literal("call:")) co_return false;
    Begin(co_await Name(AnyOf("{")));
    if (!co_await Literal("{")) co_return false;
    for (bool first = true;; first = false) {
      co_await Space();
      if (co_await Literal("}")) break;
      if (!first && !co_await Literal(",")) co_return false;
      co_await Space();
      const bool quoted = co_await Literal(quote);
      const std::string key_end = quoted ? quote : ":";
      BeginMember(co_await Name(AnyOf(key_end), true));
      if (quoted && !co_await Literal(quote)) co_return false;
      if (!co_await Literal(":")) co_return false;
      co_await Space();
      bool taken = false;
      if (co_await Literal(quote)) {
        taken = co_await Value(quote, AnyOf(), false, true);
      } else {
        taken = co_await Value(&quote);
      }
      if (!taken) co_return false;
    }
    EndMembers();
    co_await Space();
    if (!co_await Close()) co_return false;
    Settle();
    co_return true;
  }

  Reading FunctionTag() {
    if (!co_await Literal(open_)) co_return false;
    const std::string name = co_await Name(AnyOf(">"));
    if (!co_await Literal(">")) co_return false;
    Begin(name);
    co_await Space();
    if (!co_await Json(close_)) co_return false;
    co_await Space();
    if (!co_await Close()) co_return false;
    Settle();
    co_return true;
  }

  Reading Recipient() {
    // The prompt ends with the marker of the first one.
    if (!std::exchange(starts_, false) && !co_await Literal(open_)) co_return false;
    const std::string name = co_await Name(AnyOf("\n"));
    if (name != "all" && !tools_.contains(name)) co_return false;
    if (!co_await Literal("\n")) co_return false;
    if (name != "all") {
      Begin(name);
      co_await Space();
      if (!co_await Json("")) co_return false;
    }
    Settle();
    co_return true;
  }

  Reading Message() {
    const std::string message = Marked("<|message|>"), call_end = Marked("<|call|>");
    const size_t end = held_.find(message);  // the header comes as a whole
    if (end == kNone) co_return false;
    std::string name = held_.substr(0, end);
    name.erase(0, std::min(name.find("to="), name.size() - 3) + 3);
    if (name.starts_with("functions.")) name.erase(0, 10);
    name.resize(std::min(name.find_first_of(std::string(kJsonSpace) + '<' + kMarkBegin), name.size()));
    if (!tools_.contains(name)) co_return false;
    pos_ = end + message.size();
    Begin(name);
    co_await Space();
    if (!co_await Json(call_end)) co_return false;
    co_await Space();
    if (!co_await Literal(call_end) && co_await Next() != '\0') co_return false;
    Settle();
    co_return true;
  }

  // The whole answer is a call in JSON, or in Python's way.
  Reading Whole() {
    co_await Space();
    co_await Literal(open_);
    co_await Space();
    bool fits = false, list = false;
    if (co_await Next() == '{') {
      fits = co_await CallObject();
      if (!fits) co_return false;
    } else {
      begun_.json = false;
      list = co_await Literal("[");
      for (bool first = true;; first = false) {
        co_await Space();
        if (list && co_await Literal("]")) break;
        if (!first && !list) break;
        if (!first && !co_await Literal(",")) co_return false;
        co_await Space();
        // A call that is not known makes the whole a text.
        const std::string name = CalledName(co_await Name(AnyOf("(")));
        if (!tools_.contains(name)) co_return false;
        if (!co_await Literal("(")) co_return false;
        Begin(name);
        for (bool first_value = true;; first_value = false) {
          co_await Space();
          if (co_await Literal(")")) break;
          if (!first_value && !co_await Literal(",")) co_return false;
          co_await Space();
          if (co_await Literal(")")) break;
          BeginMember(co_await Name(AnyOf("=")));
          if (begun_.key.empty() || !co_await Literal("=")) co_return false;
          fits = co_await Value(nullptr);
          if (!fits) co_return false;
        }
        EndMembers();
        End();
      }
      if (begun_.key.empty() && pending_.empty() && !committed_) co_return false;
    }
    co_await Space();
    if (form_ == ToolForm::kPythonic) co_await Close();
    co_await Space();
    if (co_await Next() != '\0') co_return false;
    Settle();
    co_return true;
  }

  Reading TaggedPythonic() {
    if (!co_await Literal(open_)) co_return false;
    co_await Space();
    const bool list = co_await Literal("[");
    for (bool first = true;; first = false) {
      co_await Space();
      if (list && co_await Literal("]")) break;
      if (!list && !first && co_await Close()) break;
      if (list && !first && !co_await Literal(",")) co_return false;
      co_await Space();
      const std::string name = CalledName(co_await Name(AnyOf("(")));
      if (!co_await Literal("(")) co_return false;
      Begin(name);
      for (bool first_value = true;; first_value = false) {
        co_await Space();
        if (co_await Literal(")")) break;
        if (!first_value && !co_await Literal(",")) co_return false;
        co_await Space();
        if (co_await Literal(")")) break;
        BeginMember(co_await Name(AnyOf("=")));
        if (begun_.key.empty() || !co_await Literal("=")) co_return false;
        const bool fits = co_await Value(nullptr);
        if (!fits) co_return false;
      }
      EndMembers();
      Settle();
    }
    co_await Space();
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
    known_ = true;
    committed_ = settled_ = ran_out_ = false;
    failed_at_ = 0;
  }
  // True: there is one, and its reading begins.
  bool FindOpening() {
    const size_t at = opening_.empty() ? kNone : held_.find(opening_);
    const size_t begun = ended_ || opening_.empty() ? 0 : BegunAtEnd(held_, opening_);
    const size_t sure = at != kNone ? at : held_.size() - begun;
    AddContent(std::string_view(held_).substr(0, sure));
    held_.erase(0, sure);
    if (at == kNone) return false;
    Begins(true);
    return true;
  }
  // False: it waits for more text.
  bool GoOn() {
    for (;;) {
      if (retry_ && !retry_()) {
        // A long call is given out as it comes.
        if (CommittedAt(held_.size())) {
          Flush();
          Forget();
        }
        return false;
      }
      retry_ = nullptr;
      if (reading_.Go()) return true;
    }
  }
  void EndReading() {
    const bool fits = reading_.fits();
    reading_ = Reading();
    retry_ = nullptr;
    starts_ = false;
    if (fits) return;
    if (!ran_out_) CommittedAt(std::max(failed_at_, pos_));
    if (cut_ && ran_out_ && !committed_ && known_ && !pending_.empty()) committed_ = true;
    if (committed_) {  // the call goes as far as it was written
      if (cut_ && ran_out_) {
        pos_ = held_.size();
      } else {
        End();
      }
      Flush();
      open_call_ = false;
      return Forget();
    }
    pending_.clear();
    open_call_ = false;
    pos_ = at_marker_ && !settled_ ? opening_.size() : 0;
    if (form_ == ToolForm::kHarmony) pos_ = held_.size();
    AddContent(std::string_view(held_).substr(0, pos_));
    Forget();
  }
  // What follows is no part of the message to a tool that is read.
  void EndMessage() {
    if (!reading_) return;
    ended_ = true;
    Read();
    ended_ = false;
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

  // What is not given out yet; a reading is at pos_.
  std::string held_;
  size_t pos_ = 0;
  bool ended_ = false, cut_ = false;
  Reading reading_;
  std::function<bool()> retry_;  // goes on with what the reading waits for
  bool ran_out_ = false;         // the answer ended in what it waited for
  bool at_marker_ = false;       // it began with the marker
  bool settled_ = false;         // it has read a whole call
  bool committed_ = false;       // the call that it reads is given out as it comes
  size_t failed_at_ = 0;         // the last byte that did not fit

  // The call that is read.
  std::string name_, taken_;
  std::vector<AnswerDelta> pending_;
  bool known_ = true, open_call_ = false;
  size_t arguments_ = 0;  // bytes
  Begun begun_;
};

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
      const json::object* fields = property.if_object();
      const json::value* type = fields == nullptr ? nullptr : fields->if_contains("type");
      if (type == nullptr) continue;
      const json::array* types = type->if_array();
      if (*type == "string" || (types != nullptr && types->size() == 1 && types->front() == "string")) {
        texts.emplace(key);
      }
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
