// The interpreter, pumped with completions in random order: every operation starts once, in its
// lane's order, after what it waits for.
#include "optim/engine/step.h"

#include <absl/strings/str_cat.h>
#include <gtest/gtest.h>

#include <array>
#include <random>

#include "src/layout/layout.h"

namespace zerohold::engine {
namespace {

constexpr int kUnits = 4;

layout::Layout MakeLayout(int world, bool shard_update) {
  std::vector<ParameterSpec> parameters;
  std::vector<UnitSpec> units;
  for (int i = 0; i < kUnits; ++i) {
    const std::string name = absl::StrCat("p", i);
    parameters.push_back({name, {700 * (i + 1)}});
    units.push_back({absl::StrCat("u", i), {name}, {}});
  }
  layout::LayoutConfig config;
  config.communicators = {{world, 0}};
  config.shard_update = shard_update;
  config.bucket_elems = 512;
  config.record_elems = 256;
  return layout::Layout::Create(config, parameters, units).value();
}

Placement AllInMemory(const layout::Layout& layout) {
  Placement placement;
  placement.fetched.resize(layout.records().size());
  placement.gradients.resize(layout.spaces().size());
  return placement;
}

// Keeps what was started and completes it when the test says.
class Recorder : public StepActions {
 public:
  explicit Recorder(const StepPlan& plan)
      : plan_(plan), started_(plan.operations.size()), done_(started_) {}
  void StartOperation(int index) override {
    EXPECT_FALSE(started_[index]) << "started twice";
    const Operation& operation = plan_.operations[index];
    if (operation.after >= 0) {
      EXPECT_TRUE(done_[operation.after]);
    }
    EXPECT_TRUE(agreement_done || operation.phase != Phase::kApply);
    EXPECT_FALSE(agreement_started && operation.phase == Phase::kReduce);
    if (operation.verb == Verb::kFetch && operation.operand == Operand::kRecord) ++away;
    // Verbs of one kind start in the order of the plan.
    int& last = last_[operation.phase == Phase::kApply][static_cast<int>(operation.verb)];
    EXPECT_GT(index, last);
    last = index;
    started_[index] = 1;
    in_flight.push_back(index);
  }
  void StartAgreement() override {
    EXPECT_FALSE(agreement_started);
    for (const int index : in_flight) EXPECT_EQ(plan_.operations[index].verb, Verb::kFetch);
    agreement_started = true;
  }
  void DropRecord(int64_t record) override {
    EXPECT_TRUE(agreement_done);
    for (size_t i = 0; i < started_.size(); ++i) {
      const Operation& operation = plan_.operations[i];
      if (operation.operand != Operand::kRecord || operation.target != record) continue;
      EXPECT_EQ(started_[i] && done_[i], operation.verb == Verb::kFetch);
    }
    --away;
  }
  void StartClosing() override {
    EXPECT_TRUE(in_flight.empty());
    EXPECT_FALSE(closing_started);
    closing_started = true;
  }
  int Complete(size_t which) {
    const int index = in_flight[which];
    in_flight.erase(in_flight.begin() + static_cast<int64_t>(which));
    done_[index] = 1;
    if (plan_.operations[index].verb == Verb::kStore) --away;
    return index;
  }
  int64_t Started(Verb verb) const {
    int64_t count = 0;
    for (size_t i = 0; i < started_.size(); ++i) {
      count += started_[i] && plan_.operations[i].verb == verb;
    }
    return count;
  }

  std::vector<int> in_flight;
  bool agreement_started = false;
  bool agreement_done = false;
  bool closing_started = false;
  int away = 0;  // records fetched and neither stored nor dropped

 private:
  const StepPlan& plan_;
  std::vector<char> started_;
  std::vector<char> done_;
  std::array<std::array<int, 6>, 2> last_{{{-1, -1, -1, -1, -1, -1}, {-1, -1, -1, -1, -1, -1}}};
};

struct Case {
  int world;
  bool shard_update;
  bool apply;
  std::vector<uint8_t> present;
  // 0: nothing is fetched; else every record but each third, and all of odd spaces, with gradients.
  int window = 0;
};

void Play(const Case& which, uint32_t seed) {
  std::mt19937 random(seed);
  const layout::Layout layout = MakeLayout(which.world, which.shard_update);
  Placement placement = AllInMemory(layout);
  for (size_t i = 0; i < layout.records().size(); ++i) {
    const int32_t space = layout.records()[i].space;
    placement.gradients[space] = which.window > 0 && space % 2 == 1;
    placement.fetched[i] = which.window > 0 && (i % 3 != 0 || placement.gradients[space]);
  }
  const StepPlan plan = BuildStepPlan(layout, false, placement);
  Recorder recorder(plan);
  Step step(plan, kUnits, {.window = which.window, .closing = which.window > 0}, recorder);
  std::vector<UnitId> to_report = {0, 1, 2, 3};
  step.BeginRound(Round::kFinal);
  std::shuffle(to_report.begin(), to_report.end(), random);
  bool requested = false;
  for (int guard = 0; step.state() != Step::State::kFinished; ++guard) {
    ASSERT_LT(guard, 10000) << "the step hangs";
    const bool can_complete = !recorder.in_flight.empty();
    if (recorder.agreement_started && !recorder.agreement_done) {
      recorder.agreement_done = true;
      step.AgreementDone(which.apply, which.present);
    } else if (can_complete && random() % 2) {
      step.OperationDone(recorder.Complete(random() % recorder.in_flight.size()));
    } else if (to_report.size() > 1) {  // the last one never reports; Request stands in
      step.UnitReady(to_report.back());
      to_report.pop_back();
    } else if (!requested) {
      step.CloseRound();
      step.Request();
      requested = true;
    } else if (recorder.closing_started) {
      step.ClosingDone();
    } else {
      ASSERT_TRUE(can_complete) << "nothing is under way and nothing was started";
    }
    step.Pump();
    ASSERT_LE(recorder.away, which.window);
  }
  EXPECT_TRUE(recorder.in_flight.empty());
  EXPECT_EQ(recorder.closing_started, which.window > 0);
  EXPECT_EQ(recorder.away, 0);
  int64_t updates = 0;
  int64_t stores = 0;
  for (size_t i = 0; i < layout.records().size(); ++i) {
    const bool runs = which.apply && which.present[layout.records()[i].space];
    updates += runs;
    stores += runs && placement.fetched[i];
  }
  EXPECT_EQ(recorder.Started(Verb::kUpdate), updates);
  EXPECT_EQ(recorder.Started(Verb::kStore), stores);
  EXPECT_GE(recorder.Started(Verb::kFetch), stores);
}

TEST(Step, AnyOrderOfCompletionsEndsRight) {
  const std::vector<Case> cases = {
      {2, false, true, {1, 1, 1, 1}},  // gradients are gathered
      {2, true, true, {1, 1, 1, 1}},   // parameters
      {2, true, true, {0, 1, 0, 1}},     {2, true, false, {1, 1, 1, 1}},
      {1, true, true, {1, 0, 1, 1}},  // nothing
      {1, true, true, {1, 1, 1, 1}, 1},  {2, true, true, {1, 1, 1, 1}, 3},
      {2, true, false, {1, 1, 1, 1}, 2}, {1, true, true, {0, 1, 0, 1}, 2},
      {1, true, true, {1, 0, 0, 0}, 1},  {2, false, true, {0, 0, 0, 1}, 100},
  };
  for (const Case& which : cases) {
    for (uint32_t seed = 0; seed < 200; ++seed) Play(which, seed);
  }
}

TEST(Step, NothingStartsBeforeAUnitReports) {
  const layout::Layout layout = MakeLayout(2, true);
  const StepPlan plan = BuildStepPlan(layout, false, AllInMemory(layout));
  Recorder recorder(plan);
  Step step(plan, kUnits, {}, recorder);
  step.BeginRound(Round::kFinal);
  step.Pump();
  EXPECT_TRUE(recorder.in_flight.empty());
  step.UnitReady(0);  // reduced last, so it waits for the others
  step.Pump();
  EXPECT_TRUE(recorder.in_flight.empty());
  step.UnitReady(3);  // reduced first
  step.Pump();
  EXPECT_EQ(recorder.in_flight.size(), 6u);  // 2800 elements, padded, in buckets of 512
}

TEST(StepPlan, AUnitIsReducedWithTheFirstThatUsesIt) {
  const std::vector<ParameterSpec> parameters = {{"a", {9}}, {"b", {9}}, {"c", {9}}, {"d", {9}}};
  const std::vector<UnitSpec> units = {
      {"u0", {"a"}, {}}, {"u1", {"b"}, {"d"}}, {"u2", {"c"}, {"a", "d"}}, {"u3", {"d"}, {}}};
  layout::LayoutConfig config;
  config.communicators = {{1, 0}};
  const layout::Layout layout = layout::Layout::Create(config, parameters, units).value();
  EXPECT_EQ(ReductionOrder(layout), (std::vector<UnitId>{2, 3, 1, 0}));
  std::vector<UnitId> reduced;
  for (const Operation& operation : BuildStepPlan(layout, false, AllInMemory(layout)).operations) {
    if (operation.verb == Verb::kReduceScatter) reduced.push_back(operation.unit);
  }
  EXPECT_EQ(reduced, ReductionOrder(layout));
}

TEST(StepPlan, ReadsAsALineAnOperation) {
  const layout::Layout layout = MakeLayout(2, true);
  const StepPlan plan = BuildStepPlan(layout, false, AllInMemory(layout));
  const std::vector<UnitSpec> units = {
      {"u0", {}, {}}, {"u1", {}, {}}, {"u2", {}, {}}, {"u3", {}, {}}};
  const std::string text = ToString(plan, units);
  EXPECT_EQ(text.find("ReduceScatter gradient bucket 10 (u3)\n"), 0u) << text;
  EXPECT_NE(text.find("Update record 0 (u0)\n"), std::string::npos) << text;
  EXPECT_NE(text.find("AllGather parameter bucket 0 (u0)\n"), std::string::npos) << text;
}

}  // namespace
}  // namespace zerohold::engine
