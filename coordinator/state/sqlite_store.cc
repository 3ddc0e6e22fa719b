#include "coordinator/state/sqlite_store.h"

#include <fcntl.h>
#include <sqlite3.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <charconv>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <map>
#include <utility>

#include "base/crc32c.h"
#include "base/files.h"
#include "base/log.h"
#include "base/plan.h"
#include "coordinator/state/term_file.h"

namespace gyre {
namespace {

constexpr int kSchema = 3;
constexpr int kApplication = 0x47595245;  // "GYRE"

// SQLite has no checksums outside its WAL. So each row has a sum of its key and its value (SumOf).
constexpr const char* kTables = R"(
  CREATE TABLE meta (key TEXT PRIMARY KEY, value BLOB NOT NULL, sum INTEGER NOT NULL) WITHOUT ROWID;
  CREATE TABLE request (number INTEGER PRIMARY KEY, id TEXT NOT NULL UNIQUE, request BLOB NOT NULL,
                        sum INTEGER NOT NULL);
  CREATE TABLE token (request INTEGER NOT NULL, first INTEGER NOT NULL, tokens BLOB NOT NULL, sum INTEGER NOT NULL,
                      PRIMARY KEY (request, first)) WITHOUT ROWID;
  CREATE TABLE cache (unit INTEGER PRIMARY KEY, entry BLOB NOT NULL, sum INTEGER NOT NULL);
)";

// Since the third schema.
constexpr const char* kResponseTable = R"(
  CREATE TABLE IF NOT EXISTS response (key TEXT PRIMARY KEY, response BLOB NOT NULL, sum INTEGER NOT NULL) WITHOUT ROWID;
)";

// From the first schema, which had no sums; its cache table came later.
constexpr const char* kUpgrade = R"(
  CREATE TABLE IF NOT EXISTS cache (unit INTEGER PRIMARY KEY, entry BLOB NOT NULL);
  ALTER TABLE meta ADD COLUMN sum INTEGER;
  ALTER TABLE request ADD COLUMN sum INTEGER;
  ALTER TABLE token ADD COLUMN sum INTEGER;
  ALTER TABLE cache ADD COLUMN sum INTEGER;
  UPDATE meta SET sum = sum_of(key, value);
  UPDATE request SET sum = sum_of(id, request);
  UPDATE token SET sum = sum_of((SELECT id FROM request WHERE number = token.request) || ' ' || first, tokens);
  UPDATE cache SET sum = sum_of(unit, entry);
)";

// The error of SQLite in the terms of a user who started the process.
Status SqlError(const std::string& path, const std::string& what, int code, const char* message, int system_error = 0) {
  switch (code & 0xff) {
    case SQLITE_IOERR:
    case SQLITE_CANTOPEN:
      if (system_error == 0) {
        return Unavailable("{}: {}: {}; its disk may be full, or a limit of the size of files too small", path, what,
                           message);
      }
      return FileError(path, "the state can't be read or written", system_error);
    case SQLITE_CORRUPT:
    case SQLITE_NOTADB:
      return DataLoss(
          "{}: the state is damaged ({}); move the folder away to begin without it, nothing in it was changed", path,
          message);
    case SQLITE_FULL: return ResourceExhausted("{}: {}: the disk is full", path, what);
    case SQLITE_READONLY:
    case SQLITE_PERM: return MakeStatus(absl::StatusCode::kPermissionDenied, "{}: {}: {}", path, what, message);
    default: break;
  }
  return Unavailable("{}: {}: {}", path, what, message);
}

// The number of the last frame of the WAL that ends one of its newest transactions, by SQLite's file format; 0: none.
// What stands behind it is of older ones, or of a transaction that was not committed.
int64_t LastCommit(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  const auto number = [](const char* at) {
    uint32_t value = 0;
    for (int i = 0; i < 4; ++i) value = value << 8 | static_cast<uint8_t>(at[i]);
    return value;
  };
  std::array<char, 32> head{};
  if (!in.read(head.data(), head.size())) return 0;
  const uint32_t page = number(&head[8]);
  if (page < 512 || page > 65536) return INT64_MAX;  // damaged, so that SQLite finds none
  int64_t last = 0;
  std::array<char, 24> frame{};
  for (int64_t i = 1; in.read(frame.data(), frame.size()) && in.ignore(page); ++i) {
    if (in.gcount() != static_cast<std::streamsize>(page)) break;
    if (number(&frame[4]) != 0 && std::equal(&frame[8], &frame[16], &head[16])) last = i;
  }
  return last;
}

int64_t SumOf(std::string_view key, std::string_view value) {
  const auto bytes = [](std::string_view text) { return std::as_bytes(std::span(text.data(), text.size())); };
  return Crc32c(bytes(value), Crc32c(bytes(key)));
}
int64_t SumOfTokens(const std::string& id, int64_t first, std::string_view tokens) {
  return SumOf(fmt::format("{} {}", id, first), tokens);
}

// SumOf for SQL: sum_of(key, value).
void SumForSql(sqlite3_context* context, int, sqlite3_value** values) {
  const auto bytes = [](sqlite3_value* v) {
    const auto* text = static_cast<const char*>(sqlite3_value_blob(v));
    return std::string_view(text, static_cast<size_t>(sqlite3_value_bytes(v)));
  };
  sqlite3_result_int64(context, SumOf(bytes(values[0]), bytes(values[1])));
}

class Statement {
 public:
  Statement() = default;
  ~Statement() { sqlite3_finalize(statement_); }
  Statement(const Statement&) = delete;
  Statement& operator=(const Statement&) = delete;

  int Prepare(sqlite3* db, const char* sql) {
    return sqlite3_prepare_v3(db, sql, -1, SQLITE_PREPARE_PERSISTENT, &statement_, nullptr);
  }
  // The bytes outlive the next Run.
  Statement& Text(int at, const std::string& text) {
    sqlite3_bind_text64(statement_, at, text.data(), text.size(), SQLITE_STATIC, SQLITE_UTF8);
    return *this;
  }
  Statement& Blob(int at, const std::string& bytes) {
    sqlite3_bind_blob64(statement_, at, bytes.data(), bytes.size(), SQLITE_STATIC);
    return *this;
  }
  Statement& Int(int at, int64_t value) {
    sqlite3_bind_int64(statement_, at, value);
    return *this;
  }
  // SQLITE_ROW, SQLITE_DONE or an error.
  int Step() { return sqlite3_step(statement_); }
  // To the end of a statement without rows; SQLITE_OK or an error.
  int Run() {
    const int code = Step();
    sqlite3_reset(statement_);
    return code == SQLITE_DONE ? SQLITE_OK : code;
  }
  std::string Bytes(int column) {
    const void* bytes = sqlite3_column_blob(statement_, column);
    return {static_cast<const char*>(bytes), static_cast<size_t>(sqlite3_column_bytes(statement_, column))};
  }
  int64_t Number(int column) { return sqlite3_column_int64(statement_, column); }
  // Whether the column has this sum; null and texts are none.
  bool HasSum(int column, int64_t sum) {
    return sqlite3_column_type(statement_, column) == SQLITE_INTEGER && Number(column) == sum;
  }

 private:
  sqlite3_stmt* statement_ = nullptr;
};

class SqliteStore : public StateStore {
 public:
  explicit SqliteStore(const std::string& folder) : folder_(folder), path_(PathIn(folder, "state.db")) {}
  ~SqliteStore() override {
    statements_.clear();
    sqlite3_close(db_);
    if (lock_ >= 0) close(lock_);
  }

  Status Lock(const std::string& folder) {
    GYRE_ASSIGN_OR_RETURN(lock_, OpenLocked(PathIn(folder, "lock"), O_RDWR, 0600,
                                            folder + ": another coordinator that is running keeps its state there"));
    return absl::OkStatus();
  }

  Status Open(uint64_t least_term, StoredState* found) {
    const std::optional<KeptTerm> kept = KnownTerm();
    const bool no_wal = FileStamp(path_ + "-wal") == "-;";
    // With this mode before SQLite makes it with another; its WAL takes the same.
    const int fd = open(path_.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    if (fd < 0) return FileError(path_, "it can't be opened", errno);
    close(fd);
    const int code = sqlite3_open_v2(path_.c_str(), &db_, SQLITE_OPEN_READWRITE | SQLITE_OPEN_NOMUTEX, nullptr);
    GYRE_RETURN_IF_ERROR(Check("opening it", code));
    sqlite3_extended_result_codes(db_, 1);
    GYRE_RETURN_IF_ERROR(Check(
        "opening it", sqlite3_create_function(db_, "sum_of", 2, SQLITE_UTF8, nullptr, SumForSql, nullptr, nullptr)));
    // A database that turns out to be damaged is left as it is; what is in the WAL is found again anyway.
    sqlite3_db_config(db_, SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, 1, nullptr);
    // No other process has the database, so its index of the WAL needs no shared memory. One that an older Gyre left
    // may not fit to the WAL any more.
    ::unlink((path_ + "-shm").c_str());
    GYRE_RETURN_IF_ERROR(Execute("PRAGMA locking_mode=EXCLUSIVE"));
    int64_t schema = 0, application = 0;
    GYRE_RETURN_IF_ERROR(Pragma("PRAGMA application_id", &application));
    GYRE_RETURN_IF_ERROR(Pragma("PRAGMA user_version", &schema));
    if (application != 0 && application != kApplication) {
      return FailedPrecondition("{}: it is the database of another program", path_);
    }
    if (schema > kSchema) {
      return FailedPrecondition("{}: a newer Gyre has written it (schema {}, this one knows {})", path_, schema,
                                kSchema);
    }
    GYRE_RETURN_IF_ERROR(CheckWhole());
    GYRE_RETURN_IF_ERROR(Execute("PRAGMA journal_mode=WAL"));
    GYRE_RETURN_IF_ERROR(CheckWal(kept && no_wal));
    // Only the term needs fsync, as an epoch must never come twice.
    GYRE_RETURN_IF_ERROR(Execute("PRAGMA synchronous=FULL"));
    // A state that turns out to be damaged while it is read is left as it is.
    GYRE_RETURN_IF_ERROR(InTransaction([&]() -> Status {
      GYRE_RETURN_IF_ERROR(Begin(schema, least_term, kept, found));
      return Read(found);
    }));
    GYRE_RETURN_IF_ERROR(WriteTerm(folder_, {.cluster_id = found->cluster_id, .term = found->term}));
    // The tables are in the database from now on, whatever happens to the WAL. On a full disk they stay in the WAL.
    (void)Checkpoint();
    return Execute("PRAGMA synchronous=NORMAL");
  }

  Status Write(const StateBatch& batch) override {
    return InTransaction([&]() -> Status {
      if (batch.cluster) GYRE_RETURN_IF_ERROR(PutMeta("cluster", *batch.cluster));
      if (batch.serving) GYRE_RETURN_IF_ERROR(PutMeta("serving", *batch.serving));
      if (batch.afresh) {
        GYRE_RETURN_IF_ERROR(Execute("DELETE FROM token"));
        GYRE_RETURN_IF_ERROR(Execute("DELETE FROM request"));
      }
      if (batch.cache_afresh) GYRE_RETURN_IF_ERROR(Execute("DELETE FROM cache"));
      for (const auto& [unit, entry] : batch.cache) GYRE_RETURN_IF_ERROR(PutUnit(unit, entry));
      for (const auto& [key, response] : batch.responses) GYRE_RETURN_IF_ERROR(PutResponse(key, response));
      for (const std::string& id : batch.gone) GYRE_RETURN_IF_ERROR(Forget(id));
      for (const StateBatch::Begun& b : batch.begun) {
        GYRE_RETURN_IF_ERROR(Forget(b.id));
        GYRE_ASSIGN_OR_RETURN(Statement* const put, Get("INSERT INTO request (id, request, sum) VALUES (?, ?, ?)"));
        put->Text(1, b.id).Blob(2, b.request).Int(3, SumOf(b.id, b.request));
        GYRE_RETURN_IF_ERROR(Check("writing a request", put->Run()));
      }
      for (const StateBatch::Tokens& t : batch.tokens) {
        GYRE_ASSIGN_OR_RETURN(Statement* const put, Get("INSERT OR REPLACE INTO token (request, first, tokens, sum) "
                                                        "SELECT number, ?, ?, ? FROM request WHERE id = ?"));
        const auto first = static_cast<int64_t>(t.first);
        put->Int(1, first).Blob(2, t.tokens).Int(3, SumOfTokens(t.id, first, t.tokens)).Text(4, t.id);
        GYRE_RETURN_IF_ERROR(Check("writing a request's ids", put->Run()));
      }
      return absl::OkStatus();
    });
  }

 private:
  Status Check(const std::string& what, int code) {
    if (code == SQLITE_OK) return absl::OkStatus();
    return SqlError(path_, what, code, db_ != nullptr ? sqlite3_errmsg(db_) : sqlite3_errstr(code),
                    db_ != nullptr ? sqlite3_system_errno(db_) : 0);
  }
  Status Execute(const char* sql) { return Check(sql, sqlite3_exec(db_, sql, nullptr, nullptr, nullptr)); }
  Status Pragma(const char* sql, int64_t* value) {
    Statement statement;
    GYRE_RETURN_IF_ERROR(Check(sql, statement.Prepare(db_, sql)));
    const int code = statement.Step();
    if (code != SQLITE_ROW) return Check(sql, code == SQLITE_DONE ? SQLITE_CORRUPT : code);
    *value = statement.Number(0);
    return absl::OkStatus();
  }
  // Before anything is written: pages that are damaged would be found only when they are needed.
  Status CheckWhole() {
    Statement statement;
    GYRE_RETURN_IF_ERROR(Check("checking it", statement.Prepare(db_, "PRAGMA quick_check(1)")));
    const int code = statement.Step();
    if (code != SQLITE_ROW) return Check("checking it", code);
    const std::string words = statement.Bytes(0);
    return words == "ok" ? absl::OkStatus() : SqlError(path_, "checking it", SQLITE_CORRUPT, words.c_str());
  }
  Status Damaged(const std::string& what) { return SqlError(path_, "reading it", SQLITE_CORRUPT, what.c_str()); }
  // The last start's term, as the file beside the database has it.
  std::optional<KeptTerm> KnownTerm() {
    StatusOr<std::optional<KeptTerm>> kept = ReadTerm(folder_);
    if (kept.ok()) return *kept;
    // The database has it too, and the clock is above it.
    Log(LogLevel::kWarn, "{}; it is made anew", Message(kept.status()));
    return std::nullopt;
  }
  // The frames of the WAL that SQLite found.
  StatusOr<int64_t> Checkpoint() {
    Statement statement;
    const char* const sql = "PRAGMA wal_checkpoint(PASSIVE)";
    GYRE_RETURN_IF_ERROR(Check(sql, statement.Prepare(db_, sql)));
    const int code = statement.Step();
    if (code != SQLITE_ROW) return Check(sql, code == SQLITE_DONE ? SQLITE_ERROR : code);
    return statement.Number(1);
  }
  // Says what SQLite does not: it takes a WAL up to the first frame that is damaged. `gone`: there was one once.
  Status CheckWal(bool gone) {
    const std::string wal = path_ + "-wal";
    if (gone) {
      Log(LogLevel::kWarn, "{}: it is gone, and with it what was written last: requests and a plan may be missing",
          wal);
    }
    const int64_t last = gone ? 0 : LastCommit(wal);
    namespace fs = std::filesystem;
    std::error_code error, unknown;
    const std::string copy = wal + ".copy", damaged = wal + ".damaged";
    if (last > 0) fs::copy_file(wal, copy, fs::copy_options::overwrite_existing, error);
    const StatusOr<int64_t> found = Checkpoint();
    if (found.ok() && *found < last) {
      if (!error) fs::rename(copy, damaged, error);
      Log(LogLevel::kWarn,
          "{}: it is damaged, so what was written last is lost: requests and a plan may be missing; {}", wal,
          error ? "a copy can't be kept: " + error.message() : "a copy is kept in " + damaged);
    }
    fs::remove(copy, unknown);
    return absl::OkStatus();
  }
  // Prepared once.
  StatusOr<Statement*> Get(const char* sql) {
    const auto [it, added] = statements_.try_emplace(sql);
    if (added) {
      const int code = it->second.Prepare(db_, sql);
      if (code != SQLITE_OK) {
        statements_.erase(it);
        return Check(sql, code);
      }
    }
    return &it->second;
  }
  template <typename Fn>
  Status InTransaction(const Fn& fn) {
    GYRE_RETURN_IF_ERROR(Execute("BEGIN IMMEDIATE"));
    Status status = fn();
    if (status.ok()) status = Execute("COMMIT");
    if (!status.ok()) sqlite3_exec(db_, "ROLLBACK", nullptr, nullptr, nullptr);
    return status;
  }
  Status PutMeta(const std::string& key, const std::string& value) {
    GYRE_ASSIGN_OR_RETURN(Statement* const put, Get("INSERT OR REPLACE INTO meta (key, value, sum) VALUES (?, ?, ?)"));
    return Check("writing " + key, put->Text(1, key).Blob(2, value).Int(3, SumOf(key, value)).Run());
  }
  Status PutUnit(uint64_t unit, const std::string& entry) {
    GYRE_ASSIGN_OR_RETURN(Statement* const change,
                          Get(entry.empty() ? "DELETE FROM cache WHERE unit = ?"
                                            : "INSERT OR REPLACE INTO cache (unit, entry, sum) VALUES (?, ?, ?)"));
    const auto key = static_cast<int64_t>(unit);
    change->Int(1, key);
    if (!entry.empty()) change->Blob(2, entry).Int(3, SumOf(std::to_string(key), entry));
    return Check("writing the cache's index", change->Run());
  }
  Status PutResponse(const std::string& key, const std::string& response) {
    GYRE_ASSIGN_OR_RETURN(
        Statement* const change,
        Get(response.empty() ? "DELETE FROM response WHERE key = ?"
                             : "INSERT OR REPLACE INTO response (key, response, sum) VALUES (?, ?, ?)"));
    change->Text(1, key);
    if (!response.empty()) change->Blob(2, response).Int(3, SumOf(key, response));
    return Check("writing a response", change->Run());
  }
  // All rows, as one whose key was damaged would not be found by it.
  using Meta = std::map<std::string, std::string>;
  StatusOr<Meta> ReadMeta() {
    Meta out;
    Statement rows;
    GYRE_RETURN_IF_ERROR(Check("reading it", rows.Prepare(db_, "SELECT key, value, sum FROM meta")));
    int code = SQLITE_OK;
    while ((code = rows.Step()) == SQLITE_ROW) {
      const std::string key = rows.Bytes(0);
      out[key] = rows.Bytes(1);
      if (!rows.HasSum(2, SumOf(key, out[key]))) return Damaged("a setting");
    }
    if (code != SQLITE_DONE) return Check("reading it", code);
    return out;
  }
  StatusOr<uint64_t> NumberOf(const std::string& key, const std::string& text) {
    uint64_t number = 0;
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
    if (!text.empty() && (error != std::errc() || end != text.data() + text.size())) return Damaged(key);
    return number;
  }
  // `schema`: of the database, 0 = it is empty.
  Status Begin(int64_t schema, uint64_t least_term, const std::optional<KeptTerm>& kept, StoredState* found) {
    if (schema < kSchema) {
      if (schema < 2) GYRE_RETURN_IF_ERROR(Execute(schema == 0 ? kTables : kUpgrade));
      GYRE_RETURN_IF_ERROR(Execute(kResponseTable));
      GYRE_RETURN_IF_ERROR(Execute(fmt::format("PRAGMA application_id = {}", kApplication).c_str()));
      GYRE_RETURN_IF_ERROR(Execute(fmt::format("PRAGMA user_version = {}", kSchema).c_str()));
    }
    GYRE_ASSIGN_OR_RETURN(Meta meta, ReadMeta());
    GYRE_ASSIGN_OR_RETURN(const uint64_t term, NumberOf("term", meta["term"]));
    GYRE_ASSIGN_OR_RETURN(found->cluster_id, NumberOf("cluster_id", meta["cluster_id"]));
    found->cluster = meta["cluster"];
    found->serving = meta["serving"];
    const uint64_t last = kept ? kept->term : 0;
    if (term < last) {
      Log(LogLevel::kWarn,
          "{}: it is older than the last start here (term {}, expected {}): what was written since is lost, and the "
          "ring goes on with the next term",
          path_, term, last);
    }
    // A clock that goes right is above all terms, even where an old copy of the whole folder came back.
    found->term = std::max({term + 1, last + 1, least_term});
    if (found->cluster_id == 0 && kept) {
      found->cluster_id = kept->cluster_id;
      GYRE_RETURN_IF_ERROR(PutMeta("cluster_id", std::to_string(found->cluster_id)));
    }
    if (found->cluster_id == 0) {
      const RingKey random = RandomRingKey();
      std::memcpy(&found->cluster_id, random.data(), sizeof found->cluster_id);
      found->cluster_id |= 1;  // 0 means none
      GYRE_RETURN_IF_ERROR(PutMeta("cluster_id", std::to_string(found->cluster_id)));
    }
    return PutMeta("term", std::to_string(found->term));
  }
  Status Forget(const std::string& id) {
    GYRE_ASSIGN_OR_RETURN(Statement* const tokens,
                          Get("DELETE FROM token WHERE request = (SELECT number FROM request WHERE id = ?)"));
    GYRE_RETURN_IF_ERROR(Check("forgetting a request's ids", tokens->Text(1, id).Run()));
    GYRE_ASSIGN_OR_RETURN(Statement* const request, Get("DELETE FROM request WHERE id = ?"));
    return Check("forgetting a request", request->Text(1, id).Run());
  }
  Status Read(StoredState* found) {
    std::map<int64_t, size_t> places;
    int code = SQLITE_OK;
    {
      Statement cache;
      GYRE_RETURN_IF_ERROR(
          Check("reading the cache's index", cache.Prepare(db_, "SELECT entry, unit, sum FROM cache")));
      while ((code = cache.Step()) == SQLITE_ROW) {
        found->cache.push_back(cache.Bytes(0));
        if (!cache.HasSum(2, SumOf(std::to_string(cache.Number(1)), found->cache.back()))) {
          return Damaged("the cache's index");
        }
      }
      if (code != SQLITE_DONE) return Check("reading the cache's index", code);
    }
    {
      Statement responses;
      GYRE_RETURN_IF_ERROR(
          Check("reading its responses", responses.Prepare(db_, "SELECT response, key, sum FROM response")));
      while ((code = responses.Step()) == SQLITE_ROW) {
        found->responses.push_back(responses.Bytes(0));
        if (!responses.HasSum(2, SumOf(responses.Bytes(1), found->responses.back()))) return Damaged("a response");
      }
      if (code != SQLITE_DONE) return Check("reading its responses", code);
    }
    {
      Statement requests;
      const char* const sql = "SELECT number, id, request, sum FROM request ORDER BY number";
      GYRE_RETURN_IF_ERROR(Check("reading its requests", requests.Prepare(db_, sql)));
      while ((code = requests.Step()) == SQLITE_ROW) {
        places[requests.Number(0)] = found->requests.size();
        found->requests.push_back({requests.Bytes(1), requests.Bytes(2), {}});
        const StoredState::OpenRequest& read = found->requests.back();
        if (!requests.HasSum(3, SumOf(read.id, read.request))) return Damaged("a request");
      }
      if (code != SQLITE_DONE) return Check("reading its requests", code);
    }
    Statement tokens;
    const char* const sql = "SELECT request, tokens, first, sum FROM token ORDER BY request, first";
    GYRE_RETURN_IF_ERROR(Check("reading its ids", tokens.Prepare(db_, sql)));
    while ((code = tokens.Step()) == SQLITE_ROW) {
      const auto it = places.find(tokens.Number(0));
      // Ids go with their request, in one transaction.
      if (it == places.end()) return Damaged("ids of no request");
      StoredState::OpenRequest& of = found->requests[it->second];
      of.tokens.push_back(tokens.Bytes(1));
      if (!tokens.HasSum(3, SumOfTokens(of.id, tokens.Number(2), of.tokens.back()))) return Damaged("a request's ids");
    }
    if (code != SQLITE_DONE) return Check("reading its ids", code);
    return absl::OkStatus();
  }

  const std::string folder_, path_;
  int lock_ = -1;
  sqlite3* db_ = nullptr;
  std::map<const char*, Statement> statements_;  // by the literal
};

}  // namespace

StatusOr<std::unique_ptr<StateStore>> OpenSqliteStore(const std::string& folder, uint64_t least_term,
                                                      StoredState* found) {
  GYRE_RETURN_IF_ERROR(MakePrivateFolder(folder));
  auto store = std::make_unique<SqliteStore>(folder);
  GYRE_RETURN_IF_ERROR(store->Lock(folder));
  GYRE_RETURN_IF_ERROR(store->Open(least_term, found));
  return std::unique_ptr<StateStore>(std::move(store));
}

}  // namespace gyre
