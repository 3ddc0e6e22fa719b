#include "cli/libraries.h"

#include <gnu/libc-version.h>
#include <google/protobuf/stubs/common.h>
#include <grpcpp/version_info.h>
#include <openssl/crypto.h>

#include <boost/version.hpp>

#include "fmt/core.h"

namespace gyre {

boost::json::object LibrariesJson() {
  return {{"glibc", gnu_get_libc_version()},
          {"boost", BOOST_LIB_VERSION},
          {"fmt", fmt::format("{}.{}.{}", FMT_VERSION / 10000, FMT_VERSION / 100 % 100, FMT_VERSION % 100)},
          {"grpc", GRPC_CPP_VERSION_STRING},
          {"openssl", OpenSSL_version(OPENSSL_VERSION_STRING)},
          {"protobuf", google::protobuf::internal::VersionString(GOOGLE_PROTOBUF_VERSION)}};
}

}  // namespace gyre
