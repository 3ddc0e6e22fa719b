// A protobuf message as JSON for programs.
#pragma once

#include "boost/json/object.hpp"

namespace google::protobuf {
class Message;
}

namespace gyre {

// Field names as in the .proto. Fields with presence stand there when they are set, all others always. Every number is
// a JSON number, 64-bit ones too; bytes are text in base64; enums are their names.
boost::json::object MessageToJson(const google::protobuf::Message& message);

}  // namespace gyre
