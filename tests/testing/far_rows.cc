// Ops of a FarDevice on single rows: norms, element by element, rows of the wire, and what is chosen from logits.
#include "tests/testing/far_queue.h"

namespace gyre::testing {

void FarQueue::RmsNorm(const float* x, size_t rows, size_t dim, const float* w, float eps, float* out) {
  Check(x, rows * dim * sizeof(float));
  Check(out, rows * dim * sizeof(float));
  Check(w, dim * sizeof(float));
  Call([=, this] { inner_->RmsNorm(At(x), rows, dim, At(w), eps, At(out)); });
}

void FarQueue::GroupRmsNorm(const float* x, size_t rows, size_t groups, size_t dim, const float* w, float eps,
                            float* out) {
  for (const float* p : {x, static_cast<const float*>(out)}) Check(p, rows * groups * dim * sizeof(float));
  Check(w, groups * dim * sizeof(float));
  Call([=, this] { inner_->GroupRmsNorm(At(x), rows, groups, dim, At(w), eps, At(out)); });
}

void FarQueue::Center(const float* x, size_t rows, size_t dim, float* out) {
  CheckAll(rows * dim, {x, out});
  Call([=, this] { inner_->Center(At(x), rows, dim, At(out)); });
}

void FarQueue::Xielu(float* x, size_t n, const XieluParams& params) {
  CheckAll(n, {x});
  Call([=, this] { inner_->Xielu(At(x), n, params); });
}

void FarQueue::Activate(const float* x, size_t n, Activation act, float* out) {
  CheckAll(n, {x, out});
  Call([=, this] { inner_->Activate(At(x), n, act, At(out)); });
}

void FarQueue::MultiplyInPlace(float* x, const float* y, size_t n) {
  CheckAll(n, {x, y});
  Call([=, this] { inner_->MultiplyInPlace(At(x), At(y), n); });
}

void FarQueue::GatedActivation(const float* gate, const float* up, size_t n, Activation act, float* out) {
  CheckAll(n, {gate, up, out});
  Call([=, this] { inner_->GatedActivation(At(gate), At(up), n, act, At(out)); });
}

void FarQueue::AddInPlace(float* x, const float* y, size_t n) {
  CheckAll(n, {x, y});
  Call([=, this] { inner_->AddInPlace(At(x), At(y), n); });
}

void FarQueue::AddScaled(float* x, const float* y, size_t n, float by) {
  CheckAll(n, {x, y});
  Call([=, this] { inner_->AddScaled(At(x), At(y), n, by); });
}

void FarQueue::AddBias(float* x, size_t rows, size_t dim, const float* bias) {
  CheckAll(rows * dim, {x});
  CheckAll(dim, {bias});
  Call([=, this] { inner_->AddBias(At(x), rows, dim, At(bias)); });
}

void FarQueue::ScaleColumns(float* x, size_t rows, size_t dim, const float* by) {
  CheckAll(rows * dim, {x});
  CheckAll(dim, {by});
  Call([=, this] { inner_->ScaleColumns(At(x), rows, dim, At(by)); });
}

void FarQueue::Scale(float* x, size_t n, float by) {
  CheckAll(n, {x});
  Call([=, this] { inner_->Scale(At(x), n, by); });
}

void FarQueue::ScaleRows(float* x, size_t rows, size_t dim, const float* by) {
  CheckAll(rows * dim, {x});
  CheckAll(rows, {by});
  Call([=, this] { inner_->ScaleRows(At(x), rows, dim, At(by)); });
}

void FarQueue::SoftcapInPlace(float* x, size_t n, float cap) {
  CheckAll(n, {x});
  Call([=, this] { inner_->SoftcapInPlace(At(x), n, cap); });
}

void FarQueue::SigmoidDot(const float* x, size_t rows, size_t dim, const float* w, float* out) {
  CheckAll(rows * dim, {x});
  CheckAll(dim, {w});
  CheckAll(rows, {out});
  Call([=, this] { inner_->SigmoidDot(At(x), rows, dim, At(w), At(out)); });
}

void FarQueue::GatherRows(const float* x, size_t stride, std::span<const uint32_t> numbers, size_t width, float* out) {
  Check(x, 1);
  Check(numbers.data(), numbers.size_bytes());
  CheckAll(numbers.size() * width, {out});
  Call([=, this] { inner_->GatherRows(At(x), stride, Here(numbers), width, At(out)); });
}

void FarQueue::CopyColumns(const float* from, size_t rows, size_t from_stride, size_t width, float* to,
                           size_t to_stride) {
  if (rows == 0) return;
  CheckAll((rows - 1) * from_stride + width, {from});
  CheckAll((rows - 1) * to_stride + width, {to});
  Call([=, this] { inner_->CopyColumns(At(from), rows, from_stride, width, At(to), to_stride); });
}

void FarQueue::EncodeRows(DType type, const float* x, size_t rows, size_t dim, std::byte* out, uint64_t* saturated) {
  CheckAll(rows * dim, {x});
  Check(out, 1);
  Check(saturated, sizeof *saturated);
  Call([=, this] { inner_->EncodeRows(type, At(x), rows, dim, At(out), At(saturated)); });
}

void FarQueue::DecodeRows(DType type, const std::byte* in, size_t rows, size_t dim, float* x) {
  Check(in, 1);
  CheckAll(rows * dim, {x});
  Call([=, this] { inner_->DecodeRows(type, At(in), rows, dim, At(x)); });
}

void FarQueue::TopK(std::span<const TopKRow> rows, size_t vocab) {
  for (const TopKRow& row : rows) {
    CheckAll(vocab, {row.logits});
    CheckAll(row.k, {row.best});
    Check(row.ids, row.k * sizeof(TokenId));
    Check(row.skip.data(), row.skip.size_bytes());
    Check(row.mask.data(), row.mask.size_bytes());
  }
  Call([=, this, all = Copied(rows)] {
    std::vector<TopKRow> here;
    for (const TopKRow& r : all) here.push_back({At(r.logits), r.k, Here(r.skip), Here(r.mask), At(r.ids), At(r.best)});
    inner_->TopK(here, vocab);
  });
}

void FarQueue::LogSumExp(std::span<const LogSumExpRow> rows, size_t vocab) {
  for (const LogSumExpRow& row : rows) {
    CheckAll(vocab, {row.logits});
    Check(row.out, sizeof(double));
    Check(row.skip.data(), row.skip.size_bytes());
    Check(row.mask.data(), row.mask.size_bytes());
  }
  Call([=, this, all = Copied(rows)] {
    std::vector<LogSumExpRow> here;
    for (const LogSumExpRow& r : all)
      here.push_back({At(r.logits), r.inv_temperature, Here(r.skip), Here(r.mask), At(r.out)});
    inner_->LogSumExp(here, vocab);
  });
}

void FarQueue::Pick(std::span<const PickRow> rows) {
  for (const PickRow& row : rows) {
    Check(row.logits, 1);
    Check(row.ids.data(), row.ids.size_bytes());
    CheckAll(row.ids.size(), {row.out});
  }
  Call([=, this, all = Copied(rows)] {
    std::vector<PickRow> here;
    for (const PickRow& r : all) here.push_back({At(r.logits), Here(r.ids), At(r.out)});
    inner_->Pick(here);
  });
}

}  // namespace gyre::testing
