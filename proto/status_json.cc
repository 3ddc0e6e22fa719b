#include "proto/status_json.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <span>

#include "boost/json/array.hpp"
#include "http_client/json_fields.h"

namespace gyre {
namespace {

namespace json = boost::json;
using google::protobuf::FieldDescriptor;
using google::protobuf::Message;

// A field of a message that is one number, text or truth value.
struct JsonField {
  const char* name;             // in JSON
  const char* field = nullptr;  // of the message; null: the same name
};

constexpr JsonField kMember[] = {
    {"name"},         {"local"},    {"address"},      {"host"},
    {"isa"},          {"threads"},  {"memory_bytes"}, {"weights_room_bytes", "weights_room"},
    {"weight_bytes"}, {"kv_bytes"}, {"busy"},         {"steps"},
    {"step_ms"},      {"busy_us"},  {"drained"},      {"left_out"},
    {"leaving"},      {"detached"}, {"fetches"},
};
constexpr JsonField kSent[] = {{"answers", "answers_sent"},
                               {"answer_bytes", "answer_bytes_sent"},
                               {"rows_per_second"},
                               {"bytes_per_second"},
                               {"transport"}};
constexpr JsonField kLoading[] = {{"packed"}, {"to_pack"}, {"fetched"}, {"to_fetch"}};
constexpr JsonField kMeasured[] = {{"memory_bytes_per_second"},
                                   {"operations_per_second"},
                                   {"disk_bytes_per_second"},
                                   {"slowdown"},
                                   {"stage_ms"},
                                   {"why"}};
constexpr JsonField kLink[] = {{"to"}, {"failure"}, {"bytes_per_second"}};
constexpr JsonField kReplica[] = {{"of"}, {"pages"}, {"bytes"}};

const FieldDescriptor* DescriptorOf(const Message& message, const JsonField& f) {
  return message.GetDescriptor()->FindFieldByName(f.field == nullptr ? f.name : f.field);
}

json::value ValueOf(const Message& message, const FieldDescriptor* field) {
  const auto* reflection = message.GetReflection();
  switch (field->cpp_type()) {
    case FieldDescriptor::CPPTYPE_BOOL: return reflection->GetBool(message, field);
    case FieldDescriptor::CPPTYPE_UINT32: return reflection->GetUInt32(message, field);
    case FieldDescriptor::CPPTYPE_UINT64: return reflection->GetUInt64(message, field);
    case FieldDescriptor::CPPTYPE_DOUBLE: return reflection->GetDouble(message, field);
    default: return json::string(reflection->GetString(message, field));
  }
}

void Write(const Message& message, std::span<const JsonField> fields, json::object* out) {
  for (const JsonField& f : fields) (*out)[f.name] = ValueOf(message, DescriptorOf(message, f));
}

void Read(const json::value& v, std::span<const JsonField> fields, Message* out) {
  const auto* reflection = out->GetReflection();
  for (const JsonField& f : fields) {
    const json::value* value = FieldOf(v, f.name);
    if (value == nullptr) continue;
    const FieldDescriptor* field = DescriptorOf(*out, f);
    switch (field->cpp_type()) {
      case FieldDescriptor::CPPTYPE_BOOL: reflection->SetBool(out, field, value->is_bool() && value->get_bool()); break;
      case FieldDescriptor::CPPTYPE_UINT32:
        reflection->SetUInt32(out, field, static_cast<uint32_t>(std::min<uint64_t>(CountOf(v, f.name), UINT32_MAX)));
        break;
      case FieldDescriptor::CPPTYPE_UINT64: reflection->SetUInt64(out, field, CountOf(v, f.name)); break;
      case FieldDescriptor::CPPTYPE_DOUBLE: reflection->SetDouble(out, field, NumberOf(v, f.name, 0)); break;
      default: reflection->SetString(out, field, TextOf(v, f.name));
    }
  }
}

// The round trip in milliseconds; null: unknown.
json::value Milliseconds(uint64_t us) {
  if (us == 0) return nullptr;
  return static_cast<double>(us) / 1e3;
}
uint64_t Microseconds(const json::value& v, const char* name) {
  const double us = std::round(NumberOf(v, name, 0) * 1e3);
  return us > 0 && us < 9e18 ? static_cast<uint64_t>(us) : 0;
}

json::value LayersJson(const v1::MemberStatus& m) {
  if (!m.has_layers()) return nullptr;
  return json::object{{"first", m.layers().begin()}, {"last", m.layers().end() - 1}};
}

bool LeftOut(const v1::MemberStatus& m) { return !m.has_layers() && !m.drained() && !m.left_out().empty(); }

// Why its state is what it is, for people.
std::string Why(const v1::MemberStatus& m) {
  if (!m.has_layers() && m.drained()) return "it was drained, and gets no layers before an undrain";
  if (m.leaving()) return "it leaves: its layers go to others";
  if (m.detached()) return "its control connection is cut, and may come back";
  return LeftOut(m) ? m.left_out() : "";
}

// The link to the next member of the ring; null if the member has no layers.
json::value SentJson(const v1::MemberStatus& m, const std::string& next) {
  if (next.empty()) return nullptr;
  json::object out{{"to", next},
                   {"rows", m.rows_sent() + m.answers_sent()},
                   {"bytes", m.row_bytes_sent() + m.answer_bytes_sent()},
                   {"latency_ms", Milliseconds(m.round_trip_us())}};
  Write(m, kSent, &out);
  if (m.transport().empty()) out["transport"] = nullptr;
  return out;
}

void ReadSent(const json::value& sent, v1::MemberStatus* out) {
  Read(sent, kSent, out);
  const auto beside = [](uint64_t all, uint64_t answers) { return all - std::min(all, answers); };
  out->set_rows_sent(beside(CountOf(sent, "rows"), out->answers_sent()));
  out->set_row_bytes_sent(beside(CountOf(sent, "bytes"), out->answer_bytes_sent()));
  out->set_round_trip_us(Microseconds(sent, "latency_ms"));
}

json::value ReplicaJson(const v1::MemberStatus& m) {
  if (!m.has_replica()) return nullptr;
  json::object out;
  Write(m.replica(), kReplica, &out);
  out["behind"] = m.replica().whole() ? json::value(m.replica().behind()) : json::value(nullptr);
  return out;
}

json::object MeasuredJson(const v1::MemberStatus& m) {
  json::object out;
  Write(m, kMeasured, &out);
  json::array links;
  for (const v1::MeasuredLink& l : m.links()) {
    json::object link;
    Write(l, kLink, &link);
    link["round_trip_ms"] = static_cast<double>(l.round_trip_us()) / 1e3;
    links.push_back(std::move(link));
  }
  out["links"] = std::move(links);
  return out;
}

void ReadMeasured(const json::value& measured, v1::MemberStatus* out) {
  Read(measured, kMeasured, out);
  const json::value* links = FieldOf(measured, "links");
  if (links == nullptr || !links->is_array()) return;
  for (const json::value& link : links->get_array()) {
    v1::MeasuredLink* l = out->add_links();
    Read(link, kLink, l);
    l->set_round_trip_us(Microseconds(link, "round_trip_ms"));
  }
}

}  // namespace

const char* MemberState(const v1::MemberStatus& m) {
  return m.has_layers() ? "serving" : m.drained() ? "drained" : LeftOut(m) ? "left_out" : "idle";
}

json::object MemberJson(const v1::MemberStatus& m, const std::string& next) {
  json::object out;
  Write(m, kMember, &out);
  if (m.address().empty()) out["local"] = true;  // in the coordinator's process
  out["layers"] = LayersJson(m);
  out["state"] = MemberState(m);
  out["why"] = Why(m);
  out["sent"] = SentJson(m, next);
  out["replica"] = ReplicaJson(m);
  out["measured"] = MeasuredJson(m);
  json::object loading;
  Write(m, kLoading, &loading);
  out["loading"] = std::move(loading);
  return out;
}

v1::MemberStatus ReadMember(const json::value& member) {
  v1::MemberStatus out;
  Read(member, kMember, &out);
  if (const json::value* layers = FieldOf(member, "layers")) {
    const double first = NumberOf(*layers, "first", -1), last = NumberOf(*layers, "last", -1);
    if (first >= 0 && last >= first && last < 1e6) {
      out.mutable_layers()->set_begin(static_cast<int32_t>(first));
      out.mutable_layers()->set_end(static_cast<int32_t>(last) + 1);
    }
  }
  if (const json::value* sent = FieldOf(member, "sent")) ReadSent(*sent, &out);
  if (const json::value* measured = FieldOf(member, "measured")) ReadMeasured(*measured, &out);
  if (const json::value* loading = FieldOf(member, "loading")) Read(*loading, kLoading, &out);
  if (const json::value* replica = FieldOf(member, "replica"); replica != nullptr && replica->is_object()) {
    Read(*replica, kReplica, out.mutable_replica());
    out.mutable_replica()->set_whole(FieldOf(*replica, "behind") != nullptr);
    out.mutable_replica()->set_behind(CountOf(*replica, "behind"));
  }
  return out;
}

}  // namespace gyre
