// The front door in C++: arguments checked, calls handed to the engine thread.
#include "zerohold/engine.h"

#include <absl/container/flat_hash_map.h>
#include <absl/strings/str_cat.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <mutex>
#include <shared_mutex>
#include <utility>

#include "optim/engine/engine_core.h"
#include "src/base/check.h"
#include "src/base/status_macros.h"

namespace zerohold {
namespace {

using engine::Call;

constexpr const char* NameOf(StateKind state) {
  constexpr const char* kNames[] = {"master", "moment1", "moment2", "gradient"};
  return kNames[static_cast<int>(state)];
}

}  // namespace

class Engine::Impl {
 public:
  explicit Impl(std::unique_ptr<engine::EngineCore> made) : core(std::move(made)) { Register(); }

  // Takes note of the names and shapes that are new.
  void Register() {
    for (size_t id = shapes.size(); id < core->parameters().size(); ++id) {
      shapes.push_back(core->parameters()[id].shape);
      parameter_ids.emplace(core->parameters()[id].name, static_cast<ParameterId>(id));
    }
    for (size_t id = unit_ids.size(); id < core->units().size(); ++id) {
      unit_ids.emplace(core->units()[id].name, static_cast<UnitId>(id));
    }
  }
  // A forked child has neither the threads nor the memory, and what the core would tell its peers
  // would go out in its parent's name: there it is left as it is.
  ~Impl() {
    if (!CheckProcess().ok()) static_cast<void>(core.release());
  }

  Status CheckProcess() const {
    const pid_t here = getpid();
    if (here == pid) return absl::OkStatus();
    return absl::FailedPreconditionError(
        absl::StrCat("the engine belongs to process ", pid, ", and this is process ", here,
                     ", forked from it; call the engine there, or create one here after the fork"));
  }

  // Look-ups come from any thread at any time, also while another core is put in place.
  template <typename Body>
  auto Look(Body body) const {
    const std::shared_lock lock(in_place);
    return body(*core);
  }

  using AddressOf = std::byte* (engine::ModelMemory::*)(int32_t space) const;
  TensorView View(ParameterId id, AddressOf address_of) const {
    return Look([&](const engine::EngineCore& core) -> TensorView {
      ZH_CHECK(id >= 0 && id < std::ssize(core.parameters()), id, std::ssize(core.parameters()));
      const ParameterSpec& spec = core.parameters()[id];
      const auto [space, range] = core.layout().PlaceOf(id);
      std::byte* const begin = (core.memory().*address_of)(space);
      std::byte* const data = begin == nullptr ? nullptr : begin + range.begin * SizeOf(spec.dtype);
      return {data, spec.dtype, shapes[id], range.size()};
    });
  }

  template <typename Id>
  StatusOr<Id> Find(const absl::flat_hash_map<std::string, Id>& ids, const char* what,
                    std::string_view name) const {
    const std::shared_lock lock(in_place);
    const auto found = ids.find(std::string(name));
    if (found != ids.end()) return found->second;
    return absl::NotFoundError(absl::StrCat("no ", what, " is named \"", std::string(name),
                                            "\"; Create and AddUnits were given others"));
  }

  Status CheckOpen() const {
    ZH_RETURN_IF_ERROR(CheckProcess());
    return closed ? absl::FailedPreconditionError("the engine is closed") : absl::OkStatus();
  }

  // Runs `body` alone: who comes meanwhile is refused.
  template <typename Body>
  Status Alone(Body body) {
    ZH_RETURN_IF_ERROR(CheckProcess());
    if (busy.exchange(true)) {
      return absl::FailedPreconditionError(
          "another thread's call is under way; the engine takes one at a time, from any thread");
    }
    Status status = body();
    busy = false;
    return status;
  }

  Status Submit(Call& call) {
    return Alone([&]() -> Status {
      ZH_RETURN_IF_ERROR(CheckOpen());
      core->Submit(call);
      return std::move(call.status);
    });
  }

  Status Extend(const engine::Addition& addition) {
    return Alone([&]() -> Status {
      ZH_RETURN_IF_ERROR(CheckOpen());
      ZH_ASSIGN_OR_RETURN(auto successor, engine::EngineCore::Extend(*core, addition));
      const std::lock_guard lock(in_place);
      std::swap(core, successor);
      Register();
      return absl::OkStatus();
    });
  }

  Status CheckAccess(ParameterId id, StateKind state, int64_t begin, int64_t elems) const {
    if (state > StateKind::kGradient) {
      return absl::InvalidArgumentError(
          absl::StrCat("state is ", static_cast<int>(state),
                       "; give kMaster (0), kMoment1 (1), kMoment2 (2) or kGradient (3)"));
    }
    const auto count = static_cast<ParameterId>(core->parameters().size());
    if (id < 0 || id >= count) {
      return absl::InvalidArgumentError(
          absl::StrCat("parameter ", id, " does not exist; there are ", count));
    }
    const std::string& name = core->parameters()[id].name;
    const int64_t size = core->layout().PlaceOf(id).range.size();
    if (begin < 0 || begin > size || elems > size - begin) {
      return absl::InvalidArgumentError(absl::StrCat(
          "parameter ", name, " has ", size, " elements; asked for ", elems, " from ", begin));
    }
    if (core->parameters()[id].frozen && state != StateKind::kMaster) {
      return absl::FailedPreconditionError(
          absl::StrCat("parameter ", name, " is frozen and has no ", NameOf(state)));
    }
    return absl::OkStatus();
  }

  // No update makes a second moment below zero, and the next one would take its root.
  Status CheckValues(ParameterId id, StateKind state, int64_t begin,
                     std::span<const float> values) const {
    if (state == StateKind::kGradient) {
      return absl::InvalidArgumentError("Write: a gradient cannot be written; add to its view");
    }
    ZH_RETURN_IF_ERROR(CheckAccess(id, state, begin, static_cast<int64_t>(values.size())));
    if (state != StateKind::kMoment2) return absl::OkStatus();
    const auto bad = std::ranges::find_if(values, [](float value) { return !(value >= 0.0f); });
    if (bad == values.end()) return absl::OkStatus();
    return absl::InvalidArgumentError(
        absl::StrCat("Write of parameter ", core->parameters()[id].name, ": moment2 is ", *bad,
                     " at element ", begin + (bad - values.begin()), "; give 0 or more"));
  }

  std::unique_ptr<engine::EngineCore> core;
  mutable std::shared_mutex in_place;  // the core and the next three
  absl::flat_hash_map<std::string, ParameterId> parameter_ids;
  absl::flat_hash_map<std::string, UnitId> unit_ids;
  std::vector<std::vector<int64_t>> shapes;  // whose elements views show: they stay where they are
  const pid_t pid = getpid();
  bool closed = false;
  std::atomic<bool> busy = false;
};

Engine::Engine(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
Engine::~Engine() = default;

StatusOr<std::unique_ptr<Engine>> Engine::Create(const EngineOptions& options,
                                                 std::vector<Communicator> communicators,
                                                 std::vector<ParameterSpec> parameters,
                                                 std::vector<UnitSpec> units) {
  if (communicators.empty()) {
    return absl::InvalidArgumentError(
        "communicators is empty; give one (SelfCommunicator() is a world of one)");
  }
  std::vector<std::shared_ptr<comm::Communicator>> carriers;
  for (const Communicator& communicator : communicators) {
    if (communicator.impl() == nullptr) {
      const Status moved = absl::InvalidArgumentError(absl::StrCat(
          "communicators[", carriers.size(), "] is none: it was moved from; give a copy"));
      // Who made no such mistake waits for the first verdict.
      return carriers.empty() ? moved : communicators[0].Agree(moved);
    }
    carriers.push_back(communicator.impl());
  }
  ZH_ASSIGN_OR_RETURN(auto core, engine::EngineCore::Create({.options = options,
                                                             .communicators = std::move(carriers),
                                                             .parameters = std::move(parameters),
                                                             .units = std::move(units)}));
  return std::unique_ptr<Engine>(new Engine(std::make_unique<Impl>(std::move(core))));
}

TensorView Engine::Parameter(ParameterId id) const {
  return impl_->View(id, &engine::ModelMemory::ParameterAddress);
}

TensorView Engine::Gradient(ParameterId id) const {
  return impl_->View(id, &engine::ModelMemory::GradientAddress);
}

StatusOr<ParameterId> Engine::FindParameter(std::string_view name) const {
  return impl_->Find(impl_->parameter_ids, "parameter", name);
}

StatusOr<UnitId> Engine::FindUnit(std::string_view name) const {
  return impl_->Find(impl_->unit_ids, "unit", name);
}

Status Engine::BeginMicroBatch(double weight, bool last) {
  Call call{.kind = Call::Kind::kBeginMicroBatch, .last = last, .weight = weight};
  return impl_->Submit(call);
}

Status Engine::Acquire(UnitId unit, AcquireMode mode) {
  Call call{.kind = Call::Kind::kAcquire, .unit = unit, .mode = mode};
  return impl_->Submit(call);
}

Status Engine::Release(UnitId unit) {
  Call call{.kind = Call::Kind::kRelease, .unit = unit};
  return impl_->Submit(call);
}

Status Engine::GradReady(UnitId unit) {
  Call call{.kind = Call::Kind::kGradReady, .unit = unit};
  return impl_->Submit(call);
}

Status Engine::GradAbsent(UnitId unit) {
  Call call{.kind = Call::Kind::kGradAbsent, .unit = unit};
  return impl_->Submit(call);
}

Status Engine::SetGroup(int group, const GroupOptions& options) {
  Call call{.kind = Call::Kind::kSetGroup, .group = group, .group_options = &options};
  return impl_->Submit(call);
}

double Engine::LossScale() const {
  return impl_->Look([](const auto& core) { return core.loss_scale(); });
}

StatusOr<StepStats> Engine::Step() {
  Call call{.kind = Call::Kind::kStep};
  ZH_RETURN_IF_ERROR(impl_->Submit(call));
  return call.stats;
}

Status Engine::Read(ParameterId id, StateKind state, int64_t begin, std::span<float> out) {
  Call call{.kind = Call::Kind::kRead, .parameter = id, .state = state, .begin = begin, .out = out};
  call.status = impl_->Look([&](const auto&) {
    return impl_->CheckAccess(id, state, begin, static_cast<int64_t>(out.size()));
  });
  return impl_->Submit(call);
}

Status Engine::Write(ParameterId id, StateKind state, int64_t begin,
                     std::span<const float> values) {
  Call call{.kind = Call::Kind::kWrite,
            .parameter = id,
            .state = state,
            .begin = begin,
            .values = values};
  call.status =
      impl_->Look([&](const auto&) { return impl_->CheckValues(id, state, begin, values); });
  return impl_->Submit(call);
}

Status Engine::Quiesce() {
  Call call{.kind = Call::Kind::kQuiesce};
  return impl_->Submit(call);
}

Status Engine::AddUnits(std::vector<ParameterSpec> parameters, std::vector<UnitSpec> units,
                        std::vector<GroupOptions> groups) {
  return impl_->Extend({.parameters = std::move(parameters),
                        .units = std::move(units),
                        .groups = std::move(groups),
                        .offload = {}});
}

Status Engine::Save(const std::string&) {
  return absl::UnimplementedError("Save: checkpoints are not in this version");
}
Status Engine::Load(const std::string&) {
  return absl::UnimplementedError("Load: checkpoints are not in this version");
}
Status Engine::AdoptParameters() {
  Call call{.kind = Call::Kind::kAdopt};
  return impl_->Submit(call);
}
Status Engine::Move(const OffloadOptions& offload) {
  return impl_->Extend({.parameters = {}, .units = {}, .groups = {}, .offload = offload});
}

MemoryStats Engine::Memory() const {
  return impl_->Look([](const auto& core) { return core.MemoryInUse(); });
}
int64_t Engine::TotalElements() const {
  return impl_->Look([](const auto& core) { return core.layout().total_elems(); });
}
std::string Engine::DescribePlan() const {
  return impl_->Look([](const auto& core) { return core.DescribePlan(); });
}

Status Engine::Close() {
  return impl_->Alone([this] {
    impl_->closed = true;
    return impl_->core->Stop();
  });
}

}  // namespace zerohold
