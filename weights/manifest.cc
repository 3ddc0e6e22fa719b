#include "weights/manifest.h"

#include <algorithm>
#include <atomic>
#include <filesystem>
#include <limits>
#include <map>
#include <set>
#include <unordered_map>

#include "base/coding.h"
#include "base/sha256_pair.h"
#include "base/thread.h"
#include "model/gguf.h"
#include "model/quoted.h"
#include "model/tensor_table.h"

namespace gyre {
namespace {

constexpr char kMagic[8] = {'G', 'Y', 'R', 'E', 'M', 'A', 'N', '3'};
constexpr uint32_t kMostFiles = 100'000;
constexpr uint64_t kMostBytes = uint64_t{1} << 50;  // of all files
constexpr size_t kMostName = 512;
constexpr uint32_t kMostDims = 8, kMostExtents = 16;

// Whether a name is a plain file's name on every machine, without a folder.
bool IsFileName(const std::string& name) {
  return !name.empty() && name.size() <= 255 && name[0] != '.' &&
         std::all_of(name.begin(), name.end(), [](char c) { return c > ' ' && c < '\x7F' && c != '/' && c != '\\'; });
}

// The beginning of the names of adapters' files. Those with tensors do not end in .json.
constexpr std::string_view kAdapterPrefix = "lora-adapter-";

// Opening a model may read vectors (norms, biases, rotary factors), wherever its layers are. They are small.
bool IsReadAtOpening(const std::string& name, const TensorView& t) {
  return t.dims.size() <= 1 || name.rfind("rope_", 0) == 0;
}

// A gap of fewer bytes between two tensors is padding, and belongs to the first one. Files of safetensors have none:
// there it is a tensor of one number, which is read at opening.
constexpr uint64_t kPadding = 64;
uint64_t PaddingOf(const std::string& file) { return file.ends_with(".safetensors") ? 0 : kPadding; }

// The layer of "blk.N.xxx", -1 for other names.
int LayerOfTensor(const std::string& name) {
  if (name.rfind("blk.", 0) != 0) return -1;
  int layer = 0;
  size_t at = 4;
  for (; at < name.size() && name[at] >= '0' && name[at] <= '9'; ++at) {
    if (layer > 1'000'000) return -1;
    layer = 10 * layer + (name[at] - '0');
  }
  return at > 4 && at < name.size() && name[at] == '.' ? layer : -1;
}

struct Owned {
  Extent at;
  uint32_t tensor = 0;
};

// Cuts every file into pieces: those of the tensors' extents, and header pieces between them. kDataLoss: an extent is
// empty, outside its file, or overlaps another one.
Status CutIntoPieces(Manifest* m) {
  std::vector<std::vector<Owned>> by_file(m->files.size());
  for (size_t t = 0; t < m->tensors.size(); ++t) {
    for (const Extent& e : m->tensors[t].extents) {
      if (e.file >= m->files.size() || e.bytes == 0 || e.offset > m->files[e.file].size ||
          e.bytes > m->files[e.file].size - e.offset) {
        return DataLoss("tensor {}: {} bytes at {} of file {} are not in it", Printable(m->tensors[t].name), e.bytes,
                        e.offset, e.file);
      }
      by_file[e.file].push_back({e, static_cast<uint32_t>(t)});
    }
  }
  m->pieces.clear();
  for (size_t f = 0; f < by_file.size(); ++f) {
    auto& owned = by_file[f];
    std::sort(owned.begin(), owned.end(), [](const Owned& a, const Owned& b) { return a.at.offset < b.at.offset; });
    uint64_t at = 0;
    auto add = [&](uint64_t bytes, uint32_t tensor) {
      while (bytes > 0) {
        const uint64_t n = std::min(bytes, kPieceBytes);
        m->pieces.push_back({.at = {.file = static_cast<uint32_t>(f), .offset = at, .bytes = n}, .tensor = tensor});
        at += n;
        bytes -= n;
      }
    };
    for (size_t i = 0; i < owned.size(); ++i) {
      const Owned& o = owned[i];
      if (o.at.offset < at) return DataLoss("tensor {} overlaps another one", Printable(m->tensors[o.tensor].name));
      add(o.at.offset - at, kHeaderPiece);
      const uint64_t end = o.at.offset + o.at.bytes;
      const uint64_t next = i + 1 < owned.size() ? owned[i + 1].at.offset : m->files[f].size;
      add(o.at.bytes + (next > end && next - end < PaddingOf(m->files[f].name) ? next - end : 0), o.tensor);
    }
    add(m->files[f].size - at, kHeaderPiece);
  }
  return absl::OkStatus();
}

std::vector<std::byte> EncodeAll(const Manifest& m) {
  Encoder out;
  out.PutBytes(kMagic, sizeof kMagic);
  out.Put(static_cast<uint32_t>(kPieceBytes));
  out.Put(static_cast<uint32_t>(m.files.size()));
  for (const ManifestFile& f : m.files) {
    out.PutString(f.name);
    out.Put(f.size);
  }
  out.PutString(m.open);
  out.Put(static_cast<uint32_t>(m.tensors.size()));
  for (const ManifestTensor& t : m.tensors) {
    out.PutString(t.name);
    out.Put(t.type);
    out.PutVector(std::span<const uint64_t>(t.dims));
    out.Put(static_cast<uint32_t>(t.extents.size()));
    for (const Extent& e : t.extents) {
      out.Put(e.file);
      out.Put(e.offset);
      out.Put(e.bytes);
    }
  }
  out.Put(static_cast<uint32_t>(m.pieces.size()));
  for (const Piece& p : m.pieces) out.PutBytes(p.hash.data(), p.hash.size());
  return {out.bytes().begin(), out.bytes().end()};
}

// The place of the bytes in the files; bytes == 0: they are in none of them.
Extent Locate(const ModelBytes& files, const std::byte* data, uint64_t bytes) {
  for (size_t f = 0; f < files.bytes.size(); ++f) {
    const std::byte* begin = files.bytes[f].data();
    if (data < begin || data >= begin + files.bytes[f].size()) continue;
    return {.file = static_cast<uint32_t>(f), .offset = static_cast<uint64_t>(data - begin), .bytes = bytes};
  }
  return {};
}

}  // namespace

uint64_t Manifest::HeaderBytes() const {
  uint64_t sum = 0;
  for (const Piece& p : pieces) sum += p.tensor == kHeaderPiece ? p.at.bytes : 0;
  return sum;
}

std::vector<std::string> Manifest::Adapters() const {
  std::vector<std::string> names;
  for (const ManifestFile& f : files) {
    if (f.name.starts_with(kAdapterPrefix) && !f.name.ends_with(".json")) names.push_back(f.name);
  }
  return names;
}

std::string Manifest::Describe(uint32_t piece) const {
  const Piece& p = pieces[piece];
  if (p.tensor != kHeaderPiece) return "tensor " + Printable(tensors[p.tensor].name);
  return "the header of " + files[p.at.file].name;
}

StatusOr<ModelBytes> BytesOf(const std::shared_ptr<const Model>& model) {
  namespace fs = std::filesystem;
  ModelBytes out;
  const auto mapped = model->files();
  if (mapped.empty()) return FailedPrecondition("{} has no files", model->path());
  auto add = [&out](std::string name, const std::shared_ptr<const MappedFile>& file) {
    out.files.push_back({std::move(name), file->bytes().size()});
    out.paths.push_back(file->path());
    out.bytes.push_back(file->bytes());
    out.mapped.push_back(file);
  };
  const auto add_adapters = [&] {
    for (size_t i = 0; i < model->adapters().size(); ++i) {
      const auto& files = model->adapters()[i]->files();
      const std::string name = fmt::format("{}{:05}", kAdapterPrefix, i + 1);
      if (files.size() == 1) {
        add(name + ".gguf", files[0]);
        continue;
      }
      add(name + ".safetensors", files[0]);
      add(name + ".json", files[1]);
    }
  };
  const bool folder = std::any_of(mapped.begin(), mapped.end(), [](const auto& file) {
    return fs::path(file->path()).extension() == ".safetensors";
  });
  if (!folder) {
    // The names are not the user's, so that equal files are equal models.
    for (size_t i = 0; i < mapped.size(); ++i) {
      add(mapped.size() > 1            ? fmt::format("model-{:05}-of-{:05}.gguf", i + 1, mapped.size())
          : IsGguf(mapped[0]->bytes()) ? "model.gguf"
                                       : "model.bin",
          mapped[i]);
    }
    out.open = out.files[0].name;
    add_adapters();
    return out;
  }
  for (const auto& file : mapped) {
    const fs::path path(file->path());
    const std::string name = path.filename().string();
    const bool opens = name == "config.json" || name == "model.safetensors.index.json";
    if (opens || path.extension() == ".safetensors") add(name, file);  // the others are the tokenizer's
  }
  for (const ManifestFile& f : out.files) {
    if (!IsFileName(f.name) || f.name.starts_with(kAdapterPrefix))
      return Unimplemented("a model's file with the name {}", Printable(f.name));
  }
  out.open = ".";
  add_adapters();
  return out;
}

StatusOr<Manifest> LayoutOf(const Model& model, const ModelBytes& bytes) {
  Manifest m;
  m.files = bytes.files;
  m.open = bytes.open;
  // Several tensors may be made of the same part of a file: it belongs to the first of them.
  std::map<std::string, const TensorView*> order;
  for (const auto& [name, t] : model.tensors().all()) order.emplace(name, &t);
  for (size_t i = 0; i < model.adapters().size(); ++i) {
    for (const auto& [name, t] : model.adapters()[i]->tensors().all())
      order.emplace(fmt::format("{}.{}", name, i + 1), &t);
  }
  std::set<const std::byte*> taken;
  for (const auto& [name, view] : order) {
    const TensorView& t = *view;
    if (IsReadAtOpening(name, t) || t.bytes == 0) continue;
    ManifestTensor tensor{.name = name, .type = static_cast<uint32_t>(t.type), .dims = t.dims, .extents = {}};
    if (t.made != nullptr) {
      for (const auto& source : t.made->sources()) {
        if (taken.insert(source.data()).second) tensor.extents.push_back(Locate(bytes, source.data(), source.size()));
      }
      if (!tensor.extents.empty()) m.tensors.push_back(std::move(tensor));
      continue;
    }
    const Extent data = Locate(bytes, t.data, t.bytes);
    if (data.bytes == 0) continue;  // opening makes it of what it read
    tensor.extents.push_back(data);
    if (t.scales != nullptr && t.group > 0) {
      const Extent scales =
          Locate(bytes, t.scales, t.bytes / Info(t.type).block_bytes * Info(t.type).block_elems / t.group * 4);
      if (scales.bytes > 0) tensor.extents.push_back(scales);
    }
    m.tensors.push_back(std::move(tensor));
  }
  GYRE_RETURN_IF_ERROR(CutIntoPieces(&m));
  return m;
}

Status HashPieces(const ModelBytes& bytes, int threads, const std::function<bool(uint64_t, uint64_t)>& progress,
                  Manifest* manifest) {
  uint64_t total = 0;
  for (const Piece& p : manifest->pieces) total += p.at.bytes;
  std::atomic<size_t> next{0};
  std::atomic<uint64_t> done{0};
  std::atomic<bool> ends{false};
  const auto work = [&](bool caller) {
    for (size_t i = next++; i < manifest->pieces.size() && !ends; i = next++) {
      Piece& p = manifest->pieces[i];
      p.hash = Sha256OfHalves(bytes.bytes[p.at.file].subspan(p.at.offset, p.at.bytes));
      done += p.at.bytes;
      if (caller && progress && progress(done, total)) ends = true;
    }
  };
  OnThreads(static_cast<size_t>(std::max(threads, 1)), work);
  if (ends) return absl::CancelledError("the model's hashes were given up");
  manifest->root = Sha256(EncodeAll(*manifest));
  return absl::OkStatus();
}

std::vector<std::byte> EncodeManifest(const Manifest& manifest) { return EncodeAll(manifest); }

StatusOr<Manifest> DecodeManifest(std::span<const std::byte> bytes) {
  if (bytes.size() > kMaxManifest)
    return DataLoss("a manifest of {} bytes, at most {} are read", bytes.size(), kMaxManifest);
  Decoder in(bytes);
  Manifest m;
  char magic[sizeof kMagic] = {};
  in.GetBytes(magic, sizeof magic);
  if (!in.ok() || std::memcmp(magic, kMagic, sizeof magic) != 0) return DataLoss("no manifest of this version");
  if (const auto piece = in.Get<uint32_t>(); piece != kPieceBytes) {
    return DataLoss("a manifest with pieces of {} bytes, expected {}", piece, kPieceBytes);
  }
  const uint32_t files = in.GetCount(13);
  if (files > kMostFiles) return DataLoss("a manifest of {} files, at most {}", files, kMostFiles);
  uint64_t total = 0;
  std::unordered_map<std::string, int> names;
  for (uint32_t i = 0; i < files && in.ok(); ++i) {
    ManifestFile f{.name = in.GetString(), .size = in.Get<uint64_t>()};
    if (!in.ok()) break;
    if (!IsFileName(f.name) || !names.emplace(f.name, 0).second)
      return DataLoss("a manifest with a file of the name {}", Printable(f.name));
    if (f.size == 0 || f.size > kMostBytes - total) return DataLoss("file {} of {} bytes", f.name, f.size);
    total += f.size;
    m.files.push_back(std::move(f));
  }
  m.open = in.GetString();
  if (in.ok() && m.open != "." && names.count(m.open) == 0)
    return DataLoss("a manifest that opens {}", Printable(m.open));
  const uint32_t tensors = in.GetCount(16);
  names.clear();
  for (uint32_t i = 0; i < tensors && in.ok(); ++i) {
    ManifestTensor t;
    t.name = in.GetString();
    t.type = in.Get<uint32_t>();
    in.GetVector(&t.dims);
    const uint32_t extents = in.GetCount(20);
    if (!in.ok()) break;
    if (t.name.empty() || t.name.size() > kMostName || !names.emplace(t.name, 0).second)
      return DataLoss("a manifest with a tensor of the name {}", Printable(t.name));
    if (t.dims.size() > kMostDims || extents == 0 || extents > kMostExtents)
      return DataLoss("tensor {}: {} dimensions in {} places", Printable(t.name), t.dims.size(), extents);
    for (uint32_t e = 0; e < extents; ++e) {
      Extent extent;
      extent.file = in.Get<uint32_t>();
      extent.offset = in.Get<uint64_t>();
      extent.bytes = in.Get<uint64_t>();
      t.extents.push_back(extent);
    }
    m.tensors.push_back(std::move(t));
  }
  const uint32_t pieces = in.GetCount(sizeof(Hash256));
  if (!in.ok()) return DataLoss("a manifest of {} bytes is cut", bytes.size());
  // This check comes before memory is allocated: each tensor's extent, and the header, may add a piece that isn't full.
  uint64_t most = total / kPieceBytes + m.files.size();
  for (const ManifestTensor& t : m.tensors) most += 2 * t.extents.size();
  if (pieces > most || pieces < total / kPieceBytes) {
    return DataLoss("a manifest of {} pieces for {} bytes", pieces, total);
  }
  GYRE_RETURN_IF_ERROR(CutIntoPieces(&m));
  if (m.pieces.size() != pieces) return DataLoss("a manifest of {} pieces, expected {}", pieces, m.pieces.size());
  for (Piece& p : m.pieces) in.GetBytes(p.hash.data(), p.hash.size());
  if (!in.Done()) return DataLoss("a manifest of {} bytes has a wrong length", bytes.size());
  m.root = Sha256(bytes);
  return m;
}

std::vector<uint32_t> HeaderPieces(const Manifest& manifest) {
  std::vector<uint32_t> out;
  for (uint32_t i = 0; i < manifest.pieces.size(); ++i) {
    if (manifest.pieces[i].tensor == kHeaderPiece) out.push_back(i);
  }
  return out;
}

NeededPieces PiecesOf(const Manifest& manifest, LayerRange range, bool first, bool last, bool tied_head, bool mtp,
                      int per_block) {
  NeededPieces out;
  out.layers.resize(static_cast<size_t>(std::max(0, range.size())));
  std::vector<std::vector<uint32_t>*> place(manifest.tensors.size(), nullptr);
  for (size_t t = 0; t < manifest.tensors.size(); ++t) {
    const std::string& name = manifest.tensors[t].name;
    const int block = LayerOfTensor(name), layer = block * per_block;
    if (block >= 0) {
      if (layer >= range.begin && layer < range.end) place[t] = &out.layers[static_cast<size_t>(layer - range.begin)];
      // The layer for drafts is the first one behind the model's.
      if (last && mtp && layer == range.end) place[t] = &out.ends;
    } else if (name.rfind("token_embd.", 0) == 0) {
      if (first || (last && (tied_head || mtp))) place[t] = &out.ends;
    } else if (name.rfind("position_embd.", 0) == 0) {
      if (first) place[t] = &out.ends;
    } else if (name.rfind("output", 0) != 0 || last) {
      place[t] = &out.ends;
    }
  }
  for (size_t p = 0; p < manifest.pieces.size(); ++p) {
    const uint32_t tensor = manifest.pieces[p].tensor;
    if (tensor != kHeaderPiece && place[tensor] != nullptr) place[tensor]->push_back(static_cast<uint32_t>(p));
  }
  return out;
}

}  // namespace gyre
