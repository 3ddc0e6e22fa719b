// Every field of every message of the control plane survives decoding and encoding, and nothing absurd is taken in.
#include "proto/control_codec.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <google/protobuf/util/message_differencer.h>
#include <gtest/gtest.h>

#include <functional>
#include <limits>
#include <map>

#include "base/step.h"

namespace gyre {
namespace {

using google::protobuf::FieldDescriptor;
using Proto = google::protobuf::Message;
using google::protobuf::util::MessageDifferencer;
using ::testing::HasSubstr;

// Fills every field with a value of its own, by reflection: a field that is new is filled too, and a codec that forgets
// it does not give it back.
class Filler {
 public:
  void Fill(Proto* m) {
    const auto* descriptor = m->GetDescriptor();
    for (int i = 0; i < descriptor->field_count(); ++i) {
      const FieldDescriptor* field = descriptor->field(i);
      if (field->containing_oneof() == nullptr) FillField(m, field);
    }
  }
  void FillField(Proto* m, const FieldDescriptor* field) {
    for (int i = 0; i < (field->is_repeated() ? 3 : 1); ++i) Add(m, field);
  }

 private:
  // A number for fields that do not take every value.
  uint32_t Number(const FieldDescriptor* field) {
    static const std::map<std::string, uint32_t> fixed = {{"gyre.v1.WorkerHello.protocol", kControlProtocol},
                                                          {"gyre.v1.ClusterInfo.protocol", kControlProtocol},
                                                          {"gyre.v1.Change.verb", 1},
                                                          {"gyre.v1.ChangeDone.verb", 2},
                                                          {"gyre.v1.Plan.wire", 3},
                                                          {"gyre.v1.Plan.transport", 3},
                                                          {"gyre.v1.WorkerHello.transport", 1},
                                                          {"gyre.v1.Heartbeat.transport", 5},
                                                          {"gyre.v1.Prepare.kv_type", 2},
                                                          {"gyre.v1.Fault.code", 7}};
    if (field->full_name() == "gyre.v1.MemoryUnits.kind") return kinds_++ % kKvGroups;  // each once, rising
    const auto it = fixed.find(field->full_name());
    return it != fixed.end() ? it->second : ++last_;
  }
  std::string Text(const FieldDescriptor* field) {
    const std::string own = "text" + std::to_string(++last_);
    if (field->name() == "key" || field->name() == "weights_key") return (own + "0123456789abcdef").substr(0, 16);
    if (field->name() == "root") return std::string(20, 'r') + own.substr(0, 5) + std::string(7, 'x');
    return field->name().find("address") != std::string::npos ? own + ":80" : own;
  }
  void Add(Proto* m, const FieldDescriptor* field) {
    const auto* r = m->GetReflection();
    const bool many = field->is_repeated();
    switch (field->cpp_type()) {
      case FieldDescriptor::CPPTYPE_INT32: {
        const auto value = static_cast<int32_t>(Number(field));
        return many ? r->AddInt32(m, field, value) : r->SetInt32(m, field, value);
      }
      case FieldDescriptor::CPPTYPE_UINT32:
        return many ? r->AddUInt32(m, field, Number(field)) : r->SetUInt32(m, field, Number(field));
      case FieldDescriptor::CPPTYPE_UINT64: {
        const uint64_t value = (uint64_t{1} << 40) + Number(field);
        return many ? r->AddUInt64(m, field, value) : r->SetUInt64(m, field, value);
      }
      case FieldDescriptor::CPPTYPE_DOUBLE: return r->SetDouble(m, field, Number(field) / 1024.0);
      case FieldDescriptor::CPPTYPE_BOOL: return r->SetBool(m, field, true);
      case FieldDescriptor::CPPTYPE_STRING:
        return many ? r->AddString(m, field, Text(field)) : r->SetString(m, field, Text(field));
      case FieldDescriptor::CPPTYPE_MESSAGE: return Fill(many ? r->AddMessage(m, field) : r->MutableMessage(m, field));
      default: FAIL() << field->full_name() << " has a type that this test does not fill";
    }
  }

  uint32_t last_ = 0, kinds_ = 0;
};

void ExpectEqual(const Proto& in, const Proto& out) {
  std::string difference;
  MessageDifferencer differ;
  differ.ReportDifferencesToString(&difference);
  EXPECT_TRUE(differ.Compare(in, out)) << in.GetTypeName() << "\n" << difference;
}

// The names of the cases of the message's oneof.
std::vector<const FieldDescriptor*> Cases(const Proto& m) {
  std::vector<const FieldDescriptor*> out;
  const auto* oneof = m.GetDescriptor()->oneof_decl(0);
  for (int i = 0; i < oneof->field_count(); ++i) out.push_back(oneof->field(i));
  return out;
}

TEST(ControlCodecTest, EveryFieldOfClusterInfoComesBack) {
  v1::ClusterInfo in;
  Filler().Fill(&in);
  const StatusOr<ClusterFacts> facts = Decode(in);
  ASSERT_TRUE(facts.ok()) << facts.status();
  ExpectEqual(in, Encode(*facts));
}

TEST(ControlCodecTest, EveryFieldOfAPartOfWeightsComesBack) {
  v1::WeightsReply in;
  Filler().Fill(&in);
  const StatusOr<WeightsPart> part = Decode(in);
  ASSERT_TRUE(part.ok()) << part.status();
  ExpectEqual(in, Encode(*part));
  in.set_root("short");
  EXPECT_THAT(Message(Decode(in).status()), HasSubstr("a manifest's root has 5 bytes"));
  in.set_root(std::string(32, 'r'));
  in.set_data(std::string(kWeightsPartBytes + 1, 'x'));
  EXPECT_THAT(Message(Decode(in).status()), HasSubstr("a part of 1048577 bytes"));
}

TEST(ControlCodecTest, EveryFieldOfEveryEventComesBack) {
  size_t cases = 0;
  for (const FieldDescriptor* which : Cases(v1::WorkerEvent())) {
    SCOPED_TRACE(which->name());
    v1::WorkerEvent in;
    Filler filler;
    if (which->name() != "hello" && which->name() != "heartbeat") filler.Fill(&in);  // these are about no plan
    filler.FillField(&in, which);
    in.clear_number();  // the outbox gives it (worker/event_outbox.h)
    if (in.has_leaving()) in.clear_epoch();
    StatusOr<WorkerMessage> message = Decode(in);
    ASSERT_TRUE(message.ok()) << message.status();
    v1::WorkerEvent out;
    if (const auto* hello = std::get_if<WorkerHello>(&*message)) out = Encode(*hello);
    if (const auto* load = std::get_if<MemberLoad>(&*message)) out = Encode(*load);
    if (const auto* event = std::get_if<StageEvent>(&*message)) out = Encode(*event);
    if (const auto* leaving = std::get_if<LeavingEvent>(&*message)) out = Encode(*leaving);
    ExpectEqual(in, out);
    ++cases;
  }
  EXPECT_GE(cases, 7u);
}

// No stage uses more units than there are.
void MakeSound(v1::Command* c) {
  if (!c->has_change()) return;
  v1::Prepare* p = c->mutable_change()->mutable_prepare();
  *p->mutable_in_use() = p->memory();
}

TEST(ControlCodecTest, EveryFieldOfEveryCommandComesBack) {
  size_t cases = 0;
  for (const FieldDescriptor* which : Cases(v1::Command())) {
    SCOPED_TRACE(which->name());
    v1::Command in;
    Filler filler;
    filler.Fill(&in);
    filler.FillField(&in, which);
    MakeSound(&in);
    const StatusOr<WorkerCommand> command = Decode(in);
    ASSERT_TRUE(command.ok()) << command.status();
    ExpectEqual(in, Encode(*command));
    ++cases;
  }
  EXPECT_GE(cases, 6u);
}

// The sentence for an event, a command or an info with one thing wrong.
template <typename M>
std::string Refused(const std::string& which, const std::function<void(M*)>& spoil) {
  M m;
  Filler filler;
  for (const FieldDescriptor* field : Cases(m)) {
    if (field->name() == which) filler.FillField(&m, field);
  }
  if constexpr (std::is_same_v<M, v1::Command>) MakeSound(&m);
  spoil(&m);
  const auto decoded = Decode(m);
  return decoded.ok() ? "taken in" : Message(decoded.status());
}

TEST(ControlCodecTest, AbsurdHellosAreRefused) {
  auto refused = [](const std::function<void(v1::WorkerHello*)>& spoil) {
    return Refused<v1::WorkerEvent>("hello", [&](v1::WorkerEvent* e) { spoil(e->mutable_hello()); });
  };
  EXPECT_EQ(refused([](auto*) {}), "taken in");
  EXPECT_THAT(refused([](auto* h) { h->set_protocol(kControlProtocol - 1); }),
              HasSubstr(fmt::format("control protocol {}, expected {}", kControlProtocol - 1, kControlProtocol)));
  EXPECT_THAT(refused([](auto* h) { h->set_name(""); }), HasSubstr("1 to 64 letters"));
  EXPECT_THAT(refused([](auto* h) { h->set_name(std::string(65, 'x')); }), HasSubstr("1 to 64 letters"));
  EXPECT_THAT(refused([](auto* h) { h->set_name("a\xFF"); }), HasSubstr("letters"));
  for (const char* first : {".w", "-w", "_w"}) {
    EXPECT_THAT(refused([&](auto* h) { h->set_name(first); }), HasSubstr("begins with a letter or digit")) << first;
  }
  EXPECT_THAT(refused([](auto* h) { h->set_name("local"); }), HasSubstr("own"));
  EXPECT_THAT(refused([](auto* h) { h->set_name("coordinator"); }), HasSubstr("is the coordinator's own"));
  EXPECT_THAT(refused([](auto* h) { h->set_ring_address("a:99999"); }), HasSubstr("the port is 99999"));
  EXPECT_THAT(refused([](auto* h) { h->set_ring_address("a\n:1"); }), HasSubstr("control characters"));
  EXPECT_THAT(refused([](auto* h) { h->set_ring_address(std::string(400, 'a') + ":1"); }), HasSubstr("402 bytes"));
  EXPECT_THAT(refused([](auto* h) { h->set_ring_address(":80"); }), HasSubstr("HOST:PORT"));
  EXPECT_THAT(refused([](auto* h) { h->set_ring_address("a:1,shm:x"); }), HasSubstr("NAME@HOST"));
  EXPECT_THAT(refused([](auto* h) { h->set_transport(9); }), HasSubstr("carrier 9"));
  EXPECT_THAT(refused([](auto* h) { h->set_transport(257); }), HasSubstr("carrier 257"));
  EXPECT_THAT(refused([](auto* h) { h->set_threads(0); }), HasSubstr("0 threads"));
  EXPECT_THAT(refused([](auto* h) { h->set_threads(65537); }), HasSubstr("65537 threads"));
  EXPECT_THAT(refused([](auto* h) { h->set_isa(std::string(65, 'x')); }), HasSubstr("instruction set: 65 bytes"));
  EXPECT_THAT(refused([](auto* h) { h->set_version("\x1B[31m"); }), HasSubstr("printable"));
}

TEST(ControlCodecTest, AbsurdCommandsAreRefused) {
  auto prepare = [](const std::function<void(v1::Prepare*)>& spoil) {
    return Refused<v1::Command>("change", [&](v1::Command* c) { spoil(c->mutable_change()->mutable_prepare()); });
  };
  EXPECT_EQ(prepare([](auto*) {}), "taken in");
  EXPECT_THAT(prepare([](auto* p) { p->mutable_plan()->set_num_layers(-1); }), HasSubstr("-1 layers"));
  EXPECT_THAT(prepare([](auto* p) { p->mutable_plan()->set_key("short"); }), HasSubstr("5 bytes"));
  EXPECT_THAT(prepare([](auto* p) { p->mutable_plan()->set_wire(256); }), HasSubstr("type 256"));
  EXPECT_THAT(prepare([](auto* p) { p->mutable_plan()->set_transport(5); }), HasSubstr("carrier 5"));
  EXPECT_THAT(prepare([](auto* p) { p->mutable_plan()->set_coordinator_address("x"); }), HasSubstr("HOST:PORT"));
  EXPECT_THAT(prepare([](auto* p) { p->mutable_plan()->mutable_stages(0)->mutable_layers()->set_begin(-3); }),
              HasSubstr("[-3,"));
  EXPECT_THAT(prepare([](auto* p) { p->mutable_plan()->mutable_stages(1)->set_worker(""); }), HasSubstr("1 to 64"));
  EXPECT_THAT(prepare([](auto* p) { p->mutable_plan()->mutable_stages(1)->set_address("9"); }), HasSubstr("HOST:PORT"));
  EXPECT_THAT(prepare([](auto* p) {
                for (int i = 0; i < 5000; ++i) p->mutable_plan()->add_stages();
              }),
              HasSubstr("5003 stages"));
  EXPECT_THAT(prepare([](auto* p) { p->mutable_plan()->mutable_stages(1)->set_replicated_by("a b"); }),
              HasSubstr("letters"));
  EXPECT_THAT(prepare([](auto* p) { p->set_stage(-2); }), HasSubstr("stage -2"));
  EXPECT_THAT(prepare([](auto* p) { p->set_block_size(-1); }), HasSubstr("-1 positions"));
  EXPECT_THAT(prepare([](auto* p) { p->set_kv_type(9); }), HasSubstr("KV type 9 is unknown"));
  EXPECT_THAT(prepare([](auto* p) { p->mutable_memory(0)->set_kind(kKvGroups); }), HasSubstr("is unknown"));
  EXPECT_THAT(prepare([](auto* p) { p->mutable_memory(1)->set_kind(0); }), HasSubstr("or comes twice"));
  EXPECT_THAT(prepare([](auto* p) { p->mutable_memory(1)->set_units(0); }), HasSubstr("kind 1 has 0 units"));
  EXPECT_THAT(prepare([](auto* p) { p->mutable_sources(2)->set_worker("a b"); }), HasSubstr("letters"));
  EXPECT_THAT(prepare([](auto* p) {
                for (int i = 0; i < 5000; ++i) p->add_sources();
              }),
              HasSubstr("5003 layer sources"));
  // ":PORT" is the host that the worker joined at, "" a member in the coordinator's process.
  EXPECT_EQ(prepare([](auto* p) { p->mutable_plan()->set_coordinator_address(":80"); }), "taken in");
  EXPECT_EQ(prepare([](auto* p) { p->mutable_plan()->mutable_stages(0)->clear_address(); }), "taken in");
  EXPECT_THAT(Refused<v1::Command>("welcome", [](auto* c) { c->mutable_welcome()->set_name(""); }),
              HasSubstr("1 to 64"));
}

TEST(ControlCodecTest, AbsurdChangesAreRefused) {
  auto refused = [](const std::function<void(v1::Change*)>& spoil) {
    return Refused<v1::Command>("change", [&](v1::Command* c) { spoil(c->mutable_change()); });
  };
  EXPECT_EQ(refused([](auto*) {}), "taken in");
  for (const uint32_t verb : {0u, 6u, 258u, UINT32_MAX}) {
    EXPECT_THAT(refused([&](auto* c) { c->set_verb(verb); }), HasSubstr("is unknown, expected 1 to 5")) << verb;
  }
  EXPECT_THAT(refused([](auto* c) { c->mutable_units()->add_steps(9); }), HasSubstr("3 units has 4 steps"));
  EXPECT_THAT(refused([](auto* c) { c->mutable_units()->mutable_units()->Resize((1 << 24) + 1, 0); }),
              HasSubstr("16777217 units"));
  EXPECT_THAT(refused([](auto* c) { c->clear_prepare(); }), HasSubstr("a plan's key has 0 bytes"));
  // Only Prepare reads what is prepared.
  EXPECT_EQ(refused([](auto* c) {
              c->set_verb(3);
              c->clear_prepare();
            }),
            "taken in");
  auto done = [](const std::function<void(v1::ChangeDone*)>& spoil) {
    return Refused<v1::WorkerEvent>("done", [&](v1::WorkerEvent* e) { spoil(e->mutable_done()); });
  };
  EXPECT_EQ(done([](auto*) {}), "taken in");
  EXPECT_THAT(done([](auto* d) { d->set_verb(6); }), HasSubstr("verb 6"));
  EXPECT_THAT(done([](auto* d) { d->mutable_missing()->Resize((1 << 24) + 1, 0); }),
              HasSubstr("16777217 units of memory are missing"));
}

TEST(ControlCodecTest, AbsurdInfosAreRefused) {
  auto refused = [](const std::function<void(v1::ClusterInfo*)>& spoil) {
    v1::ClusterInfo info;
    Filler().Fill(&info);
    spoil(&info);
    return Message(Decode(info).status());
  };
  EXPECT_EQ(refused([](auto*) {}), "");
  EXPECT_THAT(
      refused([](auto* i) { i->set_protocol(kControlProtocol - 1); }),
      HasSubstr(fmt::format("speaks control protocol {}, this worker {}", kControlProtocol - 1, kControlProtocol)));
  EXPECT_THAT(refused([](auto* i) { i->set_model_path(std::string(5000, 'p')); }), HasSubstr("5000 bytes"));
  EXPECT_THAT(refused([](auto* i) { i->add_adapters(std::string(5000, 'p')); }), HasSubstr("5000 bytes"));
  EXPECT_THAT(refused([](auto* i) {
                for (uint32_t k = 0; k <= kMaxAdapters; ++k) i->add_adapters("p");
              }),
              HasSubstr("at most 256"));
  EXPECT_THAT(refused([](auto* i) { i->set_layers(-1); }), HasSubstr("-1 layers"));
  EXPECT_THAT(refused([](auto* i) { i->set_context(-1); }), HasSubstr("context of -1"));
  EXPECT_THAT(refused([](auto* i) { i->set_rope_base(std::numeric_limits<double>::quiet_NaN()); }), HasSubstr("nan"));
  EXPECT_THAT(refused([](auto* i) { i->set_norm_eps(-1); }), HasSubstr("epsilon of -1"));
}

TEST(ControlCodecTest, LoadsAndFaultsAreBroughtIntoBounds) {
  v1::WorkerEvent event;
  auto busy = [&](double value) {
    event.mutable_heartbeat()->set_busy(value);
    return std::get<MemberLoad>(*Decode(event)).busy;
  };
  EXPECT_EQ(busy(0.5), 0.5);
  EXPECT_EQ(busy(-1), 0);
  EXPECT_EQ(busy(7), 1);
  EXPECT_EQ(busy(std::numeric_limits<double>::quiet_NaN()), 0);
  event.mutable_heartbeat()->mutable_step_buckets()->Resize(20, 1);
  EXPECT_EQ(std::get<MemberLoad>(*Decode(event)).step_times.count, 0u);
  event.mutable_heartbeat()->mutable_step_buckets()->Resize(19, 1);
  EXPECT_EQ(std::get<MemberLoad>(*Decode(event)).step_times.count, 19u);
  event.mutable_heartbeat()->set_step_seconds(std::numeric_limits<double>::infinity());
  EXPECT_EQ(std::get<MemberLoad>(*Decode(event)).step_times.count, 0u);
  event.mutable_heartbeat()->set_transport(3);
  EXPECT_EQ(std::get<MemberLoad>(*Decode(event)).transport, Transport::kShm);
  event.mutable_heartbeat()->set_transport(300);
  EXPECT_EQ(std::get<MemberLoad>(*Decode(event)).transport, Transport::kAuto) << "a later version's";
  event.mutable_fault()->set_code(4711);
  event.mutable_fault()->set_message("x" + std::string(2000, '\xC3'));
  const auto fault = std::get<StageFault>(std::get<StageEvent>(*Decode(event)).what);
  EXPECT_EQ(fault.status.code(), absl::StatusCode::kUnknown);
  EXPECT_LE(fault.status.message().size(), 1003u);
  // An event or command of a later version is nothing, and no error.
  EXPECT_TRUE(std::holds_alternative<std::monostate>(*Decode(v1::WorkerEvent())));
  EXPECT_TRUE(std::holds_alternative<UnknownCommand>(Decode(v1::Command())->what));
}

TEST(ControlCodecTest, TracesAreBounded) {
  v1::WorkerEvent event;
  v1::Traced* traced = event.mutable_traced();
  traced->set_asked_ns(UINT64_MAX);
  traced->set_answered_ns(UINT64_MAX);
  v1::StageSpan* span = traced->add_spans();
  span->set_began_ns(UINT64_MAX);
  span->set_computed_ns(UINT64_MAX);
  span->set_sent_ns(5);
  const auto trace = std::get<StageTrace>(std::get<StageEvent>(*Decode(event)).what);
  EXPECT_EQ(trace.spans.at(0).began, Deadline{});  // cut to the same: far enough from any overflow
  EXPECT_EQ(trace.spans.at(0).sent, std::chrono::nanoseconds(5));
  while (traced->spans_size() < 4096) traced->add_spans();
  EXPECT_TRUE(Decode(event).ok());
  traced->add_spans();
  EXPECT_THAT(Message(Decode(event).status()), HasSubstr("a trace of 4097 steps, at most 4096"));
}

}  // namespace
}  // namespace gyre
