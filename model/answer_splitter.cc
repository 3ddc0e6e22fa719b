#include "model/answer_splitter.h"

#include <algorithm>
#include <utility>

#include "model/marked_text.h"

namespace gyre {

// Marked text to pieces.
class AnswerSplitter::Reader {
 public:
  virtual ~Reader() = default;
  virtual void Text(std::string_view text, bool end, std::vector<Piece>* out) = 0;
  virtual void Control(std::string_view name, std::vector<Piece>* out) = 0;
  virtual Part part() const = 0;
  virtual std::string_view to_end() const { return {}; }
};

namespace {

using Begins = AnswerFormat::Begins;
using Part = AnswerSplitter::Part;
using Piece = AnswerSplitter::Piece;

constexpr std::string_view kSpace = AnswerSplitter::kSpace;

void AddPiece(bool reasoning, std::string_view text, std::vector<Piece>* out, int call = 0) {
  if (text.empty()) return;
  if (out->empty() || out->back().reasoning != reasoning || out->back().call != call) {
    out->push_back({.reasoning = reasoning, .text = {}, .call = call});
  }
  out->back().text += text;
}

// The marker, with marks around the control tokens in it.
std::string Marked(std::string_view marker, const std::vector<AnswerFormat::Control>& controls) {
  std::string out;
  while (!marker.empty()) {
    const auto found = std::find_if(controls.begin(), controls.end(),
                                    [&](const auto& control) { return marker.starts_with(control.text); });
    out += found == controls.end() ? std::string(marker.substr(0, 1)) : MarkedControl(found->text);
    marker.remove_prefix(found == controls.end() ? 1 : found->text.size());
  }
  return out;
}

// Takes reasoning from the beginning of `held`; what may still be space before its end stays there.
class Thought {
 public:
  // `size`: how much of `held` is reasoning for certain. `closed`: its end stands behind.
  void Take(std::string* held, size_t size, bool closed, std::vector<Piece>* out) {
    if (!begun_) {
      const size_t space = std::min({held->find_first_not_of(kSpace), held->size(), size});
      held->erase(0, space);
      size -= space;
    }
    const size_t last = std::string_view(*held).substr(0, size).find_last_not_of(kSpace);
    const size_t kept = last == std::string::npos ? 0 : last + 1;
    AddPiece(true, std::string_view(*held).substr(0, kept), out);
    begun_ = !closed && (begun_ || kept > 0);
    held->erase(0, closed ? size : kept);
  }

 private:
  bool begun_ = false;  // it has text that isn't space
};

// A marker before reasoning, one behind it, and markers around calls.
class MarkedReader : public AnswerSplitter::Reader {
 public:
  Part part() const override {
    return where_ == Where::kBefore ? Part::kBefore : where_ == Where::kInside ? Part::kReasoning : Part::kContent;
  }
  std::string_view to_end() const override {
    if (where_ != Where::kInside || format_.close.find(kMarkBegin) != std::string::npos) return {};
    return std::string_view(format_.close).substr(BegunAtEnd(held_, format_.close));
  }
  MarkedReader(AnswerFormat format, bool all) : format_(std::move(format)), all_(all) {
    for (std::string* marker : {&format_.open, &format_.close, &format_.call_open, &format_.call_close}) {
      *marker = Marked(*marker, format_.controls);
    }
    where_ = format_.close.empty() || format_.begins == Begins::kInContent ? Where::kContent
             : format_.begins == Begins::kInReasoning                      ? Where::kInside
                                                                           : Where::kBefore;
  }

  void Text(std::string_view text, bool end, std::vector<Piece>* out) override {
    held_ += text;
    if (where_ == Where::kBefore) Begin(end);
    if (where_ == Where::kInside) Think(end, out);
    if (where_ == Where::kAfter) {
      held_.erase(0, std::min(held_.find_first_not_of(kSpace), held_.size()));
      if (held_.empty()) return;
      where_ = Where::kContent;
    }
    while (where_ == Where::kContent || where_ == Where::kCall) {
      if (!Answer(end, out)) return;
    }
  }

  void Control(std::string_view name, std::vector<Piece>* out) override {
    const std::string text = held_ + std::string(name);
    const auto marks = [&](std::string_view marker) {
      return !marker.empty() && (text.find(marker) != std::string::npos || BegunAtEnd(text, marker) > 0);
    };
    const bool known = all_ || where_ == Where::kCall || (where_ == Where::kBefore && marks(format_.open)) ||
                       marks(where_ == Where::kInside ? format_.close : format_.call_open);
    if (known) Text(name, false, out);
  }

 private:
  enum class Where { kBefore, kInside, kAfter, kContent, kCall };

  void Begin(bool end) {
    const size_t first = std::min(held_.find_first_not_of(kSpace), held_.size());
    const std::string_view rest = std::string_view(held_).substr(first);
    if (rest.starts_with(format_.open)) {
      held_.erase(0, first + format_.open.size());
      where_ = Where::kInside;
    } else if (end || !std::string_view(format_.open).starts_with(rest)) {
      where_ = Where::kContent;
    }
  }

  void Think(bool end, std::vector<Piece>* out) {
    const size_t close = held_.find(format_.close);
    const bool closed = close != std::string::npos;
    const size_t sure = closed ? close : held_.size() - (end ? 0 : BegunAtEnd(held_, format_.close));
    thought_.Take(&held_, sure, closed, out);
    if (!closed) return;
    held_.erase(0, format_.close.size());
    where_ = Where::kAfter;
  }

  // False: nothing more can be said of what is held.
  bool Answer(bool end, std::vector<Piece>* out) {
    const bool call = where_ == Where::kCall;
    const std::string& marker = call ? format_.call_close : format_.call_open;
    const size_t at = marker.empty() ? std::string::npos : held_.find(marker);
    const bool found = at != std::string::npos;
    const size_t sure = found ? at + marker.size() : held_.size() - (end ? 0 : BegunAtEnd(held_, marker));
    AddPiece(false, std::string_view(held_).substr(0, sure), out);
    held_.erase(0, sure);
    if (found) where_ = call ? Where::kContent : Where::kCall;
    return found;
  }

  AnswerFormat format_;
  const bool all_;  // every control token has text
  Where where_;
  Thought thought_;
  std::string held_;  // may be a part of a marker, or space at the end of the reasoning
};

// gpt-oss: "<|channel|>analysis<|message|>...<|end|><|start|>assistant<|channel|>final<|message|>...". A message to a
// recipient ("to=functions.f") is a call.
class ChannelReader : public AnswerSplitter::Reader {
 public:
  explicit ChannelReader(const AnswerFormat& format)
      : start_(Marked("<|start|>", format.controls)),
        channel_(Marked("<|channel|>", format.controls)),
        message_(Marked("<|message|>", format.controls)),
        call_end_(Marked("<|call|>", format.controls)),
        ends_({Marked("<|end|>", format.controls), call_end_, Marked("<|return|>", format.controls), start_, channel_}),
        where_(format.begins == Begins::kBefore        ? Where::kHeader
               : format.begins == Begins::kInReasoning ? Where::kInside
                                                       : Where::kContent) {}

  void Text(std::string_view text, bool end, std::vector<Piece>* out) override {
    held_ += text;
    while (where_ == Where::kHeader ? Header(end, out) : Body(end, out)) {
    }
  }
  void Control(std::string_view name, std::vector<Piece>* out) override { Text(name, false, out); }
  // Headers and calls are neither; whoever asks waits for content.
  Part part() const override { return where_ == Where::kContent ? Part::kContent : Part::kReasoning; }

 private:
  enum class Where { kHeader, kInside, kContent, kCall };
  static constexpr std::string_view kTo = "to=";
  static constexpr size_t kLongest = 512;  // bytes of a header

  // Whether what is held may become a header.
  bool MayBeHeader() const {
    if (held_.size() > kLongest) return false;
    const size_t first = std::min(held_.find_first_not_of(kSpace), held_.size());
    const std::string_view rest = std::string_view(held_).substr(first);
    for (const std::string_view begin :
         {std::string_view(start_), std::string_view(channel_), std::string_view(message_), kTo}) {
      if (rest.starts_with(begin) || begin.starts_with(rest)) return true;
    }
    return false;
  }

  bool Header(bool end, std::vector<Piece>* out) {
    const size_t message = held_.find(message_);
    if (!MayBeHeader()) {
      where_ = Where::kContent;
      // What begins a header that is too long is content, too; else its beginning would be looked at for ever.
      const size_t first = std::min(held_.find_first_not_of(kSpace), held_.size());
      for (const std::string& begin : {start_, channel_}) {
        if (!std::string_view(held_).substr(first).starts_with(begin)) continue;
        AddPiece(false, std::string_view(held_).substr(0, first + begin.size()), out);
        held_.erase(0, first + begin.size());
        break;
      }
      return !held_.empty();
    }
    if (message == std::string::npos) {
      // A header that is cut off says nothing.
      if (end && held_.find("<|") == std::string::npos && held_.find(kMarkBegin) == std::string::npos) {
        AddPiece(false, held_, out);
      }
      if (end) held_.clear();
      return false;
    }
    std::string header = held_.substr(0, message);
    held_.erase(0, message + message_.size());
    if (const size_t start = header.rfind(start_); start != std::string::npos) {
      header.erase(
          0, std::min(header.find_first_of(std::string(" <") + kMarkBegin, start + start_.size()), header.size()));
    }
    const size_t channel = header.rfind(channel_);
    if (header.find(kTo) != std::string::npos) {
      where_ = Where::kCall;
      AddPiece(false, header.append(message_), out, ++calls_);
    } else if (channel != std::string::npos &&
               std::string_view(header).substr(channel).starts_with(channel_ + "analysis")) {
      where_ = Where::kInside;
    } else {
      where_ = Where::kContent;
    }
    return true;
  }

  bool Body(bool end, std::vector<Piece>* out) {
    size_t at = std::string::npos, begun = 0;
    std::string_view marker;
    for (const std::string_view m : ends_) {
      const size_t found = held_.find(m);
      if (found < at) {
        at = found;
        marker = m;
      }
      begun = std::max(begun, BegunAtEnd(held_, m));
    }
    const bool closed = at != std::string::npos;
    const size_t sure = closed ? at : held_.size() - (end ? 0 : begun);
    if (where_ == Where::kInside) {
      thought_.Take(&held_, sure, closed, out);
    } else {
      AddPiece(false, std::string_view(held_).substr(0, sure), out, where_ == Where::kCall ? calls_ : 0);
      held_.erase(0, sure);
    }
    if (!closed) return false;
    if (where_ == Where::kCall && marker == call_end_) AddPiece(false, marker, out, calls_);
    where_ = Where::kHeader;
    if (marker != start_ && marker != channel_) held_.erase(0, marker.size());
    return true;
  }

  const std::string start_, channel_, message_, call_end_;
  const std::vector<std::string> ends_;
  int calls_ = 0;
  Where where_;
  Thought thought_;
  std::string held_;
};

}  // namespace

AnswerSplitter::AnswerSplitter(AnswerFormat format, bool marked) : controls_(format.controls), marked_(marked) {
  if (format.channels) {
    reader_ = std::make_unique<ChannelReader>(format);
  } else {
    reader_ = std::make_unique<MarkedReader>(std::move(format), marked);
  }
}
AnswerSplitter::AnswerSplitter(AnswerSplitter&&) noexcept = default;
AnswerSplitter& AnswerSplitter::operator=(AnswerSplitter&&) noexcept = default;
AnswerSplitter::~AnswerSplitter() = default;

std::vector<Piece> AnswerSplitter::Shown(std::vector<Piece> pieces) const {
  if (marked_) return pieces;
  std::vector<Piece> out;
  for (const Piece& piece : pieces) AddPiece(piece.reasoning, Unmarked(piece.text), &out, piece.call);
  return out;
}

std::vector<Piece> AnswerSplitter::Push(TokenId token, std::string_view text) {
  std::vector<Piece> out;
  reader_->Text(Unmarkable(text), false, &out);
  for (const AnswerFormat::Control& control : controls_) {
    if (control.id == token) {
      reader_->Control(MarkedControl(control.text), &out);
      break;
    }
  }
  return Shown(std::move(out));
}

AnswerSplitter::Part AnswerSplitter::part() const { return reader_->part(); }

std::string_view AnswerSplitter::to_end() const { return reader_->to_end(); }

std::vector<Piece> AnswerSplitter::Finish(std::string_view text) {
  std::vector<Piece> out;
  reader_->Text(Unmarkable(text), true, &out);
  return Shown(std::move(out));
}

}  // namespace gyre
