#include "coordinator/http/generation.h"

#include <atomic>
#include <exception>

#include "coordinator/state/request_journal.h"

namespace gyre::http {

struct PostedWork {
  std::atomic<bool> done{false};
  Status status;
};

Awaitable<Status> RunOnService(Exchange& exchange, Service& service, std::function<void()> work) {
  const auto outcome = std::make_shared<PostedWork>();
  std::function<void()> wake = exchange.waker();
  const Status posted = service.Post([outcome, wake, work = std::move(work)] {
    try {
      work();
    } catch (const std::exception& e) {
      outcome->status = Internal("{}", e.what());
    }
    outcome->done = true;
    wake();
  });
  if (!posted.ok()) co_return posted;
  while (!outcome->done) {
    const Wake woken = co_await exchange.Wait();
    // `work` may refer to the route's frame, so it must end first; it is short.
    if (woken == Wake::kGone) co_await exchange.Pause(std::chrono::milliseconds(1));
  }
  co_return outcome->status;
}

Awaitable<std::optional<ApiError>> MakeRequest(Exchange& exchange, Service& service, Question question, Request* out) {
  StatusOr<Request> made = Internal("the request was not made");
  std::function<void()> work = [&] { made = service.MakeRequest(std::move(question)); };
  const Status ran = co_await RunOnService(exchange, service, std::move(work));
  if (!ran.ok()) co_return FromStatus(ran);
  if (made.ok()) {
    *out = *std::move(made);
    co_return std::nullopt;
  }
  co_return FromInput(made.status());
}

std::optional<ApiError> ErrorOf(const Event& event) {
  if (const auto* failed = std::get_if<Failed>(&event)) return FromStatus(failed->status);
  if (std::holds_alternative<Cancelled>(event)) {
    return FromStatus(Unavailable("the request was cancelled: the server stops"));
  }
  return std::nullopt;
}

std::string CommentOf(const Event& event) {
  if (!std::holds_alternative<Waiting>(event)) return "";
  return ": the ring has lost a worker; the request waits and goes on\n\n";
}

StreamOptions Generation::Waking() const {
  StreamOptions options;
  options.ready = exchange_.waker();
  options.may_stall = in_order_;  // a client that takes nothing is found by its connection
  return options;
}

std::optional<ApiError> Generation::Add(StatusOr<std::unique_ptr<EventStream>> stream) {
  if (!stream.ok()) {
    Drop();
    return FromStatus(stream.status());
  }
  streams_.push_back(*std::move(stream));
  ++running_;
  return std::nullopt;
}

std::optional<ApiError> Generation::Start(std::vector<Request> requests, const EventIds& ids) {
  for (size_t i = 0; i < requests.size(); ++i) {
    requests[i].id = exchange_.request().id;
    if (ids.on()) requests[i].reattach_id = ids.RequestId(i);
    if (auto error = Add(service_.Submit(std::move(requests[i]), Waking()))) return error;
  }
  return std::nullopt;
}

std::optional<ApiError> Generation::Open(std::vector<Request> requests, bool stream, EventIds* ids) {
  stream_ = stream;
  const HttpRequest& asked = exchange_.request();
  const std::string* const last = LastEventId(asked);
  if (last == nullptr) {
    if (stream && service_.streams().keeps()) *ids = EventIds(NewRequestId(asked.id), requests.size());
    return Start(std::move(requests), *ids);
  }
  StatusOr<EventIds> before = EventIds::Parse(*last);
  if (!before.ok()) return BadRequest(Message(before.status()));
  if (!stream || before->choices() != requests.size()) {
    return BadRequest("Last-Event-ID takes a stream up: the request must be the one that it was asked by");
  }
  *ids = *std::move(before);
  for (size_t i = 0; i < ids->choices(); ++i) {
    if (auto error = Add(service_.Reattach(ids->RequestId(i), asked.caller.tenant, Waking()))) return error;
  }
  return std::nullopt;
}

std::optional<Generation::Item> Generation::TryNext() {
  for (size_t tried = 0; tried < streams_.size(); ++tried) {
    const size_t index = in_order_ ? tried : turn_++ % streams_.size();
    if (streams_[index] == nullptr) continue;
    std::optional<Event> event = streams_[index]->TryNext();
    if (!event && in_order_) return std::nullopt;
    if (!event) continue;
    if (const auto* finished = std::get_if<Finished>(&*event)) {
      exchange_.CountTokens(finished->usage.prompt_tokens, finished->usage.generated_tokens);
      ended_.push_back(std::move(streams_[index]));
      --running_;
    } else if (ErrorOf(*event)) {
      Drop();
    }
    return Item{index, *std::move(event)};
  }
  return std::nullopt;
}

void Generation::Drop() {
  streams_.clear();
  ended_.clear();
  running_ = 0;
}

void Generation::NoteWait(const Event& event) {
  if (std::holds_alternative<TokenEvent>(event)) {
    ring_deadline_ = kNoDeadline;
  } else if (std::holds_alternative<Waiting>(event) && ring_deadline_ == kNoDeadline) {
    ring_deadline_ = After(context_.ring_wait);
  }
}

// Ends the wait at its deadline. The item is an error: there is still no ring.
std::optional<Generation::Item> Generation::EndWait() {
  ring_deadline_ = kNoDeadline;
  const Status ready = context_.ready ? context_.ready() : absl::OkStatus();
  if (ready.ok()) return std::nullopt;
  Drop();
  const auto seconds = std::chrono::duration_cast<std::chrono::seconds>(context_.ring_wait).count();
  return Item{0, Failed{Unavailable("{} s after a loss no ring serves: {}; try again later", seconds, Message(ready))}};
}

Awaitable<std::optional<Generation::Item>> Generation::Next() {
  while (running_ > 0) {
    std::optional<Item> item = TryNext();
    if (!item) {
      const Wake woken = co_await exchange_.Wait(ring_deadline_);
      if (woken == Wake::kGone) Drop();
      if (woken == Wake::kTimeout) item = EndWait();
    } else if (!stream_) {
      NoteWait(item->event);
    }
    if (item) co_return item;
  }
  co_return std::nullopt;
}

}  // namespace gyre::http
