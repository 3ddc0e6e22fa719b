// Plays simulated worlds, one for each seed, until one of them has a problem, and says how that one is played again.
//   GYRE_SEED=17   plays the world of this seed alone
//   GYRE_SEEDS=20  plays twenty times as many worlds
#pragma once

#include <gtest/gtest.h>

#include <cstdint>
#include <cstdlib>
#include <string>

#include "fmt/format.h"

namespace gyre::testing {

struct Seeds {
  uint64_t count = 0;
  uint64_t first = 1;
};

// Calls play(seed) for each seed until the test fails in one. Returns true if all were played and none failed: only
// then it means something what happened in them together.
template <typename Play>
bool PlayWorlds(Seeds seeds, Play play) {
  const char* one = std::getenv("GYRE_SEED");
  const char* times = std::getenv("GYRE_SEEDS");
  uint64_t first = seeds.first, end = seeds.first + seeds.count * (times == nullptr ? 1 : std::stoull(times));
  if (one != nullptr) first = std::stoull(one), end = first + 1;
  for (uint64_t seed = first; seed < end; ++seed) {
    play(seed);
    if (!::testing::Test::HasFailure()) continue;
    ADD_FAILURE() << "that was the world of seed " << seed << "; GYRE_SEED=" << seed << " plays it alone";
    return false;
  }
  return one == nullptr;
}

// Lets random events happen until there is a problem. Returns how many happened.
template <typename World>
int PlayEvents(World& world, int events) {
  int happened = 0;
  for (; happened < events && world.problem().empty(); ++happened) world.RandomEvent();
  return happened;
}

// A soak of worlds with random events, which make(seed) returns: each has RandomEvent(), problem(), which is "" while
// all is well, and LeaveAlone(), after which everything has come to its end. add(seed, world) sees each afterwards.
// When a world has a problem, the soak looks for another one that has it after fewer events.
template <typename Make, typename Add>
bool Soak(Seeds seeds, int events, Make make, Add add) {
  return PlayWorlds(seeds, [&](uint64_t seed) {
    auto world = make(seed);
    const int happened = PlayEvents(*world, events);
    if (world->problem().empty()) world->LeaveAlone();
    if (world->problem().empty()) return add(seed, *world);
    std::string said = fmt::format("a problem after {} of {} events: {}", happened, events, world->problem());
    int fewest = happened;
    for (uint64_t other = seeds.first; other < seeds.first + 200 && fewest > 1; ++other) {
      auto shorter = make(other);
      const int took = PlayEvents(*shorter, fewest - 1);
      if (shorter->problem().empty()) continue;
      fewest = took;
      said += fmt::format("\nseed {} has one after {}: {}", other, took, shorter->problem());
    }
    ADD_FAILURE() << said;
  });
}

// In how many of the worlds that make(seed) returns there is a problem after so many events: for planted faults.
template <typename Make>
uint64_t WorldsWithProblems(Seeds seeds, int events, Make make) {
  uint64_t found = 0;
  for (uint64_t seed = seeds.first; seed < seeds.first + seeds.count; ++seed) {
    auto world = make(seed);
    PlayEvents(*world, events);
    found += world->problem().empty() ? 0 : 1;
  }
  return found;
}

}  // namespace gyre::testing
