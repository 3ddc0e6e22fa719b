// A hub's settings from flags, environment and token file.
#include <algorithm>
#include <cstdlib>
#include <fstream>
#include <iterator>

#include "hub/hub_client.h"

namespace gyre {
namespace {

// The value of the first of these variables that is set and not empty; "" = none.
std::string FirstOf(const GetEnv& env, std::initializer_list<const char*> names) {
  for (const char* name : names) {
    const std::optional<std::string> value = env(name);
    if (value.has_value() && !value->empty()) return *value;
  }
  return "";
}

std::string Trimmed(const std::string& text) {
  const char* const kSpace = " \t\r\n";
  const size_t begin = text.find_first_not_of(kSpace);
  return begin == std::string::npos ? "" : text.substr(begin, text.find_last_not_of(kSpace) - begin + 1);
}

// Returns "" if there is no folder for it.
std::string TokenFile(const GetEnv& env) {
  if (const std::string file = FirstOf(env, {"HF_TOKEN_PATH"}); !file.empty()) return file;
  if (const std::string home = FirstOf(env, {"HF_HOME"}); !home.empty()) return home + "/token";
  if (const std::string cache = FirstOf(env, {"XDG_CACHE_HOME"}); !cache.empty()) return cache + "/huggingface/token";
  const std::string home = FirstOf(env, {"HOME"});
  return home.empty() ? "" : home + "/.cache/huggingface/token";
}

}  // namespace

GetEnv ProcessEnvironment() {
  return [](const std::string& name) -> std::optional<std::string> {
    const char* value = std::getenv(name.c_str());
    return value == nullptr ? std::nullopt : std::optional<std::string>(value);
  };
}

StatusOr<HubOptions> MakeHubOptions(const HubFlags& flags, const GetEnv& env) {
  HubOptions out;
  const std::string endpoint = flags.endpoint.empty() ? FirstOf(env, {"HF_ENDPOINT"}) : flags.endpoint;
  if (!endpoint.empty()) {
    const StatusOr<Url> url = ParseUrl(endpoint);
    if (!url.ok()) return Annotate(url.status(), flags.endpoint.empty() ? "HF_ENDPOINT" : "--endpoint");
    out.endpoint = endpoint.substr(0, endpoint.find_last_not_of('/') + 1);
  }
  out.ca_file = flags.ca_file;
  GYRE_ASSIGN_OR_RETURN(out.proxies, ParseProxies(env));
  if (!flags.token.empty()) {
    out.token = Trimmed(flags.token), out.token_source = "--token";
  } else {
    for (const char* name : {"HF_TOKEN", "HUGGING_FACE_HUB_TOKEN"}) {
      if (!out.token.empty()) break;
      out.token = Trimmed(FirstOf(env, {name})), out.token_source = name;
    }
    if (out.token.empty()) {
      out.token_source = TokenFile(env);
      std::ifstream file(out.token_source);
      char text[4096];
      file.read(text, sizeof(text));  // a token has some 40 bytes
      out.token = Trimmed(std::string(text, static_cast<size_t>(file.gcount())));
    }
  }
  if (out.token.empty()) out.token_source.clear();
  if (!std::all_of(out.token.begin(), out.token.end(), [](char c) { return c > ' ' && c < '\x7F'; })) {
    return InvalidArgument("the token of {} has spaces or control characters, expected hf_...", out.token_source);
  }
  return out;
}

}  // namespace gyre
