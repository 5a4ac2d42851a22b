// Calls in any order, the same on all ranks, or with one rank astray.
#include <absl/strings/str_cat.h>

#include <algorithm>
#include <thread>

#include "tests/optim/fuzz/program.h"

namespace zerohold::fuzz {
namespace {

// What no order of calls may bring about.
bool Broken(const Status& status) {
  return absl::IsInternal(status) || absl::IsAborted(status) || absl::IsDeadlineExceeded(status) ||
         absl::IsUnknown(status) || absl::IsDataLoss(status) || absl::IsUnavailable(status);
}

// Nor what a rank may bring about that does not do what the others do.
bool BrokenAstray(const Status& status) {
  return absl::IsInternal(status) || absl::IsUnknown(status) || absl::IsDataLoss(status) ||
         absl::IsUnavailable(status);
}

class Caller {
 public:
  Caller(const Program& program, const Way& way, Engine& engine)
      : way_(way),
        engine_(engine),
        units_(std::ssize(program.model.units)),
        parameters_(std::ssize(program.model.parameters)) {}

  // One call, and how it went.
  std::string Call(Random& random) {
    const auto unit = static_cast<UnitId>(random.Below(units_ + 1) - (random.OneIn(9) ? 1 : 0));
    const auto mode =
        random.Of({AcquireMode::kForward, AcquireMode::kBackward, AcquireMode::kBackward,
                   AcquireMode::kEvaluate, AcquireMode::kWrite});
    const auto id = static_cast<ParameterId>(random.Below(parameters_ + 1));
    const auto state = random.Of(
        {StateKind::kMaster, StateKind::kMoment1, StateKind::kMoment2, StateKind::kGradient});
    std::vector<float> values(random.Below(4), 0.5f);
    const bool last = random.OneIn(2);
    switch (random.Below(17)) {
      case 0:
      case 1:
      case 2:
      case 3:
        return Told(absl::StrCat("Acquire ", unit, " ", static_cast<int>(mode)),
                    engine_.Acquire(unit, mode));
      case 4:
      case 5:
      case 6:
        return Told(absl::StrCat("Release ", unit), engine_.Release(unit));
      case 7:
      case 8:
      case 9:
        return last ? Told(absl::StrCat("GradReady ", unit), engine_.GradReady(unit))
                    : Told(absl::StrCat("GradAbsent ", unit), engine_.GradAbsent(unit));
      case 10:
      case 11:
        return Told(absl::StrCat("BeginMicroBatch ", last), engine_.BeginMicroBatch(1.0, last));
      case 12:
        return Told("Step", engine_.Step().status());
      case 13:
        return Told(absl::StrCat("Read ", id, " ", static_cast<int>(state)),
                    engine_.Read(id, state, random.Below(3), values));
      case 14:
        return Told(absl::StrCat("Write ", id, " ", static_cast<int>(state)),
                    engine_.Write(id, state, random.Below(3), values));
      case 15:
        return random.OneIn(2) ? Told("Quiesce", engine_.Quiesce())
                               : Told("AdoptParameters", engine_.AdoptParameters());
      default:
        return AddOrMove(random);
    }
  }

  // Of a rank that does not hear what others do: its peers are missed sooner or later.
  void set_astray() { broken_by_ = &BrokenAstray; }
  const std::string& broken() const { return broken_; }

  // Ends what is open, then a step that must be applied.
  std::string Recover() {
    for (UnitId unit = 0; unit < units_; ++unit) {
      while (engine_.Release(unit).ok()) continue;
    }
    Told("Step", engine_.Step().status());
    Status status = engine_.BeginMicroBatch();
    for (UnitId unit = static_cast<UnitId>(units_) - 1; unit >= 0 && status.ok(); --unit) {
      status = engine_.Acquire(unit, AcquireMode::kBackward);
      if (status.ok()) status = engine_.GradReady(unit);
      if (status.ok()) status = engine_.Release(unit);
    }
    if (status.ok()) status = engine_.Step().status();
    return status.ok() ? broken_ : absl::StrCat(broken_, "not right again: ", status.ToString());
  }

 private:
  std::string Told(const std::string& call, const Status& status) {
    if (broken_by_(status)) absl::StrAppend(&broken_, call, ": ", status.ToString(), "\n");
    return absl::StrCat(call, " -> ", static_cast<int>(status.code()), "\n");
  }

  std::string AddOrMove(Random& random) {
    if (random.OneIn(3)) {
      const auto move = random.Below(1 + std::ssize(way_.moves));
      const bool there = move < std::ssize(way_.moves) && way_.moves[move];
      return Told("Move", engine_.Move(there ? *way_.moves[move] : OffloadOptions()));
    }
    if (!random.OneIn(3)) return "";
    const std::string name = absl::StrCat("more", added_++);
    const bool bad = random.OneIn(3);
    const Status status =
        engine_.AddUnits({{name, {bad ? -1 : random.Below(900)}}}, {{name, {name}, {}}});
    if (status.ok()) ++units_, ++parameters_;
    return Told("AddUnits " + name, status);
  }

  const Way& way_;
  Engine& engine_;
  int64_t units_;
  int64_t parameters_;
  int added_ = 0;
  bool (*broken_by_)(const Status&) = &Broken;
  std::string broken_;
};

}  // namespace

std::string RunWrongUse(const Program& program, const Way& way, uint64_t seed) {
  const std::vector<std::vector<Communicator>> communicators = MakeCommunicators(program);
  std::vector<std::string> calls(program.world);
  std::vector<std::string> broken(program.world);
  std::vector<std::thread> threads;
  for (int rank = 0; rank < program.world; ++rank) {
    threads.emplace_back([&, rank] {
      const Model model = ModelOf(program, program.model, rank);
      auto engine = Engine::Create(way.options, communicators[rank], model.parameters, model.units);
      if (!engine.ok()) {
        broken[rank] = engine.status().ToString();
        return;
      }
      Random random(seed);
      Caller caller(program, way, **engine);
      for (int round = 0; round < 3 && broken[rank].empty(); ++round) {
        for (int i = 0; i < 25; ++i) calls[rank] += caller.Call(random);
        broken[rank] += caller.Recover();
        calls[rank] += "-- right again\n";
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  std::string text;
  for (int rank = 0; rank < program.world; ++rank) {
    if (!broken[rank].empty()) absl::StrAppend(&text, "rank ", rank, ": ", broken[rank], "\n");
    if (calls[rank] != calls[0]) {
      absl::StrAppend(&text, "rank ", rank, " was answered otherwise:\n", calls[rank], "\n");
    }
  }
  if (!text.empty()) absl::StrAppend(&text, "calls of rank 0:\n", calls[0]);
  return text;
}

std::string RunAstray(const Program& program, const Way& way, uint64_t seed) {
  const std::vector<std::vector<Communicator>> communicators = MakeCommunicators(program);
  EngineOptions options = way.options;
  options.communication_timeout_s = 0.5;
  std::vector<std::string> texts(program.world);
  std::vector<std::thread> threads;
  const auto stray = static_cast<int>(seed % program.world);
  for (int rank = 0; rank < program.world; ++rank) {
    threads.emplace_back([&, rank] {
      const Model model = ModelOf(program, program.model, rank);
      auto engine = Engine::Create(options, communicators[rank], model.parameters, model.units);
      if (!engine.ok()) {  // in time, or not
        if (BrokenAstray(engine.status())) texts[rank] = engine.status().ToString();
        return;
      }
      Random random(seed);
      Random own(seed + 1);
      Caller caller(program, way, **engine);
      caller.set_astray();
      for (int i = 0; i < 60; ++i) {
        if (rank == stray && own.OneIn(20)) texts[rank] += "astray: " + caller.Call(own);
        texts[rank] += caller.Call(random);
      }
      if (caller.broken().empty()) {
        texts[rank].clear();
      } else {
        texts[rank] = caller.broken() + "calls:\n" + texts[rank];
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  std::string text;
  for (int rank = 0; rank < program.world; ++rank) {
    if (!texts[rank].empty()) absl::StrAppend(&text, "rank ", rank, ": ", texts[rank], "\n");
  }
  return text;
}

}  // namespace zerohold::fuzz
