// Writes FlatBuffers, as far as Arrow's messages need them: tables, vectors and texts behind the tables that name them.
// Source: the format's description (FlatBuffers, "FlatBuffer Internals"). Pure.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <string>
#include <string_view>
#include <vector>

namespace gyre {

class FlatBuffer {
 public:
  // The place of a field that says where something is, to be given to Point once that is written.
  using Place = size_t;
  // A field of a table. Fields are numbered by their order.
  struct Field {
    uint8_t bytes = 0;  // of a number: 1, 2, 4 or 8; 0: the field is absent
    uint64_t value = 0;
    bool reference = false;  // to something that is written later
  };
  static Field Absent() { return {}; }
  static Field Number(uint8_t bytes, uint64_t value) { return {bytes, value, false}; }
  static Field Reference() { return {4, 0, true}; }

  // A buffer begins with where its root table is.
  FlatBuffer() { Put(4, 0); }

  // Writes a table; `at` is its place, `references` those of its fields of this kind, in their order.
  struct Table {
    size_t at = 0;
    std::vector<Place> references;
  };
  Table AddTable(std::initializer_list<Field> fields);
  // The table is the root.
  void SetRoot(const Table& table) { Point(0, table.at); }
  // The field leads to what is at `target`, behind it.
  void Point(Place place, size_t target);
  size_t AddText(std::string_view text);
  // A vector of `count` references, which `references` gets.
  size_t AddReferences(size_t count, std::vector<Place>* references);
  // A vector of structs of 64-bit numbers, `each` numbers a struct. REQUIRES: numbers.size() is a multiple of each.
  size_t AddStructs(const std::vector<uint64_t>& numbers, size_t each);

  const std::string& bytes() const { return bytes_; }

 private:
  void Put(size_t bytes, uint64_t value);  // little-endian
  void PadTo(size_t alignment) { bytes_.resize((bytes_.size() + alignment - 1) / alignment * alignment); }

  std::string bytes_;
};

}  // namespace gyre
