// The files in a folder of Hugging Face's: a safetensors file, a config.json, a tokenizer.json, by the first byte.
#include <boost/json.hpp>
#include <cstddef>
#include <cstdint>
#include <string_view>
#include <vector>

#include "model/hf/config.h"
#include "model/hf/safetensors.h"
#include "model/hf/tokenizer_json.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace gyre;
  if (size == 0) return 0;
  const std::span<const std::byte> rest = std::as_bytes(std::span(data + 1, size - 1));
  if (data[0] % 3 == 0) {
    (void)ParseSafetensors(rest);
    return 0;
  }
  boost::system::error_code error;
  const boost::json::value v = boost::json::parse({reinterpret_cast<const char*>(rest.data()), rest.size()}, error);
  if (error || !v.is_object()) return 0;
  if (data[0] % 3 == 1) {
    Metadata metadata;
    (void)ReadHfConfig(v.get_object(), &metadata);
    return 0;
  }
  auto t = ReadTokenizerJson(v.get_object(), {}, 0);
  if (!t.ok()) return 0;
  Metadata metadata;
  (void)WriteTokenizer(*t, &metadata);
  const auto tokenizer = MakeTokenizer(*std::move(t));
  if (tokenizer.ok()) (void)(*tokenizer)->Encode("Hello, world 123", {});
  return 0;
}
