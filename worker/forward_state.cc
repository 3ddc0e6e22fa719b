// Mixers other than attention with keys and values: latent attention, and layers with recurrent state.
#include <algorithm>
#include <cmath>

#include "worker/forward.h"

namespace gyre {
namespace {

size_t Size(int n) { return static_cast<size_t>(n); }

}  // namespace

void Forward::MultiplyHeads(std::span<const std::shared_ptr<const PackedWeight>> heads, const float* in,
                            size_t in_stride, std::span<const ClassRun> runs, float* out, size_t out_stride) {
  size_t row = 0;
  ForEachClass(runs, [&](size_t count, Arithmetic arithmetic) {
    const size_t before = row * heads.size();
    backend_.MatMulHeads(heads, in + before * in_stride, in_stride, count, arithmetic, out + before * out_stride,
                         out_stride);
    row += count;
  });
}

// Keys and values are never made: a query is brought into the space of what is kept, and a result out of it.
const float* Forward::AttendLatent(const Layer& layer, const LatentAttentionSpec& spec, RowPlaces& places,
                                   RowPlaces& logit_rows, float* x) {
  const size_t rows = places.count(), kept = logit_rows.count(), heads = Size(spec.heads), rank = Size(spec.kv_rank),
               shared = Size(spec.rope.dims), key = Size(spec.key_dim), width = rank + shared, q_dim = key + shared,
               value = Size(spec.value_dim);
  const float eps = layer.spec.norm_eps;
  auto rotate = [&](float* to, RowPlaces& of, int count, size_t stride) {
    if (!spec.rotates) return;
    const RowPlaces::Rotation rotation = of.RotationFor(spec.rope, backend_);
    backend_.Rope(to, of.count(), count, static_cast<int>(stride), rotation.cos, rotation.sin, spec.rope.dims / 2,
                  spec.rope.pairing);
  };
  float *latent = Room(latent_, rows * rank), *tail = Room(v_, rows * shared);
  Multiply(normed_.data(), places.runs(),
           {{layer.matrix(Slot::kLatent), latent}, {layer.matrix(Slot::kSharedKey), tail}});
  backend_.RmsNorm(latent, rows, rank, layer.vector(Slot::kLatentNorm), eps, latent);
  rotate(tail, places, 1, shared);
  float* k = Room(k_, rows * width);
  backend_.CopyColumns(latent, rows, rank, rank, k, width);
  backend_.CopyColumns(tail, rows, shared, shared, k + rank, width);
  backend_.StoreKv(k, nullptr, places.rows(), layer.pages->view());
  if (kept < rows) {
    for (float* all : {normed_.data(), x}) Compact(logit_rows, dim_, all);
  }
  if (kept == 0) return nullptr;

  float* q = Room(q_, kept * heads * q_dim);
  const float* from = normed_.data();
  if (spec.q_rank > 0) {
    float* low = Room(in_, kept * Size(spec.q_rank));
    Multiply(normed_.data(), logit_rows.runs(), {{layer.matrix(Slot::kQueryLatent), low}});
    backend_.RmsNorm(low, kept, Size(spec.q_rank), layer.vector(Slot::kQueryLatentNorm), eps, low);
    from = low;
  }
  Multiply(from, logit_rows.runs(), {{layer.matrix(Slot::kQ), q}});
  rotate(q + key, logit_rows, spec.heads, q_dim);
  float* wide = Room(convolved_, kept * heads * width);
  MultiplyHeads(layer.key_heads, q, q_dim, logit_rows.runs(), wide, width);
  backend_.CopyColumns(q + key, kept * heads, q_dim, shared, wide + rank, width);

  float* attended = Room(attended_, kept * heads * rank);
  AttentionParams params{.heads = spec.heads, .scale = spec.scale, .end = logit_rows.end()};
  size_t row = 0;
  ForEachClass(logit_rows.runs(), [&](size_t count, Arithmetic arithmetic) {
    params.arithmetic = arithmetic;
    backend_.Attention(wide + row * heads * width, logit_rows.rows().subspan(row, count), layer.pages->view(), params,
                       attended + row * heads * rank);
    row += count;
  });
  float* values = Room(gate_, kept * heads * value);
  MultiplyHeads(layer.value_heads, attended, rank, logit_rows.runs(), values, value);
  return values;
}

const float* Forward::ApplyState(const Layer& layer, RowPlaces& places, RowPlaces& logit_rows, float* x) {
  const size_t rows = places.count(), kept = logit_rows.count(), width = layer.matrix(Slot::kO).k;
  float* out = Room(attended_, rows * width);
  if (const auto* delta = std::get_if<DeltaNetSpec>(&layer.spec.mixer))
    Mix(layer, *delta, places, out);
  else if (const auto* kimi = std::get_if<KimiDeltaSpec>(&layer.spec.mixer))
    Mix(layer, *kimi, places, out);
  else if (const auto* mamba = std::get_if<MambaSpec>(&layer.spec.mixer))
    Mix(layer, *mamba, places, out);
  else if (const auto* mamba2 = std::get_if<Mamba2Spec>(&layer.spec.mixer))
    Mix(layer, *mamba2, places, out);
  else if (const auto* time = std::get_if<TimeMixSpec>(&layer.spec.mixer))
    Mix(layer, *time, places, out);
  else if (const auto* channels = std::get_if<ChannelMixSpec>(&layer.spec.mixer))
    Mix(layer, *channels, places, out);
  else
    Mix(layer, std::get<ShortConvolutionSpec>(layer.spec.mixer), places, out);
  if (kept < rows) {
    Compact(logit_rows, dim_, x);
    Compact(logit_rows, width, out);
  }
  return out;
}

template <typename Op>
void Forward::OverStates(const Layer& layer, const RowPlaces& places, size_t begin, size_t end, const Op& op) {
  for (size_t piece = 0;; ++piece) {
    states_.clear();
    for (const RowPlaces::SequenceRows& s : places.sequences()) {
      if (piece > s.marks.size()) continue;
      const size_t from = piece == 0 ? 0 : s.marks[piece - 1].row + 1;
      const size_t to = piece == s.marks.size() ? s.count : s.marks[piece].row + 1;
      states_.push_back({layer.pages->State(s.slot), s.first + from, to - from});
    }
    if (states_.empty()) return;
    op();
    for (const RowPlaces::SequenceRows& s : places.sequences()) {
      if (piece >= s.marks.size()) continue;
      backend_.Copy(layer.pages->State(s.slot) + begin, layer.pages->State(s.marks[piece].slot) + begin,
                    (end - begin) * sizeof(float));
    }
  }
}

void Forward::Convolve(const Layer& layer, const RowPlaces& places, const float* in, bool silu, float* out) {
  const ModelSpec::StateSize size = ModelSpec::StateOf(layer.spec, static_cast<int>(dim_));
  Convolve(layer, places, Slot::kConv, size.channels, 0, in, silu, out);
}

void Forward::Convolve(const Layer& layer, const RowPlaces& places, Slot weights, size_t channels, size_t state_at,
                       const float* in, bool silu, float* out, size_t outputs) {
  const size_t taps = ModelSpec::StateOf(layer.spec, static_cast<int>(dim_)).taps;
  OverStates(layer, places, state_at, state_at + channels * (taps - 1), [&] {
    backend_.ShortConv(in, channels, states_,
                       {.channels = channels,
                        .taps = taps,
                        .w = layer.vector(weights),
                        .bias = layer.vector(Slot::kConvBias),
                        .silu = silu,
                        .state_at = state_at,
                        .outputs = outputs,
                        .output_step = places.count() * channels},
                       out);
  });
}

void Forward::Mix(const Layer& layer, const DeltaNetSpec& spec, const RowPlaces& places, float* out) {
  const size_t rows = places.count(), head = Size(spec.head_dim), heads = Size(spec.value_heads),
               keys = Size(spec.key_heads) * head, values = heads * head, channels = 2 * keys + values;
  float *in = Room(in_, rows * channels), *z = Room(gate_, rows * values), *alpha = Room(steps_, rows * heads),
        *beta = Room(betas_, rows * heads), *decay = Room(decays_, rows * heads);
  if (spec.joint_gates) {
    float* both = Room(latent_, rows * 2 * heads);
    Multiply(
        normed_.data(), places.runs(),
        {{layer.matrix(Slot::kStateIn), in}, {layer.matrix(Slot::kOutGate), z}, {layer.matrix(Slot::kStepBeta), both}});
    const size_t each = heads / Size(spec.key_heads);
    backend_.CopyColumns(both, rows * Size(spec.key_heads), 2 * each, each, beta, each);
    backend_.CopyColumns(both + each, rows * Size(spec.key_heads), 2 * each, each, alpha, each);
  } else {
    Multiply(normed_.data(), places.runs(),
             {{layer.matrix(Slot::kStateIn), in},
              {layer.matrix(Slot::kOutGate), z},
              {layer.matrix(Slot::kStep), alpha},
              {layer.matrix(Slot::kBeta), beta}});
  }
  float* u = Room(convolved_, rows * channels);
  Convolve(layer, places, in, true, u);
  backend_.DecayGates(alpha, rows, heads, 1, layer.vector(Slot::kStepBias), layer.vector(Slot::kDecay),
                      DecayStep::kSoftplus, nullptr, decay);
  backend_.Activate(beta, rows * heads, Activation::kSigmoid, beta);
  const size_t state_at = channels * (Size(spec.kernel) - 1);
  OverStates(layer, places, state_at, state_at + heads * head * head, [&] {
    backend_.ScanState({.q = u, .k = u + keys, .v = u + 2 * keys, .stride = channels, .decay = decay, .beta = beta},
                       states_,
                       {.key_heads = Size(spec.key_heads),
                        .value_heads = heads,
                        .key_dim = head,
                        .value_dim = head,
                        .interleaved = !spec.consecutive,
                        .delta = true,
                        .key_norm_eps = 1e-6f,
                        .scale = static_cast<float>(1 / std::sqrt(static_cast<double>(head))),
                        .state_at = state_at},
                       out);
  });
  backend_.RmsNorm(out, rows * heads, head, layer.vector(Slot::kStateNorm), layer.spec.norm_eps, out);
  backend_.Activate(z, rows * values, Activation::kSilu, z);
  backend_.MultiplyInPlace(out, z, rows * values);
}

void Forward::Mix(const Layer& layer, const KimiDeltaSpec& spec, const RowPlaces& places, float* out) {
  const size_t rows = places.count(), head = Size(spec.head_dim), heads = Size(spec.heads), width = heads * head,
               n = rows * width, kept = width * (Size(spec.kernel) - 1);
  float *q = Room(q_, n), *k = Room(k_, n), *v = Room(v_, n), *beta = Room(betas_, rows * heads);
  float *low = Room(latent_, rows * head), *gate_low = Room(params_, rows * head);
  Multiply(normed_.data(), places.runs(),
           {{layer.matrix(Slot::kQ), q},
            {layer.matrix(Slot::kK), k},
            {layer.matrix(Slot::kV), v},
            {layer.matrix(Slot::kBeta), beta},
            {layer.matrix(Slot::kStepLow), low},
            {layer.matrix(Slot::kOutGateLow), gate_low}});
  float *step = Room(steps_, n), *z = Room(gate_, n), *decay = Room(decays_, n);
  Multiply(low, places.runs(), {{layer.matrix(Slot::kStep), step}});
  Multiply(gate_low, places.runs(), {{layer.matrix(Slot::kOutGate), z}});
  float* u = Room(convolved_, 3 * n);
  Convolve(layer, places, Slot::kConv, width, 0, q, true, u);
  Convolve(layer, places, Slot::kKeyConv, width, kept, k, true, u + n);
  Convolve(layer, places, Slot::kValueConv, width, 2 * kept, v, true, u + 2 * n);
  backend_.DecayGates(step, rows, width, 1, layer.vector(Slot::kStepBias), layer.vector(Slot::kDecay),
                      DecayStep::kSoftplus, nullptr, decay);
  backend_.Activate(beta, rows * heads, Activation::kSigmoid, beta);
  OverStates(layer, places, 3 * kept, 3 * kept + width * head, [&] {
    backend_.ScanState({.q = u, .k = u + n, .v = u + 2 * n, .stride = width, .decay = decay, .beta = beta}, states_,
                       {.key_heads = heads,
                        .value_heads = heads,
                        .key_dim = head,
                        .value_dim = head,
                        .channel_decay = true,
                        .delta = true,
                        .key_norm_eps = 1e-6f,
                        .scale = static_cast<float>(1 / std::sqrt(static_cast<double>(head))),
                        .state_at = 3 * kept},
                       out);
  });
  backend_.RmsNorm(out, rows * heads, head, layer.vector(Slot::kStateNorm), layer.spec.norm_eps, out);
  backend_.Activate(z, n, Activation::kSigmoid, z);
  backend_.MultiplyInPlace(out, z, n);
}

void Forward::Mix(const Layer& layer, const MambaSpec& spec, const RowPlaces& places, float* out) {
  const size_t rows = places.count(), inner = Size(spec.inner), state = Size(spec.state), rank = Size(spec.rank),
               heads = Size(spec.heads), n = rows * inner, all = rank + 2 * state, wide = inner + 2 * state;
  float *both = Room(in_, 2 * n), *x = Room(q_, n), *z = Room(gate_, n);
  Multiply(normed_.data(), places.runs(), {{layer.matrix(Slot::kStateIn), both}});
  const size_t parts = spec.plamo ? heads : 1, part = inner / parts;
  backend_.CopyColumns(both + (spec.plamo ? part : 0), rows * parts, 2 * part, part, x, part);
  backend_.CopyColumns(both + (spec.plamo ? 0 : part), rows * parts, 2 * part, part, z, part);
  float* u = Room(convolved_, n);
  Convolve(layer, places, x, true, u);
  float *params = Room(params_, rows * all), *low = Room(latent_, rows * rank), *write = Room(k_, rows * state),
        *read = Room(v_, rows * state);
  Multiply(u, places.runs(), {{layer.matrix(Slot::kStateParams), params}});
  const auto take = [&](size_t at, size_t width, Slot norm, float* to) {
    backend_.CopyColumns(params + at, rows, all, width, to, width);
    if (spec.norms) backend_.RmsNorm(to, rows, width, layer.vector(norm), layer.spec.norm_eps, to);
  };
  take(spec.plamo ? 2 * state : 0, rank, Slot::kStepNorm, low);
  take(spec.plamo ? 0 : rank, state, Slot::kWriteNorm, write);
  take(spec.plamo ? state : rank + state, state, Slot::kReadNorm, read);
  float* joint = Room(joint_, rows * wide);  // a scan takes its inputs from rows of one width
  backend_.CopyColumns(u, rows, inner, inner, joint, wide);
  backend_.CopyColumns(write, rows, state, state, joint + inner, wide);
  backend_.CopyColumns(read, rows, state, state, joint + inner + state, wide);
  const size_t decays = spec.own_decays() ? state : 1;
  // Decays of each element take as much room as a state for each row, so they are there for a few rows at a time.
  const size_t most = spec.own_decays() ? std::min<size_t>(rows, 64) : rows;
  float *raw = x, *step = Room(steps_, rows * heads), *decay = Room(decays_, most * heads * decays);
  Multiply(low, places.runs(), {{layer.matrix(Slot::kStep), raw}});
  const size_t state_at = inner * (Size(spec.kernel) - 1);
  OverStates(layer, places, state_at, state_at + inner * state, [&] {
    for (size_t first = 0; first < rows; first += most) {
      const size_t end = std::min(rows, first + most);
      scanned_.clear();
      for (const StateRun& run : states_) {
        const size_t from = std::max(run.first, first), to = std::min(run.first + run.count, end);
        if (from < to) scanned_.push_back({run.state, from - first, to - from});
      }
      if (scanned_.empty()) continue;
      const float* in = joint + first * wide;
      float* steps = step + first * heads;
      backend_.DecayGates(raw + first * heads, end - first, heads, decays, layer.vector(Slot::kStepBias),
                          layer.vector(Slot::kDecay), DecayStep::kSoftplus, steps, decay);
      backend_.ScanState(
          {.q = in + inner + state, .k = in + inner, .v = in, .stride = wide, .decay = decay, .beta = steps}, scanned_,
          {.key_heads = 1,
           .value_heads = heads,
           .key_dim = state,
           .value_dim = inner / heads,
           .channel_decay = spec.own_decays(),
           .skip = layer.vector(Slot::kSkip),
           .state_at = state_at},
          out + first * inner);
    }
  });
  backend_.Activate(z, n, Activation::kSilu, z);
  backend_.MultiplyInPlace(out, z, n);
}

void Forward::Mix(const Layer& layer, const Mamba2Spec& spec, const RowPlaces& places, float* out) {
  const size_t rows = places.count(), inner = Size(spec.inner), heads = Size(spec.heads), groups = Size(spec.groups),
               keys = groups * Size(spec.state), channels = inner + 2 * keys;
  float *in = Room(in_, rows * channels), *z = Room(gate_, rows * inner), *step = Room(steps_, rows * heads),
        *decay = Room(decays_, rows * heads);
  Multiply(normed_.data(), places.runs(),
           {{layer.matrix(Slot::kStateIn), in}, {layer.matrix(Slot::kOutGate), z}, {layer.matrix(Slot::kStep), step}});
  float* u = Room(convolved_, rows * channels);
  Convolve(layer, places, in, true, u);
  backend_.DecayGates(step, rows, heads, 1, layer.vector(Slot::kStepBias), layer.vector(Slot::kDecay),
                      DecayStep::kSoftplus, step, decay);
  const size_t state_at = channels * (Size(spec.kernel) - 1);
  OverStates(layer, places, state_at, state_at + inner * Size(spec.state), [&] {
    backend_.ScanState(
        {.q = u + inner + keys, .k = u + inner, .v = u, .stride = channels, .decay = decay, .beta = step}, states_,
        {.key_heads = groups,
         .value_heads = heads,
         .key_dim = Size(spec.state),
         .value_dim = inner / heads,
         .skip = layer.vector(Slot::kSkip),
         .state_at = state_at},
        out);
  });
  backend_.Activate(z, rows * inner, Activation::kSilu, z);
  backend_.MultiplyInPlace(out, z, rows * inner);
  if (!spec.norm) return;
  backend_.GroupRmsNorm(out, rows, groups, inner / groups, layer.vector(Slot::kStateNorm), layer.spec.norm_eps, out);
}

void Forward::Mix(const Layer& layer, const ShortConvolutionSpec&, const RowPlaces& places, float* out) {
  const size_t rows = places.count(), n = rows * dim_;
  float *in = Room(in_, n), *before = Room(convolved_, n), *after = Room(gate_, n);
  Multiply(normed_.data(), places.runs(),
           {{layer.matrix(Slot::kStateIn), in},
            {layer.matrix(Slot::kInGate), before},
            {layer.matrix(Slot::kOutGate), after}});
  backend_.MultiplyInPlace(in, before, n);
  Convolve(layer, places, in, false, out);
  backend_.MultiplyInPlace(out, after, n);
}

float* Forward::ShiftTokens(const Layer& layer, const RowPlaces& places, size_t mixtures) {
  float* mixed = Room(convolved_, mixtures * places.count() * dim_);
  Convolve(layer, places, Slot::kConv, dim_, 0, normed_.data(), false, mixed, mixtures);
  return mixed;
}

void Forward::Mix(const Layer& layer, const TimeMixSpec& spec, const RowPlaces& places, float* out) {
  const size_t rows = places.count(), head = Size(spec.head_dim), heads = Size(spec.heads), n = rows * dim_;
  constexpr float kHeadEps = 64e-5f;  // of the norm of each head, in every model
  const float* mixed = ShiftTokens(layer, places, 6);
  const float *for_query = mixed, *for_decay = mixed + n, *for_key = mixed + 2 * n, *for_value = mixed + 3 * n,
              *for_rate = mixed + 4 * n, *for_gate = mixed + 5 * n;
  float *q = Room(q_, n), *k = Room(k_, n), *v = Room(v_, n), *step = Room(steps_, n), *rate = Room(betas_, n),
        *gate = Room(gate_, n), *other = Room(in_, n);
  Multiply(for_query, places.runs(), {{layer.matrix(Slot::kQ), q}});
  Multiply(for_key, places.runs(), {{layer.matrix(Slot::kK), k}});
  Multiply(for_value, places.runs(), {{layer.matrix(Slot::kV), v}});
  // to [rows][dim] = the product of the second matrix with what `activate` makes of the product with the first.
  const auto low_rank = [&](const float* x, Slot first, Slot second, int rank, float* to, const auto& activate) {
    float* low = Room(latent_, rows * Size(rank));
    Multiply(x, places.runs(), {{layer.matrix(first), low}});
    activate(low, rows * Size(rank));
    Multiply(low, places.runs(), {{layer.matrix(second), to}});
  };
  const auto sigmoid = [&](float* x, size_t count) { backend_.Activate(x, count, Activation::kSigmoid, x); };
  const auto share = [&](const float* x, Slot first, Slot second, Slot bias, int rank, float* to) {
    low_rank(x, first, second, rank, to, [](float*, size_t) {});
    backend_.AddBias(to, rows, dim_, layer.vector(bias));
    sigmoid(to, n);
  };
  low_rank(for_decay, Slot::kStepLow, Slot::kStep, spec.decay_rank, step,
           [&](float* x, size_t count) { backend_.SoftcapInPlace(x, count, 1); });  // tanh
  float* decay = Room(decays_, n);
  backend_.DecayGates(step, rows, dim_, 1, layer.vector(Slot::kStepBias), layer.vector(Slot::kDecay),
                      DecayStep::kSigmoid, nullptr, decay);
  share(for_rate, Slot::kRateLow, Slot::kRate, Slot::kRateBias, spec.rate_rank, rate);
  low_rank(for_gate, Slot::kOutGateLow, Slot::kOutGate, spec.gate_rank, gate, sigmoid);
  if (spec.first) {
    backend_.Copy(v, carried_.data(), n * sizeof(float));
  } else {
    share(for_value, Slot::kShareLow, Slot::kShare, Slot::kShareBias, spec.value_rank, step);
    backend_.Copy(carried_.data(), other, n * sizeof(float));
    backend_.AddScaled(other, v, n, -1);
    backend_.MultiplyInPlace(other, step, n);
    backend_.AddInPlace(v, other, n);
  }
  // The state loses what it has under these keys: the row's keys times their scales, each head's of unit length.
  float *remove = Room(params_, n), *replace = Room(joint_, n);
  backend_.Copy(k, remove, n * sizeof(float));
  backend_.ScaleColumns(remove, rows, dim_, layer.vector(Slot::kRemovalScale));
  row_length_.Divide(remove, rows * heads, head, remove);
  backend_.Scale(remove, n, static_cast<float>(1 / std::sqrt(static_cast<double>(head))));
  backend_.Copy(remove, replace, n * sizeof(float));
  backend_.MultiplyInPlace(replace, rate, n);
  // k += (rate - 1) k, times the rates' scales.
  backend_.Copy(k, other, n * sizeof(float));
  backend_.MultiplyInPlace(other, rate, n);
  backend_.AddScaled(other, k, n, -1);
  backend_.ScaleColumns(other, rows, dim_, layer.vector(Slot::kRateScale));
  backend_.AddInPlace(k, other, n);
  OverStates(layer, places, dim_, dim_ + dim_ * head, [&] {
    backend_.ScanState(
        {.q = q, .k = k, .v = v, .stride = dim_, .decay = decay, .beta = nullptr, .remove = remove, .replace = replace},
        states_,
        {.key_heads = heads,
         .value_heads = heads,
         .key_dim = head,
         .value_dim = head,
         .channel_decay = true,
         .removal = true,
         .state_at = dim_},
        out);
  });
  backend_.Center(out, rows * heads, head, out);
  backend_.GroupRmsNorm(out, rows, heads, head, layer.vector(Slot::kStateNorm), kHeadEps, out);
  backend_.AddBias(out, rows, dim_, layer.vector(Slot::kStateNormBias));
  // A row's own value again, times the product of its query and its key under the bonus.
  backend_.MultiplyInPlace(q, k, n);
  backend_.ScaleColumns(q, rows, dim_, layer.vector(Slot::kBonus));
  backend_.ScaleRows(v, rows * heads, head, row_length_.SumOf(q, rows * heads, head));
  backend_.AddInPlace(out, v, n);
  backend_.MultiplyInPlace(out, gate, n);
}

void Forward::Mix(const Layer& layer, const ChannelMixSpec& spec, const RowPlaces& places, float* out) {
  const float* mixed = ShiftTokens(layer, places, 1);
  Multiply(mixed, places.runs(), {{layer.matrix(Slot::kUp), out}});
  backend_.Activate(out, places.count() * Size(spec.width), Activation::kReluSquared, out);
}

}  // namespace gyre
