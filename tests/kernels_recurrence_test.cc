// Layers with recurrent state: every instruction set against the reference, and that bits and state do not depend on
// how a sequence is cut into steps.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <string>
#include <vector>

#include "kernels/ops.h"
#include "tests/testing/kernel_test.h"

namespace gyre {
namespace {

using testing::Random;

class Recurrence : public testing::KernelTest {};

void ExpectNear(const std::vector<float>& want, const std::vector<float>& got, double relative, const std::string& of) {
  ASSERT_EQ(want.size(), got.size());
  double difference = 0, size = 0;
  for (size_t i = 0; i < want.size(); ++i) {
    const double w = static_cast<double>(want[i]), d = static_cast<double>(got[i]) - w;
    difference += d * d;
    size += w * w;
  }
  ASSERT_GT(size, 0) << of;
  ASSERT_LE(std::sqrt(difference / size), relative) << of;
}

// Three sequences whose rows lie one after the other: of 1, 37 and 20 rows.
constexpr size_t kCounts[] = {1, 37, 20};
constexpr size_t kRows = 58;

struct Sequences {
  std::vector<std::vector<float>> states;
  explicit Sequences(size_t floats) {
    for (uint32_t i = 0; i < std::size(kCounts); ++i) states.push_back(Random(floats, 90 + i));
  }
  // The runs of all rows.
  std::vector<StateRun> All() {
    std::vector<StateRun> runs;
    size_t first = 0;
    for (size_t i = 0; i < std::size(kCounts); first += kCounts[i++])
      runs.push_back({states[i].data(), first, kCounts[i]});
    return runs;
  }
};

// Calls f(runs) for steps in which each sequence has at most `chunk` rows.
template <typename Fn>
void InChunks(Sequences& sequences, size_t chunk, const Fn& f) {
  std::vector<StateRun> left = sequences.All();
  for (;;) {
    std::vector<StateRun> now;
    for (StateRun& run : left) {
      const size_t count = std::min(chunk, run.count);
      if (count == 0) continue;
      now.push_back({run.state, run.first, count});
      run.first += count;
      run.count -= count;
    }
    if (now.empty()) return;
    f(now);
  }
}

TEST_P(Recurrence, ConvolutionsMatchTheReferenceInAnyChunks) {
  const auto eight = MakeBackend(GetParam(), 8), simplest = MakeBackend(testing::FastIsas().front(), 1);
  for (size_t channels : testing::Grid({1u, 7u, 16u, 64u, 100u, 700u})) {
    for (size_t taps : {2u, 3u, 4u}) {
      for (const bool plain : {false, true}) {
        const size_t stride = channels + 3;
        const auto x = Random(kRows * stride, 1), w = Random(taps * channels, 2), bias = Random(channels, 3);
        const ShortConvParams params{.channels = channels,
                                     .taps = taps,
                                     .w = w.data(),
                                     .bias = plain ? nullptr : bias.data(),
                                     .silu = !plain,
                                     .state_at = 5};
        const size_t floats = 5 + (taps - 1) * channels;
        const std::string of = std::to_string(channels) + " channels, " + std::to_string(taps) + " taps";
        Sequences expected(floats), whole(floats);
        std::vector<float> want(kRows * channels), got(want.size(), NAN);
        ref_->ShortConv(x.data(), stride, expected.All(), params, want.data());
        fast_->ShortConv(x.data(), stride, whole.All(), params, got.data());
        ExpectNear(want, got, 1e-6, of);
        EXPECT_EQ(expected.states, whole.states) << of;
        for (Backend* backend : {fast_.get(), eight.get(), simplest.get()}) {
          for (size_t chunk : {1u, 2u, 3u, 17u}) {
            Sequences parts(floats);
            std::vector<float> again(want.size(), NAN);
            InChunks(parts, chunk, [&](const std::vector<StateRun>& runs) {
              backend->ShortConv(x.data(), stride, runs, params, again.data());
            });
            ASSERT_EQ(got, again) << of << ", chunks of " << chunk;
            ASSERT_EQ(whole.states, parts.states) << of << ", chunks of " << chunk;
          }
        }
      }
    }
  }
}

// Several convolutions of the same inputs are those convolutions, one by one, of the same state.
TEST_P(Recurrence, SeveralConvolutionsOfOneInput) {
  const size_t channels = 70, taps = 3, outputs = 4, n = kRows * channels, step = n + 5, floats = (taps - 1) * channels;
  const auto x = Random(n, 1), w = Random(outputs * taps * channels, 2);
  ShortConvParams all{.channels = channels, .taps = taps, .w = w.data(), .outputs = outputs, .output_step = step};
  for (Backend* backend : {ref_.get(), fast_.get()}) {
    Sequences together(floats);
    std::vector<float> got(outputs * step, NAN);
    InChunks(together, 17,
             [&](const std::vector<StateRun>& runs) { backend->ShortConv(x.data(), channels, runs, all, got.data()); });
    for (size_t o = 0; o < outputs; ++o) {
      Sequences alone(floats);
      std::vector<float> want(n);
      const ShortConvParams one{.channels = channels, .taps = taps, .w = w.data() + o * taps * channels};
      backend->ShortConv(x.data(), channels, alone.All(), one, want.data());
      EXPECT_TRUE(std::equal(want.begin(), want.end(), got.begin() + static_cast<ptrdiff_t>(o * step))) << o;
      EXPECT_EQ(alone.states, together.states) << o;
    }
  }
}

TEST_P(Recurrence, ScansMatchTheReferenceInAnyChunks) {
  const auto eight = MakeBackend(GetParam(), 8), simplest = MakeBackend(testing::FastIsas().front(), 1);
  struct Shape {
    size_t key_heads, value_heads, key_dim, value_dim;
  };
  for (const Shape& s :
       {Shape{1, 1, 1, 1}, Shape{2, 6, 16, 16}, Shape{1, 3, 20, 12}, Shape{2, 4, 128, 128}, Shape{1, 8, 64, 100}}) {
    for (const int rule : {0, 1, 2}) {
      const bool delta = rule == 1, removal = rule == 2;
      for (const int mode : {0, 1, 2}) {
        const bool interleaved = mode == 1, channels = mode == 2;
        const size_t keys = s.key_heads * s.key_dim, values = s.value_heads * s.value_dim,
                     stride = 2 * keys + values + 1, gates = kRows * s.value_heads,
                     decays = gates * (channels ? s.key_dim : 1);
        std::vector<float> remove = Random(kRows * stride, 6), replace = Random(kRows * stride, 7);
        for (float& v : remove) v /= std::sqrt(static_cast<float>(s.key_dim));
        for (float& v : replace) v /= std::sqrt(static_cast<float>(s.key_dim));
        const auto x = Random(kRows * stride, 1, 0.5f), skip = Random(s.value_heads, 5);
        std::vector<float> decay = Random(decays, 2), beta = Random(gates, 3);
        for (float& d : decay) d = 1 / (1 + std::exp(-d - 1));
        for (float& b : beta) b = 1 / (1 + std::exp(-b));
        const StateScanParams params{.key_heads = s.key_heads,
                                     .value_heads = s.value_heads,
                                     .key_dim = s.key_dim,
                                     .value_dim = s.value_dim,
                                     .interleaved = interleaved,
                                     .channel_decay = channels,
                                     .delta = delta,
                                     .removal = removal,
                                     .key_norm_eps = delta ? 1e-6f : 0.0f,
                                     .skip = delta ? nullptr : skip.data(),
                                     .scale = 0.25f,
                                     .state_at = 3};
        const StateScanRows rows{.q = x.data(),
                                 .k = x.data() + keys,
                                 .v = x.data() + 2 * keys,
                                 .stride = stride,
                                 .decay = decay.data(),
                                 .beta = removal ? nullptr : beta.data(),
                                 .remove = removal ? remove.data() : nullptr,
                                 .replace = removal ? replace.data() : nullptr};
        const size_t floats = 3 + s.value_heads * s.key_dim * s.value_dim;
        const std::string of = std::to_string(s.value_heads) + " heads of " + std::to_string(s.key_dim) + " x " +
                               std::to_string(s.value_dim) +
                               (delta     ? ", delta"
                                : removal ? ", removal"
                                          : "") +
                               (interleaved ? ", interleaved"
                                : channels  ? ", decays of channels"
                                            : "");
        Sequences expected(floats), whole(floats);
        std::vector<float> want(kRows * values), got(want.size(), NAN);
        ref_->ScanState(rows, expected.All(), params, want.data());
        fast_->ScanState(rows, whole.All(), params, got.data());
        ExpectNear(want, got, 2e-6, of);
        for (size_t i = 0; i < whole.states.size(); ++i) ExpectNear(expected.states[i], whole.states[i], 2e-6, of);
        for (Backend* backend : {fast_.get(), eight.get(), simplest.get()}) {
          for (size_t chunk : {1u, 17u}) {
            if (backend == eight.get() && chunk == 1) continue;  // threads that take turns are slow
            Sequences parts(floats);
            std::vector<float> again(want.size(), NAN);
            InChunks(parts, chunk,
                     [&](const std::vector<StateRun>& runs) { backend->ScanState(rows, runs, params, again.data()); });
            ASSERT_EQ(got, again) << of << ", chunks of " << chunk;
            ASSERT_EQ(whole.states, parts.states) << of << ", chunks of " << chunk;
          }
        }
      }
    }
  }
}

TEST_P(Recurrence, GatesMatchTheReference) {
  const size_t rows = 9, heads = 33;
  std::vector<float> x = Random(rows * heads, 1, 4), bias = Random(heads, 2), a = Random(heads, 3);
  x[3] = 200, x[4] = -200;
  for (float& v : a) v = -std::exp(v);
  std::vector<float> step(x.size()), decay(x.size()), got_step(x.size(), NAN), got_decay(x.size(), NAN);
  for (const DecayStep form : {DecayStep::kSoftplus, DecayStep::kSigmoid}) {
    ref_->DecayGates(x.data(), rows, heads, 1, bias.data(), a.data(), form, step.data(), decay.data());
    fast_->DecayGates(x.data(), rows, heads, 1, bias.data(), a.data(), form, got_step.data(), got_decay.data());
    for (size_t i = 0; i < x.size(); ++i) {
      ASSERT_NEAR(got_step[i], step[i], 1e-6f * (1 + step[i])) << x[i];
      ASSERT_NEAR(got_decay[i], decay[i], 1e-6f) << x[i];
      ASSERT_GE(decay[i], 0);
      ASSERT_LE(decay[i], 1);
      const double in = static_cast<double>(x[i]) + static_cast<double>(bias[i % heads]);
      if (form == DecayStep::kSigmoid) ASSERT_NEAR(step[i], 1 / (1 + std::exp(-in)), 1e-6) << x[i];
    }
    fast_->DecayGates(x.data(), rows, heads, 1, bias.data(), a.data(), form, nullptr, step.data());
    EXPECT_EQ(step, got_decay);
  }
}

TEST_P(Recurrence, ColumnsHaveFactors) {
  const size_t rows = 5, dim = 37;
  const auto x = Random(rows * dim, 1), by = Random(dim, 2);
  for (Backend* backend : {ref_.get(), fast_.get()}) {
    std::vector<float> got = x;
    backend->ScaleColumns(got.data(), rows, dim, by.data());
    for (size_t i = 0; i < x.size(); ++i) ASSERT_EQ(got[i], x[i] * by[i % dim]) << i;
  }
}

TEST_P(Recurrence, GroupsHaveWeightsOfTheirOwn) {
  const size_t rows = 4, groups = 3, dim = 21;
  const auto x = Random(rows * groups * dim, 1), w = Random(groups * dim, 2);
  std::vector<float> want(x.size()), got = x;
  ref_->GroupRmsNorm(x.data(), rows, groups, dim, w.data(), 1e-5f, want.data());
  fast_->GroupRmsNorm(got.data(), rows, groups, dim, w.data(), 1e-5f, got.data());
  ExpectNear(want, got, 1e-6, "in place");
  EXPECT_NE(want[0] * w[dim], want[dim] * w[0]);
}

INSTANTIATE_TEST_SUITE_P(Isas, Recurrence, ::testing::ValuesIn(testing::FastIsas()), testing::IsaTestName);

}  // namespace
}  // namespace gyre
