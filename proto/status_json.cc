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

constexpr JsonField kStatus[] = {{"version"}, {"state"}, {"replay_note"}, {"rebalance"}, {"step_ms"}, {"transport"}};
constexpr JsonField kPlan[] = {{"ranges", "named_ranges"}};
constexpr JsonField kModel[] = {{"id", "model"}, {"layers", "num_layers"}, {"context"}, {"wire"}};
constexpr JsonField kProposal[] = {{"ranges"}, {"gain"}, {"step_ms"}, {"step_ms_now"}, {"why"}};
constexpr JsonField kEngine[] = {
    {"waiting"},
    {"prefill"},
    {"decode"},
    {"held"},
    {"block_size"},
    {"requests"},
    {"finished"},
    {"failed"},
    {"cancelled"},
    {"tokens_generated"},
    {"tokens_per_second"},
    {"preemptions"},
    {"cached_positions"},
    {"computed_rows"},
    {"replayed_rows", "rows_replayed"},
    {"steps"},
    {"rings_lost"},
    {"last_wait_ms"},
    {"longest_wait_ms"},
    {"poison_requests"},
    {"pauses"},
    {"last_pause_ms"},
    {"longest_pause_ms"},
    {"held_in_prefill"},
    {"held_in_partial_block"},
};
constexpr JsonField kMemory[] = {{"kind"}, {"units"}, {"available"}, {"cached"}, {"window"}, {"unit_bytes"}};
constexpr JsonField kPlans[] = {{"made", "plans"}, {"aborted"}, {"lost"}};
constexpr JsonField kRecord[] = {{"plan", "number"}, {"ranges"},      {"at"},    {"took_ms"},
                                 {"paused_ms"},      {"pages_moved"}, {"result"}};
constexpr JsonField kEvent[] = {{"number"}, {"at"}, {"kind"}, {"member"}, {"plan"}, {"took_ms"}, {"text"}};

constexpr JsonField kChange[] = {
    {"ranges", "named_ranges"}, {"dry_run"}, {"took_ms"}, {"pages_moved"}, {"last_pages"}, {"kv_tokens"}};
constexpr JsonField kMove[] = {{"from"}, {"to"}, {"weight_bytes"}, {"kv_bytes"}};
constexpr JsonField kShare[] = {{"name"}, {"weight_bytes"}, {"kv_bytes"}, {"peak_bytes"}, {"memory_bytes"}};

const FieldDescriptor* DescriptorOf(const Message& message, const JsonField& f) {
  return message.GetDescriptor()->FindFieldByName(f.field == nullptr ? f.name : f.field);
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

json::object ObjectOf(const Message& message, std::span<const JsonField> fields) {
  json::object out;
  Write(message, fields, &out);
  return out;
}

template <typename Messages>
json::array ListOf(const Messages& messages, std::span<const JsonField> fields) {
  json::array out;
  for (const auto& message : messages) out.push_back(ObjectOf(message, fields));
  return out;
}

// Reads each of a list into a message of its own, which `add` makes.
template <typename Add>
void ReadList(const json::value& v, const char* name, std::span<const JsonField> fields, const Add& add) {
  const json::value* list = FieldOf(v, name);
  if (list == nullptr || !list->is_array()) return;
  for (const json::value& one : list->get_array()) Read(one, fields, add(one));
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
  json::object out = ObjectOf(m.replica(), kReplica);
  out["behind"] = m.replica().whole() ? json::value(m.replica().behind()) : json::value(nullptr);
  return out;
}

json::object MeasuredJson(const v1::MemberStatus& m) {
  json::object out = ObjectOf(m, kMeasured);
  json::array links = ListOf(m.links(), kLink);
  for (int i = 0; i < m.links_size(); ++i) {
    links[static_cast<size_t>(i)].get_object()["round_trip_ms"] = static_cast<double>(m.links(i).round_trip_us()) / 1e3;
  }
  out["links"] = std::move(links);
  return out;
}

void ReadMeasured(const json::value& measured, v1::MemberStatus* out) {
  Read(measured, kMeasured, out);
  ReadList(measured, "links", kLink, [out](const json::value& link) {
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
    json::object event = ObjectOf(e, kEvent);
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
  json::object out = ObjectOf(m, kMember);
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
  Read(member, kMember, &out);
  ReadLayers(member, &out);
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

json::object StatusJson(const v1::StatusReply& s) {
  json::array members;
  for (int i = 0; i < s.members_size(); ++i) members.push_back(MemberJson(s.members(i), NextOf(s, i)));
  json::object engine = ObjectOf(s, kEngine);
  engine["memory"] = ListOf(s.memory(), kMemory);
  json::object out{{"object", "cluster"}};
  Write(s, kStatus, &out);
  out["plan"] = PlanJson(s);
  out["proposal"] = s.has_proposal() ? json::value(ObjectOf(s.proposal(), kProposal)) : json::value(nullptr);
  out["first_hop"] = FirstHopJson(s);
  out["model"] = ObjectOf(s, kModel);
  out["members"] = std::move(members);
  out["engine"] = std::move(engine);
  out["plans"] = ObjectOf(s, kPlans);
  out["history"] = ListOf(s.history(), kRecord);
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
  if (const json::value* proposal = FieldOf(status, "proposal")) Read(*proposal, kProposal, out.mutable_proposal());
  if (const json::value* hop = FieldOf(status, "first_hop")) {
    out.set_first_hop_us(Microseconds(*hop, "latency_ms"));
    out.set_first_hop_transport(TextOf(*hop, "transport"));
  }
  if (const json::value* model = FieldOf(status, "model")) Read(*model, kModel, &out);
  if (const json::value* members = FieldOf(status, "members"); members != nullptr && members->is_array()) {
    for (const json::value& m : members->get_array()) *out.add_members() = ReadMember(m);
  }
  if (const json::value* engine = FieldOf(status, "engine")) {
    Read(*engine, kEngine, &out);
    ReadList(*engine, "memory", kMemory, [&out](const json::value&) { return out.add_memory(); });
  }
  if (const json::value* plans = FieldOf(status, "plans")) Read(*plans, kPlans, &out);
  ReadList(status, "history", kRecord, [&out](const json::value&) { return out.add_history(); });
  ReadList(status, "events", kEvent, [&out](const json::value&) { return out.add_events(); });
  return out;
}

json::object ChangeJson(const v1::ChangeReply& change) {
  json::array moves, members;
  for (const v1::LayerMove& m : change.moves()) {
    json::object move{{"layers", LayersJson(m)}};
    Write(m, kMove, &move);
    moves.push_back(std::move(move));
  }
  for (const v1::MemberShare& m : change.members()) {
    json::object share = ObjectOf(m, kShare);
    share["layers"] = LayersJson(m);
    share["fits"] = m.memory_bytes() == 0 || m.peak_bytes() <= m.memory_bytes();
    members.push_back(std::move(share));
  }
  json::object out{{"plan", change.epoch().number()}};
  NullIf(!change.has_epoch(), "plan", &out);
  Write(change, kChange, &out);
  out["moves"] = std::move(moves);
  out["members"] = std::move(members);
  return out;
}

v1::ChangeReply ReadChange(const json::value& change) {
  v1::ChangeReply out;
  if (FieldOf(change, "plan") != nullptr) out.mutable_epoch()->set_number(CountOf(change, "plan"));
  Read(change, kChange, &out);
  out.set_ranges(out.named_ranges());
  ReadList(change, "moves", kMove, [&out](const json::value& v) {
    v1::LayerMove* move = out.add_moves();
    ReadLayers(v, move);
    return move;
  });
  ReadList(change, "members", kShare, [&out](const json::value& v) {
    v1::MemberShare* share = out.add_members();
    ReadLayers(v, share);
    return share;
  });
  return out;
}

}  // namespace gyre
