#include "scoring/flat_buffer.h"

namespace gyre {

void FlatBuffer::Put(size_t bytes, uint64_t value) {
  for (size_t i = 0; i < bytes; ++i) bytes_ += static_cast<char>(value >> (8 * i) & 0xff);
}

void FlatBuffer::Point(Place place, size_t target) {
  uint64_t ahead = target - place;
  for (size_t i = 0; i < 4; ++i, ahead >>= 8) bytes_[place + i] = static_cast<char>(ahead & 0xff);
}

FlatBuffer::Table FlatBuffer::AddTable(std::initializer_list<Field> fields) {
  // Where each field lies, from the table's beginning, which is aligned to 8: behind the way back to its description.
  std::vector<size_t> offsets;
  size_t end = 4;
  for (const Field& f : fields) {
    if (f.bytes == 0) {
      offsets.push_back(0);
      continue;
    }
    end = (end + f.bytes - 1) / f.bytes * f.bytes;
    offsets.push_back(end);
    end += f.bytes;
  }
  PadTo(2);
  const size_t description = bytes_.size();
  Put(2, 4 + 2 * fields.size());
  Put(2, end);
  for (const size_t offset : offsets) Put(2, offset);
  PadTo(8);
  Table table{.at = bytes_.size(), .references = {}};
  Put(4, table.at - description);
  const Field* f = fields.begin();
  for (const size_t offset : offsets) {
    const Field& field = *f++;
    if (field.bytes == 0) continue;
    bytes_.resize(table.at + offset);
    if (field.reference) table.references.push_back(bytes_.size());
    Put(field.bytes, field.value);
  }
  return table;
}

size_t FlatBuffer::AddText(std::string_view text) {
  PadTo(4);
  const size_t at = bytes_.size();
  Put(4, text.size());
  bytes_ += text;
  bytes_ += '\0';
  return at;
}

size_t FlatBuffer::AddReferences(size_t count, std::vector<Place>* references) {
  PadTo(4);
  const size_t at = bytes_.size();
  Put(4, count);
  for (size_t i = 0; i < count; ++i) {
    references->push_back(bytes_.size());
    Put(4, 0);
  }
  return at;
}

size_t FlatBuffer::AddStructs(const std::vector<uint64_t>& numbers, size_t each) {
  // The structs are aligned, not their count.
  PadTo(4);
  if (bytes_.size() % 8 == 0) Put(4, 0);
  const size_t at = bytes_.size();
  Put(4, numbers.size() / each);
  for (const uint64_t number : numbers) Put(8, number);
  return at;
}

}  // namespace gyre
