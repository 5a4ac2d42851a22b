// What tiers and the device may hold: bytes or fractions, kept to, and refused in one line where
// they cannot be.
#include <absl/strings/str_cat.h>
#include <gmock/gmock.h>

#include <filesystem>
#include <limits>
#include <mutex>

#include "tests/support/ranks.h"
#include "tests/support/seeded.h"
#include "tests/support/trainer.h"

namespace zerohold::testing {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

constexpr int64_t kFrame = int64_t{2} << 20;

// Units of 8 KiB in fp32, with two records each.
ModelSpec EightUnits() { return TensorsInUnits(std::vector<int64_t>(8, 2048)); }

EngineOptions Options(int stage) {
  EngineOptions options;
  options.zero_stage = stage;
  options.record_elems = 1024;
  options.communication_timeout_s = 20;
  options.notice = [](const std::string&) {};
  return options;
}

EngineOptions OnDisk(int stage) {
  EngineOptions options = Options(stage);
  options.offload.nvme_paths = {std::filesystem::current_path()};
  return options;
}

std::vector<float> AllOf8(Trainer& trainer) {
  std::vector<float> all;
  for (ParameterId id = 0; id < 8; ++id) {
    const std::vector<float> one = trainer.Read(id, StateKind::kMaster);
    all.insert(all.end(), one.begin(), one.end());
  }
  return all;
}

std::vector<float> Train(const EngineOptions& options) {
  Trainer trainer(options, SelfCommunicator(), EightUnits(), SeededValue);
  for (int step = 0; step < 3; ++step) trainer.Step(SeededGradient(0, step));
  return AllOf8(trainer);
}

Status CreateStatus(const EngineOptions& options) {
  const ModelSpec model = EightUnits();
  return Engine::Create(options, {SelfCommunicator()}, model.parameters, model.units).status();
}

TEST(Budgets, AFractionIsOfAllThereIs) {
  constexpr int64_t kMax = std::numeric_limits<int64_t>::max();
  EXPECT_EQ(Budget(7).Of(100), 7);
  EXPECT_EQ(Budget(700).Of(100), 100);
  EXPECT_EQ(Budget::Fraction(0.25).Of(100), 25);
  EXPECT_EQ(Budget(10, 0.25).Of(100), 35);
  EXPECT_EQ(Budget(kMax, 0.25).Of(100), 100);
  EXPECT_EQ(Budget::All().Of(kMax), kMax);
  EXPECT_EQ(Budget::All().Of(0), 0);
}

TEST(Budgets, ATierHoldsItsFraction) {
  const std::vector<float> expected = Train(Options(3));
  EngineOptions options = OnDisk(3);
  options.offload.host = {Budget::Fraction(0.25), Budget::Fraction(0.5), Budget::Fraction(0.75)};
  EXPECT_EQ(Train(options), expected);
  Trainer trainer(options, SelfCommunicator(), EightUnits(), SeededValue);
  const MemoryStats memory = trainer.engine().Memory();
  EXPECT_EQ(memory.Bytes(Tier::kHost, MemoryKind::kMoment1), 2 * 8192);
  EXPECT_EQ(memory.Bytes(Tier::kHost, MemoryKind::kParameters), 4 * 8192);
  EXPECT_EQ(memory.Bytes(Tier::kHost, MemoryKind::kGradients), 6 * 8192);
}

// A fraction is of what there is when it is given: what comes later moves nothing.
TEST(Budgets, UnitsThatComeLaterLeaveTheOthersWhereTheyAre) {
  std::vector<float> expected;
  for (const bool disk : {false, true}) {
    EngineOptions options = disk ? OnDisk(3) : Options(3);
    if (disk) options.offload.host = {Budget::Fraction(0.5), Budget::Fraction(0.5), 0};
    Trainer trainer(options, SelfCommunicator(), EightUnits(), SeededValue);
    trainer.Step(SeededGradient(0, 0));
    const Status added =
        trainer.AddUnits({{{"late", {5000}}}, {{"late", {"late"}, {}}}}, SeededValue);
    ASSERT_TRUE(added.ok()) << added;
    trainer.Step(SeededGradient(0, 1));
    if (disk) {
      EXPECT_EQ(trainer.engine().Memory().Bytes(Tier::kHost, MemoryKind::kMoment1), 4 * 8192);
    }
    const std::vector<float> all = AllOf8(trainer);
    if (expected.empty()) expected = all;
    EXPECT_EQ(all, expected);
  }
}

TEST(Budgets, WhatNoTierHoldsIsRefused) {
  EngineOptions options = OnDisk(3);
  options.offload.host = {1000, 1000, 1000};
  options.offload.nvme.states = 100000;
  EXPECT_THAT(std::string(CreateStatus(options).message()),
              AllOf(HasSubstr("offload.nvme.states is 100000 bytes"),
                    HasSubstr("offload.host.states leaves 131072 bytes")));
  options.offload.nvme.states = Budget::All();
  options.offload.nvme.parameters = Budget::Fraction(0.5);
  EXPECT_THAT(std::string(CreateStatus(options).message()),
              HasSubstr("offload.nvme.parameters is 32768 bytes"));
  options.offload.nvme.parameters = Budget::All();
  options.offload.nvme.gradients = 0;
  EXPECT_TRUE(absl::IsResourceExhausted(CreateStatus(options)));
  options.offload.nvme.gradients = 65536;
  EXPECT_TRUE(CreateStatus(options).ok());
}

// One rank's tiers are too small: both hear of it, nothing has moved, and they go on.
TEST(Budgets, AMoveToTooLittleIsRefused) {
  RunRanks(2, [](int rank, const Communicator& communicator) {
    Trainer trainer(Options(1), communicator, EightUnits(), SeededValue);
    OffloadOptions offload = OnDisk(1).offload;
    if (rank == 1) offload.nvme.states = 100;
    const Status refused = trainer.engine().Move(offload);
    EXPECT_TRUE(absl::IsResourceExhausted(refused));
    EXPECT_THAT(std::string(refused.message()), HasSubstr("offload.nvme.states is 100 bytes"));
    EXPECT_EQ(trainer.engine().Memory().Bytes(Tier::kNvme, MemoryKind::kMoment1), 0);
    EXPECT_TRUE(trainer.Step(SeededGradient(rank, 0)).applied);
    offload.nvme.states = Budget::Fraction(0.75);
    offload.host.states = Budget::Fraction(0.25);
    const Status moved = trainer.engine().Move(offload);
    EXPECT_TRUE(moved.ok()) << moved;
    EXPECT_TRUE(trainer.Step(SeededGradient(rank, 1)).applied);
  });
}

// Each unit's parameters and gradients take a frame: 32 MiB in all.
TEST(Budgets, FramesTakeWhatTheDeviceHas) {
  const std::vector<float> expected = Train(Options(3));
  const struct {
    Budget budget;
    int64_t frames;
  } cases[] = {{Budget::All(), 4},
               {Budget::Fraction(0.5), 8},
               {6 * kFrame, 6},
               {2 * kFrame, 2},
               {3 * kFrame + 5, 3},
               {100 * kFrame, 16},
               {std::numeric_limits<int64_t>::max(), 16},
               {Budget(kFrame, 0.125), 3}};
  for (const auto& [budget, frames] : cases) {
    SCOPED_TRACE(absl::StrCat(budget.bytes, " + ", budget.fraction));
    EngineOptions options = Options(3);
    options.device_budget = budget;
    EXPECT_EQ(Train(options), expected);
    Trainer trainer(options, SelfCommunicator(), EightUnits(), SeededValue);
    const int64_t bytes = trainer.engine().Memory().Bytes(Tier::kHost, MemoryKind::kFrames);
    EXPECT_EQ(bytes, frames * kFrame);
  }
}

TEST(Budgets, FramesThatWereAskedForAreKept) {
  EngineOptions options = Options(3);
  options.device_budget = 100 * kFrame;
  options.max_live_gradients_bytes = 2 * kFrame;
  Trainer trainer(options, SelfCommunicator(), EightUnits(), SeededValue);
  EXPECT_EQ(trainer.engine().Memory().Bytes(Tier::kHost, MemoryKind::kFrames), (8 + 2) * kFrame);
}

// The least budget of the device that Create grants, as it says.
int64_t Least(EngineOptions options, const ModelSpec& model) {
  options.device_budget = 1;
  const Status status =
      Engine::Create(options, {SelfCommunicator()}, model.parameters, model.units).status();
  EXPECT_TRUE(absl::IsResourceExhausted(status)) << status;
  const std::string text(status.message());
  const auto after = [&](const std::string& words) {
    return std::stoll(text.substr(text.find(words) + words.size()));
  };
  return after("that stay take ") + after("frames ");
}

// What lies in the middle of the frames for long leaves room on either side.
void ServesTiedUnits(const ModelSpec& model) {
  std::vector<float> expected;
  for (const Budget& budget : {Budget::All(), Budget(Least(Options(3), model)), Budget(1 << 30)}) {
    EngineOptions options = Options(3);
    options.device_budget = budget;
    Trainer trainer(options, SelfCommunicator(), model, SeededValue);
    for (int step = 0; step < 2; ++step) trainer.Step(SeededGradient(0, step));
    const std::vector<float> states = trainer.ReadStates();
    if (expected.empty()) expected = states;
    EXPECT_EQ(states, expected);
  }
}

TEST(Budgets, TheLeastThatIsGrantedServesTiedUnits) {
  struct Use {
    UnitId user;
    const char* parameter;
  };
  const std::vector<std::vector<Use>> cases = {
      {{4, "a"}},           {{0, "e"}},           {{1, "e"}},           {{3, "a"}, {4, "a"}},
      {{0, "d"}, {1, "e"}}, {{4, "a"}, {3, "b"}}, {{2, "a"}, {2, "e"}}, {{0, "e"}, {4, "b"}}};
  for (const int64_t end : {3000, 1'200'000}) {  // a frame, or three, beside two
    for (const std::vector<Use>& uses : cases) {
      SCOPED_TRACE(
          absl::StrCat("ends of ", end, ", ", uses.front().user, " uses ", uses.front().parameter));
      ModelSpec model = TensorsInUnits({end, 600'000, 600'000, 600'000, end});
      for (const auto& [user, parameter] : uses) model.units[user].uses.push_back(parameter);
      ServesTiedUnits(model);
    }
  }
}

// An owner may begin with an early user, when it is left out itself.
TEST(Budgets, TheLeastThatIsGrantedServesAPassThatLeavesOutAnOwner) {
  ModelSpec model = TensorsInUnits({kFrame / 4, 6 * kFrame / 4, 4 * kFrame / 4});
  model.units[0].uses = {"b"};
  EngineOptions options = Options(2);
  options.device_budget = Least(options, model);
  Trainer trainer(options, SelfCommunicator(), model, SeededValue);
  for (int step = 0; step < 2; ++step) {
    EXPECT_TRUE(trainer.Step(SeededGradient(0, step), {2, 0}).applied);
  }
}

// What Create names is granted, though it is more than twice what all units take.
TEST(Budgets, TheRoomThatIsNamedIsGranted) {
  ModelSpec model = TensorsInUnits({3000, 3000, 3000, 3000, 3000, 5 * kFrame / 2});
  model.units[5].uses = {"a", "b", "c", "d", "e"};
  EngineOptions options = Options(3);
  options.max_live_parameters_bytes = kFrame;
  const auto create = [&] {
    return Engine::Create(options, {SelfCommunicator()}, model.parameters, model.units).status();
  };
  const std::string text(create().message());
  const std::string needs = "needs ";
  options.max_live_parameters_bytes = std::stoll(text.substr(text.find(needs) + needs.size()));
  EXPECT_EQ(options.max_live_parameters_bytes, (15 + 5 * 9) * kFrame);
  const Status status = create();
  EXPECT_TRUE(status.ok()) << status;
}

// Gradients that wait for an earlier unit hold no others back.
TEST(Budgets, AnEarlyUnitMayUseWhatALateOneOwns) {
  for (const int stage : {2, 3}) {
    for (const int count : {2, 3, 5, 8}) {
      ModelSpec model = TensorsInUnits(std::vector<int64_t>(count, 3000));
      model.units[0].uses = {model.parameters.back().name};
      Trainer trainer(Options(stage), SelfCommunicator(), model, SeededValue);
      EXPECT_TRUE(trainer.Step(SeededGradient(0, 0)).applied);
    }
  }
}

// Room for each unit with what it uses is not enough beside what waits for an earlier one.
TEST(Budgets, TooLittleRoomForGradientsThatWaitIsRefused) {
  ModelSpec model = TensorsInUnits({3000, 3000, 3000, 3000, 3000});
  model.units[0].uses = {"d"};
  model.units[1].uses = {"e"};
  EngineOptions options = Options(3);
  options.max_live_gradients_bytes = 2 * kFrame;
  const Status status =
      Engine::Create(options, {SelfCommunicator()}, model.parameters, model.units).status();
  EXPECT_TRUE(absl::IsInvalidArgument(status));
  EXPECT_THAT(std::string(status.message()),
              AllOf(HasSubstr("max_live_gradients_bytes is 4194304"), HasSubstr("needs 6291456"),
                    HasSubstr("it or an earlier one uses")));
}

// Frames that are there stay, and count, when units come.
TEST(Budgets, UnitsThatComeLaterKeepToTheDevicesBudget) {
  EngineOptions options = Options(3);
  options.device_budget = 8 * kFrame;
  Trainer trainer(options, SelfCommunicator(), EightUnits(), SeededValue);
  trainer.Step(SeededGradient(0, 0));
  const Status small = trainer.AddUnits({{{"late", {10}}}, {{"late", {"late"}, {}}}}, SeededValue);
  ASSERT_TRUE(small.ok()) << small;
  EXPECT_EQ(trainer.engine().Memory().Bytes(Tier::kHost, MemoryKind::kFrames), 8 * kFrame);
  const ModelSpec large = {{{"large", {5 * kFrame / 4}}}, {{"large", {"large"}, {}}}};
  const Status refused = trainer.engine().AddUnits(large.parameters, large.units);
  EXPECT_TRUE(absl::IsResourceExhausted(refused));
  EXPECT_THAT(std::string(refused.message()), HasSubstr("device_budget is 16777216 bytes"));
  EXPECT_TRUE(trainer.Step(SeededGradient(0, 1)).applied);
}

TEST(Budgets, ADeviceThatIsTooSmallIsRefused) {
  EngineOptions options = Options(3);
  options.device_budget = kFrame;
  Status status = CreateStatus(options);
  EXPECT_TRUE(absl::IsResourceExhausted(status));
  EXPECT_THAT(std::string(status.message()),
              AllOf(HasSubstr("device_budget is 2097152 bytes"), HasSubstr("frames 4194304")));
  options.device_budget = 5 * kFrame;
  options.max_live_parameters_bytes = 5 * kFrame;
  EXPECT_TRUE(absl::IsResourceExhausted(CreateStatus(options)));
  options = Options(1);  // all of it stays
  options.device_budget = Budget::Fraction(0.75);
  status = CreateStatus(options);
  EXPECT_THAT(std::string(status.message()), HasSubstr("parameters and gradients that stay take"));
}

}  // namespace
}  // namespace zerohold::testing
