// Ops of a FarDevice that mix the rows of a sequence: attention with its pages, recurrent states, convolutions.
#include "tests/testing/far_queue.h"

namespace gyre::testing {

void FarQueue::RotaryTable(std::span<const KvRow> rows, const double* frequencies, size_t half, float magnitude,
                           float* cos, float* sin) {
  Check(rows.data(), rows.size_bytes());
  for (const float* to : {cos, sin}) Check(to, rows.size() * half * sizeof(float));
  Check(frequencies, half * sizeof(double));
  Call([=, this] { inner_->RotaryTable(Here(rows), At(frequencies), half, magnitude, At(cos), At(sin)); });
}

void FarQueue::Rope(float* x, size_t rows, int heads, int head_dim, const float* cos, const float* sin, int half,
                    RopePairing pairing) {
  Check(x, 1);
  for (const float* from : {cos, sin}) Check(from, rows * static_cast<size_t>(half) * sizeof(float));
  Call([=, this] { inner_->Rope(At(x), rows, heads, head_dim, At(cos), At(sin), half, pairing); });
}

void FarQueue::StoreKv(const float* k, const float* v, std::span<const KvRow> rows, const KvView& kv) {
  const size_t heads = rows.size() * static_cast<size_t>(kv.kv_heads) * sizeof(float);
  Check(k, heads * static_cast<size_t>(kv.head_dim));
  Check(v, heads * kv.ValueDim());
  Check(rows.data(), rows.size_bytes());
  Check(kv.k, 1);
  Check(kv.v, 1);
  Call([=, this] { inner_->StoreKv(At(k), At(v), Here(rows), Here(kv)); });
}

void FarQueue::Attention(const float* q, std::span<const KvRow> rows, const KvView& kv, const AttentionParams& params,
                         float* out) {
  const size_t heads = rows.size() * static_cast<size_t>(params.heads) * sizeof(float);
  Check(q, heads * static_cast<size_t>(kv.head_dim));
  Check(out, heads * kv.ValueDim());
  Check(rows.data(), rows.size_bytes());
  Check(kv.k, 1);
  Check(kv.v, 1);
  Check(params.sinks, static_cast<size_t>(params.heads) * sizeof(float));
  Call([=, this] {
    AttentionParams p = params;
    p.sinks = At(p.sinks);
    for (const KvRow& row : Here(rows)) {
      if (p.end != 0 && row.position >= p.end) FarDevice::Die("a row lies behind the end that attention was told");
    }
    inner_->Attention(At(q), Here(rows), Here(kv), p, At(out));
  });
}

void FarQueue::ShortConv(const float* x, size_t stride, std::span<const StateRun> runs, const ShortConvParams& params,
                         float* out) {
  for (const float* p : {x, static_cast<const float*>(out), params.w, params.bias}) Check(p, 1);
  Call([=, this, all = Copied(runs)] {
    ShortConvParams p = params;
    p.w = At(p.w);
    p.bias = At(p.bias);
    inner_->ShortConv(At(x), stride, Here(all), p, At(out));
  });
}

void FarQueue::ScanState(const StateScanRows& rows, std::span<const StateRun> runs, const StateScanParams& params,
                         float* out) {
  for (const float* p : {rows.q, rows.k, rows.v, rows.decay, rows.beta, rows.remove, rows.replace, params.skip,
                         static_cast<const float*>(out)})
    Check(p, 1);
  Call([=, this, all = Copied(runs)] {
    StateScanRows r = rows;
    for (const float** p : {&r.q, &r.k, &r.v, &r.decay, &r.beta, &r.remove, &r.replace}) *p = At(*p);
    StateScanParams p = params;
    p.skip = At(p.skip);
    inner_->ScanState(r, Here(all), p, At(out));
  });
}

void FarQueue::DecayGates(const float* x, size_t rows, size_t heads, size_t width, const float* bias, const float* a,
                          DecayStep form, float* step, float* decay) {
  CheckAll(rows * heads, {x, step});
  CheckAll(rows * heads * width, {decay});
  CheckAll(heads, {bias});
  CheckAll(heads * width, {a});
  Call([=, this] { inner_->DecayGates(At(x), rows, heads, width, At(bias), At(a), form, At(step), At(decay)); });
}

}  // namespace gyre::testing
