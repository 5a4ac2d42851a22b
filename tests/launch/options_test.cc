// Flags: what is refused, and that one line names the flag and the mend.
#include "mpi-launch/train/options.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "mpi-launch/train/flag_names.h"

namespace zerohold::train {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::Not;

StatusOr<Options> Parse(std::vector<const char*> flags) {
  flags.insert(flags.begin(), "zh-train");
  return ParseOptions(static_cast<int>(flags.size()), flags.data());
}

TEST(Options, DefaultsAreLegal) {
  const StatusOr<Options> options = Parse({});
  ASSERT_TRUE(options.ok()) << options.status();
  EXPECT_EQ(options->data, std::vector<std::string>{"/usr/share/common-licenses"});
  EXPECT_EQ(options->optimizer, "zerohold");
  EXPECT_EQ(options->compute_threads, 1);
}

struct BadFlags {
  std::vector<const char*> flags;
  const char* names;
  const char* mends;
};

void ExpectRefused(const std::vector<BadFlags>& cases) {
  for (const auto& c : cases) {
    const Status status = Parse(c.flags).status();
    EXPECT_FALSE(status.ok()) << c.flags[0];
    EXPECT_THAT(std::string(status.message()),
                AllOf(HasSubstr(c.names), HasSubstr(c.mends), Not(HasSubstr("\n"))));
  }
}

TEST(Options, EachBadFlagIsNamedInOneLine) {
  ExpectRefused({
      {{"--width", "30"}, "--width 30 is no multiple of --heads 4", "that the heads divide"},
      {{"--heads", "0"}, "--heads is 0", "1 or more"},
      {{"--layers", "-3"}, "--layers is -3", "1 or more"},
      {{"--steps", "0"}, "--steps is 0", "1 or more"},
      {{"--micro-batch", "0"}, "--micro-batch is 0", "1 or more"},
      {{"--accumulate", "0"}, "--accumulate is 0", "1 or more"},
      {{"--bucket-elems", "0"}, "--bucket-elems is 0", "1 or more"},
      {{"--compute-threads", "0"}, "--compute-threads is 0", "1 or more"},
      {{"--zero-stage", "-1"}, "--zero-stage is -1", "0 or more"},
      {{"--zero-stage", "4"}, "--zero-stage is 4", "give 3 or less"},
      {{"--learning-rate", "nan"}, "--learning-rate is nan", "0 or more, finite"},
      {{"--clip", "-1"}, "--clip is -1", "0 or more"},
      {{"--dtype", "fp8"}, "--dtype fp8 is unknown", "fp32, bf16 or fp16"},
      {{"--compute-dtype", "fp16"}, "--compute-dtype fp16 is unknown", "auto or fp32"},
      {{"--master", "half"}, "--master half is unknown", "fp32 or remainder"},
      {{"--master", "remainder", "--dtype", "fp16"}, "--master remainder", "--dtype bf16"},
      {{"--optimizer-rule", "adamax"}, "--optimizer-rule adamax is unknown", "lion or adagrad"},
      {{"--loss-scale", "fast"}, "--loss-scale fast is unknown", "dynamic, off or a number"},
      {{"--loss-scale", "8x"}, "--loss-scale 8x is unknown", "dynamic, off or a number"},
      {{"--loss-scale-initial", "8"}, "--loss-scale-initial", "give --loss-scale dynamic"},
      {{"--loss-scale", "8", "--dtype", "fp16", "--loss-scale-interval", "3"},
       "--loss-scale-interval",
       "give --loss-scale dynamic"},
      {{"--loss-scale-interval", "0"}, "--loss-scale-interval is 0", "1 or more"},
      {{"--max-live-parameters", "64QiB"}, "--max-live-parameters: \"64QiB\"", "as 500000, 64MiB"},
      {{"--max-live-parameters=-64MiB"}, "--max-live-parameters: \"-64MiB\"", "0 or more"},
      {{"--max-live-gradients", "lots"}, "--max-live-gradients: \"lots\"", "64MiB or 1.5GB"},
      {{"--max-live-gradients", "8EiB"}, "--max-live-gradients: \"8EiB\"", "64MiB"},
      {{"--host-budget", "9000000TiB"}, "--host-budget: \"9000000TiB\"", "64MiB"},
      {{"--steps", "99999999999999999999"}, "--steps is more than 10^18", "give less"},
      {{"--seed", "-1"}, "--seed is -1", "0 or more"},
      {{"--persistence-threshold", "-1"}, "--persistence-threshold is -1", "0 or more"},
      {{"--evaluate-every", "-1"}, "--evaluate-every is -1", "0 or more"},
      {{"--optimizer", "sgd"}, "--optimizer sgd is unknown", "zerohold or torch"},
      {{"--instruction-set", "v9"}, "--instruction-set v9 is unknown", "best, baseline, v3 or v4"},
      {{"--steps", "5", "--warmup", "5"}, "--warmup 5", "more --total-steps"},
      {{"--optimizer", "torch", "--trace", "t"}, "--trace", "--optimizer zerohold"},
      {{"--optimizer", "torch", "--dtype", "bf16"}, "--dtype", "--optimizer zerohold"},
      {{"--optimizer", "torch", "--reproducible"}, "--reproducible", "--optimizer zerohold"},
      {{"--optimizer", "torch", "--zero-stage", "3"}, "--zero-stage", "--optimizer zerohold"},
      {{"--optimizer", "torch", "--bucket-elems", "256"}, "--bucket-elems", "zerohold"},
      {{"--steps", "many"}, "--steps: \"many\"", "--help"},
      {{"--depth", "3"}, "--depth", "--help"},
      {{"--data"}, "--data", "--help"},
  });
}

TEST(Options, EachNumberThatCannotBeIsNamedInOneLine) {
  ExpectRefused({
      {{"--layers", "1000000000"}, "--layers is 1000000000", "give 10000 or less"},
      {{"--heads", "1025"}, "--heads is 1025", "give 1024 or less"},
      {{"--width", "65540"}, "--width is 65540", "give 65536 or less"},
      {{"--context", "16385"}, "--context is 16385", "give 16384 or less"},
      {{"--micro-batch", "65537"}, "--micro-batch is 65537", "or less"},
      {{"--context", "16384", "--micro-batch", "65536"},
       "--context 16384 needs at least 536870912 MiB",
       "give less, or less --micro-batch, or --recompute"},
      {{"--accumulate", "65537"}, "--accumulate is 65537", "or less"},
      {{"--compute-threads", "1025"}, "--compute-threads is 1025", "or less"},
      {{"--update-threads", "9999999999"}, "--update-threads", "a number that 32 bits hold"},
      {{"--steps", "abc"}, "--steps: \"abc\" is no whole number", "give digits alone, as 1000"},
      {{"--steps", "1e6"}, "--steps: \"1e6\" is no whole number", "give digits alone"},
      {{"--steps", "0x10"}, "--steps: \"0x10\" is no whole number", "give digits alone"},
      {{"--steps", ""}, "--steps: \"\" is no whole number", "give digits alone"},
      {{"--zero-stage", "two"}, "--zero-stage: \"two\" is no whole number", "give digits"},
      {{"--clip", "1,5"}, "--clip: \"1,5\" is no number", "as 0.001 or 1e-3"},
      {{"--learning-rate", "fast"}, "--learning-rate: \"fast\" is no number", "as 0.001"},
      {{"--learning-rate", "-1"}, "--learning-rate is -1: ", "0 or more, finite"},
      {{"--learning-rate", "-2.5e-3"}, "--learning-rate is -0.0025: ", "0 or more, finite"},
      {{"--learning-rate", "1e999"}, "--learning-rate is inf: ", "0 or more, finite"},
      {{"--loss-scale", "0"}, "--loss-scale is 0", "give 2^-126 or more"},
      {{"--loss-scale", "1e39"}, "--loss-scale is 1e+39", "finite in fp32"},
      {{"--loss-scale", "dynamic", "--loss-scale-initial", "-1"},
       "--loss-scale-initial is -1",
       " to "},
  });
}

TEST(Options, NumbersAreDecimal) {
  EXPECT_EQ(Parse({"--steps", "010"})->steps, 10);
  EXPECT_EQ(Parse({"--warmup", "-1"})->warmup, -1);
  EXPECT_EQ(Parse({"--learning-rate", "1e-3"})->learning_rate, 1e-3);
  EXPECT_EQ(Parse({"--clip", ".5"})->clip, 0.5);
}

TEST(Options, TheEnginesWordsBecomeFlags) {
  const std::pair<const char*, const char*> texts[] = {
      {"zero_stage is 4; give 0, 1, 2 or 3", "--zero-stage is 4; give 0, 1, 2 or 3"},
      {"rank 1: groups[0].beta1 is 2; give less", "rank 1: --beta1 is 2; give less"},
      {"groups[1].momentum is 1, which Sgd does not read (it reads learning_rate, nesterov)",
       "--momentum is 1, which Sgd does not read (it reads --learning-rate, --nesterov)"},
      {"offload.window is 5000", "--window is 5000"},
      {"name another folder in nvme_paths", "name another folder in --nvme-path"},
      {"or max_live_parameters_bytes less", "or --max-live-parameters less"},
      {"lower loss_scale.initial or the learning rate, look at its inputs, or raise "
       "loss_scale.max_skips",
       "lower --loss-scale or the learning rate or look at its inputs"},
      {"nvme_paths: \"/dev/shm\" lies in memory; name a folder on a disk, or use the host tier",
       "--nvme-path: \"/dev/shm\" lies in memory; name a folder on a disk, or leave --offload, "
       "--params-offload and --gradients-offload at host"},
      // Names of files and tensors stay.
      {"\"momentum\" /a/momentum momentum.x momentum-1 my_momentum momentum",
       "\"momentum\" /a/momentum momentum.x momentum-1 my_momentum --momentum"},
      {"", ""},
  };
  for (const auto& [said, meant] : texts) EXPECT_EQ(InFlags(said), meant);
}

TEST(Options, EachBadFlagOfOffloadIsNamedInOneLine) {
  ExpectRefused({
      {{"--offload", "disk"}, "--offload disk is unknown", "none, host or nvme"},
      {{"--offload", "nvme"}, "--offload nvme needs a folder", "give --nvme-path"},
      {{"--nvme-path", "/tmp"}, "--nvme-path is of disks", "give --offload nvme"},
      {{"--offload", "nvme", "--nvme-path", "/tmp", "--host-budget", "101%"},
       "--host-budget: \"101%\"",
       "0% to 100%"},
      {{"--device-budget", "half"}, "--device-budget: \"half\"", "64MiB"},
      {{"--device-budget", "-5%"}, "--device-budget: \"-5%\"", "0% to 100%"},
      {{"--max-live-parameters", "1MiB"}, "--max-live-parameters is of", "--zero-stage 3"},
      {{"--max-live-gradients", "1MiB"}, "--max-live-gradients is of", "--zero-stage 2 or more"},
      {{"--persistence-threshold", "5", "--zero-stage", "2"},
       "--persistence-threshold is of",
       "--zero-stage 3"},
      {{"--host-budget", "1GiB"}, "--host-budget is of states", "give --offload nvme"},
      {{"--offload", "host", "--window", "3"}, "--window is of disks", "give --offload nvme"},
      {{"--require-pinned"}, "--require-pinned is of disks", "give --offload nvme"},
      {{"--offload-faults", "eio=1"}, "--offload-faults is of disks", "give --offload nvme"},
      {{"--io-engine", "threads"}, "--io-engine is of disks", "give --offload nvme"},
      {{"--io-engine", "aio"}, "--io-engine aio is unknown", "best, uring or threads"},
      {{"--window", "-1"}, "--window is -1", "0 or more"},
      {{"--window", "5000"}, "--window is 5000", "give 4096 or less"},
      {{"--optimizer", "torch", "--offload", "host"}, "--offload", "--optimizer zerohold"},
  });
}

TEST(Options, SizesAreWhatPeopleWrite) {
  const std::pair<const char*, int64_t> sizes[] = {
      {"0", 0},           {"77", 77},          {"1.5GiB", 3 << 29}, {"1.5gb", 1'500'000'000},
      {"2 MiB", 2 << 20}, {"2Mi", 2 << 20},    {"2m", 2'000'000},   {"3.0B", 3},
      {"3KB", 3000},      {"4TiB", 1LL << 42}, {"0.5k", 500}};
  for (const auto& [text, bytes] : sizes) {
    EXPECT_EQ(Parse({"--zero-stage", "2", "--max-live-gradients", text})->max_live_gradients_bytes,
              bytes)
        << text;
  }
  for (const char* wrong :
       {"", "i", "0.5", "1.5B", "1i", "1iB", "1QB", "1MMB", "-1", "inf", "nan", "1e3", "+1"}) {
    EXPECT_FALSE(Parse({"--zero-stage", "2", "--max-live-gradients", wrong}).ok()) << wrong;
  }
}

TEST(Options, BudgetsAreBytesOrPercentages) {
  const std::pair<const char*, Budget> budgets[] = {{"0", 0},
                                                    {"2MiB", 2 << 20},
                                                    {"25%", Budget::Fraction(0.25)},
                                                    {"0.5%", Budget::Fraction(0.005)},
                                                    {"100%", Budget::All()}};
  for (const auto& [text, budget] : budgets) {
    const StatusOr<Options> options = Parse(
        {"--offload", "nvme", "--nvme-path", "a", "--host-budget", text, "--device-budget", text});
    ASSERT_TRUE(options.ok()) << options.status();
    EXPECT_EQ(options->Engine(0).offload.host.states, budget) << text;
    EXPECT_EQ(options->Engine(0).device_budget, budget) << text;
  }
}

TEST(Options, ScheduleFollowsStepsUntilToldOtherwise) {
  EXPECT_EQ(Parse({"--steps", "50"})->Schedule().total_steps, 50);
  EXPECT_EQ(Parse({"--steps", "50"})->Schedule().warmup_steps, 5);
  EXPECT_EQ(Parse({"--steps", "50", "--total-steps", "9000"})->Schedule().total_steps, 9000);
  EXPECT_EQ(Parse({"--steps", "50", "--total-steps", "9000"})->Schedule().warmup_steps, 100);
  EXPECT_EQ(Parse({"--steps", "50", "--warmup", "0"})->Schedule().warmup_steps, 0);
}

TEST(Options, EachFlagReachesTheEngine) {
  const EngineOptions untold = Parse({})->Engine(0);
  EXPECT_EQ(untold.zero_stage, 1);
  EXPECT_EQ(untold.rule, UpdateRule::kAdamW);
  EXPECT_EQ(untold.master, MasterForm::kFloat32);
  EXPECT_FALSE(untold.loss_scale.enabled);
  EXPECT_FALSE(untold.reproducible);

  const StatusOr<Options> options = Parse({"--dtype",
                                           "bf16",
                                           "--master",
                                           "remainder",
                                           "--zero-stage",
                                           "3",
                                           "--reproducible",
                                           "--accumulate",
                                           "4",
                                           "--max-live-parameters",
                                           "64MiB",
                                           "--max-live-gradients",
                                           "2MB",
                                           "--persistence-threshold",
                                           "77",
                                           "--clip",
                                           "3",
                                           "--bucket-elems",
                                           "512",
                                           "--update-threads",
                                           "3"});
  ASSERT_TRUE(options.ok()) << options.status();
  const EngineOptions told = options->Engine(0);
  EXPECT_EQ(told.zero_stage, 3);
  EXPECT_EQ(told.master, MasterForm::kRemainder);
  EXPECT_TRUE(told.reproducible);
  EXPECT_EQ(told.max_micro_batches, 4);
  EXPECT_EQ(told.max_live_parameters_bytes, 64 << 20);
  EXPECT_EQ(told.max_live_gradients_bytes, 2'000'000);
  EXPECT_EQ(told.persistence_threshold_elems, 77);
  EXPECT_EQ(told.clip_grad_norm, 3);
  EXPECT_EQ(told.bucket_elems, 512);
  EXPECT_EQ(told.update_threads, 3);
}

TEST(Options, EachFlagOfOffloadReachesTheEngine) {
  for (const char* tier : {"none", "host"}) {
    const OffloadOptions memory = Parse({"--offload", tier})->Engine(0).offload;
    EXPECT_TRUE(memory.nvme_paths.empty());
    EXPECT_EQ(memory.window, 0);
  }
  const StatusOr<Options> options =
      Parse({"--offload", "nvme", "--nvme-path", "a", "--nvme-path", "b", "--host-budget", "2MiB",
             "--window", "5", "--io-engine", "threads", "--require-pinned", "--offload-faults",
             "eio=0.5,seed=3"});
  ASSERT_TRUE(options.ok()) << options.status();
  const OffloadOptions disks = options->Engine(0).offload;
  EXPECT_EQ(disks.nvme_paths, (std::vector<std::string>{"a", "b"}));
  EXPECT_EQ(disks.host.states, 2 << 20);
  EXPECT_EQ(disks.window, 5);
  EXPECT_EQ(disks.io_engine, IoEngine::kThreads);
  EXPECT_TRUE(disks.require_pinned);
  EXPECT_EQ(disks.faults, "eio=0.5,seed=3");
}

TEST(Options, EachSettingOfTheRuleReachesBothGroups) {
  const StatusOr<Options> options =
      Parse({"--momentum", "0.5", "--nesterov", "--beta1", "0.8", "--beta2", "0.7", "--epsilon",
             "0.5", "--weight-decay", "0.25", "--learning-rate", "0.125"});
  ASSERT_TRUE(options.ok()) << options.status();
  const std::vector<GroupOptions> groups = options->Engine(0).groups;
  ASSERT_EQ(groups.size(), 2u);
  for (const GroupOptions& group : groups) {
    EXPECT_EQ(group.learning_rate, 0.125);
    EXPECT_EQ(group.beta1, 0.8);
    EXPECT_EQ(group.beta2, 0.7);
    EXPECT_EQ(group.epsilon, 0.5);
    EXPECT_EQ(group.momentum, 0.5);
    EXPECT_TRUE(group.nesterov);
  }
  EXPECT_EQ(groups[0].weight_decay, 0.25);
  EXPECT_EQ(groups[1].weight_decay, 0);
}

TEST(Options, WordsStandForEnums) {
  const std::pair<const char*, UpdateRule> rules[] = {{"adamw", UpdateRule::kAdamW},
                                                      {"adam", UpdateRule::kAdam},
                                                      {"sgd", UpdateRule::kSgd},
                                                      {"lion", UpdateRule::kLion},
                                                      {"adagrad", UpdateRule::kAdagrad}};
  for (const auto& [word, rule] : rules) {
    EXPECT_EQ(Parse({"--optimizer-rule", word})->Engine(0).rule, rule) << word;
  }
  for (const DType dtype : {DType::kFloat32, DType::kBFloat16, DType::kFloat16}) {
    EXPECT_EQ(Parse({"--dtype", NameOf(dtype)})->WeightType(), dtype);
  }
  const std::pair<const char*, InstructionSet> sets[] = {{"best", InstructionSet::kBest},
                                                         {"baseline", InstructionSet::kBaseline},
                                                         {"v3", InstructionSet::kV3},
                                                         {"v4", InstructionSet::kV4}};
  for (const auto& [word, set] : sets) {
    EXPECT_EQ(Parse({"--instruction-set", word})->Engine(0).instruction_set, set) << word;
  }
}

TEST(Options, LossScaleIsDynamicInFp16UntilToldOtherwise) {
  EXPECT_FALSE(Parse({"--dtype", "bf16"})->LossScale().enabled);
  const LossScaleOptions half = Parse({"--dtype", "fp16"})->LossScale();
  EXPECT_TRUE(half.enabled);
  EXPECT_TRUE(half.dynamic);
  EXPECT_EQ(half.initial, 65536);
  EXPECT_FALSE(Parse({"--dtype", "fp16", "--loss-scale", "off"})->LossScale().enabled);
  const LossScaleOptions fixed = Parse({"--loss-scale", "1e3"})->LossScale();
  EXPECT_TRUE(fixed.enabled);
  EXPECT_FALSE(fixed.dynamic);
  EXPECT_EQ(fixed.initial, 1000);
  const LossScaleOptions moving =
      Parse({"--loss-scale", "dynamic", "--loss-scale-initial", "8", "--loss-scale-interval", "3"})
          ->LossScale();
  EXPECT_TRUE(moving.dynamic);
  EXPECT_EQ(moving.initial, 8);
  EXPECT_EQ(moving.growth_interval, 3);
}

TEST(Options, EachRankHasATraceOfItsOwn) {
  EXPECT_EQ(Parse({})->TracePath(1), "");
  EXPECT_EQ(Parse({"--trace", "a.b/t.json"})->TracePath(0), "a.b/t.json");
  EXPECT_EQ(Parse({"--trace", "a.b/t.json"})->TracePath(2), "a.b/t.2.json");
  EXPECT_EQ(Parse({"--trace", "a.b/t"})->TracePath(2), "a.b/t.2");
}

TEST(Options, TheFirstFlagThatDiffersIsNamed) {
  const std::string two = Parse({"--seed", "2", "--clip", "3"})->agreed_text;
  EXPECT_TRUE(CompareLines(two, two).ok());
  EXPECT_THAT(std::string(CompareLines(two, Parse({"--clip", "3"})->agreed_text).message()),
              AllOf(HasSubstr("seed=2"), HasSubstr("seed=1 on rank 0"), HasSubstr("the same")));
  // What may differ is not compared.
  EXPECT_EQ(Parse({"--log", "a", "--trace", "b", "--data", "c"})->agreed_text,
            Parse({})->agreed_text);
  EXPECT_EQ(Parse({"--offload", "nvme", "--nvme-path", "a", "--host-budget", "1MiB", "--window",
                   "3", "--io-engine", "uring", "--require-pinned", "--offload-faults", "late=1"})
                ->agreed_text,
            Parse({"--offload", "nvme", "--nvme-path", "b", "--nvme-path", "c"})->agreed_text);
}

}  // namespace
}  // namespace zerohold::train
