#include "coordinator/sqlite_store.h"

#include <fcntl.h>
#include <sqlite3.h>
#include <sys/file.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <map>
#include <utility>

#include "base/files.h"
#include "base/plan.h"

namespace gyre {
namespace {

constexpr int kSchema = 1;
constexpr int kApplication = 0x47595245;  // "GYRE"

// A process that doesn't know it leaves it as it is: then nothing of it is valid, as later steps write the pages.
constexpr const char* kCacheTable = "CREATE TABLE IF NOT EXISTS cache (unit INTEGER PRIMARY KEY, entry BLOB NOT NULL)";

constexpr const char* kTables = R"(
  CREATE TABLE meta (key TEXT PRIMARY KEY, value BLOB NOT NULL) WITHOUT ROWID;
  CREATE TABLE request (number INTEGER PRIMARY KEY, id TEXT NOT NULL UNIQUE, request BLOB NOT NULL);
  CREATE TABLE token (request INTEGER NOT NULL, first INTEGER NOT NULL, tokens BLOB NOT NULL,
                      PRIMARY KEY (request, first)) WITHOUT ROWID;
)";

// The error of SQLite in the terms of a user who started the process.
Status SqlError(const std::string& path, const std::string& what, int code, const char* message) {
  switch (code & 0xff) {
    case SQLITE_CORRUPT:
    case SQLITE_NOTADB:
      return DataLoss(
          "{}: the state is damaged ({}); move the folder away to begin without it, nothing in it was changed", path,
          message);
    case SQLITE_FULL: return ResourceExhausted("{}: {}: the disk is full", path, what);
    case SQLITE_READONLY:
    case SQLITE_PERM: return MakeStatus(absl::StatusCode::kPermissionDenied, "{}: {}: {}", path, what, message);
    default: return Unavailable("{}: {}: {}", path, what, message);
  }
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

 private:
  sqlite3_stmt* statement_ = nullptr;
};

class SqliteStore : public StateStore {
 public:
  explicit SqliteStore(const std::string& folder) : path_(PathIn(folder, "state.db")) {}
  ~SqliteStore() override {
    statements_.clear();
    sqlite3_close(db_);
    if (lock_ >= 0) close(lock_);
  }

  Status Lock(const std::string& folder) {
    const std::string path = PathIn(folder, "lock");
    lock_ = open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    if (lock_ < 0) return FileError(path, "it can't be opened", errno);
    if (flock(lock_, LOCK_EX | LOCK_NB) == 0) return absl::OkStatus();
    if (errno != EWOULDBLOCK) return FileError(path, "it can't be locked", errno);
    return FailedPrecondition("{}: another coordinator that is running keeps its state there", folder);
  }

  Status Open(uint64_t first_term, StoredState* found) {
    // With this mode before SQLite makes it with another; its WAL takes the same.
    const int fd = open(path_.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    if (fd < 0) return FileError(path_, "it can't be opened", errno);
    close(fd);
    const int code = sqlite3_open_v2(path_.c_str(), &db_, SQLITE_OPEN_READWRITE | SQLITE_OPEN_NOMUTEX, nullptr);
    GYRE_RETURN_IF_ERROR(Check("opening it", code));
    sqlite3_extended_result_codes(db_, 1);
    // A database that turns out to be damaged is left as it is; what is in the WAL is found again anyway.
    sqlite3_db_config(db_, SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, 1, nullptr);
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
    // No other process has the database, so its index of the WAL needs no shared memory.
    GYRE_RETURN_IF_ERROR(Execute("PRAGMA locking_mode=EXCLUSIVE"));
    GYRE_RETURN_IF_ERROR(Execute("PRAGMA journal_mode=WAL"));
    // Only the term needs fsync, as an epoch must never come twice.
    GYRE_RETURN_IF_ERROR(Execute("PRAGMA synchronous=FULL"));
    GYRE_RETURN_IF_ERROR(InTransaction([&] { return Begin(schema == 0, first_term, found); }));
    GYRE_RETURN_IF_ERROR(Execute("PRAGMA synchronous=NORMAL"));
    return Read(found);
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
      for (const std::string& id : batch.gone) GYRE_RETURN_IF_ERROR(Forget(id));
      for (const StateBatch::Begun& b : batch.begun) {
        GYRE_RETURN_IF_ERROR(Forget(b.id));
        GYRE_ASSIGN_OR_RETURN(Statement* const put, Get("INSERT INTO request (id, request) VALUES (?, ?)"));
        GYRE_RETURN_IF_ERROR(Check("writing a request", put->Text(1, b.id).Blob(2, b.request).Run()));
      }
      for (const StateBatch::Tokens& t : batch.tokens) {
        GYRE_ASSIGN_OR_RETURN(Statement* const put, Get("INSERT OR REPLACE INTO token (request, first, tokens) "
                                                        "SELECT number, ?, ? FROM request WHERE id = ?"));
        put->Int(1, static_cast<int64_t>(t.first)).Blob(2, t.tokens).Text(3, t.id);
        GYRE_RETURN_IF_ERROR(Check("writing a request's ids", put->Run()));
      }
      return absl::OkStatus();
    });
  }

 private:
  Status Check(const std::string& what, int code) {
    if (code == SQLITE_OK) return absl::OkStatus();
    return SqlError(path_, what, code, db_ != nullptr ? sqlite3_errmsg(db_) : sqlite3_errstr(code));
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
    GYRE_ASSIGN_OR_RETURN(Statement* const put, Get("INSERT OR REPLACE INTO meta (key, value) VALUES (?, ?)"));
    return Check("writing " + key, put->Text(1, key).Blob(2, value).Run());
  }
  Status PutUnit(uint64_t unit, const std::string& entry) {
    GYRE_ASSIGN_OR_RETURN(Statement* const change,
                          Get(entry.empty() ? "DELETE FROM cache WHERE unit = ?"
                                            : "INSERT OR REPLACE INTO cache (unit, entry) VALUES (?, ?)"));
    change->Int(1, static_cast<int64_t>(unit));
    if (!entry.empty()) change->Blob(2, entry);
    return Check("writing the cache's index", change->Run());
  }
  StatusOr<std::string> GetMeta(const std::string& key) {
    Statement get;
    GYRE_RETURN_IF_ERROR(Check("reading it", get.Prepare(db_, "SELECT value FROM meta WHERE key = ?")));
    const int code = get.Text(1, key).Step();
    if (code == SQLITE_ROW) return get.Bytes(0);
    if (code != SQLITE_DONE) return Check("reading " + key, code);
    return std::string();
  }
  StatusOr<uint64_t> GetNumber(const std::string& key) {
    GYRE_ASSIGN_OR_RETURN(const std::string text, GetMeta(key));
    if (text.size() > 20 || text.find_first_not_of("0123456789") != std::string::npos) {
      return SqlError(path_, key, SQLITE_CORRUPT, key.c_str());
    }
    return text.empty() ? 0 : std::stoull(text);
  }
  Status Begin(bool fresh, uint64_t first_term, StoredState* found) {
    if (fresh) {
      GYRE_RETURN_IF_ERROR(Execute(kTables));
      GYRE_RETURN_IF_ERROR(Execute(fmt::format("PRAGMA application_id = {}", kApplication).c_str()));
      GYRE_RETURN_IF_ERROR(Execute(fmt::format("PRAGMA user_version = {}", kSchema).c_str()));
    }
    GYRE_RETURN_IF_ERROR(Execute(kCacheTable));
    GYRE_ASSIGN_OR_RETURN(const uint64_t term, GetNumber("term"));
    GYRE_ASSIGN_OR_RETURN(found->cluster_id, GetNumber("cluster_id"));
    found->term = term == 0 ? first_term : term + 1;
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
    GYRE_ASSIGN_OR_RETURN(found->cluster, GetMeta("cluster"));
    GYRE_ASSIGN_OR_RETURN(found->serving, GetMeta("serving"));
    std::map<int64_t, size_t> places;
    int code = SQLITE_OK;
    {
      Statement cache;
      GYRE_RETURN_IF_ERROR(Check("reading the cache's index", cache.Prepare(db_, "SELECT entry FROM cache")));
      while ((code = cache.Step()) == SQLITE_ROW) found->cache.push_back(cache.Bytes(0));
      if (code != SQLITE_DONE) return Check("reading the cache's index", code);
    }
    {
      Statement requests;
      const char* const sql = "SELECT number, id, request FROM request ORDER BY number";
      GYRE_RETURN_IF_ERROR(Check("reading its requests", requests.Prepare(db_, sql)));
      while ((code = requests.Step()) == SQLITE_ROW) {
        places[requests.Number(0)] = found->requests.size();
        found->requests.push_back({requests.Bytes(1), requests.Bytes(2), {}});
      }
      if (code != SQLITE_DONE) return Check("reading its requests", code);
    }
    Statement tokens;
    const char* const sql = "SELECT request, tokens FROM token ORDER BY request, first";
    GYRE_RETURN_IF_ERROR(Check("reading its ids", tokens.Prepare(db_, sql)));
    while ((code = tokens.Step()) == SQLITE_ROW) {
      const auto it = places.find(tokens.Number(0));
      if (it != places.end()) found->requests[it->second].tokens.push_back(tokens.Bytes(1));
    }
    if (code != SQLITE_DONE) return Check("reading its ids", code);
    return absl::OkStatus();
  }

  const std::string path_;
  int lock_ = -1;
  sqlite3* db_ = nullptr;
  std::map<const char*, Statement> statements_;  // by the literal
};

}  // namespace

StatusOr<std::unique_ptr<StateStore>> OpenSqliteStore(const std::string& folder, uint64_t first_term,
                                                      StoredState* found) {
  GYRE_RETURN_IF_ERROR(MakePrivateFolder(folder));
  auto store = std::make_unique<SqliteStore>(folder);
  GYRE_RETURN_IF_ERROR(store->Lock(folder));
  GYRE_RETURN_IF_ERROR(store->Open(first_term, found));
  return std::unique_ptr<StateStore>(std::move(store));
}

}  // namespace gyre
