// A file of answers, a line each, that grows and survives a kill: a line that is there is there for good.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <unordered_set>

#include "base/status.h"

namespace gyre {

// Used by one thread. The answer and the note that there is one are the same line, so that no kill falls between them.
class ResultsFile {
 public:
  // Opens or makes the file and reads which requests have answers. A last line without its end is one that a kill cut:
  // it is removed. kFailedPrecondition: another process has it open. kDataLoss: a line is no answer, so that this is
  // another file, which stays as it is.
  static StatusOr<std::unique_ptr<ResultsFile>> Open(const std::string& path);
  ~ResultsFile();
  ResultsFile(const ResultsFile&) = delete;
  ResultsFile& operator=(const ResultsFile&) = delete;

  bool Has(const std::string& custom_id) const { return done_.count(custom_id) > 0; }
  size_t size() const { return done_.size(); }
  uint64_t bytes() const { return bytes_; }
  // Appends one line. FileError's errors; after one nothing more is to be written.
  Status Add(const std::string& custom_id, std::string_view line);
  // What was added is on the disk when it returns.
  Status Sync();

 private:
  ResultsFile(std::string path, int fd) : path_(std::move(path)), fd_(fd) {}
  Status ReadAll();

  const std::string path_;
  const int fd_;
  bool dirty_ = false;  // since the last Sync
  uint64_t bytes_ = 0;
  std::unordered_set<std::string> done_;
};

}  // namespace gyre
