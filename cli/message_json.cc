#include "cli/message_json.h"

#include <google/protobuf/message.h>

#include <boost/json.hpp>
#include <string>

namespace gyre {
namespace {

namespace json = boost::json;
using google::protobuf::FieldDescriptor;
using google::protobuf::Reflection;
using ProtoMessage = google::protobuf::Message;

std::string Base64(const std::string& bytes) {
  static constexpr char kDigits[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
  std::string out;
  for (size_t at = 0; at < bytes.size(); at += 3) {
    uint32_t three = 0;
    for (size_t i = 0; i < 3; ++i) {
      three = three << 8 | (at + i < bytes.size() ? static_cast<unsigned char>(bytes[at + i]) : 0u);
    }
    for (size_t i = 0; i < 4; ++i) out += at + i > bytes.size() ? '=' : kDigits[three >> (18 - 6 * i) & 63];
  }
  return out;
}

// The value of a field, or its element `index` where it is repeated.
json::value ValueOf(const ProtoMessage& m, const FieldDescriptor* f, int index) {
  const Reflection* r = m.GetReflection();
  const bool many = f->is_repeated();
  switch (f->cpp_type()) {
    case FieldDescriptor::CPPTYPE_INT32: return many ? r->GetRepeatedInt32(m, f, index) : r->GetInt32(m, f);
    case FieldDescriptor::CPPTYPE_INT64:
      return static_cast<std::int64_t>(many ? r->GetRepeatedInt64(m, f, index) : r->GetInt64(m, f));
    case FieldDescriptor::CPPTYPE_UINT32: return many ? r->GetRepeatedUInt32(m, f, index) : r->GetUInt32(m, f);
    case FieldDescriptor::CPPTYPE_UINT64:
      return static_cast<std::uint64_t>(many ? r->GetRepeatedUInt64(m, f, index) : r->GetUInt64(m, f));
    case FieldDescriptor::CPPTYPE_DOUBLE: return many ? r->GetRepeatedDouble(m, f, index) : r->GetDouble(m, f);
    case FieldDescriptor::CPPTYPE_FLOAT:
      return static_cast<double>(many ? r->GetRepeatedFloat(m, f, index) : r->GetFloat(m, f));
    case FieldDescriptor::CPPTYPE_BOOL: return many ? r->GetRepeatedBool(m, f, index) : r->GetBool(m, f);
    case FieldDescriptor::CPPTYPE_ENUM:
      return json::value(std::string((many ? r->GetRepeatedEnum(m, f, index) : r->GetEnum(m, f))->name()));
    case FieldDescriptor::CPPTYPE_STRING: {
      const std::string text = many ? r->GetRepeatedString(m, f, index) : r->GetString(m, f);
      return json::value(f->type() == FieldDescriptor::TYPE_BYTES ? Base64(text) : text);
    }
    case FieldDescriptor::CPPTYPE_MESSAGE:
      return MessageToJson(many ? r->GetRepeatedMessage(m, f, index) : r->GetMessage(m, f));
  }
  return nullptr;
}

}  // namespace

json::object MessageToJson(const ProtoMessage& message) {
  json::object out;
  const auto* type = message.GetDescriptor();
  const Reflection* reflection = message.GetReflection();
  for (int i = 0; i < type->field_count(); ++i) {
    const FieldDescriptor* f = type->field(i);
    if (f->is_repeated()) {
      json::array list;
      for (int at = 0; at < reflection->FieldSize(message, f); ++at) list.push_back(ValueOf(message, f, at));
      out[f->name()] = std::move(list);
    } else if (!f->has_presence() || reflection->HasField(message, f)) {
      out[f->name()] = ValueOf(message, f, 0);
    }
  }
  return out;
}

}  // namespace gyre
