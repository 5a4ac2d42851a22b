// The suite over all backends and over what decorators make of them when they are told nothing.
#include "offload/io/backends.h"

#include "tests/offload/io/conformance_io.h"

namespace zerohold::io {
namespace {

using Made = absl::StatusOr<std::unique_ptr<IoBackend>>;

Made Ring() {
  return CreateUringBackend([](const std::string& line) { ADD_FAILURE() << line; });
}

template <typename Decorate>
Made On(Made under, const Decorate& decorate) {
  if (!under.ok()) return under;
  return decorate(*std::move(under));
}

std::unique_ptr<IoBackend> Faultless(std::unique_ptr<IoBackend> under) {
  return CreateFaultyBackend(std::move(under), {});
}

std::unique_ptr<IoBackend> Unthrottled(std::unique_ptr<IoBackend> under) {
  return CreateThrottledBackend(std::move(under), {});
}

std::unique_ptr<IoBackend> Late(std::unique_ptr<IoBackend> under) {
  return CreateFaultyBackend(std::move(under), {.seed = 3, .late = 0.5});
}

INSTANTIATE_TEST_SUITE_P(
    Plain, IoConformance,
    testing::Values(BackendMaker{"io_uring", Ring},
                    BackendMaker{"one_thread", [] { return CreateThreadBackend(1); }},
                    BackendMaker{"threads", [] { return CreateThreadBackend(5); }},
                    BackendMaker{"memory", [] { return CreateMemoryBackend(); }, false}),
    NameOfMaker);

INSTANTIATE_TEST_SUITE_P(
    Decorated, IoConformance,
    testing::Values(
        BackendMaker{"faulty_io_uring", [] { return On(Ring(), Faultless); }},
        BackendMaker{"faulty_memory", [] { return On(CreateMemoryBackend(), Faultless); }, false},
        BackendMaker{"late_threads", [] { return On(CreateThreadBackend(3), Late); }},
        BackendMaker{"throttled_io_uring", [] { return On(Ring(), Unthrottled); }},
        BackendMaker{"throttled_late_memory",
                     [] { return On(On(CreateMemoryBackend(), Late), Unthrottled); }, false}),
    NameOfMaker);

}  // namespace
}  // namespace zerohold::io
