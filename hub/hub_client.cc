#include "hub/hub_client.h"

namespace gyre {

GetEnv ProcessEnvironment() {
  return [](const std::string&) -> std::optional<std::string> { return std::nullopt; };
}

StatusOr<HubOptions> MakeHubOptions(const HubFlags&, const GetEnv&) { return HubOptions{}; }

HubClient::HubClient(HubOptions options, std::unique_ptr<HttpFetcher> fetcher)
    : options_(std::move(options)), fetcher_(std::move(fetcher)) {}

StatusOr<std::unique_ptr<HubClient>> HubClient::Make(const HubOptions&) { return Unimplemented("hub"); }
StatusOr<RepoListing> HubClient::List(const std::string&, const std::string&, const std::function<bool()>&) {
  return Unimplemented("hub");
}
StatusOr<std::unique_ptr<HttpFetcher>> MakeHubFetcher(const HubOptions&) { return Unimplemented("hub"); }
Status HubError(const HubOptions&, const std::string&, const HttpHead&, const std::string&) {
  return Unimplemented("hub");
}

}  // namespace gyre
