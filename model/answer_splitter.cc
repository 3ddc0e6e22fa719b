#include "model/answer_splitter.h"

#include <algorithm>
#include <array>

namespace gyre {

// Text, in which control tokens of the format stand by their names, to pieces.
class AnswerSplitter::Reader {
 public:
  virtual ~Reader() = default;
  virtual void Text(std::string_view text, bool end, std::vector<Piece>* out) = 0;
  virtual void Control(std::string_view name, std::vector<Piece>* out) = 0;
};

namespace {

using Begins = AnswerFormat::Begins;
using Piece = AnswerSplitter::Piece;

constexpr std::string_view kSpace = " \t\r\n";

// The longest end of `text` that begins `marker`, but is not all of it.
size_t BegunAtEnd(std::string_view text, std::string_view marker) {
  if (marker.empty()) return 0;
  for (size_t n = std::min(text.size(), marker.size() - 1); n > 0; --n) {
    if (text.ends_with(marker.substr(0, n))) return n;
  }
  return 0;
}

void AddPiece(bool reasoning, std::string_view text, std::vector<Piece>* out) {
  if (text.empty()) return;
  if (out->empty() || out->back().reasoning != reasoning) out->push_back({.reasoning = reasoning, .text = {}});
  out->back().text += text;
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
  explicit MarkedReader(AnswerFormat format) : format_(std::move(format)) {
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
    const bool known = where_ == Where::kCall || (where_ == Where::kBefore && marks(format_.open)) ||
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

  const AnswerFormat format_;
  Where where_;
  Thought thought_;
  std::string held_;  // may be a part of a marker, or space at the end of the reasoning
};

// gpt-oss: "<|channel|>analysis<|message|>...<|end|><|start|>assistant<|channel|>final<|message|>...". A message to a
// recipient ("to=functions.f") is a call.
class ChannelReader : public AnswerSplitter::Reader {
 public:
  explicit ChannelReader(Begins begins)
      : where_(begins == Begins::kBefore        ? Where::kHeader
               : begins == Begins::kInReasoning ? Where::kInside
                                                : Where::kContent) {}

  void Text(std::string_view text, bool end, std::vector<Piece>* out) override {
    held_ += text;
    while (where_ == Where::kHeader ? Header(end, out) : Body(end, out)) {
    }
  }
  void Control(std::string_view name, std::vector<Piece>* out) override { Text(name, false, out); }

 private:
  enum class Where { kHeader, kInside, kContent, kCall };
  static constexpr std::string_view kStart = "<|start|>", kChannel = "<|channel|>", kMessage = "<|message|>",
                                    kCallEnd = "<|call|>", kTo = "to=";
  static constexpr std::array<std::string_view, 5> kEnds = {"<|end|>", kCallEnd, "<|return|>", kStart, kChannel};
  static constexpr size_t kLongest = 512;  // bytes of a header

  // Whether what is held may become a header.
  bool MayBeHeader() const {
    if (held_.size() > kLongest) return false;
    const size_t first = std::min(held_.find_first_not_of(kSpace), held_.size());
    const std::string_view rest = std::string_view(held_).substr(first);
    for (const std::string_view begin : {kStart, kChannel, kMessage, kTo}) {
      if (rest.starts_with(begin) || begin.starts_with(rest)) return true;
    }
    return false;
  }

  bool Header(bool end, std::vector<Piece>* out) {
    const size_t message = held_.find(kMessage);
    if (!MayBeHeader()) {
      where_ = Where::kContent;
      return !held_.empty();
    }
    if (message == std::string::npos) {
      // A header that is cut off says nothing.
      if (end && held_.find("<|") == std::string::npos) AddPiece(false, held_, out);
      if (end) held_.clear();
      return false;
    }
    std::string header = held_.substr(0, message);
    held_.erase(0, message + kMessage.size());
    if (const size_t start = header.rfind(kStart); start != std::string::npos) {
      header.erase(0, std::min(header.find_first_of(" <", start + kStart.size()), header.size()));
    }
    const size_t channel = header.rfind(kChannel);
    if (header.find(kTo) != std::string::npos) {
      where_ = Where::kCall;
      AddPiece(false, header.append(kMessage), out);
    } else if (channel != std::string::npos && std::string_view(header).substr(channel).starts_with(kAnalysis)) {
      where_ = Where::kInside;
    } else {
      where_ = Where::kContent;
    }
    return true;
  }

  bool Body(bool end, std::vector<Piece>* out) {
    size_t at = std::string::npos, begun = 0;
    std::string_view marker;
    for (const std::string_view m : kEnds) {
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
      AddPiece(false, std::string_view(held_).substr(0, sure), out);
      held_.erase(0, sure);
    }
    if (!closed) return false;
    if (where_ == Where::kCall && marker == kCallEnd) AddPiece(false, marker, out);
    where_ = Where::kHeader;
    if (marker != kStart && marker != kChannel) held_.erase(0, marker.size());
    return true;
  }

  static constexpr std::string_view kAnalysis = "<|channel|>analysis";
  Where where_;
  Thought thought_;
  std::string held_;
};

}  // namespace

AnswerSplitter::AnswerSplitter(AnswerFormat format) : controls_(std::move(format.controls)) {
  if (format.channels) {
    reader_ = std::make_unique<ChannelReader>(format.begins);
  } else {
    reader_ = std::make_unique<MarkedReader>(std::move(format));
  }
}
AnswerSplitter::AnswerSplitter(AnswerSplitter&&) noexcept = default;
AnswerSplitter& AnswerSplitter::operator=(AnswerSplitter&&) noexcept = default;
AnswerSplitter::~AnswerSplitter() = default;

std::vector<Piece> AnswerSplitter::Push(TokenId token, std::string_view text) {
  std::vector<Piece> out;
  reader_->Text(text, false, &out);
  for (const AnswerFormat::Control& control : controls_) {
    if (control.id == token) {
      reader_->Control(control.text, &out);
      break;
    }
  }
  return out;
}

std::vector<Piece> AnswerSplitter::Finish(std::string_view text) {
  std::vector<Piece> out;
  reader_->Text(text, true, &out);
  return out;
}

}  // namespace gyre
