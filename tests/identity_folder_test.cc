// Identities as folders: what is in them, what is refused, and how they follow their files.
#include "identity/identity.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <filesystem>

#include "tests/testing/identities.h"

namespace gyre {
namespace {

using testing::Folder;
using ::testing::HasSubstr;
using testing::TestAuthority;

class IdentityFolderTest : public ::testing::TestWithParam<KeyType> {
 protected:
  TestAuthority authority_{GetParam()};
};
INSTANTIATE_TEST_SUITE_P(KeyTypes, IdentityFolderTest, ::testing::Values(KeyType::kP256, KeyType::kEd25519),
                         [](const auto& info) { return info.param == KeyType::kP256 ? "p256" : "ed25519"; });

TEST_P(IdentityFolderTest, AnIssuedIdentitySaysWhoItIs) {
  for (const Role role : {Role::kCoordinator, Role::kWorker, Role::kClient, Role::kAdmin}) {
    const auto identity = authority_.IssueOpen(role, "n-1.x_y");
    EXPECT_EQ(identity->current()->self(), (Principal{.cluster = "gyre", .role = role, .name = "n-1.x_y"}));
    EXPECT_NEAR(static_cast<double>(identity->current()->ends() - std::time(nullptr)), 100 * 86400, 60);
    struct stat s {};
    ASSERT_EQ(stat((identity->folder() + "/identity.pem").c_str(), &s), 0);
    EXPECT_EQ(s.st_mode & 0777, 0600u);
  }
  struct stat s {};
  ASSERT_EQ(stat((authority_.path() + "/ca-key.pem").c_str(), &s), 0);
  EXPECT_EQ(s.st_mode & 0777, 0600u);
}

TEST_P(IdentityFolderTest, NothingIsOverwrittenUnasked) {
  EXPECT_TRUE(absl::IsFailedPrecondition(Authority::Init(authority_.path(), "other", GetParam(), 10)));
  const std::string folder = authority_.Issue(Role::kWorker, "w1");
  Authority ca = authority_.Open();
  EXPECT_TRUE(absl::IsFailedPrecondition(ca.Issue({.role = Role::kWorker, .name = "w2"}, GetParam(), folder)));
  const Status renewed = ca.Issue({.role = Role::kWorker, .name = "w2", .renew = true}, GetParam(), folder);
  EXPECT_THAT(Message(renewed), HasSubstr("is the identity of worker w1"));
  EXPECT_EQ((*IdentityFolder::Open(folder))->current()->self().name, "w1");
}

TEST_P(IdentityFolderTest, ANameHasOneValidCertificate) {
  authority_.Issue(Role::kWorker, "w1");
  Authority ca = authority_.Open();
  Folder other;
  const Status again = ca.Issue({.role = Role::kWorker, .name = "w1"}, GetParam(), other / "w1");
  EXPECT_THAT(Message(again), HasSubstr("worker w1 has a valid certificate"));
  EXPECT_FALSE(std::filesystem::exists(other / "w1/identity.pem"));
  EXPECT_TRUE(ca.Issue({.role = Role::kAdmin, .name = "w1"}, GetParam(), other / "admin").ok()) << "another role";
  EXPECT_EQ(*ca.Revoke("w1", Role::kWorker), 1);
  EXPECT_TRUE(ca.Issue({.role = Role::kWorker, .name = "w1"}, GetParam(), other / "w1").ok());
  EXPECT_TRUE((*IdentityFolder::Open(other / "w1"))->current()->revocations() == 1) << "the list comes with it";
  for (const char* name : {"", "local", "coordinator", "a b", "a/b", "ä", "..", "-x", "_y"}) {
    EXPECT_FALSE(ca.Issue({.role = Role::kWorker, .name = name}, GetParam(), other / "x").ok()) << name;
  }
}

TEST_P(IdentityFolderTest, DamagedAndMixedFilesAreRefused) {
  TestAuthority unauthenticated(GetParam());
  const std::string folder = authority_.Issue(Role::kWorker, "w1"), other = authority_.Issue(Role::kWorker, "w2");
  const auto files = (*IdentityFolder::Open(folder))->current()->files();
  const auto more = (*IdentityFolder::Open(other))->current()->files();
  const auto why = [](const Identity::Files& f) { return Message(Identity::Make(f, "/x").status()); };
  EXPECT_EQ(why(files), "");
  const size_t certificate = files.identity.find("-----BEGIN CERTIFICATE");
  Identity::Files f = files;
  f.identity = files.identity.substr(0, certificate);
  EXPECT_THAT(why(f), HasSubstr("/x/identity.pem: no certificate"));
  f.identity = files.identity.substr(certificate);
  EXPECT_THAT(why(f), HasSubstr("no private key"));
  f.identity =
      files.identity.substr(0, certificate) + more.identity.substr(more.identity.find("-----BEGIN CERTIFICATE"));
  EXPECT_THAT(why(f), HasSubstr("does not belong to its certificate"));
  f = files;
  f.authorities = *ReadSmallFile(unauthenticated.path() + "/ca.pem");
  EXPECT_THAT(why(f), HasSubstr("unable to get local issuer certificate"));
  f = files;
  f.revoked = {"garbage"};
  EXPECT_THAT(why(f), HasSubstr("/x/crl.pem"));
  for (size_t cut = 0; cut < files.identity.size(); cut += 41) {
    f = files;
    f.identity.resize(cut);
    EXPECT_NE(why(f), "") << cut;
  }
  EXPECT_THAT(why(authority_.FilesOf(authority_.Forge("URI:gyre://gyre/worker/w1", -7200, -3600))),
              HasSubstr("expired"));
  EXPECT_THAT(why(authority_.FilesOf(authority_.Forge("URI:gyre://gyre/worker/w1", 3600, 7200))),
              HasSubstr("not yet valid"));
}

TEST_P(IdentityFolderTest, ItFollowsItsFiles) {
  const std::string folder = authority_.Issue(Role::kWorker, "w1");
  const auto identity = *IdentityFolder::Open(folder, authority_.path() + "/crl.pem");
  EXPECT_FALSE(identity->Refresh());
  const auto first = identity->current();
  Authority ca = authority_.Open();
  ASSERT_TRUE(ca.Issue({.role = Role::kWorker, .name = "w1", .renew = true}, GetParam(), folder).ok());
  EXPECT_TRUE(identity->Refresh());
  const auto second = identity->current();
  EXPECT_NE(first->files().identity, second->files().identity);
  // A wrong file changes nothing.
  ASSERT_TRUE(ReplaceFile(folder + "/identity.pem", "garbage", 0600).ok());
  EXPECT_FALSE(identity->Refresh());
  EXPECT_EQ(identity->current(), second);
  EXPECT_FALSE(identity->Refresh(true));
  // But who is revoked is out, whatever else is wrong.
  authority_.Issue(Role::kWorker, "w0");
  ASSERT_EQ(*ca.Revoke("w0", std::nullopt), 1);
  EXPECT_TRUE(identity->Refresh());
  EXPECT_EQ(identity->current()->revocations(), 1u);
  EXPECT_EQ(identity->current()->files().identity, second->files().identity);
  const auto third = identity->current();
  // Nor does another's identity.
  const std::string other = authority_.Issue(Role::kWorker, "w2");
  ASSERT_TRUE(ReplaceFile(folder + "/identity.pem", *ReadSmallFile(other + "/identity.pem"), 0600).ok());
  EXPECT_FALSE(identity->Refresh());
  EXPECT_EQ(identity->current(), third);
  ASSERT_TRUE(ReplaceFile(folder + "/identity.pem", second->files().identity, 0600).ok());
  EXPECT_TRUE(identity->Refresh());
  // The CA's own list counts without a copy.
  ASSERT_EQ(*ca.Revoke("w2", std::nullopt), 1);
  EXPECT_TRUE(identity->Refresh());
  EXPECT_EQ(identity->current()->revocations(), 2u);
}

// A list that is lost makes no certificate valid again.
TEST_P(IdentityFolderTest, ALostListOfRevocationsIsMadeAgain) {
  authority_.Issue(Role::kWorker, "w1");
  authority_.Issue(Role::kWorker, "w2");
  ASSERT_EQ(*authority_.Open().Revoke("w1", std::nullopt), 1);
  const std::string list = authority_.path() + "/crl.pem", one = *ReadSmallFile(list);
  ASSERT_EQ(*authority_.Open().Revoke("w2", std::nullopt), 1);
  const auto head = authority_.IssueOpen(Role::kCoordinator, "head");
  EXPECT_EQ(head->current()->revocations(), 2u);
  std::filesystem::remove(list);
  const Authority ca = authority_.Open();
  ASSERT_TRUE(head->TakeRevoked(*ca.RevokedPem()).ok());
  EXPECT_EQ(head->current()->revocations(), 2u);
  // An old copy came back: the next list has all again.
  ASSERT_TRUE(ReplaceFile(list, one, 0644).ok());
  authority_.Issue(Role::kWorker, "w3");
  ASSERT_EQ(*authority_.Open().Revoke("w3", std::nullopt), 1);
  ASSERT_TRUE(head->TakeRevoked(*ca.RevokedPem()).ok());
  EXPECT_EQ(head->current()->revocations(), 3u);
}

TEST_P(IdentityFolderTest, ALateListOfRevocationsIsTakenOnlyIfItIsNewerAndTheCAs) {
  const auto identity = authority_.IssueOpen(Role::kWorker, "w1");
  authority_.Issue(Role::kWorker, "w2");
  authority_.Issue(Role::kWorker, "w3");
  Authority ca = authority_.Open();
  ASSERT_TRUE(ca.Revoke("w2", std::nullopt).ok());
  const std::string one = *ca.RevokedPem();
  ASSERT_TRUE(ca.Revoke("w3", std::nullopt).ok());
  const std::string two = *ca.RevokedPem();
  EXPECT_TRUE(identity->TakeRevoked(two).ok());
  EXPECT_EQ(identity->current()->revocations(), 2u);
  EXPECT_TRUE(identity->TakeRevoked(one).ok()) << "an older one is no error";
  EXPECT_EQ(identity->current()->revocations(), 2u);
  EXPECT_EQ((*IdentityFolder::Open(identity->folder()))->current()->revocations(), 2u) << "it is written down";
  TestAuthority unauthenticated(GetParam());
  unauthenticated.Issue(Role::kWorker, "x");
  Authority other = unauthenticated.Open();
  for (int i = 0; i < 3; ++i) {
    unauthenticated.Issue(Role::kWorker, "y", "y" + std::to_string(i));
    ASSERT_TRUE(other.Revoke("y", std::nullopt).ok());
  }
  EXPECT_FALSE(identity->TakeRevoked(*other.RevokedPem()).ok());
  EXPECT_FALSE(identity->TakeRevoked("garbage").ok());
  EXPECT_EQ(identity->current()->revocations(), 2u);
}

// While one CA takes another's place both have lists, and the numbers of one say nothing of the other.
TEST(TwoAuthorities, EachHasItsOwnList) {
  TestAuthority older, newer;
  for (TestAuthority* a : {&older, &newer}) {
    a->Issue(Role::kWorker, "x");
    a->Issue(Role::kWorker, "y");
  }
  Authority first = older.Open(), second = newer.Open();
  ASSERT_TRUE(second.Revoke("x", std::nullopt).ok());
  ASSERT_TRUE(first.Revoke("x", std::nullopt).ok());  // later, so its number is higher
  const std::string folder = older.Issue(Role::kWorker, "w1");
  ASSERT_TRUE(ReplaceFile(folder + "/ca.pem", first.certificate_pem() + second.certificate_pem(), 0644).ok());
  const auto identity = *IdentityFolder::Open(folder);
  EXPECT_EQ(identity->current()->revocations(), 1u);
  ASSERT_TRUE(identity->TakeRevoked(*second.RevokedPem()).ok());
  EXPECT_EQ(identity->current()->revocations(), 2u);
  ASSERT_TRUE(second.Revoke("y", std::nullopt).ok());
  ASSERT_TRUE(identity->TakeRevoked(*second.RevokedPem()).ok());
  EXPECT_EQ(identity->current()->revocations(), 3u);
  EXPECT_EQ((*IdentityFolder::Open(folder))->current()->revocations(), 3u) << "both lists are written down";
}

}  // namespace
}  // namespace gyre
