// A reader of Arrow's streams, written from the format's description and apart from the writer: what it does not expect
// is a failure.
#pragma once

#include <gtest/gtest.h>

#include <cstdint>
#include <cstring>
#include <string>
#include <vector>

namespace gyre::testing {

struct ArrowTable {
  struct Column {
    std::string name, type;  // "u4", "i4", "f2", "f4", "f8"
    uint32_t list = 0;       // of how many; 0: it is no list
    std::string data;        // of all batches
    bool operator==(const Column&) const = default;
  };
  std::vector<Column> columns;
  uint64_t rows = 0;
  size_t batches = 0;
  size_t largest = 0;  // bytes of a message
  bool ended = false;  // as a whole stream ends

  const Column& column(const std::string& name) const {
    for (const Column& c : columns) {
      if (c.name == name) return c;
    }
    ADD_FAILURE() << "no column " << name;
    static const Column kNone;
    return kNone;
  }
  template <typename T>
  std::vector<T> Values(const std::string& name) const {
    const std::string& data = column(name).data;
    std::vector<T> out(data.size() / sizeof(T));
    std::memcpy(out.data(), data.data(), data.size());
    return out;
  }
};

// A table, a vector or a text of a FlatBuffer.
class FlatReader {
 public:
  explicit FlatReader(const std::string& bytes) : bytes_(&bytes), at_(Get<uint32_t>(0)) { CheckTable(); }

  template <typename T>
  T Number(size_t field, T otherwise = 0) const {
    const size_t place = Place(field);
    if (place == 0) return otherwise;
    EXPECT_EQ(place % sizeof(T), 0u) << "a field that is not aligned";
    return Get<T>(place);
  }
  bool Has(size_t field) const { return Place(field) != 0; }
  FlatReader Table(size_t field) const { return Follow(Place(field), true); }
  std::string Text(size_t field) const {
    const size_t at = Follow(Place(field), false).at_;
    const auto n = Get<uint32_t>(at);
    EXPECT_EQ(Get<char>(at + 4 + n), '\0');
    return bytes_->substr(at + 4, n);
  }
  std::vector<FlatReader> Tables(size_t field) const {
    const size_t at = Follow(Place(field), false).at_;
    std::vector<FlatReader> out;
    for (uint32_t i = 0; i < Get<uint32_t>(at); ++i) out.push_back(Follow(at + 4 + 4 * i, true));
    return out;
  }
  // Structs of two 64-bit numbers.
  std::vector<std::pair<int64_t, int64_t>> Pairs(size_t field) const {
    const size_t at = Follow(Place(field), false).at_;
    EXPECT_EQ((at + 4) % 8, 0u) << "structs that are not aligned";
    std::vector<std::pair<int64_t, int64_t>> out;
    for (uint32_t i = 0; i < Get<uint32_t>(at); ++i)
      out.emplace_back(Get<int64_t>(at + 4 + 16 * i), Get<int64_t>(at + 12 + 16 * i));
    return out;
  }

 private:
  FlatReader(const std::string* bytes, size_t at) : bytes_(bytes), at_(at) {}
  template <typename T>
  T Get(size_t at) const {
    T v{};
    if (at + sizeof(T) > bytes_->size()) {
      ADD_FAILURE() << "byte " << at << " of " << bytes_->size();
      return v;
    }
    std::memcpy(&v, bytes_->data() + at, sizeof v);
    return v;
  }
  void CheckTable() const {
    EXPECT_EQ(at_ % 4, 0u);
    EXPECT_EQ(Description() % 2, 0u);
    EXPECT_LE(at_ + Get<uint16_t>(Description() + 2), bytes_->size()) << "a table beyond the end";
  }
  size_t Description() const { return at_ - static_cast<size_t>(static_cast<int64_t>(Get<int32_t>(at_))); }
  // Where a field lies; 0: it is absent.
  size_t Place(size_t field) const {
    if (4 + 2 * field >= Get<uint16_t>(Description())) return 0;
    const auto offset = Get<uint16_t>(Description() + 4 + 2 * field);
    return offset == 0 ? 0 : at_ + offset;
  }
  FlatReader Follow(size_t place, bool table) const {
    EXPECT_NE(place, 0u) << "a field is absent";
    const FlatReader out(bytes_, place + Get<uint32_t>(place));
    if (table) out.CheckTable();
    return out;
  }

  const std::string* bytes_;
  size_t at_;
};

inline ArrowTable ReadArrow(const std::string& stream) {
  ArrowTable out;
  const auto word = [&](size_t at) {
    uint32_t v = 0;
    if (at + 4 <= stream.size()) std::memcpy(&v, stream.data() + at, 4);
    return v;
  };
  for (size_t at = 0; at + 8 <= stream.size();) {
    EXPECT_EQ(at % 8, 0u);
    EXPECT_EQ(word(at), 0xffffffffu);
    const size_t size = word(at + 4), begin = at;
    at += 8;
    if (size == 0) {
      out.ended = at == stream.size();
      break;
    }
    EXPECT_EQ(size % 8, 0u);
    if (at + size > stream.size()) break;  // the end of what was broken
    const std::string metadata = stream.substr(at, size);
    at += size;
    const FlatReader message(metadata);
    EXPECT_EQ(message.Number<int16_t>(0), 4);  // V5
    const auto body = static_cast<size_t>(message.Number<int64_t>(3));
    if (at + body > stream.size()) break;  // likewise
    if (message.Number<uint8_t>(1) == 1) {
      EXPECT_EQ(begin, 0u) << "a schema in the middle";
      for (const FlatReader& field : message.Table(2).Tables(1)) {
        ArrowTable::Column& c = out.columns.emplace_back();
        c.name = field.Text(0);
        FlatReader number = field;
        if (field.Number<uint8_t>(2) == 16) {
          c.list = static_cast<uint32_t>(field.Table(3).Number<int32_t>(0));
          const auto children = field.Tables(5);
          EXPECT_EQ(children.size(), 1u);
          number = children[0];
        }
        EXPECT_EQ(number.Tables(5).size(), 0u);
        if (number.Number<uint8_t>(2) == 2) {
          EXPECT_EQ(number.Table(3).Number<int32_t>(0), 32);
          c.type = number.Table(3).Number<uint8_t>(1) != 0 ? "i4" : "u4";
        } else {
          EXPECT_EQ(number.Number<uint8_t>(2), 3);
          c.type = "f" + std::to_string(2 << number.Table(3).Number<int16_t>(0));
        }
      }
      continue;
    }
    EXPECT_EQ(message.Number<uint8_t>(1), 3);
    const FlatReader batch = message.Table(2);
    const auto rows = batch.Number<int64_t>(0);
    const auto nodes = batch.Pairs(1), buffers = batch.Pairs(2);
    auto node = nodes.begin();
    auto buffer = buffers.begin();
    for (ArrowTable::Column& c : out.columns) {
      EXPECT_EQ(*node++, std::pair(rows, int64_t{0})) << c.name;
      if (c.list > 0) {
        EXPECT_EQ((buffer++)->second, 0);
        EXPECT_EQ(*node++, std::pair(rows * c.list, int64_t{0})) << c.name;
      }
      EXPECT_EQ((buffer++)->second, 0) << "no value is absent";
      const auto [from, bytes] = *buffer++;
      EXPECT_EQ(from % 8, 0);
      EXPECT_LE(static_cast<size_t>(from + bytes), body);
      EXPECT_EQ(bytes, rows * std::max<int64_t>(1, c.list) * (c.type.back() - '0')) << c.name;
      c.data += stream.substr(at + static_cast<size_t>(from), static_cast<size_t>(bytes));
    }
    EXPECT_TRUE(node == nodes.end() && buffer == buffers.end());
    at += body;
    out.rows += static_cast<uint64_t>(rows);
    ++out.batches;
    out.largest = std::max(out.largest, at - begin);
  }
  return out;
}

}  // namespace gyre::testing
