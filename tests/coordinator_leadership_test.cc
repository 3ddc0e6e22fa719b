// The leader's lease: the state machine as event lists, and against an etcd with random clocks, delays and
// losses.
#include "coordinator/state/leadership.h"

#include <gtest/gtest.h>

#include <deque>
#include <functional>
#include <map>
#include <random>
#include <vector>

#include "coordinator/state/etcd_client.h"
#include "proto/coordinators.h"
#include "tests/testing/virtual_time.h"
#include "tests/testing/worlds.h"

namespace gyre {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

Deadline At(int64_t ms) { return Deadline{} + seconds(1000) + milliseconds(ms); }

template <typename Call>
bool Gives(Leadership* one, int64_t ms) {
  const auto call = one->Next(At(ms));
  return call && std::holds_alternative<Call>(*call);
}

// Leads from 10 ms on, by a lease that was asked for at 0.
Leadership Leader() {
  Leadership one({});
  EXPECT_TRUE(Gives<Leadership::Look>(&one, 0));
  one.Looked(false, At(0));
  EXPECT_TRUE(Gives<Leadership::Grant>(&one, 0));
  one.Granted(Leadership::Lease{7, seconds(3)}, At(0), At(5));
  EXPECT_TRUE(Gives<Leadership::Campaign>(&one, 5));
  one.Campaigned(true, At(10));
  EXPECT_TRUE(one.Leads(At(10)));
  return one;
}

TEST(LeadershipTest, OneThatStandsByLooksAgainAndAgain) {
  Leadership one({});
  EXPECT_TRUE(Gives<Leadership::Look>(&one, 0));
  EXPECT_FALSE(one.Next(At(0)).has_value());  // one call at a time
  one.Looked(true, At(3));
  EXPECT_FALSE(one.Next(At(202)).has_value());
  EXPECT_EQ(one.deadline(), At(203));
  EXPECT_TRUE(Gives<Leadership::Look>(&one, 203));
  one.Looked(Unavailable("etcd is away"), At(210));
  EXPECT_TRUE(Gives<Leadership::Look>(&one, 310));
  EXPECT_FALSE(one.Leads(At(310)));
  EXPECT_FALSE(one.Lost(At(100000)));
}

TEST(LeadershipTest, ALeaderRenewsThreeTimesInALeaseAndCountsFromWhenItAsked) {
  Leadership one = Leader();
  EXPECT_FALSE(one.Next(At(999)).has_value());
  EXPECT_TRUE(Gives<Leadership::Renew>(&one, 1000));
  // The answer took a second.
  one.Renewed(Duration(seconds(3)), At(1000), At(2000));
  EXPECT_EQ(one.until(), At(1000 + 2400));
  EXPECT_TRUE(Gives<Leadership::Renew>(&one, 2000));
}

TEST(LeadershipTest, ALeaderWithoutAnAnswerStopsBeforeTheLeaseEnds) {
  Leadership one = Leader();
  EXPECT_TRUE(Gives<Leadership::Renew>(&one, 1000));
  one.Renewed(Unavailable("etcd is away"), At(1000), At(1700));
  EXPECT_TRUE(Gives<Leadership::Renew>(&one, 1800));
  EXPECT_TRUE(one.Leads(At(2399)));
  EXPECT_EQ(one.deadline(), At(2400));
  EXPECT_FALSE(one.Leads(At(2400)));
  EXPECT_TRUE(one.Lost(At(2400)));
  // An answer that comes too late changes nothing.
  one.Renewed(Duration(seconds(3)), At(1800), At(2401));
  EXPECT_TRUE(one.Lost(At(2401)));
  EXPECT_FALSE(one.Next(At(2402)).has_value());
}

TEST(LeadershipTest, OneThatWasFrozenFindsItsTimeOver) {
  Leadership one = Leader();
  EXPECT_FALSE(one.Next(At(60000)).has_value());
  EXPECT_TRUE(one.Lost(At(60000)));
}

TEST(LeadershipTest, AnEndedLeaseOrARefusedWriteIsTheEnd) {
  Leadership one = Leader();
  EXPECT_TRUE(Gives<Leadership::Renew>(&one, 1000));
  one.Renewed(Duration{}, At(1000), At(1010));
  EXPECT_TRUE(one.Lost(At(1010)));
  Leadership other = Leader();
  other.Refused();
  EXPECT_TRUE(other.Lost(At(20)));
  Leadership third({});
  third.Refused();  // it never led
  EXPECT_FALSE(third.Lost(At(20)));
}

TEST(LeadershipTest, ACampaignThatIsLostOrWithoutAnAnswerLooksAgain) {
  for (const StatusOr<bool>& answer : {StatusOr<bool>(false), StatusOr<bool>(Unavailable("etcd is away"))}) {
    Leadership one({});
    one.Next(At(0));
    one.Looked(false, At(0));
    one.Next(At(0));
    one.Granted(Leadership::Lease{7, seconds(3)}, At(0), At(0));
    one.Next(At(0));
    one.Campaigned(answer, At(10));
    EXPECT_FALSE(one.Leads(At(10)));
    EXPECT_FALSE(one.Next(At(109)).has_value());
    EXPECT_TRUE(Gives<Leadership::Look>(&one, 110));
  }
}

TEST(LeadershipTest, ACampaignWonTooLateDoesNotLead) {
  Leadership one({});
  one.Next(At(0));
  one.Looked(false, At(0));
  one.Next(At(0));
  one.Granted(Leadership::Lease{7, seconds(3)}, At(0), At(0));
  one.Next(At(10));
  one.Campaigned(true, At(2500));  // the process stood still meanwhile
  EXPECT_FALSE(one.Leads(At(2500)));
  EXPECT_FALSE(one.Lost(At(2500)));
}

// Three processes with clocks of their own and an etcd that is slow, cut off and forgets nobody's lease too early by
// its own clock. At no moment do two lead; with a working network somebody does.
class Soak {
 public:
  explicit Soak(uint64_t seed) : random_(seed) {
    for (int i = 0; i < 3; ++i) nodes_.push_back({.machine = Leadership({}), .rate = Rate(), .offset = Draw(100000)});
    etcd_rate_ = Rate();
  }
  void Run() {
    for (; Now() < 120'000; time_.PassTo(time_.now() + milliseconds(5))) {
      time_.DoDue();
      if (Draw(2000) == 0) weather_ = Draw(4);  // the rest of the time: fine
      for (Node& n : nodes_) Turn(&n);
      Check();
    }
  }
  int led = 0, lost = 0, terms = 0;

 private:
  struct Node {
    Leadership machine;
    double rate = 1;
    int64_t offset = 0;
    int64_t frozen_until = 0;
    int generation = 0;  // answers to the process before this one come to nobody
    bool cut = false;
  };
  int64_t Draw(int64_t n) { return static_cast<int64_t>(random_() % static_cast<uint64_t>(n)); }
  double Rate() { return 0.91 + static_cast<double>(Draw(19)) / 100; }  // 0.91 to 1.09
  int64_t Now() const { return std::chrono::duration_cast<milliseconds>(time_.now() - At(0)).count(); }
  Deadline Local(const Node& n) const {
    return At(n.offset + static_cast<int64_t>(static_cast<double>(Now()) * n.rate));
  }
  int64_t EtcdNow() const { return static_cast<int64_t>(static_cast<double>(Now()) * etcd_rate_); }
  void Expire() {
    for (auto it = leases_.begin(); it != leases_.end();)
      it = it->second <= EtcdNow() ? leases_.erase(it) : std::next(it);
    if (leader_ != 0 && leases_.count(leader_) == 0) leader_ = 0;
  }
  int64_t Delay() {
    if (weather_ == 1) return 100 + Draw(1500);
    return Draw(20);
  }
  // A call: it may be lost, or its answer; the caller gives up after 700 ms.
  template <typename T>
  void Call(Node* n, const std::function<T()>& do_it, const std::function<void(StatusOr<T>)>& answer) {
    const int generation = n->generation;
    auto done = std::make_shared<bool>(false);
    const auto finish = [this, n, generation, answer, done](StatusOr<T> r) {
      if (std::exchange(*done, true)) return;
      // A process that stands still reads the answer when it goes on.
      const auto give = [n, generation, answer, r = std::move(r)] {
        if (n->generation == generation) answer(r);
      };
      time_.At(At(std::max(Now(), n->frozen_until)), give);
    };
    const bool lost = n->cut || (weather_ == 2 && Draw(2) == 0);
    time_.After(milliseconds(700), [finish] { finish(DeadlineExceeded("no answer")); });
    if (lost && Draw(2) == 0) return;  // on its way there
    time_.After(milliseconds(Delay()), [this, lost, do_it, finish] {
      Expire();
      T r = do_it();
      if (!lost) time_.After(milliseconds(Delay()), [finish, r] { finish(r); });
    });
  }
  void Turn(Node* n) {
    if (n->frozen_until > Now()) return;
    if (Draw(20000) == 0) {
      n->frozen_until = Now() + Draw(8000);
      return;
    }
    if (Draw(10000) == 0) n->cut = !n->cut;
    if (n->cut && Draw(500) == 0) n->cut = false;
    if (n->machine.Lost(Local(*n)) || Draw(15000) == 0) {  // it begins anew, or was killed
      lost += n->machine.Lost(Local(*n)) ? 1 : 0;
      n->machine = Leadership({});
      ++n->generation;
    }
    const auto call = n->machine.Next(Local(*n));
    if (!call) return;
    const Deadline asked = Local(*n);
    if (std::holds_alternative<Leadership::Look>(*call)) {
      Call<bool>(
          n, [this] { return leader_ != 0; }, [this, n](StatusOr<bool> r) { n->machine.Looked(r, Local(*n)); });
    } else if (std::holds_alternative<Leadership::Grant>(*call)) {
      Call<Leadership::Lease>(
          n,
          [this] {
            leases_[++last_lease_] = EtcdNow() + 3000;
            return Leadership::Lease{last_lease_, seconds(3)};
          },
          [this, n, asked](StatusOr<Leadership::Lease> r) { n->machine.Granted(r, asked, Local(*n)); });
    } else if (const auto* c = std::get_if<Leadership::Campaign>(&*call)) {
      Call<bool>(
          n,
          [this, id = c->lease] {
            if (leader_ != 0 || leases_.count(id) == 0) return false;
            leader_ = id;
            ++terms;
            return true;
          },
          [this, n](StatusOr<bool> r) {
            n->machine.Campaigned(r, Local(*n));
            led += n->machine.Leads(Local(*n)) ? 1 : 0;
          });
    } else if (const auto* c = std::get_if<Leadership::Renew>(&*call)) {
      Call<Duration>(
          n,
          [this, id = c->lease] {
            const auto it = leases_.find(id);
            if (it == leases_.end()) return Duration{};
            it->second = EtcdNow() + 3000;
            return Duration(seconds(3));
          },
          [this, n, asked](StatusOr<Duration> r) { n->machine.Renewed(r, asked, Local(*n)); });
    }
  }
  void Check() {
    int leaders = 0;
    for (const Node& n : nodes_) {
      if (!n.machine.Leads(Local(n))) continue;
      ++leaders;
      Expire();
      ASSERT_EQ(leader_, n.machine.lease()) << "at " << Now() << " ms etcd has given the lead to another one";
    }
    ASSERT_LE(leaders, 1) << "at " << Now() << " ms";
  }

  std::mt19937_64 random_;
  std::vector<Node> nodes_;
  testing::VirtualTime time_{At(0)};
  std::map<int64_t, int64_t> leases_;
  double etcd_rate_ = 1;
  int64_t leader_ = 0, last_lease_ = 0, weather_ = 0;
};

TEST(LeadershipTest, NeverTwoLeadWhateverClocksAndNetworkDo) {
  int led = 0, lost = 0;
  const auto play = [&](uint64_t seed) {
    Soak soak(seed);
    soak.Run();
    EXPECT_GE(soak.led, 1);
    led += soak.led;
    lost += soak.lost;
  };
  if (!testing::PlayWorlds({40}, play)) return;
  EXPECT_GT(led, 200);  // two minutes each, with faults every few seconds
  EXPECT_GT(lost, 40);
}

TEST(CoordinatorsTest, TheOneThatLedComesFirstThenTheOthersInTurn) {
  auto list = Coordinators::Parse("a:1,b:2,c:3");
  ASSERT_TRUE(list.ok()) << list.status();
  EXPECT_EQ(list->current(), "a:1");
  EXPECT_TRUE(list->Next(""));
  EXPECT_EQ(list->current(), "b:2");
  list->Found();
  EXPECT_TRUE(list->Next(""));
  EXPECT_EQ(list->current(), "c:3");
  EXPECT_TRUE(list->Next(""));
  EXPECT_EQ(list->current(), "a:1");
  EXPECT_FALSE(list->Next(""));  // all were asked
  EXPECT_EQ(list->current(), "b:2");
}

TEST(CoordinatorsTest, ANameIsFollowedOnceInARound) {
  auto list = Coordinators::Parse("a:1,b:2");
  EXPECT_TRUE(list->Next("b:2"));
  EXPECT_EQ(list->current(), "b:2");
  // They name each other.
  EXPECT_TRUE(list->Next("a:1"));
  EXPECT_FALSE(list->Next("b:2"));
  auto one = Coordinators::Parse("a:1");
  EXPECT_TRUE(one->Next("elsewhere:9"));
  EXPECT_EQ(one->current(), "elsewhere:9");
  one->Found();
  EXPECT_TRUE(one->Next(""));
  EXPECT_EQ(one->current(), "a:1");
  EXPECT_FALSE(one->Next("no address"));
  EXPECT_EQ(one->current(), "a:1");
}

TEST(CoordinatorsTest, ListsAreChecked) {
  for (const char* wrong : {"", "a", "a:1,", ",a:1", "a:1,,b:2", "a:0", "a:1 b:2"}) {
    EXPECT_TRUE(absl::IsInvalidArgument(Coordinators::Parse(wrong).status())) << wrong;
  }
}

TEST(EtcdUrlTest, Parts) {
  const auto plain = ParseEtcdUrl("etcd://a:2379,b:2379/prod.ring-1");
  ASSERT_TRUE(plain.ok()) << plain.status();
  EXPECT_EQ(plain->hosts, (std::vector<std::string>{"a:2379", "b:2379"}));
  EXPECT_EQ(plain->name, "prod.ring-1");
  EXPECT_FALSE(plain->tls);
  const auto tls = ParseEtcdUrl("etcds://[::1]:2379");
  ASSERT_TRUE(tls.ok()) << tls.status();
  EXPECT_TRUE(tls->tls);
  EXPECT_EQ(tls->name, "gyre");
  for (const char* wrong : {"a:2379", "http://a:1", "etcd://", "etcd://a", "etcd://a:1/", "etcd://a:1/x y",
                            "etcd://a:1/x/", "etcd://a:1/x/request"}) {
    EXPECT_TRUE(absl::IsInvalidArgument(ParseEtcdUrl(wrong).status())) << wrong;
  }
}

}  // namespace
}  // namespace gyre
