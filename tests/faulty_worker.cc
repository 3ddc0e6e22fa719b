// A worker's process that a token kills: faulty_worker JOIN NAME TOKEN. For tests of blame.
#include <atomic>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "base/step_codec.h"
#include "kernels/device.h"
#include "kernels/isa.h"
#include "worker/node.h"
#include "worker/worker.h"

namespace {

std::atomic<bool> stopped{false};

}  // namespace

int main(int argc, char** argv) {
  using namespace gyre;  // NOLINT(google-build-using-namespace)
  if (argc != 4) return 2;
  std::signal(SIGTERM, [](int) { stopped = true; });
  const auto poison = static_cast<TokenId>(std::atoi(argv[3]));
  NodeOptions node;
  node.join = argv[1];
  node.name = argv[2];
  node.device = MakeCpuDevice(DetectIsa(), 1);
  node.version = "test";
  node.on_worker = [poison](Worker& worker) {
    worker.SetFrameHookForTest([poison](const Frame& frame) {
      if (frame.header.kind != FrameKind::kTokens) return;
      const StatusOr<StepPayload> step = DecodeStepPayload(frame.payload, sizeof(TokenId));
      for (size_t at = 0; step.ok() && at + sizeof(TokenId) <= step->rows.size(); at += sizeof(TokenId)) {
        TokenId token = 0;
        std::memcpy(&token, step->rows.data() + at, sizeof token);
        if (token == poison) std::_Exit(9);
      }
    });
  };
  const Status status = RunNode(node, [] { return stopped.load(); });
  if (!status.ok()) std::fprintf(stderr, "%s\n", Message(status).c_str());
  return status.ok() ? 0 : 1;
}
