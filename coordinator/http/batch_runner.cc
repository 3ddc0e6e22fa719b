#include "coordinator/http/batch_runner.h"

#include <atomic>
#include <exception>
#include <thread>
#include <utility>

#include "absl/cleanup/cleanup.h"
#include "base/log.h"
#include "base/thread.h"
#include "boost/asio/co_spawn.hpp"
#include "boost/json/object.hpp"
#include "boost/json/parse.hpp"
#include "boost/json/serialize.hpp"
#include "coordinator/http/wake_hub.h"
#include "fmt/core.h"

namespace gyre::http {
namespace {

namespace asio = boost::asio;
namespace json = boost::json;

constexpr size_t kMostAnswer = size_t{64} << 20;             // bytes of one answer, which is held in memory
constexpr Duration kPause = std::chrono::milliseconds(500);  // when a request found no room
constexpr Duration kLook = std::chrono::milliseconds(200);   // between two looks for new batches

// A request of a batch and its whole answer, without a connection.
class BatchExchange final : public Exchange {
 public:
  BatchExchange(std::shared_ptr<WakeHub> hub, const std::atomic<bool>& stopping, HttpRequest request)
      : hub_(std::move(hub)),
        stopping_(stopping),
        request_(std::move(request)),
        signal_(hub_->io()),
        waiter_(std::make_shared<WakeHub::Waiter>()) {
    waiter_->signal = &signal_;
  }
  ~BatchExchange() override { waiter_->signal = nullptr; }

  const HttpRequest& request() const override { return request_; }
  Awaitable<void> Respond(HttpResponse response) override {
    answer = std::move(response);
    too_long_ = answer.body.size() > kMostAnswer;
    co_return;
  }
  Awaitable<void> Begin(HttpResponse head) override {
    answer = std::move(head);
    co_return;
  }
  Awaitable<bool> Write(std::string bytes) override {
    too_long_ |= answer.body.size() + bytes.size() > kMostAnswer;
    if (!too_long_) answer.body += bytes;
    co_return !gone();
  }
  void Broke(int status) override { answer.status = status; }
  Awaitable<Wake> Wait(Deadline deadline) override {
    for (;;) {
      if (gone()) co_return Wake::kGone;
      if (waiter_->set.exchange(false)) co_return Wake::kWoken;
      if (deadline != kNoDeadline && Clock::now() >= deadline) co_return Wake::kTimeout;
      co_await signal_.Wait(deadline);
    }
  }
  Awaitable<void> Pause(Duration duration) override {
    asio::steady_timer timer(hub_->io(), duration);
    co_await timer.async_wait(kAwait);
  }
  std::function<void()> waker() override {
    return [hub = hub_, waiter = waiter_] { hub->Wake(waiter); };
  }
  // The route need not compute the rest of an answer that is too long.
  bool gone() const override { return stopping_ || too_long_; }
  bool too_long() const { return too_long_; }
  void Leave() { signal_.Notify(); }

  HttpResponse answer{.status = 0};

 private:
  const std::shared_ptr<WakeHub> hub_;
  const std::atomic<bool>& stopping_;
  const HttpRequest request_;
  Signal signal_;
  const std::shared_ptr<WakeHub::Waiter> waiter_;
  bool too_long_ = false;
};

class RouteRunner final : public BatchRunner {
 public:
  RouteRunner(BatchStore& store, Router routes, BatchRunnerOptions options)
      : store_(store),
        routes_(std::move(routes)),
        options_(std::move(options)),
        hub_(std::make_shared<WakeHub>()),
        ended_(hub_->io()) {}
  ~RouteRunner() override {
    stopping_ = true;
    asio::post(hub_->io(), [this] {
      ended_.Notify();
      for (BatchExchange* exchange : running_) exchange->Leave();
    });
    if (thread_.joinable()) thread_.join();
    hub_->Stop();
  }

  Status Begin() {
    asio::co_spawn(hub_->io(), Dispatch(), OnEnd("batches"));
    GYRE_ASSIGN_OR_RETURN(thread_, StartThread("batches", [this] { hub_->io().run(); }));
    return absl::OkStatus();
  }

 private:
  // What a coroutine throws, say for want of memory, is said; then `end` is called in any case.
  std::function<void(std::exception_ptr)> OnEnd(std::string of, std::function<void(bool thrown)> end = {}) {
    return [this, of = std::move(of), end = std::move(end)](std::exception_ptr thrown) {
      if (thrown != nullptr) {
        rests_until_ = After(kPause);
        try {
          std::rethrow_exception(thrown);
        } catch (const std::exception& e) {
          Log(LogLevel::kError, "{}: {}", of, e.what());
        }
      }
      if (!end) return;
      try {
        end(thrown != nullptr);
      } catch (const std::exception& e) {
        Log(LogLevel::kError, "{}: {}", of, e.what());
      }
    };
  }

  Awaitable<void> Dispatch() {
    while (!stopping_) {
      bool began = false;
      try {
        began = BeginNext();
      } catch (const std::exception& e) {
        Log(LogLevel::kError, "batches: {}", e.what());
        rests_until_ = After(kPause);
      }
      if (!began) co_await ended_.Wait(After(kLook));
    }
  }

  // Whether there is a request, which now runs.
  bool BeginNext() {
    const bool rests = Clock::now() < rests_until_ || (options_.draining && options_.draining());
    if (rests || under_way_ >= options_.at_once) return false;
    std::optional<BatchStore::Job> job = store_.Take();
    if (!job) return false;
    BatchStore::Job taken{.batch = job->batch, .tenant = job->tenant, .where = job->where, .request = {}};
    absl::Cleanup back = [&] { store_.PutBack(taken); };
    auto end = OnEnd("batch " + taken.batch, [this, taken](bool thrown) {
      --under_way_;
      ended_.Notify();
      if (thrown) store_.PutBack(taken);
    });
    asio::co_spawn(hub_->io(), Run(*std::move(job)), std::move(end));
    ++under_way_;
    std::move(back).Cancel();
    return true;
  }

  // An exchange is told when the runner stops.
  class Listed {
   public:
    Listed(std::vector<BatchExchange*>& list, BatchExchange& exchange) : list_(list), exchange_(exchange) {
      list_.push_back(&exchange_);
    }
    ~Listed() { std::erase(list_, &exchange_); }
    Listed(const Listed&) = delete;
    Listed& operator=(const Listed&) = delete;

   private:
    std::vector<BatchExchange*>& list_;
    BatchExchange& exchange_;
  };

  Awaitable<void> Run(BatchStore::Job job) {
    HttpRequest request = RequestOf(job);
    const std::string id = request.id;
    BatchExchange exchange(hub_, stopping_, std::move(request));
    const Listed listed(running_, exchange);
    const Router::Match match = routes_.Find("POST", job.request.path);
    std::string wrong = match.route == nullptr ? "there is no such route" : "";
    if (match.route != nullptr) {
      try {
        co_await match.route->handler(exchange);
      } catch (const std::exception& e) {
        wrong = e.what();
      }
    }
    HttpResponse& answer = exchange.answer;
    if (exchange.too_long()) wrong = fmt::format("the answer has more than {} bytes", kMostAnswer);
    if (!wrong.empty()) {
      answer.status = match.route == nullptr ? 404 : 500;
      answer.body = json::serialize(json::object{{"error", json::object{{"message", wrong}}}});
    }
    const bool busy = answer.status == 503 || answer.status == 429;
    if (stopping_ || answer.status == 0 || busy) {
      rests_until_ = After(kPause);
      store_.PutBack(job);
      co_return;
    }
    const Status written = store_.Answer(job, answer.status, id, answer.body);
    if (!written.ok()) rests_until_ = After(kPause);
    if (!written.ok()) Log(LogLevel::kError, "batch {}: {}", job.batch, Message(written));
  }

  HttpRequest RequestOf(const BatchStore::Job& job) {
    HttpRequest request;
    request.id = fmt::format("{}-{}", job.batch, ++requests_);
    request.method = "POST";
    request.path = job.request.path;
    request.body = job.request.body;
    request.caller = {.name = "", .role = Role::kUser, .tenant = job.tenant};
    boost::system::error_code error;
    json::value body = json::parse(request.body, error);
    if (!error && body.is_object() && !body.get_object().contains("priority")) {
      body.get_object()["priority"] = options_.priority;
      request.body = json::serialize(body);
    }
    return request;
  }

  BatchStore& store_;
  const Router routes_;
  const BatchRunnerOptions options_;
  const std::shared_ptr<WakeHub> hub_;
  std::atomic<bool> stopping_{false};
  // On its thread:
  Signal ended_;  // a request
  Deadline rests_until_{};
  size_t under_way_ = 0;  // requests
  std::vector<BatchExchange*> running_;
  uint64_t requests_ = 0;
  std::thread thread_;
};

}  // namespace

StatusOr<std::unique_ptr<BatchRunner>> BatchRunner::Start(BatchStore& store, Router routes,
                                                          BatchRunnerOptions options) {
  auto runner = std::make_unique<RouteRunner>(store, std::move(routes), std::move(options));
  GYRE_RETURN_IF_ERROR(runner->Begin());
  return std::unique_ptr<BatchRunner>(std::move(runner));
}

}  // namespace gyre::http
