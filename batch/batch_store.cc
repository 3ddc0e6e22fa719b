#include "batch/batch_store.h"

#include <fcntl.h>
#include <sys/random.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <boost/json/object.hpp>
#include <boost/json/parse.hpp>
#include <boost/json/serialize.hpp>
#include <cerrno>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <stdexcept>
#include <utility>

#include "absl/cleanup/cleanup.h"
#include "base/counted.h"
#include "base/files.h"
#include "base/log.h"
#include "base/unix_time.h"
#include "fmt/core.h"

namespace gyre {
namespace {

namespace json = boost::json;

constexpr std::array<std::string_view, 4> kStateNames = {"in_progress", "cancelling", "completed", "cancelled"};

constexpr size_t kIdBytes = 12;

std::string NewId(std::string_view prefix) {
  std::array<unsigned char, kIdBytes> bytes{};
  [[maybe_unused]] const ssize_t n = getrandom(bytes.data(), bytes.size(), 0);
  std::string id(prefix);
  for (const unsigned char b : bytes) id += fmt::format("{:02x}", b);
  return id;
}

StatusOr<std::string> ReadWhole(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  if (!in) return FileError(path, "can't be read", errno);
  std::ostringstream text;
  text << in.rdbuf();
  if (in.bad()) return FileError(path, "can't be read", errno);
  return text.str();
}

StatusOr<std::string> ReadPart(const std::string& path, uint64_t at, uint64_t bytes) {
  std::ifstream in(path, std::ios::binary);
  std::string text(bytes, 0);
  if (!in) return FileError(path, "can't be opened", errno);
  in.seekg(static_cast<std::streamoff>(at));
  in.read(text.data(), static_cast<std::streamsize>(bytes));
  if (in.eof()) return DataLoss("{}: it ends before byte {}", path, at + bytes);
  if (!in) return FileError(path, "can't be read", errno);
  return text;
}

bool IsRunning(BatchState state) { return state == BatchState::kInProgress || state == BatchState::kCancelling; }

json::object Describe(const StoredFile& f) {
  return {{"kind", "file"},   {"id", f.id},           {"name", f.name},    {"purpose", f.purpose},
          {"bytes", f.bytes}, {"created", f.created}, {"tenant", f.tenant}};
}
json::object Describe(const StoredBatch& b) {
  const std::string_view state = NameOf(b.state);
  return {{"kind", "batch"},        {"id", b.id},
          {"endpoint", b.endpoint}, {"input", b.input},
          {"output", b.output},     {"errors", b.errors},
          {"metadata", b.metadata}, {"state", json::string(state.data(), state.size())},
          {"created", b.created},   {"ended", b.ended},
          {"tenant", b.tenant},     {"total", b.total}};
}

// A text that JSON can hold, of at most `most` bytes.
std::string CleanText(std::string text, size_t most) {
  if (text.size() > most) {
    while (most > 0 && (static_cast<unsigned char>(text[most]) & 0xC0) == 0x80) --most;
    text.resize(most);
  }
  boost::system::error_code error;
  json::parse(json::serialize(json::string(text)), error);
  if (error)
    std::replace_if(
        text.begin(), text.end(), [](char c) { return static_cast<unsigned char>(c) > 127; }, '?');
  return text;
}

// OpenAI's limits of metadata: 16 texts.
Status CheckMetadata(const std::string& metadata) {
  boost::system::error_code error;
  const json::value value = json::parse(metadata, error);
  const json::object* object = error ? nullptr : value.if_object();
  bool fits = object != nullptr && object->size() <= 16;
  for (size_t i = 0; fits && i < object->size(); ++i) {
    const auto& pair = *(object->begin() + i);
    fits = pair.key().size() <= 64 && pair.value().is_string() && pair.value().get_string().size() <= 512;
  }
  return fits ? absl::OkStatus()
              : InvalidArgument("metadata: at most 16 texts of 512 bytes, with names of 64 bytes, are taken");
}

std::string Text(const json::object& o, const char* name) { return std::string(o.at(name).as_string()); }
template <typename T>
T Number(const json::object& o, const char* name) {
  return o.at(name).to_number<T>();
}

Status TooManyBatches(size_t most) {
  return ResourceExhausted("there are {} already; delete the result files of one that has ended",
                           Counted(most, "batch", "batches"));
}

template <typename T>
size_t CountOf(const std::map<std::string, T>& all, uint64_t tenant) {
  return static_cast<size_t>(
      std::count_if(all.begin(), all.end(), [tenant](const auto& pair) { return pair.second.tenant == tenant; }));
}

template <typename T>
std::vector<T> NewestFirst(const std::map<std::string, T>& all, uint64_t tenant) {
  std::vector<T> out;
  for (const auto& [id, one] : all) {
    if (one.tenant == tenant) out.push_back(one);
  }
  std::stable_sort(out.begin(), out.end(), [](const T& a, const T& b) { return a.created > b.created; });
  return out;
}

}  // namespace

std::string_view NameOf(BatchState state) { return kStateNames[static_cast<size_t>(state)]; }

StatusOr<std::unique_ptr<BatchStore>> BatchStore::Open(const std::string& folder, const BatchLimits& limits) {
  GYRE_RETURN_IF_ERROR(MakePrivateFolder(folder));
  std::unique_ptr<BatchStore> store(new BatchStore(folder, limits));
  GYRE_RETURN_IF_ERROR(store->Lock());
  MutexLock lock(&store->mutex_);
  GYRE_RETURN_IF_ERROR(store->Load());
  return store;
}

BatchStore::~BatchStore() {
  if (lock_ >= 0) ::close(lock_);
}

Status BatchStore::Lock() {
  GYRE_ASSIGN_OR_RETURN(
      lock_, OpenLocked(PathIn(folder_, "lock"), O_RDWR, 0600, folder_ + ": another process keeps its batches there"));
  return absl::OkStatus();
}

Status BatchStore::Load() {
  std::error_code error;
  for (const auto& entry : std::filesystem::directory_iterator(folder_, error)) {
    const std::string path = entry.path().string();
    if (entry.path().extension() != ".json") continue;
    const StatusOr<std::string> text = ReadSmallFile(path);
    if (!text.ok()) {
      Log(LogLevel::kError, "batches: {} is left aside", Message(text.status()));
      left_aside_ = true;
      continue;
    }
    try {
      const json::value value = json::parse(*text);
      const json::object& o = value.as_object();
      if (Text(o, "kind") == "file") {
        files_[Text(o, "id")] = {.id = Text(o, "id"),
                                 .name = Text(o, "name"),
                                 .purpose = Text(o, "purpose"),
                                 .bytes = Number<uint64_t>(o, "bytes"),
                                 .created = Number<int64_t>(o, "created"),
                                 .tenant = Number<uint64_t>(o, "tenant")};
        continue;
      }
      StoredBatch b{.id = Text(o, "id"),
                    .endpoint = Text(o, "endpoint"),
                    .input = Text(o, "input"),
                    .output = Text(o, "output"),
                    .errors = Text(o, "errors"),
                    .metadata = Text(o, "metadata"),
                    .created = Number<int64_t>(o, "created"),
                    .ended = Number<int64_t>(o, "ended"),
                    .tenant = Number<uint64_t>(o, "tenant"),
                    .total = Number<uint64_t>(o, "total")};
      const auto state = std::find(kStateNames.begin(), kStateNames.end(), Text(o, "state"));
      if (state == kStateNames.end()) throw std::runtime_error("its state is not known");
      b.state = static_cast<BatchState>(state - kStateNames.begin());
      batches_[b.id] = std::move(b);
    } catch (const std::exception& e) {
      Log(LogLevel::kError, "batches: {} is left aside: {}", path, e.what());
      left_aside_ = true;
    }
  }
  if (error) return FileError(folder_, "can't be read", error.value());
  for (auto it = batches_.begin(); it != batches_.end();) {
    const std::string id = it->first;
    StoredBatch& batch = it->second;
    StatusOr<Running> begun = Begin(batch);
    // Another process writes to its results.
    if (absl::IsFailedPrecondition(begun.status())) return begun.status();
    if (!begun.ok()) {
      Log(LogLevel::kError, "the batch {} is left aside: {}", id, Message(begun.status()));
      left_aside_ = true;
      it = batches_.erase(it);
      continue;
    }
    ++it;
    Running running = *std::move(begun);
    batch.completed = running.answers->size();
    batch.failed = running.failures->size();
    if (!IsRunning(batch.state)) continue;
    Log(LogLevel::kInfo, "batch {} goes on: {} of {} have answers", id, batch.completed + batch.failed,
        Counted(batch.total, "request"));
    running_[id] = std::move(running);
    // It may be that only the note of its end is missing.
    if (!EndIfDone(&batch)) continue;
    Status written = absl::OkStatus();
    for (const std::string& file : {batch.output, batch.errors}) written.Update(Write(files_.at(file)));
    written.Update(Write(batch));
    // The next start ends it again.
    if (!written.ok()) Log(LogLevel::kError, "batch {}: {}", id, Message(written));
    if (written.ok()) ending_.erase(id);
  }
  Sweep();
  return absl::OkStatus();
}

void BatchStore::Sweep() const {
  std::set<std::string> needed;
  for (const auto& [id, file] : files_) needed.insert(ContentPath(id));
  for (const auto& [id, batch] : batches_) {
    for (const std::string& file : {batch.input, batch.output, batch.errors}) needed.insert(ContentPath(file));
  }
  size_t removed = 0;
  std::error_code error;
  for (const auto& entry : std::filesystem::directory_iterator(folder_, error)) {
    const std::string path = entry.path().string(), name = entry.path().filename().string();
    const std::string_view begins = name.starts_with("batch_") ? "batch_" : "file-";
    if (!name.starts_with(begins) || name.find(".json") != begins.size() + 2 * kIdBytes) continue;
    // A description that was not in place yet, or a content. Of one that could not be read the content is needed.
    const bool content = name.ends_with(".jsonl");
    if (!content && !name.ends_with(".new")) continue;
    if (content && (left_aside_ || needed.count(ContentPath(name.substr(0, name.find('.')))) > 0)) continue;
    if (::unlink(path.c_str()) == 0) {
      ++removed;
    } else {
      Log(LogLevel::kError, "batches: {}", Message(FileError(path, "can't be removed", errno)));
    }
  }
  if (removed > 0) Log(LogLevel::kInfo, "batches: {} of a process that was killed removed", Counted(removed, "file"));
}

StatusOr<BatchStore::Running> BatchStore::Begin(const StoredBatch& batch) const {
  Running running;
  GYRE_ASSIGN_OR_RETURN(running.answers, ResultsFile::Open(ContentPath(batch.output)));
  GYRE_ASSIGN_OR_RETURN(running.failures, ResultsFile::Open(ContentPath(batch.errors)));
  if (batch.state != BatchState::kInProgress) return running;
  GYRE_ASSIGN_OR_RETURN(const std::string text, ReadWhole(ContentPath(batch.input)));
  GYRE_ASSIGN_OR_RETURN(running.requests, FindRequests(text, {batch.endpoint}));
  std::erase_if(running.requests, [&running](const BatchLine& r) {
    return running.answers->Has(r.custom_id) || running.failures->Has(r.custom_id);
  });
  std::reverse(running.requests.begin(), running.requests.end());
  return running;
}

bool BatchStore::EndIfDone(StoredBatch* batch) {
  const auto it = running_.find(batch->id);
  if (it == running_.end() || !it->second.given_out.empty()) return false;
  const bool cancelled = batch->state == BatchState::kCancelling;
  if (!cancelled && (!it->second.requests.empty() || batch->completed + batch->failed != batch->total)) return false;
  ending_.insert(batch->id);
  batch->state = cancelled ? BatchState::kCancelled : BatchState::kCompleted;
  batch->ended = UnixSeconds();
  for (const auto& [id, file] : {std::pair(batch->output, it->second.answers), {batch->errors, it->second.failures}}) {
    files_[id] = {.id = id,
                  .name = id + ".jsonl",
                  .purpose = "batch_output",
                  .bytes = file->bytes(),
                  .created = batch->ended,
                  .tenant = batch->tenant};
  }
  running_.erase(it);
  return true;
}

Status BatchStore::WriteEnded(const StoredBatch& batch) {
  std::vector<StoredFile> files;
  {
    MutexLock lock(&mutex_);
    for (const std::string& id : {batch.output, batch.errors}) {
      if (const auto it = files_.find(id); it != files_.end()) files.push_back(it->second);
    }
  }
  for (const StoredFile& file : files) GYRE_RETURN_IF_ERROR(Write(file));
  GYRE_RETURN_IF_ERROR(Write(batch));
  MutexLock lock(&mutex_);
  ending_.erase(batch.id);
  return absl::OkStatus();
}

Status BatchStore::Write(const StoredBatch& batch) const {
  return ReplaceFile(InfoPath(batch.id), json::serialize(Describe(batch)), 0600);
}
Status BatchStore::Write(const StoredFile& file) const {
  return ReplaceFile(InfoPath(file.id), json::serialize(Describe(file)), 0600);
}

StatusOr<StoredFile> BatchStore::AddFile(uint64_t tenant, std::string name, std::string purpose,
                                         std::string_view bytes) {
  if (purpose != "batch") return InvalidArgument("purpose is {}; it must be batch", purpose);
  if (bytes.size() > limits_.file_bytes)
    return InvalidArgument("the file has {} bytes, at most {} are taken", bytes.size(), limits_.file_bytes);
  StoredFile file{.id = NewId("file-"),
                  .name = CleanText(std::move(name), 255),
                  .purpose = std::move(purpose),
                  .bytes = bytes.size(),
                  .created = UnixSeconds(),
                  .tenant = tenant};
  {
    MutexLock lock(&mutex_);
    const auto adding = adding_.find(tenant);
    const size_t files = CountOf(files_, tenant) + (adding == adding_.end() ? 0 : adding->second);
    if (files >= limits_.files) return ResourceExhausted("there are {} already; delete some", Counted(files, "file"));
    ++adding_[tenant];
  }
  const absl::Cleanup counted = [&] {
    MutexLock lock(&mutex_);
    if (--adding_[tenant] == 0) adding_.erase(tenant);
  };
  // Nobody else knows the new id, so the lock is not held over the disk.
  Status written = CreateFile(ContentPath(file.id), bytes, 0600);
  if (written.ok()) written = Write(file);
  if (!written.ok()) {
    ::unlink(ContentPath(file.id).c_str());
    return written;
  }
  MutexLock lock(&mutex_);
  files_[file.id] = file;
  return file;
}

StatusOr<StoredFile> BatchStore::FindFile(uint64_t tenant, const std::string& id) const {
  MutexLock lock(&mutex_);
  const auto it = files_.find(id);
  if (it == files_.end() || it->second.tenant != tenant) return NotFound("there is no file {}", id);
  return it->second;
}

std::vector<StoredFile> BatchStore::Files(uint64_t tenant) const {
  MutexLock lock(&mutex_);
  return NewestFirst(files_, tenant);
}

StatusOr<std::string> BatchStore::Content(uint64_t tenant, const std::string& id) const {
  GYRE_RETURN_IF_ERROR(FindFile(tenant, id).status());
  return ReadWhole(ContentPath(id));
}

Status BatchStore::RemoveFile(uint64_t tenant, const std::string& id) {
  bool result = false;
  {
    MutexLock lock(&mutex_);
    const auto it = files_.find(id);
    if (it == files_.end() || it->second.tenant != tenant) return NotFound("there is no file {}", id);
    if (beginning_.count(id) > 0) return FailedPrecondition("a batch that begins needs the file {}", id);
    for (const auto& [name, batch] : batches_) {
      if (IsRunning(batch.state) && batch.input == id)
        return FailedPrecondition("the batch {} needs the file {}", name, id);
      if (ending_.count(name) > 0 && (batch.output == id || batch.errors == id))
        return FailedPrecondition("the batch {} has just ended; try again", name);
      // Of a batch that has ended the file stays, without a name for clients, as it says what the batch has done.
      result |= batch.output == id || batch.errors == id;
    }
    files_.erase(it);
  }
  for (const std::string& path : {InfoPath(id), result ? "" : ContentPath(id)}) {
    if (!path.empty() && ::unlink(path.c_str()) != 0 && errno != ENOENT)
      return FileError(path, "can't be removed", errno);
  }
  return absl::OkStatus();
}

StatusOr<StoredBatch> BatchStore::Create(uint64_t tenant, const std::string& file, const std::string& endpoint,
                                         const std::string& metadata) {
  const std::vector<std::string>& paths = BatchPaths();
  if (std::find(paths.begin(), paths.end(), endpoint) == paths.end())
    return InvalidArgument("endpoint is {}, which no batch can ask", endpoint);
  GYRE_RETURN_IF_ERROR(CheckMetadata(metadata));
  {
    MutexLock lock(&mutex_);
    const auto it = files_.find(file);
    if (it == files_.end() || it->second.tenant != tenant) return NotFound("there is no file {}", file);
    if (CountOf(batches_, tenant) >= limits_.batches && OldestToForget(tenant) == nullptr)
      return TooManyBatches(limits_.batches);
    beginning_.insert(file);
  }
  const absl::Cleanup begun = [&] {
    MutexLock lock(&mutex_);
    beginning_.erase(beginning_.find(file));
  };
  StoredBatch batch{.id = NewId("batch_"),
                    .endpoint = endpoint,
                    .input = file,
                    .output = NewId("file-"),
                    .errors = NewId("file-"),
                    .metadata = metadata,
                    .created = UnixSeconds(),
                    .tenant = tenant};
  absl::Cleanup remove = [&] { Unlink(batch); };
  GYRE_ASSIGN_OR_RETURN(Running running, BeginNew(&batch));
  std::optional<StoredBatch> forgotten;
  {
    MutexLock lock(&mutex_);
    GYRE_ASSIGN_OR_RETURN(forgotten, MakeRoom(tenant));
    running_[batch.id] = std::move(running);
    batches_[batch.id] = batch;
  }
  std::move(remove).Cancel();
  if (forgotten) Unlink(*forgotten);
  return batch;
}

const StoredBatch* BatchStore::OldestToForget(uint64_t tenant) const {
  const StoredBatch* oldest = nullptr;
  if (left_aside_) return oldest;
  for (const auto& [id, b] : batches_) {
    // Clients don't see the file of failures where there are none.
    const bool removed = files_.count(b.output) == 0 && (b.failed == 0 || files_.count(b.errors) == 0);
    const bool needed = IsRunning(b.state) || ending_.count(id) > 0 || beginning_.count(b.errors) > 0;
    if (b.tenant == tenant && removed && !needed && (oldest == nullptr || b.created < oldest->created)) oldest = &b;
  }
  return oldest;
}

StatusOr<std::optional<StoredBatch>> BatchStore::MakeRoom(uint64_t tenant) {
  std::optional<StoredBatch> out;
  if (CountOf(batches_, tenant) < limits_.batches) return out;
  const StoredBatch* const oldest = OldestToForget(tenant);
  if (oldest == nullptr) return TooManyBatches(limits_.batches);
  out = *oldest;
  batches_.erase(out->id);
  files_.erase(out->errors);
  return out;
}

void BatchStore::Unlink(const StoredBatch& batch) const {
  for (const std::string& path : {InfoPath(batch.id), InfoPath(batch.errors), InfoPath(batch.output),
                                  ContentPath(batch.errors), ContentPath(batch.output)})
    ::unlink(path.c_str());
}

StatusOr<BatchStore::Running> BatchStore::BeginNew(StoredBatch* batch) const {
  const std::string& file = batch->input;
  GYRE_ASSIGN_OR_RETURN(const std::string text, ReadWhole(ContentPath(file)));
  const StatusOr<std::vector<BatchLine>> requests = FindRequests(text, {batch->endpoint});
  if (!requests.ok()) return Annotate(requests.status(), fmt::format("the file {}", file));
  if (requests->size() > limits_.requests) {
    return InvalidArgument("the file {} has {}, at most {} are taken", file, Counted(requests->size(), "request"),
                           limits_.requests);
  }
  batch->total = requests->size();
  GYRE_ASSIGN_OR_RETURN(Running running, Begin(*batch));
  GYRE_RETURN_IF_ERROR(Write(*batch));
  return running;
}

StatusOr<StoredBatch> BatchStore::Find(uint64_t tenant, const std::string& id) const {
  MutexLock lock(&mutex_);
  const auto it = batches_.find(id);
  if (it == batches_.end() || it->second.tenant != tenant) return NotFound("there is no batch {}", id);
  return it->second;
}

std::vector<StoredBatch> BatchStore::Batches(uint64_t tenant) const {
  MutexLock lock(&mutex_);
  return NewestFirst(batches_, tenant);
}

StatusOr<StoredBatch> BatchStore::Cancel(uint64_t tenant, const std::string& id) {
  StoredBatch now;
  bool ended = false;
  {
    MutexLock lock(&mutex_);
    const auto it = batches_.find(id);
    if (it == batches_.end() || it->second.tenant != tenant) return NotFound("there is no batch {}", id);
    StoredBatch& batch = it->second;
    if (batch.state == BatchState::kCancelling) return batch;
    if (!IsRunning(batch.state)) return FailedPrecondition("the batch {} is {}", id, NameOf(batch.state));
    batch.state = BatchState::kCancelling;
    running_.at(id).requests.clear();
    ended = EndIfDone(&batch);
    now = batch;
  }
  // Should its end be written before this, the next start finds that nothing is left and ends it again.
  GYRE_RETURN_IF_ERROR(ended ? WriteEnded(now) : Write(now));
  return now;
}

std::optional<BatchStore::Job> BatchStore::Take() {
  constexpr int kMostFailures = 16;  // in one call, which the runner waits for
  for (int failures = 0; failures < kMostFailures; ++failures) {
    Job job;
    std::string input, endpoint;
    {
      MutexLock lock(&mutex_);
      const StoredBatch* oldest = nullptr;
      for (const auto& [id, running] : running_) {
        const StoredBatch& batch = batches_.at(id);
        if (!running.requests.empty() && (oldest == nullptr || batch.created < oldest->created)) oldest = &batch;
      }
      if (oldest == nullptr) return std::nullopt;
      Running& running = running_.at(oldest->id);
      input = ContentPath(oldest->input);
      endpoint = oldest->endpoint;
      job = {.batch = oldest->id, .tenant = oldest->tenant, .where = running.requests.back(), .request = {}};
      running.given_out.insert(job.where.custom_id);
      running.requests.pop_back();
    }
    absl::Cleanup back = [&] { PutBack(job); };
    StatusOr<BatchRequest> request = ReadRequest(job, input, endpoint);
    if (request.ok()) {
      job.request = *std::move(request);
      std::move(back).Cancel();
      return job;
    }
    Log(LogLevel::kError, "batch {}: {}", job.batch, Message(request.status()));
    // An error that may pass, such as too many open files, is not an answer to the request.
    if (!absl::IsDataLoss(request.status()) && !absl::IsInvalidArgument(request.status())) return std::nullopt;
    job.request.custom_id = job.where.custom_id;
    const BatchResult failure{.line = BatchFailure(job.request, "unreadable", "the file of requests can't be read")};
    std::move(back).Cancel();
    if (!AddResult(job, failure).ok()) return std::nullopt;
  }
  return std::nullopt;
}

StatusOr<BatchRequest> BatchStore::ReadRequest(const Job& job, const std::string& input,
                                               const std::string& endpoint) const {
  GYRE_ASSIGN_OR_RETURN(const std::string line, ReadPart(input, job.where.at, job.where.bytes));
  GYRE_ASSIGN_OR_RETURN(BatchRequest request, ReadBatchRequest(line, {endpoint}));
  if (request.custom_id != job.where.custom_id)
    return DataLoss("{}: the request at byte {} is not {}", input, job.where.at, job.where.custom_id);
  return request;
}

void BatchStore::PutBack(const Job& job) {
  StoredBatch now;
  {
    MutexLock lock(&mutex_);
    const auto it = running_.find(job.batch);
    if (it == running_.end() || it->second.given_out.count(job.where.custom_id) == 0) return;
    StoredBatch& batch = batches_.at(job.batch);
    if (batch.state == BatchState::kInProgress) it->second.requests.push_back(job.where);
    it->second.given_out.erase(job.where.custom_id);
    if (!EndIfDone(&batch)) return;
    now = batch;
  }
  const Status written = WriteEnded(now);
  if (!written.ok()) Log(LogLevel::kError, "batch {}: {}", job.batch, Message(written));
}

Status BatchStore::Answer(const Job& job, int status_code, std::string_view request_id, std::string_view body) {
  return AddResult(job, BatchAnswer(job.request, status_code, request_id, body));
}

Status BatchStore::AddResult(const Job& job, const BatchResult& result) {
  std::shared_ptr<ResultsFile> file;
  {
    MutexLock lock(&mutex_);
    const auto it = running_.find(job.batch);
    if (it == running_.end()) return Internal("the batch {} does not run", job.batch);
    file = result.succeeded ? it->second.answers : it->second.failures;
  }
  Status written = file->Add(job.request.custom_id, result.line);
  if (written.ok()) written = file->Sync();
  StoredBatch now;
  {
    MutexLock lock(&mutex_);
    Running& running = running_.at(job.batch);
    StoredBatch& batch = batches_.at(job.batch);
    if (!written.ok() && batch.state == BatchState::kInProgress) running.requests.push_back(job.where);
    running.given_out.erase(job.where.custom_id);
    if (written.ok()) ++(result.succeeded ? batch.completed : batch.failed);
    if (!EndIfDone(&batch)) return written;
    now = batch;
  }
  GYRE_RETURN_IF_ERROR(written);
  return WriteEnded(now);
}

}  // namespace gyre
