#include "coordinator/state/request_journal.h"

#include <algorithm>
#include <cctype>
#include <span>
#include <utility>

#include "base/plan.h"
#include "base/sha256.h"

namespace gyre {
namespace {

constexpr size_t kMaxId = 100;

}  // namespace

std::string NewRequestId(const std::string& call) {
  const RingKey random = RandomRingKey();
  return call + "-" + Hex(std::as_bytes(std::span(random)));
}

std::string CallOf(const std::string& request_id) { return request_id.substr(0, request_id.rfind('-')); }

bool IsRequestId(std::string_view text) {
  return !text.empty() && text.size() <= kMaxId && std::all_of(text.begin(), text.end(), [](char c) {
    return c == '-' || std::isalnum(static_cast<unsigned char>(c)) != 0;
  });
}

size_t RequestJournal::BytesOf(const Entry& entry) {
  size_t bytes = sizeof entry + entry.request->prompt.size() * sizeof(TokenId);
  for (const std::string& stop : entry.request->stops) bytes += stop.size();
  bytes += entry.request->sampling.logit_bias.size() * sizeof(std::pair<TokenId, float>);
  for (const TokenEvent& token : entry.tokens) bytes += sizeof token + token.top.size() * sizeof(TokenLogprob);
  return bytes;
}

void RequestJournal::Begin(const Request& request, uint64_t reader) {
  Erase(request.reattach_id);
  Entry entry;
  auto kept = std::make_shared<Request>(request);
  entry.tokens = std::move(kept->generated);
  kept->generated.clear();
  entry.request = std::move(kept);
  entry.reader = reader;
  entry.number = ++last_number_;
  changed_.insert(request.reattach_id);
  entries_.emplace(request.reattach_id, std::move(entry));
}

void RequestJournal::OnToken(const std::string& id, uint64_t reader, const TokenEvent& token) {
  const auto it = entries_.find(id);
  if (it == entries_.end() || it->second.reader != reader) return;
  Entry& e = it->second;
  if (++e.counted <= e.tokens.size()) return;
  e.tokens.push_back(
      {.token = token.token, .probability = token.probability, .text = {}, .logprob = token.logprob, .top = token.top});
  changed_.insert(id);
}

void RequestJournal::Finish(const std::string& id, uint64_t reader) {
  const auto it = entries_.find(id);
  if (it == entries_.end() || it->second.reader != reader || it->second.until != kNoDeadline) return;
  it->second.ended = true;
  if (!it->second.end_written) changed_.insert(id);
}

void RequestJournal::Leave(const std::string& id, uint64_t reader, Deadline now) {
  const auto it = entries_.find(id);
  if (it == entries_.end() || it->second.reader != reader) return;
  it->second.reader = 0;
  it->second.until = now + limits_.resume_timeout;
  Queue& queue = QueueOf(it->second);
  queue.order.insert(PlaceOf(it->second));
  queue.bytes += BytesOf(it->second);
  while (ended_.order.size() + under_way_.order.size() > limits_.unattended ||
         ended_.bytes + under_way_.bytes > limits_.unattended_bytes) {
    EraseFirst(ended_.order.empty() ? under_way_ : ended_);
  }
  while (restored_.order.size() > limits_.restored || restored_.bytes > limits_.restored_bytes) EraseFirst(restored_);
}

void RequestJournal::Forget(const std::string& id, uint64_t reader) {
  const auto it = entries_.find(id);
  if (it != entries_.end() && it->second.reader == reader) Erase(id);
}

void RequestJournal::Erase(const std::string& id) {
  const auto it = entries_.find(id);
  if (it == entries_.end()) return;
  Attend(&it->second, 0);
  changed_.erase(id);
  if (it->second.stored) gone_.push_back(id);
  entries_.erase(it);
}

void RequestJournal::EraseFirst(const Queue& queue) { Erase(std::string(std::get<std::string>(*queue.order.begin()))); }

// The request is no longer among those without a reader.
void RequestJournal::Attend(Entry* entry, uint64_t reader) {
  if (entry->until != kNoDeadline) {
    Queue& queue = QueueOf(*entry);
    queue.order.erase(PlaceOf(*entry));
    queue.bytes -= BytesOf(*entry);
  }
  entry->restored = false;
  entry->until = kNoDeadline;
  entry->reader = reader;
  entry->counted = 0;
}

StatusOr<Request> RequestJournal::Reattach(const std::string& id, uint64_t tenant, uint64_t reader) {
  const auto it = entries_.find(id);
  if (it == entries_.end() || it->second.request->tenant != tenant) {
    return NotFound("there is no request of this id to reattach to: it was forgotten, or is another caller's");
  }
  Attend(&it->second, reader);
  Request request = *it->second.request;
  request.generated = it->second.tokens;
  return request;
}

void RequestJournal::Restore(Request request, bool ended, Deadline now) {
  const std::string id = request.reattach_id;
  Begin(request, 0);
  Entry& e = entries_.at(id);
  e.stored = true;
  e.ended = e.end_written = ended;
  e.restored = !ended;
  e.written = e.tokens.size();
  changed_.erase(id);
  Leave(id, 0, now);
}

void RequestJournal::Tick(Deadline now) {
  for (const Queue* queue : {&ended_, &under_way_, &restored_}) {
    while (!queue->order.empty() && std::get<Deadline>(*queue->order.begin()) <= now) EraseFirst(*queue);
  }
}

Deadline RequestJournal::deadline() const {
  Deadline first = kNoDeadline;
  for (const Queue* queue : {&ended_, &under_way_, &restored_}) {
    if (!queue->order.empty()) first = std::min(first, std::get<Deadline>(*queue->order.begin()));
  }
  return first;
}

RequestJournal::Changes RequestJournal::TakeChanges() {
  Changes changes;
  for (const std::string& id : changed_) {
    Entry& e = entries_.at(id);
    if (!e.stored) changes.begun.push_back(e.request);
    e.stored = true;
    const bool ends = e.ended && !e.end_written;
    if (e.written == e.tokens.size() && !ends) continue;
    changes.tokens.push_back(
        {id, e.written, {e.tokens.begin() + static_cast<std::ptrdiff_t>(e.written), e.tokens.end()}, ends});
    e.written = e.tokens.size();
    e.end_written = e.ended;
  }
  changed_.clear();
  // A store gives them back in this order.
  std::sort(changes.begun.begin(), changes.begun.end(), [this](const auto& a, const auto& b) {
    return entries_.at(a->reattach_id).number < entries_.at(b->reattach_id).number;
  });
  changes.gone.swap(gone_);
  return changes;
}

void RequestJournal::StartAfresh() {
  gone_.clear();
  for (auto& [id, e] : entries_) {
    e.stored = false;
    e.written = 0;
    e.end_written = false;
    changed_.insert(id);
  }
}

}  // namespace gyre
