// Sends the requests of a load test to an OpenAI-compatible server and records the times of its answers.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "base/status.h"
#include "client/load_plan.h"
#include "client/load_stats.h"
#include "http_client/http_client.h"

namespace gyre {

// The form of requests by which a server gives an answer of exactly the wanted number of tokens.
struct LoadDialect {
  std::string model;
  bool chat = false;  // /chat/completions instead of /completions
  int vocab = 0;      // prompts are ids below it; 0: prompts are words
  uint64_t seed = 1;
  bool ignore_eos = true, min_tokens = true, return_ids = true;  // the server takes these fields
  double tokens_per_word = 1, tokens_beside = 0;                 // a prompt of words has these; beside: its template

  // The JSON of one request.
  std::string Body(const LoadRequest& request) const;
};

// Finds out which fields the server takes and how many tokens a word has, by two short requests and a few refused ones.
// Errors: the server answers none of them, or the answers are shorter than asked for in every form
// (kFailedPrecondition).
Status LearnDialect(HttpClient* client, LoadDialect* dialect, const std::function<bool()>& interrupted);

struct LoadRun {
  std::vector<LoadRecord>
      records;               // in the order of the plan; those beyond a time limit were never sent and are not there
  bool interrupted = false;  // what ran then was cancelled
};

// Runs on the calling thread. In a closed loop with `duration` > 0 the plan's requests repeat, with other prompts,
// until that time is over; in an open one requests due later are left out. on_progress: done and all, at most ten times
// a second.
LoadRun RunLoad(HttpClient* client, const LoadPlan& plan, const LoadDialect& dialect, Duration duration,
                const std::function<void(size_t, size_t)>& on_progress, const std::function<bool()>& interrupted);

}  // namespace gyre
