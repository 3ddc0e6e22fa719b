#include "scoring/arrow_scores.h"

#include <limits>
#include <utility>

#include "base/coding.h"
#include "model/half_floats.h"
#include "scoring/flat_buffer.h"

namespace gyre {
namespace {

// Numbers of Arrow's Message.fbs and Schema.fbs.
constexpr uint64_t kVersion5 = 4, kSchemaHeader = 1, kBatchHeader = 3;
constexpr uint64_t kInt = 2, kFloatingPoint = 3, kFixedSizeList = 16;

using Field = FlatBuffer::Field;

template <Number T>
void AppendNumber(T value, std::string* out) {
  out->append(reinterpret_cast<const char*>(&value), sizeof value);
}

size_t Padded(size_t bytes) { return (bytes + 7) / 8 * 8; }

// 0xffffffff, the size of the metadata with what aligns it, and both.
std::string Frame(std::string metadata) {
  metadata.resize(Padded(metadata.size()));
  std::string out(4, '\xff');
  AppendNumber(static_cast<uint32_t>(metadata.size()), &out);
  return out + metadata;
}

FlatBuffer::Place AddMessage(uint64_t header, uint64_t body_bytes, FlatBuffer* b) {
  const FlatBuffer::Table message = b->AddTable({FlatBuffer::Number(2, kVersion5), FlatBuffer::Number(1, header),
                                                 FlatBuffer::Reference(), FlatBuffer::Number(8, body_bytes)});
  b->SetRoot(message);
  return message.references[0];
}

// A Field of the schema, which `place` leads to; returns the place of its list of children.
FlatBuffer::Place AddField(std::string_view name, uint64_t type, const FlatBuffer::Place place, FlatBuffer* b,
                           FlatBuffer::Place* of_type) {
  // name, nullable, the kind of type, type, dictionary, children
  const FlatBuffer::Table field =
      b->AddTable({FlatBuffer::Reference(), FlatBuffer::Number(1, 0), FlatBuffer::Number(1, type),
                   FlatBuffer::Reference(), FlatBuffer::Absent(), FlatBuffer::Reference()});
  b->Point(place, field.at);
  b->Point(field.references[0], b->AddText(name));
  *of_type = field.references[1];
  return field.references[2];
}

}  // namespace

ArrowScores::ArrowScores(const ScoreFormat& format) : format_(format) {
  AddColumn("index", false, false, 32);
  AddColumn("position", false, false, 32);
  AddColumn("id", false, true, 32);
  AddColumn("logprob", true, true, 32);
  AddColumn("rest", true, true, 64);
  if (format_.top > 0) {
    AddColumn("top_id", false, true, 32, format_.top);
    AddColumn("top_logprob", true, true, 32, format_.top);
  }
  if (format_.divergence) {
    for (const char* name : {"forward_kl", "reverse_kl", "jensen_shannon"}) AddColumn(name, true, true, 64);
  }
  if (format_.logits != LogitType::kNone)
    AddColumn("logits", true, true, format_.logits == LogitType::kF16 ? 16 : 32, format_.vocab);
}

ArrowScores::Column& ArrowScores::AddColumn(std::string name, bool floating, bool is_signed, uint32_t bits,
                                            uint32_t list) {
  Column& column = columns_.emplace_back();
  column.name = std::move(name);
  column.floating = floating;
  column.is_signed = is_signed;
  column.bits = bits;
  column.list = list;
  return column;
}

std::string ArrowScores::Schema() const {
  FlatBuffer b;
  const FlatBuffer::Place header = AddMessage(kSchemaHeader, 0, &b);
  // endianness (little), fields
  const FlatBuffer::Table schema = b.AddTable({FlatBuffer::Number(2, 0), FlatBuffer::Reference()});
  b.Point(header, schema.at);
  std::vector<FlatBuffer::Place> fields;
  b.Point(schema.references[0], b.AddReferences(columns_.size(), &fields));
  for (size_t i = 0; i < columns_.size(); ++i) {
    const Column& c = columns_[i];
    std::vector<FlatBuffer::Place> child;
    FlatBuffer::Place of_type = 0, at = fields[i];
    const uint64_t number = c.floating ? kFloatingPoint : kInt;
    if (c.list > 0) {
      const FlatBuffer::Place children = AddField(c.name, kFixedSizeList, at, &b, &of_type);
      b.Point(of_type, b.AddTable({FlatBuffer::Number(4, c.list)}).at);
      b.Point(children, b.AddReferences(1, &child));
      at = child[0];
    }
    const FlatBuffer::Place none = AddField(c.list > 0 ? "item" : c.name, number, at, &b, &of_type);
    // The precision of floats: 0 is half, 1 single, 2 double.
    b.Point(of_type, c.floating
                         ? b.AddTable({FlatBuffer::Number(2, c.bits / 32)}).at
                         : b.AddTable({FlatBuffer::Number(4, c.bits), FlatBuffer::Number(1, c.is_signed ? 1 : 0)}).at);
    b.Point(none, b.AddReferences(0, &child));
  }
  return Frame(b.bytes());
}

void ArrowScores::Add(uint32_t index, const PromptTokenEvent& event, const std::optional<Divergence>& divergence) {
  auto column = columns_.begin();
  const auto next = [&] { return &(column++)->data; };
  AppendNumber(index, next());
  AppendNumber(event.position, next());
  AppendNumber(event.token, next());
  AppendNumber(event.logprob, next());
  AppendNumber(event.rest, next());
  if (format_.top > 0) {
    std::string *ids = next(), *logprobs = next();
    for (uint32_t i = 0; i < format_.top; ++i) {
      AppendNumber(event.top[i].id, ids);
      AppendNumber(event.top[i].logprob, logprobs);
    }
  }
  if (format_.divergence) {
    constexpr double kNone = std::numeric_limits<double>::quiet_NaN();
    const Divergence d = divergence.value_or(Divergence{kNone, kNone, kNone});
    for (const double figure : {d.forward, d.reverse, d.jensen_shannon}) AppendNumber(figure, next());
  }
  if (format_.logits == LogitType::kF16) AppendHalves(event.logits, next());
  if (format_.logits == LogitType::kF32)
    next()->append(reinterpret_cast<const char*>(event.logits.data()), event.logits.size() * sizeof(float));
  ++rows_;
}

std::string ArrowScores::TakeBatch() {
  if (rows_ == 0) return "";
  // A node for each array, and its two buffers: which values there are (empty: all) and the values. A list has but the
  // first buffer, and its items are an array behind it.
  std::vector<uint64_t> nodes, buffers;
  uint64_t at = 0;
  for (const Column& c : columns_) {
    nodes.insert(nodes.end(), {rows_, 0});
    if (c.list > 0) {
      buffers.insert(buffers.end(), {at, 0});
      nodes.insert(nodes.end(), {rows_ * c.list, 0});
    }
    buffers.insert(buffers.end(), {at, 0, at, c.data.size()});
    at += Padded(c.data.size());
  }
  FlatBuffer b;
  const FlatBuffer::Place header = AddMessage(kBatchHeader, at, &b);
  const FlatBuffer::Table batch =
      b.AddTable({FlatBuffer::Number(8, rows_), FlatBuffer::Reference(), FlatBuffer::Reference()});
  b.Point(header, batch.at);
  b.Point(batch.references[0], b.AddStructs(nodes, 2));
  b.Point(batch.references[1], b.AddStructs(buffers, 2));
  std::string out = Frame(b.bytes());
  out.reserve(out.size() + at);
  for (Column& c : columns_) {
    out += c.data;
    out.resize(out.size() + Padded(c.data.size()) - c.data.size());
    c.data.clear();
  }
  rows_ = 0;
  return out;
}

std::string ArrowScores::End() { return std::string("\xff\xff\xff\xff\0\0\0\0", 8); }

std::string ArrowScores::Broken() {
  FlatBuffer b;
  const FlatBuffer::Place header = AddMessage(kBatchHeader, 8, &b);
  const FlatBuffer::Table batch =
      b.AddTable({FlatBuffer::Number(8, 0), FlatBuffer::Reference(), FlatBuffer::Reference()});
  b.Point(header, batch.at);
  b.Point(batch.references[0], b.AddStructs({}, 2));
  b.Point(batch.references[1], b.AddStructs({}, 2));
  return Frame(b.bytes());
}

}  // namespace gyre
