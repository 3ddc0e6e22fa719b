// Ops of a FarDevice that multiply with weights: products, feed-forward blocks, experts and embeddings.
#include "tests/testing/far_queue.h"

namespace gyre::testing {

void FarQueue::MatMul(const float* x, size_t rows, std::span<const Product> products, Arithmetic arithmetic) {
  if (rows == 0 || products.empty()) return;
  const size_t k = products[0].w.k;
  Check(x, rows * k * sizeof(float));
  for (const Product& p : products) Check(p.out, rows * p.w.n * sizeof(float));
  Call([=, this, all = Copied(products)] {
    std::vector<Product> here;
    for (const Product& p : all) here.push_back({p.w, At(p.out), p.add});
    inner_->MatMul(At(x), rows, here, arithmetic);
  });
}

void FarQueue::MatMulHeads(std::span<const std::shared_ptr<const PackedWeight>> heads, const float* x, size_t x_stride,
                           size_t rows, Arithmetic arithmetic, float* out, size_t out_stride) {
  const size_t last = (rows * heads.size() - 1);
  Check(x, (last * x_stride + heads[0]->k) * sizeof(float));
  Check(out, (last * out_stride + heads[0]->n) * sizeof(float));
  Call([=, this, all = Copied(heads)] {
    inner_->MatMulHeads(all, At(x), x_stride, rows, arithmetic, At(out), out_stride);
  });
}

void FarQueue::FeedForward(const float* x, size_t rows, const Ffn& w, Activation act, Arithmetic arithmetic, float* out,
                           bool add) {
  Check(x, rows * w.up.k * sizeof(float));
  Check(out, rows * w.down.n * sizeof(float));
  Call([=, this] { inner_->FeedForward(At(x), rows, Here(w), act, arithmetic, At(out), add); });
}

void FarQueue::ChooseExperts(const float* scores, size_t rows, const RouterParams& params, const float* choice_bias,
                             uint32_t* experts, float* weights) {
  Check(scores, rows * params.count * sizeof(float));
  Check(experts, rows * params.used * sizeof(uint32_t));
  Check(weights, rows * params.used * sizeof(float));
  Check(choice_bias, params.count * sizeof(float));
  Call([=, this] { inner_->ChooseExperts(At(scores), rows, params, At(choice_bias), At(experts), At(weights)); });
}

void FarQueue::MixExperts(const float* x, std::span<const RowRun> runs, const Mixture& mixture, float* out) {
  Check(x, 1);
  Check(out, 1);
  Check(mixture.chosen, 1);
  Check(mixture.weights, 1);
  Check(mixture.scales, 1);
  Call([=, this, all = Copied(runs), experts = Copied(mixture.experts)] {
    std::vector<Ffn> here;
    for (const Ffn& w : experts) here.push_back(Here(w));
    Mixture m = mixture;
    m.experts = here;
    m.scales = At(m.scales);
    m.chosen = At(m.chosen);
    m.weights = At(m.weights);
    inner_->MixExperts(At(x), all, m, At(out));
  });
}

void FarQueue::Embed(const TokenId* ids, size_t rows, const PackedWeight& w, float* out) {
  Check(ids, rows * sizeof(TokenId));
  Check(out, rows * w.k * sizeof(float));
  Call([=, this, &w] { inner_->Embed(At(ids), rows, w, At(out)); });
}

}  // namespace gyre::testing
