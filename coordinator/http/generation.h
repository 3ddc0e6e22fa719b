// Requests to the engine that answer one HTTP request together: choices of one prompt, or several prompts.
#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include "coordinator/event_stream.h"
#include "coordinator/http/api_error.h"
#include "coordinator/http/event_ids.h"
#include "coordinator/http/exchange.h"
#include "coordinator/service.h"

namespace gyre::http {

// Runs `work` on the service's threads: templates, tokenizers and long JSON must not hold up other clients. Also when
// the client goes away meanwhile, it returns only after `work` has run. An error: too much waits, and `work` did not
// run.
Awaitable<Status> RunOnService(Exchange& exchange, Service& service, std::function<void()> work);

// A question as a request, made on the service's threads. A prompt that is longer than the context is 400 with the code
// context_length_exceeded; for the other errors see Service::MakeRequest and FromStatus.
Awaitable<std::optional<ApiError>> MakeRequest(Exchange& exchange, Service& service, Question question, Request* out);

// What the client is told of an event that ends a request before its end: Failed or Cancelled.
std::optional<ApiError> ErrorOf(const Event& event);

// What the client of a stream is told of a request that waits for a ring: a comment of server-sent events, which
// clients don't show to their users; "" where the event is another one.
std::string CommentOf(const Event& event);

// Used on the server's thread. Dropping it cancels what still runs.
class Generation {
 public:
  // Exchange and service outlive it.
  Generation(Exchange& exchange, Service& service) : exchange_(exchange), service_(service) {}

  // Starts all of them, or none.
  std::optional<ApiError> Start(std::vector<Request> requests) { return Start(std::move(requests), {}); }
  // The same, or with the header Last-Event-ID takes up those of the stream that the client has seen events of: then
  // `requests` say only how many they are, and all events come again, from the first one on. `ids`: of the events that
  // are to be written. Without a state, and for an answer that is no stream, they have none. 400, 404 and 422: what the
  // header names can't be taken up.
  std::optional<ApiError> Open(std::vector<Request> requests, bool stream, EventIds* ids);

  struct Item {
    size_t index = 0;  // of the request
    Event event;
  };
  // An event that is there already, taking turns among the requests; nullopt: none is there yet, or all have ended.
  // One that has an error (ErrorOf) ends them all: the others are cancelled at once, however slow the client is.
  std::optional<Item> TryNext();
  // Waits for it. nullopt: all requests have ended, or the client is gone (then see Exchange::gone) and they are
  // cancelled.
  Awaitable<std::optional<Item>> Next();
  bool ended() const { return running_ == 0; }

 private:
  // Cancels what runs.
  void Drop();
  std::optional<ApiError> Start(std::vector<Request> requests, const EventIds& ids);
  StreamOptions Waking() const;
  std::optional<ApiError> Add(StatusOr<std::unique_ptr<EventStream>> stream);

  Exchange& exchange_;
  Service& service_;
  std::vector<std::unique_ptr<EventStream>> streams_;  // null: ended
  std::vector<std::unique_ptr<EventStream>> ended_;    // can be taken up as long as the others
  size_t running_ = 0, turn_ = 0;
};

}  // namespace gyre::http
