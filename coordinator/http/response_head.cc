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

}  // namespace

bool HasBody(int status) { return status >= 200 && status != 204 && status != 304; }

std::string FormatResponseHead(const HttpResponse& response, const HeadExtras& extras) {
  const auto reason = boost::beast::http::obsolete_reason(static_cast<boost::beast::http::status>(response.status));
  std::string out;
  out.reserve(384);
  out.append("HTTP/1.1 ").append(std::to_string(response.status)).push_back(' ');
  out.append(reason.data(), reason.size()).append("\r\n");
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
