// Any bytes as a LoRA adapter of a tiny Llama: as a GGUF file, or by the first byte as PEFT's two files, of which the
// next two bytes say how long the first is. What opens is read whole.
#include <unistd.h>

#include <cstring>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "kernels/quant.h"
#include "model/adapter.h"
#include "model/weights.h"
#include "tests/testing/gguf_writer.h"

namespace {

const gyre::ModelSpec& Spec() {
  static const std::vector<std::byte> bytes = gyre::testing::BuildTinyModel(
      {.dim = 8, .layers = 2, .heads = 2, .kv_heads = 1, .ffn = 8, .vocab = 4, .context = 16});
  static const std::shared_ptr<const gyre::Model> model = *gyre::OpenModelFromBytes(bytes);
  return model->spec();
}

void Write(const std::string& path, const void* data, size_t size) {
  std::ofstream(path, std::ios::binary).write(static_cast<const char*>(data), static_cast<std::streamsize>(size));
}

void ReadWhole(const gyre::Adapter& adapter) {
  for (int layer = 0; layer < 3; ++layer) {
    (void)adapter.LayerBytes(layer);
    std::vector<gyre::MadeTensor::Bytes> made;
    for (const gyre::LowRankWeights& w : adapter.Layer(layer, &made)) {
      for (const gyre::WeightView* v : {&w.a, &w.b}) {
        std::vector<float> values(v->n * v->k);
        gyre::Dequantize(v->type, v->data, values.data(), values.size());
      }
    }
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static const std::string folder = [] {
    const std::string path = "/dev/shm/gyre-fuzz-adapter-" + std::to_string(getpid());
    std::filesystem::create_directories(path);
    return path;
  }();
  if (size < 3) return 0;
  std::string path = folder + "/a.gguf";
  if (data[0] % 2 == 0) {
    std::string bytes(size + 3, '\0');
    std::memcpy(bytes.data(), "GGUF", 4);
    std::memcpy(bytes.data() + 4, data + 1, size - 1);
    Write(path, bytes.data(), bytes.size());
  } else {
    const size_t config = std::min<size_t>(data[1] + 256 * data[2], size - 3);
    path = folder + "/a.safetensors";
    Write(folder + "/a.json", data + 3, config);
    Write(path, data + 3 + config, size - 3 - config);
  }
  const auto adapter = gyre::Adapter::Open("a", path, Spec(), true);
  if (adapter.ok()) ReadWhole(**adapter);
  return 0;
}
