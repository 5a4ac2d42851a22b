// What options refuse, and that the refusal names the field and what is legal.
#include "zerohold/options.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <limits>
#include <string>
#include <vector>

namespace zerohold {
namespace {

constexpr UpdateRule kRules[] = {UpdateRule::kAdamW, UpdateRule::kAdam, UpdateRule::kSgd,
                                 UpdateRule::kLion, UpdateRule::kAdagrad};

// A change of good options, and what the message of its refusal contains.
struct Case {
  std::function<void(EngineOptions&)> change;
  std::vector<std::string> words;
};

void ExpectRefused(const std::vector<Case>& cases) {
  for (const Case& bad : cases) {
    EngineOptions options;
    ASSERT_TRUE(options.Validate().ok());
    bad.change(options);
    const Status status = options.Validate();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << bad.words[0];
    for (const std::string& word : bad.words) {
      EXPECT_NE(status.message().find(word), std::string::npos)
          << '"' << word << "\" is not in: " << status.message();
    }
  }
}

// Every setting of a group, moved to another legal value.
struct Setting {
  const char* field;
  void (*move)(GroupOptions&);
};
constexpr Setting kSettings[] = {
    {"learning_rate", [](GroupOptions& group) { group.learning_rate = 0.5; }},
    {"beta1", [](GroupOptions& group) { group.beta1 = 0.5; }},
    {"beta2", [](GroupOptions& group) { group.beta2 = 0.5; }},
    {"epsilon", [](GroupOptions& group) { group.epsilon = 0.5; }},
    {"weight_decay", [](GroupOptions& group) { group.weight_decay = 0.5; }},
    {"momentum", [](GroupOptions& group) { group.momentum = 0.5; }},
    {"nesterov", [](GroupOptions& group) { group.nesterov = true; }},
};

std::vector<std::string> ReadBy(UpdateRule rule) {
  switch (rule) {
    case UpdateRule::kAdamW:
    case UpdateRule::kAdam:
      return {"learning_rate", "beta1", "beta2", "epsilon", "weight_decay"};
    case UpdateRule::kSgd:
      return {"learning_rate", "weight_decay", "momentum", "nesterov"};
    case UpdateRule::kLion:
      return {"learning_rate", "beta1", "beta2", "weight_decay"};
    case UpdateRule::kAdagrad:
      return {"learning_rate", "epsilon", "weight_decay"};
  }
  return {};
}

TEST(GroupOptions, DefaultsAreLegalForEveryRule) {
  for (const UpdateRule rule : kRules) EXPECT_TRUE(GroupOptions{}.Validate(rule).ok());
}

TEST(GroupOptions, ASettingTheRuleDoesNotReadStaysAtItsDefault) {
  for (const UpdateRule rule : kRules) {
    const std::vector<std::string> reads = ReadBy(rule);
    for (const Setting& setting : kSettings) {
      GroupOptions group;
      // nesterov is legal with momentum alone.
      if (rule == UpdateRule::kSgd) group.momentum = 0.25;
      setting.move(group);
      const Status status = group.Validate(rule);
      if (std::find(reads.begin(), reads.end(), setting.field) != reads.end()) {
        EXPECT_TRUE(status.ok()) << status;
        continue;
      }
      EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
      const std::string message(status.message());
      EXPECT_EQ(message.find(setting.field), 0u) << message;
      for (const std::string& field : reads) {
        EXPECT_NE(message.find(field), std::string::npos) << message;
      }
    }
  }
}

TEST(GroupOptions, TheMessageIsOneThatAUserCanActOn) {
  GroupOptions group;
  group.beta2 = 0.95;
  EXPECT_EQ(group.Validate(UpdateRule::kSgd).message(),
            "beta2 is 0.95, which Sgd does not read (it reads learning_rate, weight_decay, "
            "momentum, nesterov); leave it at 0.999");
}

TEST(GroupOptions, Ranges) {
  constexpr double kNan = std::numeric_limits<double>::quiet_NaN();
  constexpr double kInf = std::numeric_limits<double>::infinity();
  const auto group = [](double GroupOptions::*field, double value) {
    return [=](EngineOptions& options) { options.groups[0].*field = value; };
  };
  for (const double bad : {-1e-9, kNan, kInf}) {
    ExpectRefused({{group(&GroupOptions::learning_rate, bad), {"groups[0].learning_rate is"}},
                   {group(&GroupOptions::epsilon, bad), {"groups[0].epsilon is"}},
                   {group(&GroupOptions::weight_decay, bad), {"groups[0].weight_decay is"}}});
  }
  for (const double bad : {-1e-9, 1.0, kNan, kInf}) {
    ExpectRefused({{group(&GroupOptions::beta1, bad), {"groups[0].beta1 is", "less than 1"}},
                   {group(&GroupOptions::beta2, bad), {"groups[0].beta2 is", "less than 1"}},
                   {group(&GroupOptions::momentum, bad), {"groups[0].momentum is"}}});
  }
}

TEST(EngineOptions, RulesAndTheirSettings) {
  ExpectRefused({
      {[](EngineOptions& o) { o.rule = static_cast<UpdateRule>(5); }, {"rule is 5", "kAdamW (0)"}},
      {[](EngineOptions& o) { o.groups.clear(); }, {"groups is empty"}},
      {[](EngineOptions& o) {
         o.rule = UpdateRule::kLion;
         o.groups.resize(3);
         o.groups[2].epsilon = 0.5;
       },
       {"groups[2].epsilon is 0.5", "Lion", "it reads learning_rate, beta1, beta2, weight_decay"}},
      {[](EngineOptions& o) {
         o.rule = UpdateRule::kSgd;
         o.groups[0].nesterov = true;
       },
       {"groups[0].nesterov is true with momentum 0"}},
      {[](EngineOptions& o) { o.master = static_cast<MasterForm>(2); }, {"master is 2"}},
      {[](EngineOptions& o) { o.reduction = static_cast<GradientReduction>(3); },
       {"reduction is 3", "kWeightedMean (2)"}},
      {[](EngineOptions& o) { o.instruction_set = InstructionSet{9}; },
       {"instruction_set is 9", "kBest (0), kBaseline (1), kV3 (2) or kV4 (3)"}},
  });
}

TEST(EngineOptions, Limits) {
  ExpectRefused({
      {[](EngineOptions& o) { o.max_micro_batches = 0; }, {"max_micro_batches is 0", "1 or more"}},
      {[](EngineOptions& o) { o.max_live_parameters_bytes = -1; },
       {"max_live_parameters_bytes is -1"}},
      {[](EngineOptions& o) { o.max_live_gradients_bytes = -1; },
       {"max_live_gradients_bytes is -1"}},
      {[](EngineOptions& o) { o.persistence_threshold_elems = -1; },
       {"persistence_threshold_elems is -1"}},
      {[](EngineOptions& o) { o.zero_stage = 4; }, {"zero_stage is 4"}},
      {[](EngineOptions& o) { o.zero_stage = -1; }, {"zero_stage is -1"}},
      {[](EngineOptions& o) { o.bucket_elems = 0; }, {"bucket_elems is 0"}},
      {[](EngineOptions& o) { o.record_elems = 0; }, {"record_elems is 0"}},
      {[](EngineOptions& o) { o.clip_grad_norm = -1.0; }, {"clip_grad_norm is -1"}},
      {[](EngineOptions& o) { o.update_threads = -1; }, {"update_threads is -1"}},
      {[](EngineOptions& o) { o.communication_timeout_s = 0.0; }, {"communication_timeout_s is 0"}},
  });
}

TEST(EngineOptions, ARemainderIsLegalForAnyDtypeHere) {
  EngineOptions options;
  options.master = MasterForm::kRemainder;
  EXPECT_TRUE(options.Validate().ok());
}

TEST(EngineOptions, LossScale) {
  constexpr double kInf = std::numeric_limits<double>::infinity();
  ExpectRefused({
      {[](EngineOptions& o) { o.loss_scale.initial = 0.0; }, {"loss_scale.initial is 0"}},
      {[](EngineOptions& o) { o.loss_scale.initial = 1e39; }, {"loss_scale.initial is 1e+39"}},
      {[](EngineOptions& o) { o.loss_scale.initial = 0.5; }, {"initial is 0.5", "floor"}},
      {[](EngineOptions& o) { o.loss_scale.cap = 1024.0; }, {"initial is 65536", "cap"}},
      {[](EngineOptions& o) { o.loss_scale.cap = 0x1p128; }, {"loss_scale.cap is"}},
      {[](EngineOptions& o) { o.loss_scale.floor = 0.0; }, {"loss_scale.floor is 0"}},
      {[](EngineOptions& o) { o.loss_scale = {.floor = 4.0, .cap = 2.0}; }, {"floor is 4", "cap"}},
      {[](EngineOptions& o) { o.loss_scale.growth = 1.0; }, {"loss_scale.growth is 1"}},
      {[](EngineOptions& o) { o.loss_scale.growth = kInf; }, {"loss_scale.growth is inf"}},
      {[](EngineOptions& o) { o.loss_scale.backoff = 1.0; }, {"loss_scale.backoff is 1"}},
      {[](EngineOptions& o) { o.loss_scale.backoff = 0.0; }, {"loss_scale.backoff is 0"}},
      {[](EngineOptions& o) { o.loss_scale.growth_interval = 0; }, {"growth_interval is 0"}},
      {[](EngineOptions& o) { o.loss_scale.hysteresis = 0; }, {"hysteresis is 0"}},
      {[](EngineOptions& o) { o.loss_scale.max_skips = -1; }, {"max_skips is -1"}},
  });
  // A static scale has no floor and no cap to stay between.
  EXPECT_TRUE((LossScaleOptions{.dynamic = false, .initial = 0.125}).Validate().ok());
  EXPECT_TRUE((LossScaleOptions{.enabled = true, .initial = 0x1p126}).Validate().ok());
}

}  // namespace
}  // namespace zerohold
