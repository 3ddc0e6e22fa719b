// Join tokens: once, in time, for the right name, and nothing of them in the CA's folder.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <ctime>
#include <filesystem>
#include <thread>
#include <vector>

#include "identity/join_message.h"
#include "identity/join_token.h"
#include "tests/testing/identities.h"

namespace gyre {
namespace {

using std::chrono::seconds;
using ::testing::HasSubstr;
using testing::TestAuthority;

class TokenTest : public ::testing::Test {
 protected:
  JoinRequest RequestFor(const JoinToken& token, const std::string& name) const {
    return {.id = token.id, .secret = token.secret, .name = name, .request = *MakeCertificateRequest(key_.get())};
  }
  std::string Refusal(const JoinRequest& request, int64_t after = 0) {
    return Message(Redeem(ca_, request, std::time(nullptr) + after).status());
  }
  TestAuthority authority_;
  Authority ca_ = authority_.Open();
  const KeyPtr key_ = *MakeKey(KeyType::kP256);
};

constexpr char kWrong[] = "the token is not known, expired, or used";

TEST_F(TokenTest, ATextThereAndBack) {
  const JoinToken token = *CreateToken(ca_, seconds(60), "");
  const std::string text = FormatToken(token);
  const JoinToken back = *ParseToken(text);
  EXPECT_EQ(back.id + back.secret + back.fingerprint, token.id + token.secret + token.fingerprint);
  EXPECT_EQ(back.fingerprint, ca_.fingerprint());
  for (const std::string& wrong :
       {std::string(), text.substr(1), text + "A", text.substr(0, text.size() - 1), "gyre1-" + std::string(96, '!'),
        "gyre1-" + std::string(96, '+'), "hf_" + text.substr(3)}) {
    const auto parsed = ParseToken(wrong);
    EXPECT_FALSE(parsed.ok()) << wrong;
    EXPECT_THAT(Message(parsed.status()), ::testing::Not(HasSubstr(text.substr(20, 30)))) << "no secret in a message";
  }
}

TEST_F(TokenTest, OnceInTimeAndWithItsSecret) {
  const JoinToken token = *CreateToken(ca_, seconds(60), "");
  JoinRequest request = RequestFor(token, "w1");
  JoinRequest wrong = request;
  wrong.secret[5] ^= 1;
  EXPECT_EQ(Refusal(wrong), kWrong);
  wrong = request;
  wrong.id[0] ^= 1;
  EXPECT_EQ(Refusal(wrong), kWrong);
  wrong.id = "../../x";
  EXPECT_EQ(Refusal(wrong), kWrong);
  EXPECT_EQ(Refusal(request, 60), kWrong) << "expired";
  const auto certificate = Redeem(ca_, request, std::time(nullptr));
  ASSERT_TRUE(certificate.ok()) << certificate.status();
  EXPECT_EQ(*PrincipalOf(certificate->get()), (Principal{.cluster = "gyre", .role = Role::kWorker, .name = "w1"}));
  EXPECT_EQ(X509_check_private_key(certificate->get(), key_.get()), 1);
  EXPECT_EQ(Refusal(RequestFor(token, "w2")), kWrong) << "used";
  // A worker that lost the answer gets the same certificate again; another key gets nothing.
  const auto again = Redeem(ca_, RequestFor(token, "w1"), std::time(nullptr));
  ASSERT_TRUE(again.ok()) << again.status();
  EXPECT_EQ(SerialOf(again->get()), SerialOf(certificate->get()));
  const KeyPtr other = *MakeKey(KeyType::kP256);
  request.request = *MakeCertificateRequest(other.get());
  EXPECT_EQ(Refusal(request), kWrong);
  EXPECT_EQ(Refusal(RequestFor(token, "w1"), 60), kWrong) << "expired";
}

TEST_F(TokenTest, OneOfManyThatUseItAtOnce) {
  const JoinToken token = *CreateToken(ca_, seconds(60), "");
  std::atomic<int> issued{0};
  std::vector<std::thread> threads;
  for (int i = 0; i < 8; ++i) {
    threads.emplace_back([&, i] {
      Authority ca = authority_.Open();  // as another process
      issued += Redeem(ca, RequestFor(token, "w" + std::to_string(i)), std::time(nullptr)).ok();
    });
  }
  for (std::thread& t : threads) t.join();
  EXPECT_EQ(issued, 1);
}

TEST_F(TokenTest, NamesAreNotTakenOver) {
  authority_.Issue(Role::kWorker, "w1");
  const JoinToken token = *CreateToken(ca_, seconds(60), ""), named = *CreateToken(ca_, seconds(60), "w9");
  EXPECT_THAT(Refusal(RequestFor(token, "w1")), HasSubstr("worker w1 has a valid certificate"));
  EXPECT_THAT(Refusal(RequestFor(token, "local")), HasSubstr("the coordinator's own"));
  EXPECT_THAT(Refusal(RequestFor(named, "w2")), HasSubstr("for the name w9 only"));
  EXPECT_EQ(Refusal(RequestFor(token, "w2")), "") << "a refused name does not use it up";
  EXPECT_EQ(Refusal(RequestFor(named, "w9")), "");
}

TEST_F(TokenTest, ARequestMustProveItsKey) {
  const JoinToken token = *CreateToken(ca_, seconds(60), "");
  JoinRequest request = RequestFor(token, "w1");
  const std::string good = request.request;
  for (size_t i = 0; i < good.size(); i += 3) {
    request.request = good;
    request.request[i] = static_cast<char>(request.request[i] ^ 4);
    EXPECT_THAT(Refusal(request), HasSubstr("no certificate request")) << i;
  }
  for (const std::string& wrong : {std::string(), std::string(5000, 'x')}) {
    request.request = wrong;
    EXPECT_THAT(Refusal(request), HasSubstr("no certificate request"));
  }
  const KeyPtr rsa(EVP_RSA_gen(2048)), other(EVP_EC_gen("P-384"));
  for (EVP_PKEY* key : {rsa.get(), other.get()}) {
    request.request = *MakeCertificateRequest(key);
    EXPECT_THAT(Refusal(request), HasSubstr("P-256 or Ed25519"));
  }
  request.request = good;
  EXPECT_EQ(Refusal(request), "") << "none of them used it up";
}

TEST_F(TokenTest, TheFolderHasNoSecret) {
  const JoinToken token = *CreateToken(ca_, seconds(60), "");
  const std::string text = FormatToken(token);
  std::string hex;
  for (const char c : token.secret) hex += fmt::format("{:02x}", static_cast<unsigned char>(c));
  size_t files = 0;
  for (const auto& entry : std::filesystem::directory_iterator(ca_.folder() + "/tokens")) {
    const std::string bytes = *ReadSmallFile(entry.path().string());
    EXPECT_EQ(bytes.find(token.secret), std::string::npos);
    EXPECT_EQ(bytes.find(hex), std::string::npos);
    EXPECT_EQ(bytes.find(text.substr(20, 20)), std::string::npos);
    ++files;
  }
  EXPECT_EQ(files, 1u);
  EXPECT_FALSE(CreateToken(ca_, seconds(0), "").ok());
  EXPECT_FALSE(CreateToken(ca_, kLongestToken + seconds(1), "").ok());
  EXPECT_FALSE(CreateToken(ca_, seconds(60), "local").ok());
}

TEST(JoinMessageTest, ThereAndBackAndEveryCut) {
  const JoinRequest request{.id = "12345678", .secret = "s", .name = "w", .request = std::string("\0x", 2)};
  const auto bytes = EncodeJoinRequest(request);
  const auto message = std::span(bytes).subspan(kJoinLengthBytes);
  EXPECT_EQ(*JoinLength(bytes, kMaxJoinRequest), message.size());
  EXPECT_FALSE(JoinLength(bytes, message.size() - 1).ok());
  const auto back = DecodeJoinRequest(message);
  ASSERT_TRUE(back.ok());
  EXPECT_EQ(back->request, request.request);
  for (size_t n = 0; n < message.size(); ++n) EXPECT_FALSE(DecodeJoinRequest(message.first(n)).ok()) << n;
  const JoinReply reply{.refusal = "", .files = {.identity = "i", .authorities = "a", .revoked = {"r"}}};
  const auto answer = EncodeJoinReply(reply);
  EXPECT_EQ(DecodeJoinReply(std::span(answer).subspan(kJoinLengthBytes))->files.revoked.front(), "r");
}

}  // namespace
}  // namespace gyre
