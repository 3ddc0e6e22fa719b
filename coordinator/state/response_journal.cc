#include "coordinator/state/response_journal.h"

#include <algorithm>

#include "fmt/format.h"

namespace gyre {

std::string ResponseJournal::KeyOf(uint64_t tenant, const std::string& id) {
  return fmt::format("{:016x}.{}", tenant, id);
}

size_t ResponseJournal::BytesOf(const KeptResponse& r) {
  return sizeof(Entry) + 2 * r.id.size() + r.previous.size() + r.input.size() + r.response.size();
}

ResponseJournal::Entry* ResponseJournal::At(const std::string& key) {
  const auto it = entries_.find(key);
  return it == entries_.end() ? nullptr : &it->second;
}

ResponseJournal::Entry* ResponseJournal::Previous(const Entry& entry) {
  const KeptResponse& r = entry.response;
  return r.previous.empty() ? nullptr : At(KeyOf(r.tenant, r.previous));
}

// Those that it goes on from are used too, and go after it.
void ResponseJournal::Use(Entry* entry, int64_t now) {
  for (size_t n = 0; entry != nullptr && n < entries_.size(); ++n, entry = Previous(*entry)) {
    const std::string key = KeyOf(entry->response.tenant, entry->response.id);
    order_.erase({entry->stamp, key});
    entry->stamp = ++last_stamp_;
    entry->used = std::max(entry->used, now);
    order_.emplace(entry->stamp, key);
  }
}

void ResponseJournal::Erase(const std::string& key) {
  const auto it = entries_.find(key);
  if (it == entries_.end()) return;
  const Entry entry = std::move(it->second);
  entries_.erase(it);
  order_.erase({entry.stamp, key});
  bytes_ -= BytesOf(entry.response);
  changed_.insert(key);
  Entry* previous = Previous(entry);
  if (previous == nullptr) return;
  --previous->followers;
  EraseUseless(KeyOf(entry.response.tenant, entry.response.previous));
}

// A deleted one is there only for its followers.
void ResponseJournal::EraseUseless(const std::string& key) {
  const Entry* entry = At(key);
  if (entry != nullptr && entry->response.deleted && entry->followers == 0) Erase(key);
}

void ResponseJournal::Tick(int64_t now) {
  while (!order_.empty()) {
    const std::string key = order_.begin()->second;
    const bool old = At(key)->used + limits_.keep_seconds <= now;
    if (!old && entries_.size() <= limits_.responses && bytes_ <= limits_.bytes) return;
    Erase(key);
  }
}

void ResponseJournal::Add(KeptResponse response, int64_t now) {
  if (response.previous == response.id) return;
  const std::string key = KeyOf(response.tenant, response.id);
  const auto [it, added] = entries_.try_emplace(key);
  Entry& entry = it->second;
  if (!added) {
    bytes_ -= BytesOf(entry.response);
    response.previous = entry.response.previous;  // an answer that is written again goes on from the same
  }
  bytes_ += BytesOf(response);
  entry.response = std::move(response);
  changed_.insert(key);
  if (Entry* previous = Previous(entry); added && previous != nullptr) ++previous->followers;
  Use(&entry, now);
}

void ResponseJournal::Keep(KeptResponse response, int64_t now) {
  if (BytesOf(response) > limits_.bytes) return;
  Add(std::move(response), now);
  Tick(now);
}

void ResponseJournal::Restore(std::vector<KeptResponse> responses, int64_t now) {
  std::stable_sort(responses.begin(), responses.end(),
                   [](const KeptResponse& a, const KeptResponse& b) { return a.created < b.created; });
  for (KeptResponse& r : responses) {
    const int64_t created = r.created;
    Add(std::move(r), created);
  }
  changed_.clear();
  Tick(now);
}

StatusOr<KeptResponse> ResponseJournal::Find(const std::string& id, uint64_t tenant, int64_t now) {
  Tick(now);
  const Entry* entry = At(KeyOf(tenant, id));
  if (entry == nullptr || entry->response.deleted) return NotFound("there is no response '{}'", id);
  return entry->response;
}

StatusOr<std::vector<KeptResponse>> ResponseJournal::Conversation(const std::string& id, uint64_t tenant, int64_t now) {
  GYRE_RETURN_IF_ERROR(Find(id, tenant, now).status());
  std::vector<KeptResponse> out;
  Entry* const last = At(KeyOf(tenant, id));
  for (Entry* entry = last; entry != nullptr; entry = Previous(*entry)) {
    if (out.size() >= entries_.size()) return NotFound("the response '{}' goes on from itself", id);
    out.push_back(entry->response);
  }
  if (!out.back().previous.empty())
    return NotFound("a part of the conversation that '{}' belongs to has been deleted", id);
  Use(last, now);
  std::reverse(out.begin(), out.end());
  return out;
}

Status ResponseJournal::Delete(const std::string& id, uint64_t tenant, int64_t now) {
  GYRE_RETURN_IF_ERROR(Find(id, tenant, now).status());
  const std::string key = KeyOf(tenant, id);
  At(key)->response.deleted = true;
  changed_.insert(key);
  EraseUseless(key);
  return absl::OkStatus();
}

std::vector<ResponseJournal::Change> ResponseJournal::TakeChanges() {
  std::vector<Change> out;
  for (const std::string& key : changed_) {
    const Entry* entry = At(key);
    out.emplace_back(key, entry == nullptr ? std::nullopt : std::optional(entry->response));
  }
  changed_.clear();
  return out;
}

}  // namespace gyre
