// Requests to the engine that answer one HTTP request together: choices of one prompt, or several prompts.
#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include "coordinator/http/api_context.h"
#include "coordinator/http/api_error.h"
#include "coordinator/http/event_ids.h"
#include "coordinator/http/exchange.h"
#include "coordinator/service/event_stream.h"
#include "coordinator/service/service.h"

namespace gyre::http {

// Runs `work` on the service's threads: templates, tokenizers and long JSON must not delay other clients. If the client
// goes away meanwhile, it still returns only after `work` has run. An error: too many tasks wait, and `work` did not
// run.
Awaitable<Status> RunOnService(Exchange& exchange, Service& service, std::function<void()> work);

// Makes a request from a question, on the service's threads. A prompt longer than the context is 400 with the code
// context_length_exceeded; for the other errors see Service::MakeRequest and FromStatus.
Awaitable<std::optional<ApiError>> MakeRequest(Exchange& exchange, Service& service, Question question, Request* out);

// The error for the client if an event ends a request early: Failed or Cancelled.
std::optional<ApiError> ErrorOf(const Event& event);

// The text for the client of a stream whose request waits for a ring: a comment of server-sent events, which
// clients don't show to their users; "" for any other event.
std::string CommentOf(const Event& event);

// Used on the server's thread. Destroying it cancels the requests that still run.
class Generation {
 public:
  // Exchange and context outlive it.
  Generation(Exchange& exchange, const ApiContext& context)
      : exchange_(exchange), context_(context), service_(context.service) {}

  // Starts all requests, or none.
  std::optional<ApiError> Start(std::vector<Request> requests, bool stream = false) {
    stream_ = stream;
    return Start(std::move(requests), EventIds());
  }
  // Like Start; events of a request come only when those before it have ended. The later ones are held back meanwhile.
  std::optional<ApiError> StartInOrder(std::vector<Request> requests) {
    in_order_ = true;
    return Start(std::move(requests), false);
  }
  // Like Start, or with the header Last-Event-ID takes up the stream that the client has seen events of. Then
  // `requests` give only their number, and all events come again, from the first one on. `ids`: of the events to be
  // written. Without a state, and for an answer that is no stream, they have none. 400, 404 and 422: the stream in the
  // header can't be reattached.
  std::optional<ApiError> Open(std::vector<Request> requests, bool stream, EventIds* ids);

  struct Item {
    size_t index = 0;  // of the request
    Event event;
  };
  // An event that is there already, from the requests in turn; nullopt: none is there yet, or all have ended.
  // An event with an error (ErrorOf) ends all requests: the others are cancelled at once, however slow the client is.
  std::optional<Item> TryNext();
  // Waits for an event. nullopt: all requests have ended, or the client is gone (then see Exchange::gone) and they are
  // cancelled. If the answer is no stream and no ring serves for ApiContext::ring_wait, they end in Failed: its client
  // would see nothing else.
  Awaitable<std::optional<Item>> Next();
  bool ended() const { return running_ == 0; }

 private:
  // Cancels the running requests.
  void Drop();
  void NoteWait(const Event& event);
  std::optional<Item> EndWait();
  std::optional<ApiError> Start(std::vector<Request> requests, const EventIds& ids);
  StreamOptions Waking() const;
  std::optional<ApiError> Add(StatusOr<std::unique_ptr<EventStream>> stream);

  Exchange& exchange_;
  const ApiContext& context_;
  Service& service_;
  bool stream_ = false, in_order_ = false;
  Deadline ring_deadline_ = kNoDeadline;               // of a wait for a ring
  std::vector<std::unique_ptr<EventStream>> streams_;  // null: ended
  std::vector<std::unique_ptr<EventStream>> ended_;    // can be reattached as long as the others
  size_t running_ = 0, turn_ = 0;
};

}  // namespace gyre::http
