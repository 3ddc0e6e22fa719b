#include "proto/status_json.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <initializer_list>
#include <set>
#include <span>
#include <type_traits>
#include <vector>

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

// Only what has another name in JSON, or stands in an object of its own there, is named here: every other field of a
// message stands in the message's object, under its own name. Of a status that is the engine's object.
constexpr JsonField kMember[] = {{"weights_room_bytes", "weights_room"}};
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

constexpr JsonField kStatus[] = {{"version"}, {"state"}, {"replay_note"}, {"rebalance"}, {"step_ms"}, {"transport"}};
constexpr JsonField kPlan[] = {{"ranges", "named_ranges"}};
constexpr JsonField kModel[] = {{"id", "model"}, {"layers", "num_layers"}, {"context"}, {"wire"}};
constexpr JsonField kEngine[] = {{"replayed_rows", "rows_replayed"}};
constexpr JsonField kPlans[] = {{"made", "plans"}, {"aborted"}, {"lost"}};
constexpr JsonField kRecord[] = {{"plan", "number"}};
constexpr JsonField kChange[] = {{"ranges", "named_ranges"}};

// The functions below write and read these fields themselves.
constexpr JsonField kMemberByHand[] = {{"rows_sent"}, {"row_bytes_sent"}, {"round_trip_us"}};
constexpr JsonField kLinkByHand[] = {{"round_trip_us"}};
constexpr JsonField kReplicaByHand[] = {{"whole"}, {"behind"}};
constexpr JsonField kStatusByHand[] = {{"ranges"}, {"first_hop_us"}, {"first_hop_transport"}};
constexpr JsonField kChangeByHand[] = {{"ranges"}};

const FieldDescriptor* DescriptorOf(const google::protobuf::Descriptor* message, const JsonField& f) {
  return message->FindFieldByName(f.field == nullptr ? f.name : f.field);
}

using Fields = std::vector<JsonField>;
using Rows = std::span<const JsonField>;

// The rows, and behind them the message's other fields that are one number, text or truth value, without those that
// stand elsewhere.
template <typename M>
Fields WithOthers(Rows rows, std::initializer_list<Rows> elsewhere) {
  std::set<const FieldDescriptor*> named;
  for (const JsonField& f : rows) named.insert(DescriptorOf(M::descriptor(), f));
  for (const Rows& others : elsewhere) {
    for (const JsonField& f : others) named.insert(DescriptorOf(M::descriptor(), f));
  }
  Fields out(rows.begin(), rows.end());
  for (int i = 0; i < M::descriptor()->field_count(); ++i) {
    const FieldDescriptor* field = M::descriptor()->field(i);
    const bool single = !field->is_repeated() && field->cpp_type() != FieldDescriptor::CPPTYPE_MESSAGE;
    if (single && named.count(field) == 0) out.push_back({.name = field->name().c_str()});
  }
  return out;
}

// The fields of a message's object in JSON.
template <typename M>
const Fields& FieldsOf() {
  static const Fields fields = WithOthers<M>({}, {});
  return fields;
}
template <>
const Fields& FieldsOf<v1::MemberStatus>() {
  static const Fields fields = WithOthers<v1::MemberStatus>(kMember, {kSent, kLoading, kMeasured, kMemberByHand});
  return fields;
}
template <>
const Fields& FieldsOf<v1::MeasuredLink>() {
  static const Fields fields = WithOthers<v1::MeasuredLink>({}, {kLinkByHand});
  return fields;
}
template <>
const Fields& FieldsOf<v1::Replica>() {
  static const Fields fields = WithOthers<v1::Replica>({}, {kReplicaByHand});
  return fields;
}
template <>
const Fields& FieldsOf<v1::StatusReply>() {
  static const Fields fields = WithOthers<v1::StatusReply>(kEngine, {kStatus, kPlan, kModel, kPlans, kStatusByHand});
  return fields;
}
template <>
const Fields& FieldsOf<v1::PlanRecord>() {
  static const Fields fields = WithOthers<v1::PlanRecord>(kRecord, {});
  return fields;
}
template <>
const Fields& FieldsOf<v1::ChangeReply>() {
  static const Fields fields = WithOthers<v1::ChangeReply>(kChange, {kChangeByHand});
  return fields;
}

json::value ValueOf(const Message& message, const FieldDescriptor* field) {
  const auto* reflection = message.GetReflection();
  switch (field->cpp_type()) {
    case FieldDescriptor::CPPTYPE_BOOL: return reflection->GetBool(message, field);
    case FieldDescriptor::CPPTYPE_INT32: return reflection->GetInt32(message, field);
    case FieldDescriptor::CPPTYPE_UINT32: return reflection->GetUInt32(message, field);
    case FieldDescriptor::CPPTYPE_UINT64: return reflection->GetUInt64(message, field);
    case FieldDescriptor::CPPTYPE_DOUBLE: return reflection->GetDouble(message, field);
    default: return json::string(reflection->GetString(message, field));
  }
}

void Write(const Message& message, Rows fields, json::object* out) {
  for (const JsonField& f : fields) (*out)[f.name] = ValueOf(message, DescriptorOf(message.GetDescriptor(), f));
}

void Read(const json::value& v, Rows fields, Message* out) {
  const auto* reflection = out->GetReflection();
  for (const JsonField& f : fields) {
    const json::value* value = FieldOf(v, f.name);
    if (value == nullptr) continue;
    const FieldDescriptor* field = DescriptorOf(out->GetDescriptor(), f);
    switch (field->cpp_type()) {
      case FieldDescriptor::CPPTYPE_BOOL: reflection->SetBool(out, field, value->is_bool() && value->get_bool()); break;
      case FieldDescriptor::CPPTYPE_INT32:
        reflection->SetInt32(out, field, static_cast<int32_t>(std::min<uint64_t>(CountOf(v, f.name), INT32_MAX)));
        break;
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

json::object ObjectOf(const Message& message, Rows fields) {
  json::object out;
  Write(message, fields, &out);
  return out;
}

template <typename M>
json::object ObjectOf(const M& message) {
  return ObjectOf(message, FieldsOf<M>());
}

template <typename M>
json::array ListOf(const google::protobuf::RepeatedPtrField<M>& messages) {
  json::array out;
  for (const M& message : messages) out.push_back(ObjectOf(message));
  return out;
}

// Reads each of a list into a message of its own, which `add` makes.
template <typename Add>
void ReadList(const json::value& v, const char* name, const Add& add) {
  const json::value* list = FieldOf(v, name);
  if (list == nullptr || !list->is_array()) return;
  for (const json::value& one : list->get_array()) {
    auto* message = add(one);
    Read(one, FieldsOf<std::remove_pointer_t<decltype(message)>>(), message);
  }
}

// Null in place of a number or text that says that there is none.
void NullIf(bool none, const char* name, json::object* out) {
  if (none) (*out)[name] = nullptr;
}

// The layers of a message, null if it has none.
template <typename WithLayers>
json::value LayersJson(const WithLayers& m) {
  if (!m.has_layers()) return nullptr;
  return json::object{{"first", m.layers().begin()}, {"last", m.layers().end() - 1}};
}

template <typename WithLayers>
void ReadLayers(const json::value& v, WithLayers* out) {
  const json::value* layers = FieldOf(v, "layers");
  if (layers == nullptr) return;
  const double first = NumberOf(*layers, "first", -1), last = NumberOf(*layers, "last", -1);
  if (!(first >= 0 && last >= first && last < 1e6)) return;
  out->mutable_layers()->set_begin(static_cast<int32_t>(first));
  out->mutable_layers()->set_end(static_cast<int32_t>(last) + 1);
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
  NullIf(m.transport().empty(), "transport", &out);
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
  json::object out = ObjectOf(m.replica());
  out["behind"] = m.replica().whole() ? json::value(m.replica().behind()) : json::value(nullptr);
  return out;
}

json::object MeasuredJson(const v1::MemberStatus& m) {
  json::object out = ObjectOf(m, kMeasured);
  json::array links = ListOf(m.links());
  for (int i = 0; i < m.links_size(); ++i) {
    links[static_cast<size_t>(i)].get_object()["round_trip_ms"] = static_cast<double>(m.links(i).round_trip_us()) / 1e3;
  }
  out["links"] = std::move(links);
  return out;
}

void ReadMeasured(const json::value& measured, v1::MemberStatus* out) {
  Read(measured, kMeasured, out);
  ReadList(measured, "links", [out](const json::value& link) {
    v1::MeasuredLink* l = out->add_links();
    l->set_round_trip_us(Microseconds(link, "round_trip_ms"));
    return l;
  });
}

json::value PlanJson(const v1::StatusReply& s) {
  if (!s.has_epoch()) return nullptr;
  json::object out{{"number", s.epoch().number()}};
  Write(s, kPlan, &out);
  return out;
}

// Members with layers stand in ring order, so each sends to the one behind it, and the last of them back.
std::string NextOf(const v1::StatusReply& s, int member) {
  if (!s.members(member).has_layers()) return "";
  const int next = member + 1;
  return next < s.members_size() && s.members(next).has_layers() ? s.members(next).name() : "coordinator";
}

// The link from the coordinator to the first stage; null if no plan serves.
json::value FirstHopJson(const v1::StatusReply& s) {
  if (!s.has_epoch() || s.members_size() == 0 || !s.members(0).has_layers()) return nullptr;
  json::object out{{"to", s.members(0).name()},
                   {"latency_ms", Milliseconds(s.first_hop_us())},
                   {"transport", s.first_hop_transport()}};
  NullIf(s.first_hop_transport().empty(), "transport", &out);
  return out;
}

json::array EventsJson(const v1::StatusReply& s) {
  json::array out;
  for (const v1::ClusterEvent& e : s.events()) {
    json::object event = ObjectOf(e);
    NullIf(e.member().empty(), "member", &event);
    NullIf(e.plan() == 0, "plan", &event);
    NullIf(e.took_ms() == 0, "took_ms", &event);
    out.push_back(std::move(event));
  }
  return out;
}

}  // namespace

const char* MemberState(const v1::MemberStatus& m) {
  return m.has_layers() ? "serving" : m.drained() ? "drained" : LeftOut(m) ? "left_out" : "idle";
}

json::object MemberJson(const v1::MemberStatus& m, const std::string& next) {
  json::object out = ObjectOf(m);
  if (m.address().empty()) out["local"] = true;  // in the coordinator's process
  out["layers"] = LayersJson(m);
  out["state"] = MemberState(m);
  out["why"] = Why(m);
  out["sent"] = SentJson(m, next);
  out["replica"] = ReplicaJson(m);
  out["measured"] = MeasuredJson(m);
  out["loading"] = ObjectOf(m, kLoading);
  return out;
}

v1::MemberStatus ReadMember(const json::value& member) {
  v1::MemberStatus out;
  Read(member, FieldsOf<v1::MemberStatus>(), &out);
  ReadLayers(member, &out);
  if (const json::value* sent = FieldOf(member, "sent")) ReadSent(*sent, &out);
  if (const json::value* measured = FieldOf(member, "measured")) ReadMeasured(*measured, &out);
  if (const json::value* loading = FieldOf(member, "loading")) Read(*loading, kLoading, &out);
  if (const json::value* replica = FieldOf(member, "replica"); replica != nullptr && replica->is_object()) {
    Read(*replica, FieldsOf<v1::Replica>(), out.mutable_replica());
    out.mutable_replica()->set_whole(FieldOf(*replica, "behind") != nullptr);
    out.mutable_replica()->set_behind(CountOf(*replica, "behind"));
  }
  return out;
}

json::object StatusJson(const v1::StatusReply& s) {
  json::array members;
  for (int i = 0; i < s.members_size(); ++i) members.push_back(MemberJson(s.members(i), NextOf(s, i)));
  json::object engine = ObjectOf(s);
  engine["memory"] = ListOf(s.memory());
  json::object out{{"object", "cluster"}};
  Write(s, kStatus, &out);
  out["plan"] = PlanJson(s);
  out["proposal"] = s.has_proposal() ? json::value(ObjectOf(s.proposal())) : json::value(nullptr);
  out["first_hop"] = FirstHopJson(s);
  out["model"] = ObjectOf(s, kModel);
  out["members"] = std::move(members);
  out["engine"] = std::move(engine);
  out["plans"] = ObjectOf(s, kPlans);
  out["history"] = ListOf(s.history());
  out["events"] = EventsJson(s);
  return out;
}

v1::StatusReply ReadStatus(const json::value& status) {
  v1::StatusReply out;
  Read(status, kStatus, &out);
  if (const json::value* plan = FieldOf(status, "plan")) {
    out.mutable_epoch()->set_number(CountOf(*plan, "number"));
    Read(*plan, kPlan, &out);
    out.set_ranges(out.named_ranges());
  }
  if (const json::value* proposal = FieldOf(status, "proposal"))
    Read(*proposal, FieldsOf<v1::Proposal>(), out.mutable_proposal());
  if (const json::value* hop = FieldOf(status, "first_hop")) {
    out.set_first_hop_us(Microseconds(*hop, "latency_ms"));
    out.set_first_hop_transport(TextOf(*hop, "transport"));
  }
  if (const json::value* model = FieldOf(status, "model")) Read(*model, kModel, &out);
  if (const json::value* members = FieldOf(status, "members"); members != nullptr && members->is_array()) {
    for (const json::value& m : members->get_array()) *out.add_members() = ReadMember(m);
  }
  if (const json::value* engine = FieldOf(status, "engine")) {
    Read(*engine, FieldsOf<v1::StatusReply>(), &out);
    ReadList(*engine, "memory", [&out](const json::value&) { return out.add_memory(); });
  }
  if (const json::value* plans = FieldOf(status, "plans")) Read(*plans, kPlans, &out);
  ReadList(status, "history", [&out](const json::value&) { return out.add_history(); });
  ReadList(status, "events", [&out](const json::value&) { return out.add_events(); });
  return out;
}

json::object ChangeJson(const v1::ChangeReply& change) {
  json::array moves, members;
  for (const v1::LayerMove& m : change.moves()) {
    json::object move{{"layers", LayersJson(m)}};
    Write(m, FieldsOf<v1::LayerMove>(), &move);
    moves.push_back(std::move(move));
  }
  for (const v1::MemberShare& m : change.members()) {
    json::object share = ObjectOf(m);
    share["layers"] = LayersJson(m);
    share["fits"] = m.memory_bytes() == 0 || m.peak_bytes() <= m.memory_bytes();
    members.push_back(std::move(share));
  }
  json::object out{{"plan", change.epoch().number()}};
  NullIf(!change.has_epoch(), "plan", &out);
  Write(change, FieldsOf<v1::ChangeReply>(), &out);
  out["moves"] = std::move(moves);
  out["members"] = std::move(members);
  return out;
}

v1::ChangeReply ReadChange(const json::value& change) {
  v1::ChangeReply out;
  if (FieldOf(change, "plan") != nullptr) out.mutable_epoch()->set_number(CountOf(change, "plan"));
  Read(change, FieldsOf<v1::ChangeReply>(), &out);
  out.set_ranges(out.named_ranges());
  ReadList(change, "moves", [&out](const json::value& v) {
    v1::LayerMove* move = out.add_moves();
    ReadLayers(v, move);
    return move;
  });
  ReadList(change, "members", [&out](const json::value& v) {
    v1::MemberShare* share = out.add_members();
    ReadLayers(v, share);
    return share;
  });
  return out;
}

}  // namespace gyre
