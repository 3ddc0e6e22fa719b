// The status and changes as JSON and back: no field is lost, whatever it is, and an unauthenticated peer's JSON breaks
// nothing.
#include "proto/status_json.h"

#include <google/protobuf/util/message_differencer.h>
#include <gtest/gtest.h>

#include <boost/json/parse.hpp>
#include <boost/json/serialize.hpp>
#include <functional>

namespace gyre {
namespace {

namespace json = boost::json;
using google::protobuf::FieldDescriptor;
using google::protobuf::Message;
using google::protobuf::util::MessageDifferencer;

// Sets each field of the message to a value of its own that is not its default.
void Fill(Message* message, int* next) {
  const auto* descriptor = message->GetDescriptor();
  const auto* reflection = message->GetReflection();
  for (int i = 0; i < descriptor->field_count(); ++i) {
    const FieldDescriptor* f = descriptor->field(i);
    const int value = ++*next;
    switch (f->cpp_type()) {
      case FieldDescriptor::CPPTYPE_BOOL: reflection->SetBool(message, f, true); break;
      case FieldDescriptor::CPPTYPE_INT32: reflection->SetInt32(message, f, value); break;
      case FieldDescriptor::CPPTYPE_UINT32: reflection->SetUInt32(message, f, static_cast<uint32_t>(value)); break;
      case FieldDescriptor::CPPTYPE_UINT64: reflection->SetUInt64(message, f, static_cast<uint64_t>(value)); break;
      case FieldDescriptor::CPPTYPE_DOUBLE: reflection->SetDouble(message, f, value + 0.5); break;
      case FieldDescriptor::CPPTYPE_STRING: reflection->SetString(message, f, "text " + std::to_string(value)); break;
      case FieldDescriptor::CPPTYPE_MESSAGE:
        if (f->is_repeated()) {
          Fill(reflection->AddMessage(message, f), next);
          Fill(reflection->AddMessage(message, f), next);
        } else {
          Fill(reflection->MutableMessage(message, f), next);
        }
        break;
      default: FAIL() << f->full_name() << " has a type that no member's state had so far";
    }
  }
}

void ExpectSame(const Message& sent, const Message& read, const std::string& text) {
  std::string difference;
  MessageDifferencer differencer;
  differencer.ReportDifferencesToString(&difference);
  EXPECT_TRUE(differencer.Compare(sent, read)) << difference << text;
}

TEST(StatusJsonTest, NoFieldIsLost) {
  int next = 0;
  v1::MemberStatus member;
  Fill(&member, &next);
  const std::string text = json::serialize(MemberJson(member, "b"));
  ExpectSame(member, ReadMember(json::parse(text)), text);

  v1::StatusReply status;
  Fill(&status, &next);
  const std::string whole = json::serialize(StatusJson(status));
  status.clear_sequences();  // what JSON leaves out
  status.mutable_epoch()->clear_term();
  status.set_ranges(status.named_ranges());
  ExpectSame(status, ReadStatus(json::parse(whole)), whole);

  v1::ChangeReply change;
  Fill(&change, &next);
  const std::string changed = json::serialize(ChangeJson(change));
  change.mutable_epoch()->clear_term();
  change.set_ranges(change.named_ranges());
  ExpectSame(change, ReadChange(json::parse(changed)), changed);
}

TEST(StatusJsonTest, WhatIsAbsentStaysAbsent) {
  v1::MemberStatus member;
  member.set_address("h:1");
  const json::object out = MemberJson(member, "");
  for (const char* name : {"layers", "sent", "replica"}) EXPECT_TRUE(out.at(name).is_null()) << name;
  EXPECT_EQ(out.at("state"), "idle");
  EXPECT_TRUE(MessageDifferencer::Equals(member, ReadMember(out)));
  member.mutable_replica()->set_of("b");
  const json::object replicas = MemberJson(member, "b");
  EXPECT_TRUE(replicas.at("replica").at("behind").is_null()) << "not whole yet";
  EXPECT_TRUE(replicas.at("sent").at("transport").is_null());
  EXPECT_TRUE(replicas.at("sent").at("latency_ms").is_null());
  EXPECT_TRUE(MessageDifferencer::Equals(member, ReadMember(replicas)));

  v1::StatusReply status;
  status.add_members()->set_name("a");
  status.add_events()->set_text("it began");
  const json::object nothing = StatusJson(status);
  for (const char* name : {"plan", "proposal", "first_hop"}) EXPECT_TRUE(nothing.at(name).is_null()) << name;
  EXPECT_TRUE(nothing.at("members").at(0).at("sent").is_null());
  for (const char* name : {"member", "plan", "took_ms"})
    EXPECT_TRUE(nothing.at("events").at(0).at(name).is_null()) << name;
  EXPECT_TRUE(ChangeJson({}).at("plan").is_null());
}

TEST(StatusJsonTest, EachMemberSendsToTheNextOfTheRing) {
  v1::StatusReply status;
  status.mutable_epoch()->set_number(1);
  for (const char* name : {"a", "b", "idle"}) status.add_members()->set_name(name);
  for (int i = 0; i < 2; ++i) status.mutable_members(i)->mutable_layers()->set_end(i + 1);
  const json::object out = StatusJson(status);
  EXPECT_EQ(out.at("first_hop").at("to"), "a");
  EXPECT_EQ(out.at("members").at(0).at("sent").at("to"), "b");
  EXPECT_EQ(out.at("members").at(1).at("sent").at("to"), "coordinator");
  EXPECT_TRUE(out.at("members").at(2).at("sent").is_null());
}

TEST(StatusJsonTest, StatesHaveTheirNamesAndReasons) {
  const auto state = [](const std::function<void(v1::MemberStatus&)>& set) {
    v1::MemberStatus member;
    set(member);
    const json::object out = MemberJson(member, "");
    return std::string(out.at("state").as_string()) + ": " + std::string(out.at("why").as_string());
  };
  EXPECT_EQ(state([](v1::MemberStatus& m) { m.mutable_layers()->set_end(1); }), "serving: ");
  EXPECT_EQ(state([](v1::MemberStatus& m) { m.set_left_out("it is slow"); }), "left_out: it is slow");
  EXPECT_EQ(state([](v1::MemberStatus& m) { m.set_detached(true); }),
            "idle: its control connection is cut, and may come back");
  EXPECT_EQ(state([](v1::MemberStatus& m) { m.set_leaving(true); }), "idle: it leaves: its layers go to others");
  EXPECT_EQ(state([](v1::MemberStatus& m) {
              m.set_drained(true);
              m.set_leaving(true);
            }),
            "drained: it was drained, and gets no layers before an undrain");
}

TEST(StatusJsonTest, AUnauthenticatedPeersJsonHasDefaults) {
  for (const char* text :
       {"null", "[]", "7", R"({"threads":-1,"steps":1e300,"busy":"x","name":7,"local":1})",
        R"({"layers":{"first":-1,"last":3},"sent":[],"measured":{"links":{}},"replica":[1],"loading":"x"})",
        R"({"layers":{"first":0,"last":1e9},"sent":{"rows":-1,"bytes":{},"latency_ms":-7}})"}) {
    EXPECT_TRUE(MessageDifferencer::Equals(v1::MemberStatus(), ReadMember(json::parse(text)))) << text;
  }
  EXPECT_EQ(ReadMember(json::parse(R"({"threads":1e15})")).threads(), UINT32_MAX);
  EXPECT_EQ(ReadMember(json::parse(R"({"measured":{"links":[1,{"to":"b"}]}})")).links_size(), 2);
}

}  // namespace
}  // namespace gyre
