#include "tests/testing/far_device.h"

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <exception>
#include <functional>
#include <list>
#include <thread>
#include <utility>
#include <vector>

#include "kernels/ops.h"

namespace gyre::testing {
namespace {

[[noreturn]] void Die(const char* what) {
  std::fprintf(stderr, "far device: %s\n", what);
  std::abort();
}

size_t WholePages(size_t bytes) {
  static const auto page = static_cast<size_t>(sysconf(_SC_PAGESIZE));
  return (bytes + page - 1) / page * page;
}

uint64_t Sum(const std::byte* bytes, size_t n) {  // FNV-1a
  uint64_t sum = 14695981039346656037u;
  for (size_t i = 0; i < n; ++i) sum = (sum ^ static_cast<uint64_t>(bytes[i])) * 1099511628211u;
  return sum;
}

// The bytes that the host reads before a download is done.
constexpr int kGarbage = 0xA5;

}  // namespace

// The work of a queue.
class FarWork {
 public:
  explicit FarWork(Duration lag) : lag_(lag) {}
  void Call(std::function<void()> work) {
    MutexLock lock(&mutex_);
    if (called_ == done_) late_ = After(lag_);
    ++called_;
    work_.push_back(std::move(work));
    changed_.SignalAll();
  }
  // Waits until the earlier calls are done, also if they failed.
  void Idle() {
    MutexLock lock(&mutex_);
    ++waiting_;
    changed_.SignalAll();
    const uint64_t called = called_;
    while (done_ < called) changed_.Wait(&mutex_);
    --waiting_;
  }
  // Throws the first error since the last call.
  void Rethrow() {
    MutexLock lock(&mutex_);
    if (error_ != nullptr) std::rethrow_exception(std::exchange(error_, nullptr));
  }
  void Stop() {
    MutexLock lock(&mutex_);
    stopping_ = true;
    ++waiting_;
    changed_.SignalAll();
  }
  // The queue's thread.
  template <typename Fn>
  void Loop(const Fn& run) {
    for (;;) {
      std::deque<std::function<void()>> now;
      {
        MutexLock lock(&mutex_);
        while (work_.empty() && !stopping_) changed_.Wait(&mutex_);
        if (work_.empty()) return;
        while (waiting_ == 0 && Clock::now() < late_) changed_.WaitUntil(&mutex_, late_);
        now.swap(work_);
      }
      for (auto& work : now) {
        std::exception_ptr error;
        try {
          run(work);
        } catch (...) {
          error = std::current_exception();
        }
        work = nullptr;
        MutexLock lock(&mutex_);
        if (error != nullptr && error_ == nullptr) error_ = error;
        ++done_;
        changed_.SignalAll();
      }
    }
  }

 private:
  const Duration lag_;
  Mutex mutex_;
  CondVar changed_;
  std::deque<std::function<void()>> work_ GYRE_GUARDED_BY(mutex_);
  uint64_t called_ GYRE_GUARDED_BY(mutex_) = 0, done_ GYRE_GUARDED_BY(mutex_) = 0;
  int waiting_ GYRE_GUARDED_BY(mutex_) = 0;
  Deadline late_ GYRE_GUARDED_BY(mutex_);
  bool stopping_ GYRE_GUARDED_BY(mutex_) = false;
  std::exception_ptr error_ GYRE_GUARDED_BY(mutex_);
};

// A queue of the device. The arguments of a call are copied, and a thread passes them to the inner queue.
class FarQueue : public Backend {
 public:
  FarQueue(std::shared_ptr<FarDevice> device, std::unique_ptr<Backend> inner)
      : device_(std::move(device)),
        inner_(std::move(inner)),
        work_(std::make_shared<FarWork>(device_->lag_)),
        thread_([this] { work_->Loop([this](const std::function<void()>& work) { Run(work); }); }) {
    MutexLock lock(&device_->mutex_);
    device_->queues_.insert(work_);
  }
  ~FarQueue() override {
    work_->Stop();
    thread_.join();
    MutexLock lock(&device_->mutex_);
    device_->queues_.erase(work_);
  }
  FarQueue(const FarQueue&) = delete;
  FarQueue& operator=(const FarQueue&) = delete;

  Device& device() override { return *device_; }
  int threads() const override { return inner_->threads(); }

  void Finish() override {
    work_->Idle();
    work_->Rethrow();
  }
  void Recycle() override {
    // Memory that ops still use is freed when they are done.
    Call([old = std::make_shared<std::list<std::vector<std::byte>>>(std::move(downloads_))] { old->clear(); });
    downloads_.clear();
    for (Chunk& chunk : uploads_) {
      Call([=, this, to = chunk.memory.data(), used = chunk.used] { std::memset(At(to, used), kGarbage, used); });
      chunk.used = 0;
    }
  }
  void CopyIn(const void* host, void* device, size_t bytes) override {
    if (bytes == 0) return;
    const auto* from = static_cast<const std::byte*>(host);
    Check(device, bytes);
    Call([=, this, sum = Sum(from, bytes)] {
      if (Sum(from, bytes) != sum) Die("the host changed what it had called a copy of, before the copy was done");
      std::memcpy(At(device, bytes), from, bytes);
    });
  }
  void CopyOut(const void* device, void* host, size_t bytes) override {
    if (bytes == 0) return;
    Check(device, bytes);
    std::memset(host, kGarbage, bytes);
    Call([=, this] { std::memcpy(host, At(device, bytes), bytes); });
  }
  void Copy(const void* from, void* to, size_t bytes) override {
    if (bytes == 0) return;
    Check(from, bytes);
    Check(to, bytes);
    Call([=, this] { inner_->Copy(At(from, bytes), At(to, bytes), bytes); });
  }
  void Zero(void* device, size_t bytes) override {
    if (bytes == 0) return;
    Check(device, bytes);
    Call([=, this] { inner_->Zero(At(device, bytes), bytes); });
  }

  std::shared_ptr<const PackedWeight> Pack(const WeightView& w, const std::function<void(size_t)>& progress) override {
    std::shared_ptr<const PackedWeight> packed;
    Call([&] { packed = inner_->Pack(w, progress); });
    Finish();
    return packed;
  }

  void MatMul(const float* x, size_t rows, std::span<const Product> products, Arithmetic arithmetic) override {
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
  void MatMulHeads(std::span<const std::shared_ptr<const PackedWeight>> heads, const float* x, size_t x_stride,
                   size_t rows, Arithmetic arithmetic, float* out, size_t out_stride) override {
    const size_t last = (rows * heads.size() - 1);
    Check(x, (last * x_stride + heads[0]->k) * sizeof(float));
    Check(out, (last * out_stride + heads[0]->n) * sizeof(float));
    Call([=, this, all = Copied(heads)] {
      inner_->MatMulHeads(all, At(x), x_stride, rows, arithmetic, At(out), out_stride);
    });
  }
  void FeedForward(const float* x, size_t rows, const Ffn& w, Activation act, Arithmetic arithmetic, float* out,
                   bool add) override {
    Check(x, rows * w.up.k * sizeof(float));
    Check(out, rows * w.down.n * sizeof(float));
    Call([=, this] { inner_->FeedForward(At(x), rows, Here(w), act, arithmetic, At(out), add); });
  }
  void ChooseExperts(const float* scores, size_t rows, const RouterParams& params, const float* choice_bias,
                     uint32_t* experts, float* weights) override {
    Check(scores, rows * params.count * sizeof(float));
    Check(experts, rows * params.used * sizeof(uint32_t));
    Check(weights, rows * params.used * sizeof(float));
    Check(choice_bias, params.count * sizeof(float));
    Call([=, this] { inner_->ChooseExperts(At(scores), rows, params, At(choice_bias), At(experts), At(weights)); });
  }
  void MixExperts(const float* x, std::span<const RowRun> runs, const Mixture& mixture, float* out) override {
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
  void Embed(const TokenId* ids, size_t rows, const PackedWeight& w, float* out) override {
    Check(ids, rows * sizeof(TokenId));
    Check(out, rows * w.k * sizeof(float));
    Call([=, this, &w] { inner_->Embed(At(ids), rows, w, At(out)); });
  }
  void RmsNorm(const float* x, size_t rows, size_t dim, const float* w, float eps, float* out) override {
    Check(x, rows * dim * sizeof(float));
    Check(out, rows * dim * sizeof(float));
    Check(w, dim * sizeof(float));
    Call([=, this] { inner_->RmsNorm(At(x), rows, dim, At(w), eps, At(out)); });
  }
  void RotaryTable(std::span<const KvRow> rows, const double* frequencies, size_t half, float magnitude, float* cos,
                   float* sin) override {
    Check(rows.data(), rows.size_bytes());
    for (const float* to : {cos, sin}) Check(to, rows.size() * half * sizeof(float));
    Check(frequencies, half * sizeof(double));
    Call([=, this] { inner_->RotaryTable(Here(rows), At(frequencies), half, magnitude, At(cos), At(sin)); });
  }
  void Rope(float* x, size_t rows, int heads, int head_dim, const float* cos, const float* sin, int half,
            RopePairing pairing) override {
    Check(x, 1);
    for (const float* from : {cos, sin}) Check(from, rows * static_cast<size_t>(half) * sizeof(float));
    Call([=, this] { inner_->Rope(At(x), rows, heads, head_dim, At(cos), At(sin), half, pairing); });
  }
  void StoreKv(const float* k, const float* v, std::span<const KvRow> rows, const KvView& kv) override {
    const size_t heads = rows.size() * static_cast<size_t>(kv.kv_heads) * sizeof(float);
    Check(k, heads * static_cast<size_t>(kv.head_dim));
    Check(v, heads * kv.ValueDim());
    Check(rows.data(), rows.size_bytes());
    Check(kv.k, 1);
    Check(kv.v, 1);
    Call([=, this] { inner_->StoreKv(At(k), At(v), Here(rows), Here(kv)); });
  }
  void Attention(const float* q, std::span<const KvRow> rows, const KvView& kv, const AttentionParams& params,
                 float* out) override {
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
        if (p.end != 0 && row.position >= p.end) Die("a row lies behind the end that attention was told");
      }
      inner_->Attention(At(q), Here(rows), Here(kv), p, At(out));
    });
  }
  void ShortConv(const float* x, size_t stride, std::span<const StateRun> runs, const ShortConvParams& params,
                 float* out) override {
    for (const float* p : {x, static_cast<const float*>(out), params.w, params.bias}) Check(p, 1);
    Call([=, this, all = Copied(runs)] {
      ShortConvParams p = params;
      p.w = At(p.w);
      p.bias = At(p.bias);
      inner_->ShortConv(At(x), stride, Here(all), p, At(out));
    });
  }
  void ScanState(const StateScanRows& rows, std::span<const StateRun> runs, const StateScanParams& params,
                 float* out) override {
    for (const float* p : {rows.q, rows.k, rows.v, rows.decay, rows.beta, params.skip, static_cast<const float*>(out)})
      Check(p, 1);
    Call([=, this, all = Copied(runs)] {
      StateScanRows r = rows;
      for (const float** p : {&r.q, &r.k, &r.v, &r.decay, &r.beta}) *p = At(*p);
      StateScanParams p = params;
      p.skip = At(p.skip);
      inner_->ScanState(r, Here(all), p, At(out));
    });
  }
  void DecayGates(const float* x, size_t rows, size_t heads, const float* bias, const float* a, float* step,
                  float* decay) override {
    for (const float* p : {x, static_cast<const float*>(step), static_cast<const float*>(decay)})
      Check(p, rows * heads * sizeof(float));
    for (const float* p : {bias, a}) Check(p, heads * sizeof(float));
    Call([=, this] { inner_->DecayGates(At(x), rows, heads, At(bias), At(a), At(step), At(decay)); });
  }
  void GroupRmsNorm(const float* x, size_t rows, size_t groups, size_t dim, const float* w, float eps,
                    float* out) override {
    for (const float* p : {x, static_cast<const float*>(out)}) Check(p, rows * groups * dim * sizeof(float));
    Check(w, groups * dim * sizeof(float));
    Call([=, this] { inner_->GroupRmsNorm(At(x), rows, groups, dim, At(w), eps, At(out)); });
  }
  void Activate(const float* x, size_t n, Activation act, float* out) override {
    CheckAll(n, {x, out});
    Call([=, this] { inner_->Activate(At(x), n, act, At(out)); });
  }
  void MultiplyInPlace(float* x, const float* y, size_t n) override {
    CheckAll(n, {x, y});
    Call([=, this] { inner_->MultiplyInPlace(At(x), At(y), n); });
  }
  void GatedActivation(const float* gate, const float* up, size_t n, Activation act, float* out) override {
    CheckAll(n, {gate, up, out});
    Call([=, this] { inner_->GatedActivation(At(gate), At(up), n, act, At(out)); });
  }
  void AddInPlace(float* x, const float* y, size_t n) override {
    CheckAll(n, {x, y});
    Call([=, this] { inner_->AddInPlace(At(x), At(y), n); });
  }
  void AddScaled(float* x, const float* y, size_t n, float by) override {
    CheckAll(n, {x, y});
    Call([=, this] { inner_->AddScaled(At(x), At(y), n, by); });
  }
  void AddBias(float* x, size_t rows, size_t dim, const float* bias) override {
    CheckAll(rows * dim, {x});
    CheckAll(dim, {bias});
    Call([=, this] { inner_->AddBias(At(x), rows, dim, At(bias)); });
  }
  void Scale(float* x, size_t n, float by) override {
    CheckAll(n, {x});
    Call([=, this] { inner_->Scale(At(x), n, by); });
  }
  void ScaleRows(float* x, size_t rows, size_t dim, const float* by) override {
    CheckAll(rows * dim, {x});
    CheckAll(rows, {by});
    Call([=, this] { inner_->ScaleRows(At(x), rows, dim, At(by)); });
  }
  void SoftcapInPlace(float* x, size_t n, float cap) override {
    CheckAll(n, {x});
    Call([=, this] { inner_->SoftcapInPlace(At(x), n, cap); });
  }
  void SigmoidDot(const float* x, size_t rows, size_t dim, const float* w, float* out) override {
    CheckAll(rows * dim, {x});
    CheckAll(dim, {w});
    CheckAll(rows, {out});
    Call([=, this] { inner_->SigmoidDot(At(x), rows, dim, At(w), At(out)); });
  }
  void GatherRows(const float* x, size_t stride, std::span<const uint32_t> numbers, size_t width, float* out) override {
    Check(x, 1);
    Check(numbers.data(), numbers.size_bytes());
    CheckAll(numbers.size() * width, {out});
    Call([=, this] { inner_->GatherRows(At(x), stride, Here(numbers), width, At(out)); });
  }
  void CopyColumns(const float* from, size_t rows, size_t from_stride, size_t width, float* to,
                   size_t to_stride) override {
    if (rows == 0) return;
    CheckAll((rows - 1) * from_stride + width, {from});
    CheckAll((rows - 1) * to_stride + width, {to});
    Call([=, this] { inner_->CopyColumns(At(from), rows, from_stride, width, At(to), to_stride); });
  }
  void EncodeRows(DType type, const float* x, size_t rows, size_t dim, std::byte* out, uint64_t* cut) override {
    CheckAll(rows * dim, {x});
    Check(out, 1);
    Check(cut, sizeof *cut);
    Call([=, this] { inner_->EncodeRows(type, At(x), rows, dim, At(out), At(cut)); });
  }
  void DecodeRows(DType type, const std::byte* in, size_t rows, size_t dim, float* x) override {
    Check(in, 1);
    CheckAll(rows * dim, {x});
    Call([=, this] { inner_->DecodeRows(type, At(in), rows, dim, At(x)); });
  }
  void TopK(std::span<const TopKRow> rows, size_t vocab) override {
    for (const TopKRow& row : rows) {
      CheckAll(vocab, {row.logits});
      CheckAll(row.k, {row.best});
      Check(row.ids, row.k * sizeof(TokenId));
      Check(row.skip.data(), row.skip.size_bytes());
      Check(row.mask.data(), row.mask.size_bytes());
    }
    Call([=, this, all = Copied(rows)] {
      std::vector<TopKRow> here;
      for (const TopKRow& r : all)
        here.push_back({At(r.logits), r.k, Here(r.skip), Here(r.mask), At(r.ids), At(r.best)});
      inner_->TopK(here, vocab);
    });
  }
  void LogSumExp(std::span<const LogSumExpRow> rows, size_t vocab) override {
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
  void Pick(std::span<const PickRow> rows) override {
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

 protected:
  const void* UploadBytes(const void* host, size_t bytes) override {
    if (bytes == 0) return nullptr;
    constexpr size_t kChunk = size_t{1} << 18, kAlignment = 64;
    const size_t room = (bytes + kAlignment - 1) / kAlignment * kAlignment;
    Chunk* chunk = nullptr;
    for (Chunk& c : uploads_) {
      if (c.memory.bytes() - c.used >= room) chunk = &c;
    }
    if (chunk == nullptr) chunk = &uploads_.emplace_back(Chunk{device_->Allocate(std::max(kChunk, room))});
    std::byte* to = chunk->memory.data() + chunk->used;
    chunk->used += room;
    CopyIn(host, to, bytes);
    return to;
  }
  const void* DownloadBytes(const void* device, size_t bytes) override {
    if (bytes == 0) return nullptr;
    std::byte* to = downloads_.emplace_back(bytes).data();
    CopyOut(device, to, bytes);
    return to;
  }

 private:
  struct Chunk {
    DeviceMemory memory;
    size_t used = 0;
  };

  // Runs on the calling thread, so that a debugger shows the caller with a wrong address.
  void Check(const void* address, size_t bytes) const { device_->Find(address, bytes); }
  void CheckAll(size_t floats, std::initializer_list<const float*> addresses) const {
    for (const float* address : addresses) Check(address, floats * sizeof(float));
  }
  // Runs on the queue's thread.
  template <typename T>
  T* At(T* address, size_t bytes = 1) const {
    if constexpr (std::is_void_v<std::remove_const_t<T>>)
      return device_->Find(address, bytes);
    else
      return reinterpret_cast<T*>(device_->Find(address, bytes));
  }
  template <typename T>
  static std::vector<T> Copied(std::span<const T> span) {
    return {span.begin(), span.end()};
  }
  template <typename T>
  std::span<const T> Here(std::span<const T> span) const {
    return span.empty() ? span : std::span(At(span.data()), span.size());
  }
  // Block tables are on the device too. Valid until the next call.
  std::span<const KvRow> Here(std::span<const KvRow> rows) {
    rows_.clear();
    const KvRow* from = rows.empty() ? nullptr : At(rows.data(), rows.size_bytes());
    for (size_t i = 0; i < rows.size(); ++i) rows_.push_back({At(from[i].table), from[i].position});
    return rows_;
  }
  KvView Here(KvView kv) const {
    kv.k = At(kv.k);
    kv.v = At(kv.v);
    return kv;
  }
  Ffn Here(const Ffn& w) const { return {w.gate, w.up, w.down, At(w.gate_bias), At(w.up_bias), At(w.down_bias)}; }
  std::vector<StateRun> Here(std::vector<StateRun> runs) const {
    for (StateRun& run : runs) run.state = At(run.state);
    return runs;
  }

  void Call(std::function<void()> work) {
    if (device_->lost_) throw DeviceLost("the far device is lost");
    work_->Call(std::move(work));
  }
  void Run(const std::function<void()>& work) {
    if (device_->lost_) throw DeviceLost("the far device is lost");
    if (device_->fails_.exchange(false)) throw DeviceFailed("an op of the far device failed while it ran");
    work();
  }

  const std::shared_ptr<FarDevice> device_;
  const std::unique_ptr<Backend> inner_;
  std::vector<KvRow> rows_;                      // the thread's
  std::list<Chunk> uploads_;                     // the caller's
  std::list<std::vector<std::byte>> downloads_;  // the caller's
  const std::shared_ptr<FarWork> work_;
  std::thread thread_;
};

std::unique_ptr<Backend> FarDevice::NewBackend() {
  return std::make_unique<FarQueue>(std::static_pointer_cast<FarDevice>(shared_from_this()), inner_->NewBackend());
}

std::byte* FarDevice::Find(const void* address, size_t bytes) const {
  if (address == nullptr) return nullptr;
  const auto* at = static_cast<const std::byte*>(address);
  MutexLock lock(&mutex_);
  auto it = pieces_.upper_bound(at);
  if (it == pieces_.begin()) Die("an op got an address that is not the device's");
  --it;
  const auto offset = static_cast<size_t>(at - it->first);
  if (offset > it->second.bytes) Die("an op got an address that is not the device's");
  if (bytes > 1 && bytes > it->second.bytes - offset) Die("an op got a tensor that its memory does not hold");
  return it->second.twin + offset;
}

std::byte* FarDevice::Take(size_t bytes) {
  if (lost_) throw DeviceLost("the far device is lost");
  const size_t whole = WholePages(bytes);
  if (used_ + bytes > limit_)
    throw OutOfDeviceMemory("the far device has " + std::to_string(limit_ - std::min<size_t>(limit_, used_)) +
                            " bytes free, " + std::to_string(bytes) + " are needed");
  const int file = memfd_create("far", MFD_CLOEXEC);
  if (file < 0 || ftruncate(file, static_cast<off_t>(whole)) != 0) Die("no memory file");
  void* seen = mmap(nullptr, whole, PROT_NONE, MAP_SHARED | MAP_NORESERVE, file, 0);
  void* twin = mmap(nullptr, whole, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE, file, 0);
  close(file);
  if (seen == MAP_FAILED || twin == MAP_FAILED) Die("no address space");
  used_ += bytes;
  MutexLock lock(&mutex_);
  pieces_[static_cast<std::byte*>(seen)] = {bytes, static_cast<std::byte*>(twin)};
  return static_cast<std::byte*>(seen);
}

void FarDevice::GiveBack(std::byte* data, size_t bytes) noexcept {
  std::set<std::shared_ptr<FarWork>> queues;
  {
    MutexLock lock(&mutex_);
    queues = queues_;
  }
  for (const auto& queue : queues) queue->Idle();
  Piece piece;
  {
    MutexLock lock(&mutex_);
    piece = pieces_.at(data);
    pieces_.erase(data);
  }
  used_ -= bytes;
  munmap(data, WholePages(bytes));
  munmap(piece.twin, WholePages(bytes));
}

}  // namespace gyre::testing
