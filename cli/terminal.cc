#include "cli/terminal.h"

#include <histedit.h>
#include <langinfo.h>
#include <poll.h>
#include <termios.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <clocale>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <filesystem>
#include <functional>
#include <string>
#include <string_view>
#include <utility>

#include "cli/session.h"
#include "cli/terminal_signals.h"
#include "fmt/core.h"
#include "model/utf8.h"

namespace gyre {
namespace {

constexpr char kPasteBegin[] = "\033[200~";
constexpr char kPasteEnd[] = "\033[201~";
constexpr wchar_t kPasteKey = 0x1f;  // stands for what was pasted; Ctrl-_ on a keyboard
constexpr size_t kMaxPaste = size_t{16} << 20;

bool IsUtf8() { return std::strcmp(nl_langinfo(CODESET), "UTF-8") == 0; }

// The length of a character in bytes, by its first byte.
size_t Length(unsigned char first) { return first < 0xc0 ? 1 : first < 0xe0 ? 2 : first < 0xf0 ? 3 : 4; }

// Bytes that are not UTF-8 become U+FFFD.
std::wstring Wide(std::string_view text) {
  std::wstring out;
  for (size_t at = 0; at < text.size();) {
    const auto first = static_cast<unsigned char>(text[at]);
    const size_t n = Length(first);
    auto code = static_cast<uint32_t>(n == 1 ? first : first & (0x7f >> n));
    bool good = (first < 0x80 || n > 1) && first < 0xf8 && at + n <= text.size();
    for (size_t i = 1; good && i < n; ++i) {
      const auto byte = static_cast<unsigned char>(text[at + i]);
      good = (byte & 0xc0) == 0x80;
      code = code << 6 | (byte & 0x3f);
    }
    constexpr uint32_t kLeast[] = {0, 0, 0x80, 0x800, 0x10000};
    good = good && code >= kLeast[n] && code < 0x110000 && (code < 0xd800 || code > 0xdfff);
    out += good ? static_cast<wchar_t>(code) : L'\ufffd';
    at += good ? n : 1;
  }
  return out;
}

std::string Narrow(std::wstring_view text) {
  std::string out;
  for (wchar_t c : text) AppendUtf8(static_cast<char32_t>(c), &out);
  return out;
}

// A pasted text without characters that would move the cursor; lines end with \n.
std::wstring CleanPaste(const std::string& bytes) {
  std::wstring out;
  wchar_t before = 0;
  for (wchar_t c : Wide(bytes)) {
    if (c == L'\n' && before == L'\r') {
      before = 0;
      continue;
    }
    before = c;
    if (c == L'\r') c = L'\n';
    if (c == L'\n' || c == L'\t' || (c >= 0x20 && c != 0x7f)) out += c;
  }
  while (!out.empty() && out.back() == L'\n') out.pop_back();
  return out;
}

std::filesystem::path HistoryFile() {
  const char* state = std::getenv("XDG_STATE_HOME");
  const char* home = std::getenv("HOME");
  if (state == nullptr && home == nullptr) return {};
  const std::filesystem::path folder =
      (state != nullptr ? std::filesystem::path(state) : std::filesystem::path(home) / ".local/state") / "gyre";
  std::error_code ignored;
  std::filesystem::create_directories(folder, ignored);
  return folder / "history";
}

}  // namespace

void UseUtf8() {
  if (std::setlocale(LC_CTYPE, "") != nullptr && IsUtf8()) return;
  for (const char* name : {"C.UTF-8", "C.utf8", "en_US.UTF-8"}) {
    if (std::setlocale(LC_CTYPE, name) != nullptr && IsUtf8()) return;
  }
}

// The bytes of stdin, as they come.
class MessageReader::Input {
 public:
  static constexpr int kEnd = -1, kInterrupted = -2, kNothing = -3;

  // A byte, or one of the values above. kNothing: none came within the time; -1 waits without a limit.
  int Next(int timeout_ms = -1) {
    for (int waited = 0; pending_.empty();) {
      if (InterruptGuard::Interrupted()) return kInterrupted;
      if (on_redraw && TerminalSignals::TakeRedraw()) on_redraw();
      // A signal may reach another thread; then it does not interrupt this one, so the wait is cut into short ones.
      constexpr int kLook = 50;
      pollfd fd{.fd = STDIN_FILENO, .events = POLLIN, .revents = 0};
      const int ready = poll(&fd, 1, kLook);
      if (ready <= 0) {
        waited += kLook;
        if (timeout_ms >= 0 && waited >= timeout_ms) return kNothing;
        continue;
      }
      char bytes[4096];
      const ssize_t n = read(STDIN_FILENO, bytes, sizeof bytes);
      if (n < 0 && (errno == EINTR || errno == EAGAIN)) continue;
      if (n <= 0) return kEnd;
      pending_.insert(pending_.end(), bytes, bytes + n);
    }
    const auto byte = static_cast<unsigned char>(pending_.front());
    pending_.pop_front();
    return byte;
  }
  void PutBack(std::string_view bytes) { pending_.insert(pending_.begin(), bytes.begin(), bytes.end()); }
  // Drops the bytes that a person typed before a Ctrl-C.
  void Drop() { pending_.clear(); }

  std::function<void()> on_redraw;  // the terminal may be as somebody else left it

 private:
  std::deque<char> pending_;
};

// Edits one line on a terminal.
class MessageReader::Editor {
 public:
  Editor(Input* input, std::vector<std::string> commands)
      : input_(input), commands_(std::move(commands)), history_(history_winit()), file_(HistoryFile()) {
    HistEventW event;
    history_w(history_, &event, H_SETSIZE, 1000);
    history_w(history_, &event, H_SETUNIQUE, 1);
    if (!file_.empty()) history_w(history_, &event, H_LOAD, file_.c_str());
    line_ = el_init("gyre", stdin, stdout, stderr);
    if (line_ == nullptr) return;
    el_wset(line_, EL_CLIENTDATA, this);
    el_wset(line_, EL_EDITOR, L"emacs");
    el_wset(line_, EL_SIGNAL, 0);
    el_wset(line_, EL_HIST, history_w, history_);
    el_wset(
        line_, EL_PROMPT, +[](EditLine* e) -> wchar_t* { return Of(e)->prompt_; });
    el_wset(
        line_, EL_GETCFN, +[](EditLine* e, wchar_t* c) -> int { return Of(e)->NextCharacter(c); });
    el_wset(
        line_, EL_ADDFN, L"gyre-paste", L"insert what was pasted",
        +[](EditLine* e, int) -> unsigned char { return Of(e)->Insert(); });
    el_wset(
        line_, EL_ADDFN, L"gyre-complete", L"complete a command",
        +[](EditLine* e, int) -> unsigned char { return Of(e)->Complete(); });
    constexpr const wchar_t* kKeys[][2] = {
        {L"\033[3~", L"ed-delete-next-char"}, {L"\033[1~", L"ed-move-to-beg"}, {L"\033[4~", L"ed-move-to-end"},
        {L"\033[H", L"ed-move-to-beg"},       {L"\033[F", L"ed-move-to-end"},  {L"\033[1;5C", L"em-next-word"},
        {L"\033[1;5D", L"ed-prev-word"},      {L"^R", L"em-inc-search-prev"},  {L"^I", L"gyre-complete"}};
    for (const auto& [key, function] : kKeys) el_wset(line_, EL_BIND, key, function, nullptr);
    el_source(line_, nullptr);
    const wchar_t paste[] = {kPasteKey, 0};
    el_wset(line_, EL_BIND, paste, L"gyre-paste", nullptr);
    const char* term = std::getenv("TERM");
    brackets_ = term != nullptr && std::strcmp(term, "dumb") != 0;
    input_->on_redraw = [this] { Redraw(); };
  }
  ~Editor() {
    input_->on_redraw = {};
    HistEventW event;
    if (!file_.empty()) history_w(history_, &event, H_SAVE, file_.c_str());
    if (line_ != nullptr) el_end(line_);
    history_wend(history_);
  }
  bool usable() const { return line_ != nullptr; }

  Result Read(bool first, std::string* line) {
    std::wcscpy(prompt_, first ? L"> " : L"... ");
    result_ = Result::kMessage;
    el_resize(line_);
    signals_.Begin();
    // This comes before the prompt, so that the terminal does not edit a key that is typed right after the prompt.
    el_wset(line_, EL_PREP_TERM, 1);
    Brackets(true);
    int n = 0;
    const wchar_t* text = el_wgets(line_, &n);
    Brackets(false);
    signals_.End();
    if (text == nullptr || n <= 0) return result_ == Result::kMessage ? Result::kEnd : result_;
    std::wstring_view whole(text, static_cast<size_t>(n));
    if (whole.back() == L'\n') whole.remove_suffix(1);
    *line = Narrow(whole);
    return Result::kMessage;
  }
  // Makes it an entry of the history.
  void Remember(const std::string& message) {
    HistEventW event;
    if (!message.empty()) history_w(history_, &event, H_ENTER, Wide(message).c_str());
  }

 private:
  static Editor* Of(EditLine* e) {
    void* self = nullptr;
    el_wget(e, EL_CLIENTDATA, &self);
    return static_cast<Editor*>(self);
  }
  // Has the terminal put marks around a pasted text.
  void Brackets(bool on) {
    if (!brackets_) return;
    signals_.SetMarks(on);
    std::fputs(on ? "\033[?2004h" : "\033[?2004l", stdout);
    std::fflush(stdout);
  }
  // Draws the line anew from the beginning of a row, on a terminal that another program may have changed.
  void Redraw() {
    el_wset(line_, EL_PREP_TERM, 0);
    el_wset(line_, EL_PREP_TERM, 1);
    el_resize(line_);
    Brackets(true);
    std::fputs("\r\033[J", stdout);
    el_wset(line_, EL_REFRESH);
  }
  // Input for the editor: 1 = a character, 0 = the end, -1 = an interruption.
  int NextCharacter(wchar_t* c) {
    std::string bytes;
    const int first = input_->Next();
    if (first < 0) return Ended(first);
    bytes += static_cast<char>(first);
    if (first == '\033') {
      const int pasted = TakePaste();
      if (pasted < 0) return Ended(pasted);
      *c = pasted > 0 ? kPasteKey : L'\033';
      return 1;
    }
    while (bytes.size() < Length(static_cast<unsigned char>(first))) {
      const int next = input_->Next();
      if (next < 0) return Ended(next);
      bytes += static_cast<char>(next);
      if ((next & 0xc0) == 0x80) continue;
      input_->PutBack(bytes.substr(bytes.size() - 1));
      bytes.pop_back();
      break;
    }
    *c = Wide(bytes)[0];
    return 1;
  }
  int Ended(int what) {
    result_ = what == Input::kInterrupted ? Result::kInterrupted : Result::kEnd;
    return what == Input::kInterrupted ? -1 : 0;
  }
  // Called after an ESC: 1 = a paste is in pasted_; 0 = no paste (the bytes are put back); else why there is no input.
  int TakePaste() {
    constexpr std::string_view kRest = std::string_view(kPasteBegin).substr(1);
    std::string seen;
    while (seen.size() < kRest.size()) {
      const int next = input_->Next(200);
      if (next == Input::kEnd || next == Input::kInterrupted) return next;
      if (next != Input::kNothing) seen += static_cast<char>(next);
      if (next == Input::kNothing || seen.back() != kRest[seen.size() - 1]) {
        input_->PutBack(seen);
        return 0;
      }
    }
    std::string bytes;
    const std::string_view end = kPasteEnd;
    while (bytes.size() < end.size() || bytes.compare(bytes.size() - end.size(), end.size(), end) != 0) {
      const int next = input_->Next();
      if (next < 0) return next;
      if (bytes.size() < kMaxPaste) bytes += static_cast<char>(next);
    }
    bytes.resize(bytes.size() - end.size());
    pasted_ = CleanPaste(bytes);
    return 1;
  }
  unsigned char Insert() {
    if (pasted_.empty() || el_winsertstr(line_, pasted_.c_str()) != 0) return CC_ERROR;
    pasted_.clear();
    return CC_REFRESH;
  }

  // Completes the command in front of the cursor as far as it is certain, else lists those that begin so.
  unsigned char Complete() {
    const LineInfoW* const at = el_wline(line_);
    const std::string word = Narrow({at->buffer, static_cast<size_t>(at->cursor - at->buffer)});
    if (word.empty() || word[0] != '/' || word.find_first_of(" \n") != std::string::npos) return CC_ERROR;
    std::vector<std::string> matches;
    for (const std::string& command : commands_) {
      if (command.rfind(word, 0) == 0) matches.push_back(command);
    }
    if (matches.empty()) return CC_ERROR;
    std::string rest = matches[0].substr(word.size());
    for (const std::string& match : matches) {
      const std::string other = match.substr(word.size());
      rest.resize(static_cast<size_t>(std::mismatch(rest.begin(), rest.end(), other.begin(), other.end()).first -
                                      rest.begin()));
    }
    if (matches.size() == 1 && at->cursor == at->lastchar) rest += ' ';
    if (rest.empty()) {
      std::string list;
      for (const std::string& match : matches) list += match + "  ";
      fmt::print("\n{}\n", list);
      std::fflush(stdout);
      return CC_REDISPLAY;
    }
    return el_winsertstr(line_, Wide(rest).c_str()) == 0 ? CC_REFRESH : CC_ERROR;
  }

  Input* const input_;
  const std::vector<std::string> commands_;
  HistoryW* const history_;
  const std::filesystem::path file_;
  EditLine* line_ = nullptr;
  wchar_t prompt_[8] = L"> ";
  bool brackets_ = false;
  std::wstring pasted_;
  Result result_ = Result::kMessage;
  TerminalSignals signals_;
};

MessageReader::MessageReader(std::vector<std::string> commands) : input_(std::make_unique<Input>()) {
  if (isatty(STDIN_FILENO) == 0 || isatty(STDOUT_FILENO) == 0) return;
  editor_ = std::make_unique<Editor>(input_.get(), std::move(commands));
  if (!editor_->usable()) editor_.reset();
}

MessageReader::~MessageReader() = default;

MessageReader::Result MessageReader::ReadLine(bool first, std::string* line) {
  std::fflush(stdout);
  if (editor_ != nullptr) return editor_->Read(first, line);
  line->clear();
  for (;;) {
    const int next = input_->Next();
    if (next == Input::kInterrupted) return Result::kInterrupted;
    if (next == Input::kEnd) return line->empty() ? Result::kEnd : Result::kMessage;
    if (next == '\n') return Result::kMessage;
    *line += static_cast<char>(next);
  }
}

MessageReader::Result MessageReader::Ask(const std::string& question, std::string* answer) {
  answer->clear();
  if (editor_ == nullptr) return Result::kEnd;
  input_->Drop();
  tcflush(STDIN_FILENO, TCIFLUSH);
  // The terminal edits this line, not the editor.
  const std::function<void()> redraw = std::exchange(input_->on_redraw, {});
  fmt::print("{}", question);
  std::fflush(stdout);
  int next = input_->Next();
  for (; next >= 0 && next != '\n'; next = input_->Next()) *answer += static_cast<char>(next);
  input_->on_redraw = redraw;
  return next == Input::kInterrupted ? Result::kInterrupted : next == Input::kEnd ? Result::kEnd : Result::kMessage;
}

MessageReader::Result MessageReader::Read(std::string* message) {
  const Result result = ReadLines(message);
  if (result == Result::kMessage && editor_ != nullptr) editor_->Remember(*message);
  return result;
}

MessageReader::Result MessageReader::ReadLines(std::string* message) {
  constexpr std::string_view kQuotes = "\"\"\"";
  message->clear();
  bool quoted = false, begun = false;
  for (bool first = true;; first = false) {
    std::string line;
    const Result result = ReadLine(first, &line);
    if (result == Result::kInterrupted) input_->Drop();
    // Text before the end of input is a message too.
    if (result == Result::kEnd && !first) return Result::kMessage;
    if (result != Result::kMessage) return result;
    // In a paste of several lines quotes are text.
    const bool typed = line.find('\n') == std::string::npos;
    bool bare = false;  // quotes alone make no line of the message
    if (first && typed && line.rfind(kQuotes, 0) == 0) {
      quoted = true;
      line.erase(0, kQuotes.size());
      bare = line.empty();
    }
    const bool ends = quoted && typed && !bare && line.size() >= kQuotes.size() &&
                      line.compare(line.size() - kQuotes.size(), kQuotes.size(), kQuotes) == 0;
    if (ends) {
      line.resize(line.size() - kQuotes.size());
      bare = line.empty();
    }
    const bool more = !quoted && !line.empty() && line.back() == '\\';
    if (more) line.pop_back();
    if (!bare) {
      if (begun) *message += '\n';
      begun = true;
      *message += line;
    }
    if (ends || (!quoted && !more)) return Result::kMessage;
  }
}

}  // namespace gyre
