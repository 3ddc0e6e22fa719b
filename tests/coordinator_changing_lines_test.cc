// Lines that clients change in every request.
#include "coordinator/service/changing_lines.h"

#include <gtest/gtest.h>

#include <string>
#include <utility>
#include <vector>

#include "boost/json.hpp"
#include "fmt/format.h"

namespace gyre {
namespace {

Conversation Talk(const std::vector<std::pair<std::string, std::string>>& messages) {
  Conversation out;
  for (const auto& [role, content] : messages)
    out.messages.push_back(boost::json::object{{"role", role}, {"content", content}});
  return out;
}

std::string Held(Conversation conversation) {
  HoldChangingLines(&conversation);
  std::string out;
  for (const auto& m : conversation.messages) {
    out += '[';
    out += m.at("role").as_string();
    out += ':';
    out += m.at("content").as_string();
    out += ']';
  }
  return out;
}
std::string Held(const std::string& system) { return Held(Talk({{"system", system}, {"user", "Hi"}})); }

TEST(ChangingLines, ABillingLineBecomesConstant) {
  const std::string constant =
      "[system:x-anthropic-billing-header: cc_version=2.1.177.000; cc_entrypoint=sdk-cli; cch=00000;\nYou "
      "are][user:Hi]";
  EXPECT_EQ(Held("x-anthropic-billing-header: cc_version=2.1.177.01c; cc_entrypoint=sdk-cli; cch=36ee5;\nYou are"),
            constant);
  EXPECT_EQ(Held("x-anthropic-billing-header: cc_version=2.1.177.fbe; cc_entrypoint=sdk-cli; cch=0aaa9;\nYou are"),
            constant);
  EXPECT_EQ(Held("x-anthropic-billing-header: cc_version=2.1.15; cc_entrypoint=cli;"),
            "[system:x-anthropic-billing-header: cc_version=2.1.15; cc_entrypoint=cli;][user:Hi]")
      << "nothing in it changes";
}

TEST(ChangingLines, WhatOnlyLooksLikeABillingLineStays) {
  const std::string line = "x-anthropic-billing-header: cc_version=2.1.177.01c; cc_entrypoint=cli; cch=36ee5;";
  for (const std::string& system : std::vector<std::string>{"You are.\n" + line,              // not the first line
                                                            " " + line,                       // not the whole line
                                                            line + " as sent by the client",  //
                                                            "The header " + line,             //
                                                            line.substr(0, line.size() - 1),  // no field
                                                            std::string("x-anthropic-billing-header:"),  // no fields
                                                            std::string("x-anthropic-billing-header: cch=;"),
                                                            "X-Anthropic-Billing-Header: cch=36ee5;"}) {
    EXPECT_EQ(Held(system), "[system:" + system + "][user:Hi]");
  }
  EXPECT_EQ(Held(Talk({{"user", line}})), "[user:" + line + "]") << "a user's text";
  EXPECT_EQ(Held(Talk({{"user", "a"}, {"system", line}})), "[user:a][system:" + line + "]")
      << "no conversation begins with it";
}

TEST(ChangingLines, ACounterGoesBehindTheLastMessage) {
  EXPECT_EQ(Held("You are.\n<total_tokens>15000000 tokens left</total_tokens>\nBe short."),
            "[system:You are.\nBe short.][user:Hi\n<total_tokens>15000000 tokens left</total_tokens>]");
  EXPECT_EQ(Held("<system_warning>Token usage: 35000/1000000; 965000 remaining</system_warning>"),
            "[system:][user:Hi\n<system_warning>Token usage: 35000/1000000; 965000 remaining</system_warning>]");
  Conversation talk = Talk({{"system", "A\n<total_tokens>1 tokens left</total_tokens>"},
                            {"user", "u"},
                            {"assistant", "a"},
                            {"tool", "t"},
                            {"assistant", "begun"}});
  HoldChangingLines(&talk);
  EXPECT_EQ(talk.messages[3].at("content"), "t\n<total_tokens>1 tokens left</total_tokens>")
      << "not in the model's own text";
  EXPECT_EQ(talk.messages[4].at("content"), "begun");
  EXPECT_EQ(talk.passing_end, "\n<total_tokens>1 tokens left</total_tokens>");
}

TEST(ChangingLines, WhatOnlyLooksLikeACounterStays) {
  for (const char* const system :
       {"Read <total_tokens>5 tokens left</total_tokens> first", "<total_tokens>N tokens left</total_tokens>",
        "<total_tokens> tokens left</total_tokens>", "<total_tokens>5 tokens left</total_tokens> ",
        "<total_tokens>5 tokens left", "<total_tokens>-5 tokens left</total_tokens>"}) {
    EXPECT_EQ(Held(system), fmt::format("[system:{}][user:Hi]", system));
  }
  const std::string counter = "<total_tokens>5 tokens left</total_tokens>";
  EXPECT_EQ(Held(Talk({{"system", "A"}, {"user", counter}, {"assistant", "b"}, {"user", "c"}})),
            "[system:A][user:" + counter + "][assistant:b][user:c]")
      << "a message of the conversation, which stays as it is in later requests";
  EXPECT_EQ(Held(Talk({{"system", counter}})), "[system:" + counter + "]") << "nothing is behind it";
}

}  // namespace
}  // namespace gyre
