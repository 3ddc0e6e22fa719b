#include "coordinator/state/state_keeper.h"

#include <future>
#include <utility>

#include "base/log.h"
#include "base/thread.h"
#include "base/unix_time.h"
#include "coordinator/engine/request_codec.h"
#include "gyre/v1/state.pb.h"

namespace gyre {
namespace {

// Requests that begin close together are written together.
constexpr Duration kLeastGap = std::chrono::milliseconds(1);
constexpr Duration kRetry = std::chrono::seconds(1);

int64_t ToUnixMillis(Deadline deadline) {
  return UnixMillis() + std::chrono::duration_cast<std::chrono::milliseconds>(deadline - Clock::now()).count();
}
Deadline FromUnixMillis(int64_t ms) { return After(std::chrono::milliseconds(ms - UnixMillis())); }

std::string EncodeStored(const Request& request) {
  v1::StoredRequest out;
  *out.mutable_request() = EncodeRequest(request);
  if (request.deadline != kNoDeadline) out.set_deadline_ms(ToUnixMillis(request.deadline));
  return out.SerializeAsString();
}

StatusOr<Request> DecodeStored(const StoredState::OpenRequest& stored) {
  v1::StoredRequest message;
  if (!message.ParseFromString(stored.request)) return DataLoss("the state's request {} can't be read", stored.id);
  Request request = DecodeRequest(message.request());
  request.reattach_id = stored.id;
  request.id = CallOf(stored.id);
  if (message.has_deadline_ms()) request.deadline = FromUnixMillis(message.deadline_ms());
  for (const std::string& tokens : stored.tokens) {
    GYRE_RETURN_IF_ERROR(Annotate(DecodeTokens(tokens, &request.generated), "the state's request " + stored.id));
  }
  return request;
}

std::string EncodeServing(const ServingRecord& record) {
  v1::StoredServing out;
  out.set_model_hash(record.model_hash);
  out.set_context(record.context);
  out.set_num_blocks(record.num_blocks);
  out.set_block_size(record.block_size);
  return out.SerializeAsString();
}

uint64_t KeyOf(const MemoryCounts::Place& place) {
  return uint64_t{static_cast<uint32_t>(place.group)} << 32 | place.number;
}

std::string EncodeUnit(uint64_t generation, const CachedUnit& unit) {
  v1::StoredUnit out;
  out.set_generation(generation);
  out.set_group(static_cast<uint32_t>(unit.place.group));
  out.set_number(unit.place.number);
  out.set_step(unit.step);
  out.set_chain(unit.chain);
  out.set_parent(unit.parent);
  out.set_salt(unit.salt);
  out.mutable_tokens()->Add(unit.tokens.begin(), unit.tokens.end());
  for (const RowClass c : unit.classes) out.mutable_classes()->push_back(static_cast<char>(c));
  out.set_snapshot(unit.snapshot);
  out.set_evict_first(unit.evict_first);
  return out.SerializeAsString();
}

StatusOr<CachedUnit> DecodeUnit(const std::string& bytes, uint64_t* generation) {
  v1::StoredUnit message;
  if (!message.ParseFromString(bytes) || message.group() >= kKvGroups) {
    return DataLoss("a unit of the state's cache index can't be read");
  }
  *generation = message.generation();
  CachedUnit unit{.place = {static_cast<int>(message.group()), message.number()},
                  .step = message.step(),
                  .chain = message.chain(),
                  .parent = message.parent(),
                  .salt = message.salt(),
                  .tokens = {message.tokens().begin(), message.tokens().end()},
                  .classes = {},
                  .snapshot = message.snapshot(),
                  .evict_first = message.evict_first()};
  for (const char c : message.classes()) {
    if (c != 0 && c != 1) return DataLoss("a row of the state's cache index is of class {}", static_cast<int>(c));
    unit.classes.push_back(static_cast<RowClass>(c));
  }
  return unit;
}

std::string EncodeResponse(const KeptResponse& response) {
  v1::StoredResponse out;
  out.set_id(response.id);
  out.set_tenant(response.tenant);
  out.set_previous(response.previous);
  out.set_input(response.input);
  out.set_response(response.response);
  out.set_created(response.created);
  out.set_deleted(response.deleted);
  return out.SerializeAsString();
}

StatusOr<KeptResponse> DecodeResponse(const std::string& bytes) {
  v1::StoredResponse message;
  if (!message.ParseFromString(bytes)) return DataLoss("a response in the state can't be read");
  return KeptResponse{.id = message.id(),
                      .tenant = message.tenant(),
                      .previous = message.previous(),
                      .input = message.input(),
                      .response = message.response(),
                      .created = message.created(),
                      .deleted = message.deleted()};
}

// Those of the last generation.
StatusOr<CacheIndex> DecodeCache(const std::vector<std::string>& entries) {
  CacheIndex out;
  for (const std::string& entry : entries) {
    uint64_t generation = 0;
    GYRE_ASSIGN_OR_RETURN(CachedUnit unit, DecodeUnit(entry, &generation));
    if (generation < out.generation) continue;
    if (generation > out.generation) out.units.clear();
    out.generation = generation;
    out.units.push_back(std::move(unit));
  }
  return out;
}

// A store may have a limit for the size of a value.
size_t EndOfPiece(const std::vector<TokenEvent>& tokens, size_t at) {
  constexpr size_t kPiece = size_t{256} << 10, kToken = 16, kTop = 8;  // bytes
  for (size_t bytes = 0; at < tokens.size() && bytes < kPiece; ++at) bytes += kToken + kTop * tokens[at].top.size();
  return at;
}

// This runs without the keeper's lock, as prompts may be long.
void Encode(const RequestJournal::Changes& changes, StateBatch* batch) {
  batch->gone = changes.gone;
  for (const auto& request : changes.begun) batch->begun.push_back({request->reattach_id, EncodeStored(*request)});
  for (const RequestJournal::Changes::Tokens& t : changes.tokens) {
    for (size_t at = 0; at < t.tokens.size();) {
      const size_t end = EndOfPiece(t.tokens, at);
      batch->tokens.push_back({t.id, t.first + at, EncodeTokens({t.tokens.data() + at, end - at})});
      at = end;
    }
    if (t.ended) batch->tokens.push_back({t.id, t.first + t.tokens.size(), {}});
  }
}

}  // namespace

std::string EncodeCluster(const ClusterRecord& record) {
  v1::StoredCluster out;
  for (const ClusterRecord::Stage& s : record.stages) {
    v1::StoredStage* stage = out.add_stages();
    stage->set_address(s.address);
    stage->set_worker(s.worker);
    stage->mutable_layers()->set_begin(s.layers.begin);
    stage->mutable_layers()->set_end(s.layers.end);
  }
  out.set_num_blocks(record.num_blocks);
  out.set_on_workers(record.on_workers);
  out.set_plan(record.plan);
  for (const std::string& name : record.drained) out.add_drained(name);
  return out.SerializeAsString();
}

StatusOr<ClusterRecord> DecodeCluster(const std::string& bytes) {
  v1::StoredCluster message;
  if (!message.ParseFromString(bytes)) return DataLoss("the state's plan can't be read");
  ClusterRecord record;
  for (const v1::StoredStage& s : message.stages()) {
    record.stages.push_back({s.worker(), {s.layers().begin(), s.layers().end()}, s.address()});
  }
  record.num_blocks = message.num_blocks();
  record.on_workers = message.on_workers();
  record.plan = message.plan();
  record.drained.insert(message.drained().begin(), message.drained().end());
  return record;
}

StateKeeper::StateKeeper(std::unique_ptr<StateStore> store, const StoredState& found, const KeeperOptions& options)
    : store_(std::move(store)),
      options_(options),
      term_(found.term),
      cluster_id_(found.cluster_id),
      book_(options.requests) {}

StatusOr<std::unique_ptr<StateKeeper>> StateKeeper::Start(std::unique_ptr<StateStore> store, const StoredState& found,
                                                          const KeeperOptions& options) {
  std::unique_ptr<StateKeeper> keeper(new StateKeeper(std::move(store), found, options));
  GYRE_RETURN_IF_ERROR(keeper->Restore(found));
  GYRE_ASSIGN_OR_RETURN(keeper->thread_, StartThread("state", [k = keeper.get()] {
                          // The edge of the thread: without it nobody would notice that nothing is kept any more.
                          try {
                            k->Loop();
                          } catch (const std::exception& e) {
                            Log(LogLevel::kError, "the thread that keeps the state failed, so this process ends: {}",
                                e.what());
                            std::abort();
                          }
                        }));
  return keeper;
}

StateKeeper::~StateKeeper() {
  {
    MutexLock lock(&mutex_);
    stopping_ = true;
    changed_.SignalAll();
  }
  if (thread_.joinable()) thread_.join();
}

Status StateKeeper::Restore(const StoredState& found) {
  if (!found.cluster.empty()) {
    GYRE_ASSIGN_OR_RETURN(cluster_, DecodeCluster(found.cluster));
  }
  if (!found.serving.empty()) {
    v1::StoredServing message;
    if (!message.ParseFromString(found.serving)) return DataLoss("the state's settings can't be read");
    serving_ = ServingRecord{.model_hash = message.model_hash(),
                             .context = message.context(),
                             .num_blocks = message.num_blocks(),
                             .block_size = message.block_size()};
  }
  GYRE_ASSIGN_OR_RETURN(cache_, DecodeCache(found.cache));
  for (const std::string& stored : found.responses) {
    GYRE_ASSIGN_OR_RETURN(KeptResponse response, DecodeResponse(stored));
    found_responses_.push_back(std::move(response));
  }
  const Deadline now = Clock::now();
  MutexLock lock(&mutex_);
  generation_ = cache_.generation;
  for (const StoredState::OpenRequest& stored : found.requests) {
    GYRE_ASSIGN_OR_RETURN(Request request, DecodeStored(stored));
    const bool ended = !stored.tokens.empty() && stored.tokens.back().empty();
    book_.Restore(std::move(request), ended, now);
  }
  return absl::OkStatus();
}

void StateKeeper::Serve(const ServingRecord& record) {
  if (serving_ && serving_->model_hash != record.model_hash) {
    MutexLock lock(&mutex_);
    if (book_.size() > 0 || cluster_) {
      LogLine(LogLevel::kWarn, "the state is of another model: its plan and its requests are forgotten");
    }
    book_.Tick(kNoDeadline);
    cluster_.reset();
    new_cluster_ = EncodeCluster({});
  }
  if (serving_ == record) return;
  serving_ = record;
  MutexLock lock(&mutex_);
  new_serving_ = EncodeServing(record);
  changed_.Signal();
}

void StateKeeper::Record(const ClusterRecord& record) {
  std::string bytes = EncodeCluster(record);
  MutexLock lock(&mutex_);
  new_cluster_ = std::move(bytes);
  urgent_ = true;
  changed_.Signal();
}

void StateKeeper::Keep(const CacheNews& news) {
  std::vector<std::pair<uint64_t, std::string>> units;
  for (const CacheChange& c : news.changes) {
    units.emplace_back(KeyOf(c.place), c.unit ? EncodeUnit(news.generation, *c.unit) : "");
  }
  MutexLock lock(&mutex_);
  if (news.generation != generation_) {
    generation_ = news.generation;
    cache_afresh_ = true;
    new_units_.clear();
  }
  for (auto& [key, entry] : units) new_units_[key] = std::move(entry);
  changed_.Signal();
}

void StateKeeper::KeepResponses(const std::vector<ResponseJournal::Change>& changes) {
  std::vector<std::pair<std::string, std::string>> values;
  for (const auto& [key, response] : changes) values.emplace_back(key, response ? EncodeResponse(*response) : "");
  MutexLock lock(&mutex_);
  for (auto& [key, value] : values) new_responses_[key] = std::move(value);
  changed_.Signal();
}

// As many as one write takes.
void StateKeeper::TakeUnits(StateBatch* batch) {
  batch->cache_afresh = std::exchange(cache_afresh_, false);
  while (!new_units_.empty() && batch->cache.size() < options_.units_at_once) {
    auto node = new_units_.extract(new_units_.begin());
    batch->cache.emplace_back(node.key(), std::move(node.mapped()));
  }
}

void StateKeeper::Begin(const Request& request, uint64_t reader, std::function<void()> durable) {
  MutexLock lock(&mutex_);
  book_.Begin(request, reader);
  waiting_.push_back(std::move(durable));
  urgent_ = true;
  changed_.Signal();
}

void StateKeeper::OnEvent(const std::string& id, uint64_t reader, const Event& event) {
  MutexLock lock(&mutex_);
  const bool idle = !book_.changed();
  if (const auto* token = std::get_if<TokenEvent>(&event)) {
    book_.OnToken(id, reader, *token);
  } else if (std::holds_alternative<Finished>(event)) {
    book_.Finish(id, reader);
  } else if (const auto* failed = std::get_if<Failed>(&event)) {
    // Without a ring, or with an engine that ends, it may go on later.
    if (absl::IsUnavailable(failed->status)) {
      book_.Leave(id, reader, Clock::now());
    } else {
      book_.Forget(id, reader);
    }
  }
  if (idle) changed_.Signal();
}

void StateKeeper::Leave(const std::string& id, uint64_t reader) {
  MutexLock lock(&mutex_);
  book_.Leave(id, reader, Clock::now());
  changed_.Signal();
}

void StateKeeper::Forget(const std::string& id, uint64_t reader) {
  MutexLock lock(&mutex_);
  book_.Forget(id, reader);
  changed_.Signal();
}

StatusOr<Request> StateKeeper::Reattach(const std::string& id, uint64_t tenant, uint64_t reader) {
  MutexLock lock(&mutex_);
  book_.Tick(Clock::now());
  return book_.Reattach(id, tenant, reader);
}

size_t StateKeeper::open_requests() const {
  MutexLock lock(&mutex_);
  return book_.size();
}

Status StateKeeper::Flush() {
  auto written = std::make_shared<std::promise<void>>();
  const std::future<void> done = written->get_future();
  {
    MutexLock lock(&mutex_);
    waiting_.push_back([written = std::move(written)] { written->set_value(); });
    urgent_ = true;
    changed_.Signal();
  }
  done.wait();  // also where the promise is dropped, as another coordinator has taken over
  MutexLock lock(&mutex_);
  return last_write_;
}

// When what changed is to be written.
Deadline StateKeeper::NextWrite() const {
  // No request waits for a store that fails.
  if (urgent_) return last_write_.ok() ? written_at_ + kLeastGap : Deadline{};
  if (!last_write_.ok()) return written_at_ + kRetry;
  const bool changed = book_.changed() || new_cluster_ || new_serving_ || cache_afresh_ || !new_units_.empty() ||
                       !new_responses_.empty();
  return std::min(changed ? written_at_ + options_.write_interval : kNoDeadline, book_.deadline());
}

void StateKeeper::Loop() {
  bool replaced = false;  // another coordinator leads
  for (bool last = false; !last;) {
    RequestJournal::Changes changes;
    StateBatch batch;
    std::vector<std::function<void()>> waiting;
    bool try_it = true, failed_before = false;
    {
      MutexLock lock(&mutex_);
      while (!stopping_ && Clock::now() < NextWrite()) changed_.WaitUntil(&mutex_, NextWrite());
      last = stopping_;
      waiting.swap(waiting_);
      urgent_ = false;
      failed_before = !last_write_.ok();
      try_it = last || !failed_before || Clock::now() >= written_at_ + kRetry;
      if (try_it) {
        book_.Tick(Clock::now());
        if (failed_before) book_.StartAfresh();
        batch.afresh = failed_before;
        changes = book_.TakeChanges();
        batch.cluster = std::exchange(new_cluster_, std::nullopt);
        batch.serving = std::exchange(new_serving_, std::nullopt);
        TakeUnits(&batch);
        for (auto& response : std::exchange(new_responses_, {})) batch.responses.push_back(response);
      }
    }
    if (try_it) {
      Encode(changes, &batch);
      const Status status = batch.empty() ? absl::OkStatus() : store_->Write(batch);
      MutexLock lock(&mutex_);
      written_at_ = Clock::now();
      last_write_ = status;
      replaced |= absl::IsAborted(status);
      if (!status.ok()) {
        if (!new_cluster_) new_cluster_ = std::move(batch.cluster);
        if (!new_serving_) new_serving_ = std::move(batch.serving);
        if (!cache_afresh_) {  // else they are void
          for (auto& [key, entry] : batch.cache) new_units_.try_emplace(key, std::move(entry));
        }
        cache_afresh_ |= batch.cache_afresh;
        for (auto& [key, value] : batch.responses) new_responses_.try_emplace(key, std::move(value));
      }
    }
    if (try_it) Tell(failed_before);
    if (replaced) continue;  // this process ends, and nobody may hear that a request is kept
    for (auto& done : waiting) done();
  }
}

// Once for each change.
void StateKeeper::Tell(bool failed_before) {
  Status status;
  {
    MutexLock lock(&mutex_);
    status = last_write_;
  }
  if (!status.ok() && !failed_before) {
    Log(LogLevel::kError,
        "the state can't be written: {}; what is new since then is lost if the coordinator restarts now",
        Message(status));
  } else if (status.ok() && failed_before) {
    LogLine(LogLevel::kWarn, "the state is written again");
  }
}

}  // namespace gyre
