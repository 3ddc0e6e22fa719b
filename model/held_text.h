// The text of an answer that is read, but not given out yet. A coroutine (reading.h) waits in it for what its form has
// to have next. Pure.
#pragma once

#include <algorithm>
#include <coroutine>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

#include "model/json_scanner.h"
#include "model/marked_text.h"

namespace gyre {

// What is waited for has a value as soon as the text decides on it, so it does not depend on how the text is cut.
class HeldText {
 public:
  static constexpr size_t kLongestName = 256;

  void Append(std::string_view text) { held_ += text; }
  // No text follows; or, with false, more does.
  void End(bool ended = true) { ended_ = ended; }
  bool ended() const { return ended_; }

  // A new coroutine begins to read.
  void Begin() { ran_out_ = false, failed_at_ = 0; }
  // The position of the next byte to read.
  size_t at() const { return at_; }
  void MoveTo(size_t at) { at_ = at; }
  void Skip(size_t bytes) { at_ += bytes; }
  size_t size() const { return held_.size(); }
  std::string_view all() const { return held_; }
  std::string_view rest() const { return std::string_view(held_).substr(at_); }
  std::string_view taken() const { return std::string_view(held_).substr(0, at_); }
  // Drops the text that was taken.
  void Forget() {
    held_.erase(0, at_);
    at_ = 0;
  }

  // The answer ended in what was waited for.
  bool ran_out() const { return ran_out_; }
  bool RanOut() {
    ran_out_ = true;
    return false;
  }
  // The byte at this place shows that the form does not fit.
  bool Fails(size_t at) {
    failed_at_ = std::max(failed_at_, at);
    return false;
  }
  size_t failed_at() const { return failed_at_; }
  void ForgetFailure() { failed_at_ = 0; }

  // Waits until `tried` has a value.
  template <typename F>
  class Waiter {
   public:
    Waiter(HeldText* text, F tried) : text_(text), tried_(std::move(tried)) {}
    bool await_ready() {
      got_ = tried_();
      return got_.has_value();
    }
    void await_suspend(std::coroutine_handle<>) {
      text_->retry_ = [this] { return await_ready(); };
    }
    auto await_resume() { return *std::move(got_); }

   private:
    HeldText* text_;
    F tried_;
    std::invoke_result_t<F&> got_;
  };
  template <typename F>
  Waiter<F> Wait(F tried) {
    return Waiter<F>(this, std::move(tried));
  }
  // Whether the coroutine waits for more text still.
  bool Waits() {
    if (retry_ && !retry_()) return true;
    retry_ = nullptr;
    return false;
  }
  void StopWaiting() { retry_ = nullptr; }

  // Takes the text, if it stands here.
  auto Literal(std::string text) {
    return Wait([this, text = std::move(text)]() -> std::optional<bool> {
      if (rest().starts_with(text)) {
        at_ += text.size();
        return true;
      }
      if (!std::string_view(text).starts_with(rest())) return Fails(at_ + Common(text, rest()));
      if (ended_) return RanOut();
      return std::nullopt;
    });
  }
  auto Space() {
    return Wait([this]() -> std::optional<bool> {
      while (at_ < held_.size() && IsJsonSpace(held_[at_])) ++at_;
      if (at_ == held_.size() && !ended_) return std::nullopt;
      return true;
    });
  }
  // The next byte, which stays; 0: the answer ends here.
  auto Next() {
    return Wait([this]() -> std::optional<char> {
      if (at_ < held_.size()) return held_[at_];
      if (!ended_) return std::nullopt;
      RanOut();
      return '\0';
    });
  }
  // Takes a name up to one of the delimiters, which stays. "": there is none. any: of any bytes but marks.
  auto Name(std::vector<std::string> delimiters, bool any = false) {
    return Wait([this, any, delimiters = std::move(delimiters)]() -> std::optional<std::string> {
      size_t end = std::string_view::npos;
      for (const std::string& delimiter : delimiters) end = std::min(end, rest().find(delimiter));
      const bool open = end == std::string_view::npos;
      const size_t bad =
          FirstBad(open ? rest() : rest().substr(0, end), any, open ? delimiters : std::vector<std::string>());
      if (open && !ended_ && rest().size() < kLongestName) {
        // A name has no other bytes, so that a text is known as one early.
        if (bad == std::string_view::npos) return std::nullopt;
        Fails(at_ + bad);
        return std::string();
      }
      if (open || end > kLongestName) {
        if (open && bad == std::string_view::npos && rest().size() < kLongestName) RanOut();
        Fails(at_ + std::min({bad, rest().size(), kLongestName - 1}));
        return std::string();
      }
      if (bad != std::string_view::npos) {
        Fails(at_ + bad);
        return std::string();
      }
      const std::string_view name = rest().substr(0, end);
      at_ += end;
      return std::string(any ? name : Trimmed(name));
    });
  }
  // A marker; or the answer ends before it, or in it.
  auto Close(std::string marker) {
    return Wait([this, marker = std::move(marker)]() -> std::optional<bool> {
      if (rest().starts_with(marker)) {
        at_ += marker.size();
        return true;
      }
      if (!std::string_view(marker).starts_with(rest())) return Fails(at_ + Common(marker, rest()));
      if (!ended_) return std::nullopt;
      at_ = held_.size();
      return true;
    });
  }

 private:
  static bool IsNameByte(char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_' || c == '-' ||
           c == '.' || c == ':' || c == '/';
  }
  // How many bytes at the beginning are the same.
  static size_t Common(std::string_view a, std::string_view b) {
    return static_cast<size_t>(std::mismatch(a.begin(), a.end(), b.begin(), b.end()).first - a.begin());
  }
  static std::string_view Trimmed(std::string_view text) {
    text.remove_prefix(std::min(text.find_first_not_of(kJsonSpace), text.size()));
    return text.substr(0, text.find_last_not_of(kJsonSpace) + 1);
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
    return std::string_view::npos;
  }

  std::string held_;
  size_t at_ = 0;
  bool ended_ = false, ran_out_ = false;
  size_t failed_at_ = 0;         // the last byte that did not fit
  std::function<bool()> retry_;  // goes on with what the coroutine waits for
};

}  // namespace gyre
