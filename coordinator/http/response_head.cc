#include "coordinator/http/response_head.h"

#include <ctime>

#include "boost/beast/http/status.hpp"

namespace gyre::http {
namespace {

void AppendHeader(std::string_view name, std::string_view value, std::string* out) {
  out->append(name);
  out->append(": ");
  for (const char c : value) out->push_back(static_cast<unsigned char>(c) < 0x20 || c == '\x7F' ? ' ' : c);
  out->append("\r\n");
}

std::string DateNow() {
  thread_local std::time_t last = 0;
  thread_local std::string text;
  const std::time_t now = std::time(nullptr);
  if (now != last) {
    std::tm parts{};
    gmtime_r(&now, &parts);
    char buffer[64];
    text.assign(buffer, std::strftime(buffer, sizeof buffer, "%a, %d %b %Y %H:%M:%S GMT", &parts));
    last = now;
  }
  return text;
}

// Anthropic's "overloaded" is in no standard. A reason may be empty (RFC 9112, 4).
std::string_view ReasonOf(int status) {
  if (status == 529) return "Overloaded";
  const auto known = boost::beast::http::int_to_status(static_cast<unsigned>(status));
  if (known == boost::beast::http::status::unknown) return "";
  const auto reason = boost::beast::http::obsolete_reason(known);
  return {reason.data(), reason.size()};
}

}  // namespace

bool HasBody(int status) { return status >= 200 && status != 204 && status != 304; }

std::string FormatResponseHead(const HttpResponse& response, const HeadExtras& extras) {
  const std::string_view reason = ReasonOf(response.status);
  std::string out;
  out.reserve(384);
  out.append("HTTP/1.1 ").append(std::to_string(response.status)).push_back(' ');
  out.append(reason).append("\r\n");
  AppendHeader("date", DateNow(), &out);
  if (HasBody(response.status) && !response.content_type.empty()) {
    AppendHeader("content-type", response.content_type, &out);
    AppendHeader("x-content-type-options", "nosniff", &out);
  }
  if (extras.length) AppendHeader("content-length", std::to_string(*extras.length), &out);
  if (extras.chunked) AppendHeader("transfer-encoding", "chunked", &out);
  if (!extras.id.empty()) AppendHeader("x-request-id", extras.id, &out);
  if (!extras.cors_origin.empty()) {
    AppendHeader("access-control-allow-origin", extras.cors_origin, &out);
    AppendHeader("access-control-expose-headers", "x-request-id, retry-after", &out);
    AppendHeader("vary", "origin", &out);
  }
  if (extras.close) AppendHeader("connection", "close", &out);
  if (extras.keep_alive_1_0) AppendHeader("connection", "keep-alive", &out);
  for (const auto& [name, value] : response.headers) AppendHeader(name, value, &out);
  out.append("\r\n");
  return out;
}

}  // namespace gyre::http
