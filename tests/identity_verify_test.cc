// The checks of a peer's certificate.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "identity/identity.h"
#include "tests/testing/identities.h"

namespace gyre {
namespace {

using ::testing::HasSubstr;
using testing::TestAuthority;

TEST(PrincipalTest, UrisAreReadStrictly) {
  const Principal p{.cluster = "lab", .role = Role::kAdmin, .name = "alice"};
  EXPECT_EQ(FormatPrincipal(p), "gyre://lab/admin/alice");
  EXPECT_EQ(*ParsePrincipal("gyre://lab/admin/alice"), p);
  for (const char* wrong :
       {"", "gyre://", "gyre://lab/admin", "gyre://lab/admin/", "gyre:///admin/alice", "gyre://lab/root/alice",
        "gyre://lab/Admin/alice", "gyre://lab/admin/alice/x", "gyre://lab/admin/a b", "http://lab/admin/alice",
        "gyre://lab/worker/local", "gyre://lab/worker/coordinator", " gyre://lab/admin/alice"}) {
    EXPECT_FALSE(ParsePrincipal(wrong).ok()) << wrong;
  }
  EXPECT_FALSE(ParsePrincipal(std::string("gyre://lab/admin/ali\0ce", 23)).ok());
  EXPECT_FALSE(ParsePrincipal("gyre://lab/admin/" + std::string(65, 'a')).ok());
}

class CheckTest : public ::testing::Test {
 protected:
  // "" or why it is refused.
  std::string Refusal(const std::string& names) {
    const auto certificate = *ReadCertificates(authority_.Forge(names).certificate);
    return Message(own_->current()->Check(certificate.front().get()).status());
  }
  TestAuthority authority_;
  const std::shared_ptr<IdentityFolder> own_ = authority_.IssueOpen(Role::kCoordinator, "head");
};

TEST_F(CheckTest, ExactlyOneNameOfOurs) {
  EXPECT_EQ(Refusal("URI:gyre://gyre/worker/w1"), "");
  for (const char* names : {"", "DNS:w1", "URI:http://x/", "URI:gyre://gyre/worker/w1,URI:gyre://gyre/admin/w1",
                            "URI:gyre://gyre/worker/w1,DNS:w1", "email:a@b.c"}) {
    EXPECT_THAT(Refusal(names), HasSubstr("has no name of the form")) << names;
  }
  EXPECT_THAT(Refusal("URI:gyre://other/worker/w1"), HasSubstr("for the cluster other, expected gyre"));
}

TEST_F(CheckTest, ARevokedCertificate) {
  const auto worker = authority_.IssueOpen(Role::kWorker, "w1");
  const auto certificate = *ReadCertificates(worker->current()->files().identity);
  EXPECT_TRUE(own_->current()->Check(certificate.front().get()).ok());
  Authority ca = authority_.Open();
  ASSERT_TRUE(ca.Revoke("w1", std::nullopt).ok());
  ASSERT_TRUE(own_->TakeRevoked(*ca.RevokedPem()).ok());
  EXPECT_THAT(Message(own_->current()->Check(certificate.front().get()).status()),
              HasSubstr("the certificate of worker w1 was revoked"));
  EXPECT_THAT(Message(ca.Revoke("w1", std::nullopt).status()), HasSubstr("no valid certificate of w1"));
}

}  // namespace
}  // namespace gyre
