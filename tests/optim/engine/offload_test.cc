// Where records rest changes no bit: host memory, disk, both, any window, slots, and after faults
// that the mover mends; and a disk that fails is told on all ranks.
#include <absl/strings/str_cat.h>
#include <gmock/gmock.h>

#include <cmath>
#include <filesystem>
#include <mutex>

#include "tests/support/ranks.h"
#include "tests/support/seeded.h"
#include "tests/support/trainer.h"

namespace zerohold::testing {
namespace {

ModelSpec Model(DType dtype) {
  ModelSpec model{{{"embedding", {37, 11}},
                   {"weight", {1000, 3}},
                   {"bias", {7}},
                   {"frozen", {300}},
                   {"empty", {0, 8}},
                   {"head", {}}},
                  {{"in", {"embedding"}, {}},
                   {"block", {"weight", "bias", "frozen", "empty"}, {}},
                   {"out", {"head"}, {"embedding"}}}};
  for (ParameterSpec& parameter : model.parameters) parameter.dtype = dtype;
  model.parameters[3].frozen = true;
  return model;
}

EngineOptions Options(int stage) {
  EngineOptions options;
  options.zero_stage = stage;
  options.groups[0].learning_rate = 0.01;
  options.groups[0].weight_decay = 0.1;
  options.clip_grad_norm = 1.0;
  options.communication_timeout_s = 20;
  options.bucket_elems = 512;
  options.record_elems = 512;
  options.notice = [](const std::string&) {};
  return options;
}

EngineOptions OnDisk(EngineOptions options) {
  options.offload.nvme_paths = {std::filesystem::current_path()};
  return options;
}

// With gradients and parameters, at stages that have them in frames.
EngineOptions AllOnDisk(EngineOptions options) {
  if (options.zero_stage >= 2) options.offload.host.gradients = 0;
  if (options.zero_stage >= 3) options.offload.host.parameters = 0;
  return OnDisk(options);
}

// Masters, moments and the last gradients after some steps: one skipped, one in which a unit has no
// gradient, values written in between.
std::vector<float> Train(int world, DType dtype, const EngineOptions& options) {
  std::vector<float> result;
  std::mutex mutex;
  RunRanks(world, [&](int rank, const Communicator& communicator) {
    Trainer trainer(options, communicator, Model(dtype), SeededValue);
    for (int step = 0; step < 3; ++step) trainer.Step(SeededGradient(rank, step));
    const auto infinite = [](ParameterId, std::span<const float>, std::span<float> gradient) {
      for (float& g : gradient) g = INFINITY;
    };
    EXPECT_FALSE(trainer.Step(infinite).applied);
    trainer.Step(SeededGradient(rank, 4), {0, 2});
    const std::vector<float> values(200, 0.25f);
    EXPECT_TRUE(trainer.engine().Write(1, StateKind::kMoment1, 1500, values).ok());
    trainer.WriteUnit(2, Constant(0.5f));
    trainer.Step(SeededGradient(rank, 5));
    std::vector<float> all;
    for (const ParameterId id : {0, 1, 2, 5}) {
      for (const StateKind state :
           {StateKind::kMaster, StateKind::kMoment1, StateKind::kMoment2, StateKind::kGradient}) {
        const std::vector<float> one = trainer.Read(id, state);
        all.insert(all.end(), one.begin(), one.end());
      }
    }
    EXPECT_TRUE(trainer.engine().Close().ok());
    const std::lock_guard lock(mutex);
    if (result.empty()) result = all;
    EXPECT_EQ(all, result) << "rank " << rank;
  });
  return result;
}

class EveryForm : public ::testing::TestWithParam<std::pair<DType, MasterForm>> {};
INSTANTIATE_TEST_SUITE_P(Offload, EveryForm,
                         ::testing::Values(std::pair(DType::kFloat32, MasterForm::kFloat32),
                                           std::pair(DType::kBFloat16, MasterForm::kFloat32),
                                           std::pair(DType::kBFloat16, MasterForm::kRemainder),
                                           std::pair(DType::kFloat16, MasterForm::kFloat32)));

TEST_P(EveryForm, WhereRecordsRestChangesNoBit) {
  const auto [dtype, form] = GetParam();
  for (const int world : {1, 2, 3}) {
    for (const int stage : {0, 1, 3}) {
      SCOPED_TRACE(absl::StrCat("world ", world, ", stage ", stage));
      EngineOptions options = Options(stage);
      options.master = form;
      const std::vector<float> expected = Train(world, dtype, options);
      EngineOptions disk = OnDisk(options);
      EXPECT_EQ(Train(world, dtype, disk), expected);
      disk.offload.window = 1;
      disk.offload.io_engine = IoEngine::kThreads;
      EXPECT_EQ(Train(world, dtype, disk), expected);
      disk.offload.window = 5;
      disk.offload.host.states = 15000;
      disk.record_elems = 256;
      EXPECT_EQ(Train(world, dtype, disk), expected);
      disk.offload.faults = "short=0.3,again=0.2,late=0.2,seed=5";
      EXPECT_EQ(Train(world, dtype, disk), expected);
    }
  }
}

// So do gradients and parameters, at stages that have them in frames: all of them, or what a budget
// leaves.
TEST_P(EveryForm, WhereGradientsAndParametersRestChangesNoBit) {
  const auto [dtype, form] = GetParam();
  for (const int world : {1, 2, 3}) {
    for (const int stage : {2, 3}) {
      SCOPED_TRACE(absl::StrCat("world ", world, ", stage ", stage));
      EngineOptions options = Options(stage);
      options.master = form;
      const std::vector<float> expected = Train(world, dtype, options);
      EngineOptions disk = OnDisk(options);
      disk.offload.host.gradients = 0;
      EXPECT_EQ(Train(world, dtype, disk), expected);
      if (stage == 3) disk.offload.host.parameters = 0;
      disk.offload.window = 1;
      EXPECT_EQ(Train(world, dtype, disk), expected);
      disk.overlap_next_forward = true;
      disk.record_elems = 256;
      EXPECT_EQ(Train(world, dtype, disk), expected);
      disk.offload.host.states = 1 << 20;  // states are in memory, the rest is not
      EXPECT_EQ(Train(world, dtype, disk), expected);
      disk.offload.host.states = 15000;
      disk.offload.host.gradients = 2000;
      if (stage == 3) disk.offload.host.parameters = 1000;
      disk.offload.window = 4;
      disk.offload.faults = "short=0.3,again=0.2,late=0.2,seed=5";
      EXPECT_EQ(Train(world, dtype, disk), expected);
    }
  }
}

// Between steps records go wherever they are told, and no bit with them changes.
TEST_P(EveryForm, MoveChangesNoBit) {
  const auto [dtype, form] = GetParam();
  for (const int stage : {0, 2, 3}) {
    std::vector<float> expected;
    std::mutex mutex;
    for (const bool moves : {false, true}) {
      RunRanks(2, [&](int rank, const Communicator& communicator) {
        SCOPED_TRACE(absl::StrCat("stage ", stage, ", rank ", rank));
        EngineOptions options = Options(stage);
        options.master = form;
        OffloadOptions places[] = {
            OnDisk(options).offload, {}, OnDisk(options).offload, OnDisk(options).offload};
        places[2].window = 1;
        places[3].host.states = 9000 + 1000 * rank;
        places[3].window = 4;
        Trainer trainer(options, communicator, Model(dtype), SeededValue);
        Engine& engine = trainer.engine();
        const void* const address = engine.Parameter(1).data;
        for (int step = 0; step < 5; ++step) {
          trainer.Step(SeededGradient(rank, step));
          if (!moves || step == 4) continue;
          const Status moved = engine.Move(places[step]);
          ASSERT_TRUE(moved.ok()) << moved;
          const bool on_disk = !places[step].nvme_paths.empty();
          EXPECT_EQ(engine.Memory().Bytes(Tier::kNvme, MemoryKind::kMoment1) > 0, on_disk);
          EXPECT_EQ(engine.Parameter(1).data, address);
        }
        std::vector<float> all;
        for (const ParameterId id : {0, 1, 2, 5}) {
          for (const StateKind state : {StateKind::kMaster, StateKind::kMoment2}) {
            const std::vector<float> one = trainer.Read(id, state);
            all.insert(all.end(), one.begin(), one.end());
          }
        }
        const std::lock_guard lock(mutex);
        if (expected.empty()) expected = all;
        EXPECT_EQ(all, expected);
      });
    }
  }
}

// So do gradients and parameters, from memory to disk and back, some or all of them.
TEST_P(EveryForm, MoveTakesGradientsAndParametersToo) {
  const auto [dtype, form] = GetParam();
  EngineOptions options = Options(3);
  options.master = form;
  OffloadOptions places[] = {
      AllOnDisk(options).offload, AllOnDisk(options).offload, {},
      AllOnDisk(options).offload, OnDisk(options).offload,    AllOnDisk(options).offload};
  places[1].host.gradients = 2000;
  places[1].host.parameters = 1000;
  places[1].host.states = 9000;
  places[3].host.states = 1 << 20;  // states stay in memory, the rest does not
  places[5].host.parameters = 2500;
  for (const int world : {1, 2}) {
    std::vector<float> expected;
    std::mutex mutex;
    for (const bool moves : {false, true}) {
      RunRanks(world, [&](int rank, const Communicator& communicator) {
        Trainer trainer(options, communicator, Model(dtype), SeededValue);
        std::vector<float> all;
        for (int step = 0; step < static_cast<int>(std::size(places)); ++step) {
          SCOPED_TRACE(absl::StrCat("world ", world, ", rank ", rank, ", step ", step));
          trainer.Step(SeededGradient(rank, step));
          const Status moved = moves ? trainer.engine().Move(places[step]) : Status();
          ASSERT_TRUE(moved.ok()) << moved;
          const MemoryStats memory = trainer.engine().Memory();
          for (const MemoryKind kind : {MemoryKind::kParameters, MemoryKind::kGradients}) {
            const TierBudgets& host = places[step].host;
            const Budget& budget =
                kind == MemoryKind::kParameters ? host.parameters : host.gradients;
            const bool away = moves && budget != Budget::All();
            EXPECT_EQ(memory.Bytes(Tier::kNvme, kind) > 0, away);
          }
          for (const StateKind state : {StateKind::kGradient, StateKind::kMaster}) {
            for (const ParameterId id : {0, 1, 2, 5}) {
              const std::vector<float> one = trainer.Read(id, state);
              all.insert(all.end(), one.begin(), one.end());
            }
          }
        }
        const std::lock_guard lock(mutex);
        if (expected.empty()) expected = all;
        EXPECT_EQ(all, expected);
      });
    }
  }
}

// What was thrown away does not come back.
TEST(Offload, MoveOfDroppedParametersIsRefused) {
  EngineOptions options = AllOnDisk(Options(3));
  options.offload.drop_parameters = true;
  Trainer trainer(options, SelfCommunicator(), Model(DType::kBFloat16), SeededValue);
  OffloadOptions to = options.offload;
  to.host.gradients = Budget::All();
  to.window = 2;
  const Status moved = trainer.engine().Move(to);
  EXPECT_TRUE(moved.ok()) << moved;
  to.drop_parameters = false;
  EXPECT_TRUE(absl::IsInvalidArgument(trainer.engine().Move(to)));
  to = options.offload;
  to.host.parameters = Budget::All();
  EXPECT_TRUE(absl::IsInvalidArgument(trainer.engine().Move(to)));
  EXPECT_TRUE(absl::IsInvalidArgument(trainer.engine().Move({})));
  trainer.Step(SeededGradient(0, 0));
}

// A call that waits for gathers ahead, one of which finds its shard lost, is told so.
TEST(Offload, ALostShardEndsTheCallThatWaitsForIt) {
  EngineOptions options = AllOnDisk(Options(3));
  options.offload.read_rate = 200e3;  // reads ahead are still under way
  options.max_live_parameters_bytes = 3 * (int64_t{2} << 20);
  options.offload.faults = "eio=1,first=18";
  Trainer trainer(options, SelfCommunicator(), TensorsInUnits({20000, 20000, 20000}), Constant(1));
  Engine& engine = trainer.engine();
  Status status;
  std::vector<float> values(10);
  for (int pass = 0; pass < 20 && status.ok(); ++pass) {
    for (UnitId unit = 0; unit < 3 && status.ok(); ++unit) {
      status = engine.Acquire(unit, AcquireMode::kEvaluate);
      if (status.ok()) status = engine.Release(unit);
      if (status.ok()) status = engine.Read(2, StateKind::kMoment1, 0, values);
    }
  }
  EXPECT_THAT(std::string(status.message()), ::testing::HasSubstr("Input/output error"));
}

TEST(Offload, MoveIsRefusedInsideAWindowAndToNowhere) {
  RunRanks(2, [](int rank, const Communicator& communicator) {
    Trainer trainer(Options(1), communicator, Model(DType::kFloat32), SeededValue);
    Engine& engine = trainer.engine();
    OffloadOptions offload = OnDisk(Options(1)).offload;
    ASSERT_TRUE(engine.BeginMicroBatch().ok());
    EXPECT_TRUE(absl::IsFailedPrecondition(engine.Move(offload)));
    for (const UnitId unit : {2, 1, 0}) trainer.Backward(unit, SeededGradient(rank, 0));
    trainer.Step();
    // Only one rank's folder is missing: both hear of it, and go on.
    if (rank == 1) offload.nvme_paths = {"/nowhere/at/all"};
    const Status refused = engine.Move(offload);
    EXPECT_THAT(std::string(refused.message()), ::testing::HasSubstr("rank 1: "));
    EXPECT_TRUE(trainer.Step(SeededGradient(rank, 1)).applied);
  });
}

// What is added later rests on disk too.
TEST(Offload, UnitsThatComeLater) {
  std::vector<float> expected;
  for (const bool disk : {false, true}) {
    EngineOptions options = disk ? AllOnDisk(Options(3)) : Options(3);
    options.offload.host.states = disk ? 5000 : 0;
    Trainer trainer(options, SelfCommunicator(), TensorsInUnits({700, 300}), SeededValue);
    trainer.Step(SeededGradient(0, 0));
    const ModelSpec more = {{{"late", {900}, DType::kBFloat16}}, {{"later", {"late"}, {}}}};
    ASSERT_TRUE(trainer.AddUnits(more, SeededValue).ok());
    for (int step = 1; step < 4; ++step) trainer.Step(SeededGradient(0, step));
    const std::vector<float> states = trainer.ReadStates();
    if (expected.empty()) expected = states;
    EXPECT_EQ(states, expected);
  }
}

// Bytes from and to disk in a step: the states, once each way, and little more.
TEST(Offload, TrafficIsTheStatesOnce) {
  const std::tuple<DType, MasterForm, int> cases[] = {
      {DType::kFloat32, MasterForm::kFloat32, 8},
      {DType::kBFloat16, MasterForm::kFloat32, 12},
      {DType::kBFloat16, MasterForm::kRemainder, 10}};
  for (const auto& [dtype, form, bytes_each] : cases) {
    constexpr int64_t kElems = int64_t{1} << 21;
    EngineOptions options = OnDisk(Options(1));
    options.bucket_elems = 1 << 20;
    options.record_elems = 256 << 10;
    options.master = form;
    ModelSpec model = Tensors({kElems});
    model.parameters[0].dtype = dtype;
    Trainer trainer(options, SelfCommunicator(), model, Constant(1.0f));
    trainer.Step(Gradients({{1.0f}}));
    for (int step = 0; step < 2; ++step) {
      const StepStats stats = trainer.Step(Gradients({{1.0f}}));
      for (const int64_t bytes : {stats.disk_read_bytes, stats.disk_written_bytes}) {
        EXPECT_GE(bytes, bytes_each * kElems);
        EXPECT_LE(static_cast<double>(bytes), 1.01 * static_cast<double>(bytes_each * kElems));
      }
    }
  }
}

// Gradients and parameters go and come once each, and a gather reads what it sends.
TEST(Offload, TrafficOfGradientsAndParameters) {
  constexpr int64_t kElems = int64_t{1} << 21;
  for (const bool parameters : {false, true}) {
    EngineOptions options = OnDisk(Options(3));
    options.offload.host.gradients = 0;
    if (parameters) options.offload.host.parameters = 0;
    options.bucket_elems = 1 << 20;
    options.record_elems = 256 << 10;
    ModelSpec model = Tensors({kElems});
    model.parameters[0].dtype = DType::kBFloat16;
    Trainer trainer(options, SelfCommunicator(), model, Constant(1.0f));
    const MemoryStats memory = trainer.engine().Memory();
    EXPECT_EQ(memory.Bytes(Tier::kNvme, MemoryKind::kGradients), 2 * kElems);
    EXPECT_EQ(memory.Bytes(Tier::kHost, MemoryKind::kGradients), 0);
    EXPECT_EQ(memory.Bytes(Tier::kNvme, MemoryKind::kParameters), parameters ? 2 * kElems : 0);
    EXPECT_EQ(memory.Bytes(Tier::kHost, MemoryKind::kParameters), parameters ? 0 : 2 * kElems);
    trainer.Step(Gradients({{1.0f}}));
    for (int step = 0; step < 2; ++step) {
      const StepStats stats = trainer.Step(Gradients({{1.0f}}));
      const auto expected = static_cast<double>((parameters ? 16 : 14) * kElems);
      for (const int64_t bytes : {stats.disk_read_bytes, stats.disk_written_bytes}) {
        EXPECT_GE(static_cast<double>(bytes), expected);
        EXPECT_LE(static_cast<double>(bytes), 1.01 * expected);
      }
    }
  }
}

// Parameters that are thrown away cost nothing, and are not to be had.
TEST(Offload, DroppedParametersAreRefusedToReaders) {
  EngineOptions options = AllOnDisk(Options(3));
  options.offload.drop_parameters = true;
  const std::vector<float> expected = [&] {
    Trainer trainer(Options(3), SelfCommunicator(), Model(DType::kBFloat16), SeededValue);
    for (int step = 0; step < 2; ++step)
      trainer.Step(Gradients({{0.5f}, {0.25f}, {2.0f}, {}, {}, {1.0f}}));
    return trainer.Read(1, StateKind::kMaster);
  }();
  Trainer trainer(options, SelfCommunicator(), Model(DType::kBFloat16), SeededValue);
  EXPECT_EQ(trainer.engine().Memory().Bytes(Tier::kNvme, MemoryKind::kParameters), 0);
  for (int step = 0; step < 2; ++step)
    trainer.Step(Gradients({{0.5f}, {0.25f}, {2.0f}, {}, {}, {1.0f}}));
  EXPECT_EQ(trainer.Read(1, StateKind::kMaster), expected);
  const Status refused = trainer.engine().Acquire(1, AcquireMode::kForward);
  EXPECT_THAT(std::string(refused.message()), ::testing::HasSubstr("drop_parameters"));
  options.master = MasterForm::kRemainder;
  const ModelSpec model = Model(DType::kBFloat16);
  const Status bad =
      Engine::Create(options, {SelfCommunicator()}, model.parameters, model.units).status();
  EXPECT_THAT(std::string(bad.message()), ::testing::HasSubstr("parameter embedding"));
}

TEST(Offload, MemoryIsCountedWhereItIs) {
  EngineOptions options = OnDisk(Options(1));
  options.offload.window = 4;
  Trainer trainer(options, SelfCommunicator(), Model(DType::kBFloat16), SeededValue);
  const MemoryStats memory = trainer.engine().Memory();
  const int64_t elems = memory.Bytes(Tier::kNvme, MemoryKind::kMoment1) / 4;
  EXPECT_GE(elems, 37 * 11 + 3007 + 1);
  EXPECT_EQ(memory.Bytes(Tier::kNvme, MemoryKind::kMaster), 4 * elems);
  EXPECT_EQ(memory.Bytes(Tier::kNvme, MemoryKind::kMoment2), 4 * elems);
  for (const MemoryKind kind : {MemoryKind::kMaster, MemoryKind::kMoment1, MemoryKind::kMoment2}) {
    EXPECT_EQ(memory.Bytes(Tier::kHost, kind), 0);
  }
}

// What no retry mends ends the engine on all ranks, with the same status, which names the record.
TEST(Offload, ADiskThatFailsIsToldOnAllRanks) {
  const std::pair<const char*, const char*> faults[] = {{"eio=1,first=8", "Input/output error"},
                                                        {"flip=1,first=8", "checksum"},
                                                        {"stale=1,first=30", "stale"},
                                                        {"enospc=1,first=8", "nvme_paths"}};
  for (const auto& [spec, text] : faults) {
    for (const int stage : {1, 3}) {
      RunRanks(3, [&](int rank, const Communicator& communicator) {
        SCOPED_TRACE(absl::StrCat(spec, ", stage ", stage, ", rank ", rank));
        EngineOptions options = AllOnDisk(Options(stage));
        if (rank == 1) options.offload.faults = spec;
        ModelSpec model = Model(DType::kBFloat16);
        Trainer trainer(options, communicator, model, Constant(0.0f));
        Status failed;
        for (int step = 0; step < 8 && failed.ok(); ++step) {
          failed = trainer.TryStep(SeededGradient(rank, step)).status();
        }
        EXPECT_THAT(std::string(failed.message()), ::testing::HasSubstr(text)) << failed;
        EXPECT_THAT(std::string(failed.message()), ::testing::HasSubstr("rank 1: "));
        EXPECT_EQ(trainer.engine().Step().status(), failed) << "it stays failed";
      });
    }
  }
}

// Values that could not be stored are not forgotten when units are added.
TEST(Offload, ALostRecordIsToldByAddUnits) {
  EngineOptions options = OnDisk(Options(1));
  options.offload.faults = "eio=1,first=2";
  Trainer trainer(options, SelfCommunicator(), Model(DType::kBFloat16), SeededValue);
  const Status lost = trainer.engine().AddUnits({{"late", {5}}}, {{"later", {"late"}, {}}});
  EXPECT_THAT(std::string(lost.message()), ::testing::HasSubstr("Input/output error")) << lost;
  EXPECT_EQ(trainer.engine().Step().status(), lost);
}

// Nor when nothing comes after them.
TEST(Offload, ALostRecordIsToldByClose) {
  EngineOptions options = OnDisk(Options(1));
  options.offload.faults = "eio=1,first=2";
  Trainer trainer(options, SelfCommunicator(), Model(DType::kBFloat16), SeededValue);
  const Status lost = trainer.engine().Close();
  EXPECT_THAT(std::string(lost.message()), ::testing::HasSubstr("Input/output error")) << lost;
  EXPECT_TRUE(trainer.engine().Close().ok()) << "told once";
}

// A record that Read cannot bring is told by it, and ends the next step.
TEST(Offload, ARecordThatReadLostEndsTheNextStep) {
  EngineOptions options = OnDisk(Options(1));
  options.offload.faults = "flip=1,first=40";
  Trainer trainer(options, SelfCommunicator(), Model(DType::kFloat32), SeededValue);
  trainer.Step(SeededGradient(0, 0));
  Status lost;
  std::vector<float> values(3000);
  for (int i = 0; i < 40 && lost.ok(); ++i) {
    lost = trainer.engine().Read(1, StateKind::kMoment1, 0, values);
  }
  EXPECT_TRUE(absl::IsDataLoss(lost)) << lost;
  EXPECT_THAT(std::string(trainer.TryStep(SeededGradient(0, 1)).status().message()),
              ::testing::HasSubstr("checksum"));
}

TEST(Offload, BadFoldersAreNamed) {
  const auto refused = [](const std::string& path) {
    EngineOptions options = Options(1);
    options.offload.nvme_paths = {path};
    const ModelSpec model = Model(DType::kFloat32);
    return Engine::Create(options, {SelfCommunicator()}, model.parameters, model.units).status();
  };
  for (const std::string path : {"/nowhere/at/all", "/dev/shm"}) {
    const Status status = refused(path);
    EXPECT_FALSE(status.ok());
    EXPECT_THAT(std::string(status.message()),
                ::testing::AllOf(::testing::HasSubstr(path), ::testing::HasSubstr("nvme_paths")));
  }
}

}  // namespace
}  // namespace zerohold::testing
