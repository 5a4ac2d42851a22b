// zh-stress: what a step moves, that every state comes out right whatever the disk does, and bad
// input, which is one line and exit code 1 on all ranks.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <string>

#include "tests/launch/program.h"

namespace zerohold::launch_test {
namespace {

using nlohmann::json;
using testing::AllOf;
using testing::HasSubstr;
using testing::StartsWith;

const std::string kDisk = std::string(" --tier nvme --nvme-path ") + ZH_TEST_FOLDER + " ";

std::string Stress(const std::string& flags) { return Program("zh-stress") + " " + flags; }

// The last line of a run that succeeds.
json Final(int ranks, const std::string& flags) {
  const Outcome outcome = RunShell(Mpirun(ranks) + Stress(flags + " --json"));
  EXPECT_EQ(outcome.exit_code, 0) << flags << "\n" << outcome.err;
  const size_t end = outcome.out.find_last_not_of('\n');
  if (end == std::string::npos) return {};
  const json line = json::parse(outcome.out.substr(outcome.out.rfind('\n', end) + 1));
  EXPECT_EQ(line.value("final", false), true) << outcome.out;
  return line;
}

// Headers and padding are at most a hundredth of what a step moves.
void ExpectTraffic(const json& line, double bytes_per_param) {
  const double params = line["params"].get<double>() * line["steps"].get<double>();
  for (const char* direction : {"read_bytes", "write_bytes"}) {
    const double moved = line[direction].get<double>() / params;
    EXPECT_GE(moved, bytes_per_param) << line;
    EXPECT_LE(moved, 1.01 * bytes_per_param) << line;
  }
}

TEST(Stress, MovesWhatAStepMust) {
  const struct {
    std::string flags;
    double bytes_per_param;
  } cases[] = {{"--dtype bf16", 12},
               {"--dtype bf16 --master remainder", 10},
               {"--dtype fp32", 8},
               {"--gradients nvme --parameters none", 14}};
  for (const auto& c : cases) {
    SCOPED_TRACE(c.flags);
    const json line = Final(1, "--params 8M --steps 2 " + c.flags + kDisk);
    ExpectTraffic(line, c.bytes_per_param);
    EXPECT_GT(line["ratio"].get<double>(), 0.0);
    EXPECT_GT(line["peak_resident_bytes"].get<int64_t>(), line["staging_bytes"].get<int64_t>());
    EXPECT_LE(line["staging_bytes"].get<int64_t>(), 64 << 20);
  }
}

// Of one step, where the line itself has all steps'.
TEST(Stress, TellsOfEachLink) {
  const json line = Final(2, "--params 1M --record 32Ki --steps 3" + kDisk);
  const std::pair<const char*, const char*> links[] = {{"disk_read", "read_bytes"},
                                                       {"disk_write", "write_bytes"}};
  for (const auto& [link, all] : links) {
    const json& use = line["links"][link];
    EXPECT_DOUBLE_EQ(3 * use["bytes"].get<double>(), line[all].get<double>()) << link;
    for (const char* number : {"busy_s", "bytes_per_s", "ceiling_bytes_per_s", "bound_s"}) {
      EXPECT_GT(use[number].get<double>(), 0.0) << link << " " << number;
    }
    EXPECT_LE(use["ratio"].get<double>(), line["ratio"].get<double>()) << link;
  }
  EXPECT_GT(line["links"]["memory"]["bytes"].get<double>(), 12e6);
  EXPECT_EQ(line["stall_s"].size(), 5u);
  const json memory = Final(1, "--params 1M --steps 1 --tier host");
  EXPECT_EQ(memory["links"].size(), 1u) << "no disk";
}

TEST(Stress, EveryStateIsTheRecomputedOne) {
  const std::string small = "--params 1M --record 32Ki --steps 3 --verify ";
  EXPECT_EQ(Final(1, small + kDisk)["verified_records"], 32);
  EXPECT_EQ(Final(1, "--params 0.5m --steps 1" + kDisk)["params"], 500'000);
  EXPECT_EQ(Final(2, small + "--zero-stage 3 --window 3" + kDisk)["verified_records"], 32);
  EXPECT_EQ(Final(2, small + "--zero-stage 2 --dtype fp16" + kDisk)["verified_records"], 32);
  EXPECT_EQ(Final(2, small + "--rule lion --master remainder" + kDisk)["verified_records"], 32);
  EXPECT_EQ(Final(1, small + "--tier host --dtype fp32")["verified_records"], 32);
  const std::string all = small + "--gradients nvme --parameters nvme ";
  EXPECT_EQ(Final(2, all + "--window 2" + kDisk)["verified_records"], 32);
  EXPECT_EQ(Final(1, all + "--master remainder" + kDisk)["verified_records"], 32);
  EXPECT_EQ(Final(1, small + "--gradients nvme --parameters none" + kDisk)["verified_records"], 32);
  EXPECT_EQ(Final(1, small + "--tier host --parameters nvme --nvme-path " +
                         ZH_TEST_FOLDER)["verified_records"],
            32);
  // Both ranks hold everything.
  EXPECT_EQ(Final(2, small + "--zero-stage 0" + kDisk)["verified_records"], 64);
}

// Nothing of the model is in memory: 12 bytes of states and 2 of gradients are 5.6 GB.
TEST(Stress, MemoryDoesNotGrowWithTheModel) {
  const json line = Final(1, "--params 400M --gradients nvme --parameters none --steps 1" + kDisk);
  EXPECT_LE(line["peak_resident_bytes"].get<int64_t>(), 200 << 20) << line;
}

// One parameter is one rank's.
TEST(Stress, ARankWithoutRecords) {
  EXPECT_EQ(Final(2, "--params 1 --steps 2 --verify" + kDisk)["verified_records"], 1);
}

// Rates that make 16 records of 384 KiB take 4 ms each, in three stages, and reads come ahead: the
// bound is sixteen updates and a write. What a forward pass hides counts for nothing.
TEST(Stress, RatesMakeTheBoundOfAPipeline) {
  const std::string flags =
      "--params 524288 --record 32Ki --steps 3 --throttle "
      "read=98304000/s,write=98304000/s,update=98304000/s" +
      kDisk;
  const json line = Final(1, flags);
  EXPECT_GE(line["bound_s"].get<double>(), 0.0679);
  EXPECT_GE(line["step_s"].get<double>(), 0.0679);
  const json hidden = Final(1, flags + "--overlap-next-forward --forward 0.5 --verify");
  EXPECT_EQ(hidden["verified_records"], 16);
}

// Each of two ranks sends its half of 16-bit parameters, 1 MB.
TEST(Stress, ASlowLinkIsPartOfTheBound) {
  const json line = Final(2, "--params 1M --steps 1 --tier host --throttle link=10MB/s --verify");
  EXPECT_GE(line["bound_s"].get<double>(), 0.0999);
  EXPECT_GE(line["step_s"].get<double>(), 0.0999);
}

// One record at a time is read, updated and written: 5 ms for each of two transfers of each of 16,
// but for the first read, which comes ahead.
TEST(Stress, LatencyIsOfEachTransfer) {
  const json line = Final(1, "--params 131072 --steps 1 --window 1 --throttle latency=5ms" + kDisk);
  EXPECT_GE(line["step_s"].get<double>(), 0.1549);
}

TEST(Stress, FaultsOfTheDiskAreMended) {
  const std::string faults = "--faults short=0.3,again=0.3,late=0.3,seed=5";
  const std::string flags = "--params 1M --record 32Ki --steps 3 --verify " + faults + kDisk;
  EXPECT_EQ(Final(1, flags)["verified_records"], 32);
  EXPECT_EQ(Final(2, flags)["verified_records"], 32);
}

// mpirun tells one exit code alone, so each rank tells its own.
void ExpectRefused(int ranks, const std::string& flags, const std::string& names,
                   const std::string& mends) {
  SCOPED_TRACE(flags);
  const std::string telling = "sh -c '\"$0\" \"$@\"; echo exit $?' ";
  const Outcome outcome = RunShell((ranks > 1 ? Mpirun(ranks) : "") + telling + Stress(flags));
  EXPECT_EQ(outcome.out, ranks > 1 ? "exit 1\nexit 1\n" : "exit 1\n");
  EXPECT_EQ(std::count(outcome.err.begin(), outcome.err.end(), '\n'), 1) << outcome.err;
  EXPECT_THAT(outcome.err, AllOf(StartsWith("zh-stress: "), HasSubstr(names), HasSubstr(mends)));
}

TEST(Stress, FaultsThatCannotBeMendedEndAllRanksAlike) {
  const std::string flags = "--params 1M --record 32Ki --steps 3 ";
  ExpectRefused(2, flags + "--faults eio=1,first=90" + kDisk, "nvme_paths: ", "the disk fails");
  ExpectRefused(2, flags + "--faults flip=1,first=90" + kDisk, "tier nvme: record ",
                "the checksum differs");
}

TEST(Stress, BadInputIsOneLine) {
  ExpectRefused(2, "--params 0" + kDisk, "--params is 0", "give 1 to");
  ExpectRefused(2, "--zero-stage 4" + kDisk, "--zero-stage is 4", "give -1 to 3");
  ExpectRefused(2, "--parameters none --dtype fp32" + kDisk, "--parameters none", "--dtype bf16");
  ExpectRefused(2, "--nvme-path /dev/shm", "/dev/shm", "nvme_paths");
  const struct {
    std::string flags, names, mends;
  } cases[] = {
      {"--params lots" + kDisk, "--params: \"lots\" is no number", "1.5M or 4B"},
      {"--params -4M" + kDisk, "--params: \"-4M\" is no number", "1.5M or 4B"},
      {"--record 4KB" + kDisk, "--record: \"4KB\" is no number", "32Ki"},
      {"--trace /no/such/t" + kDisk, "trace_path /no/such/t cannot be written", "give a file"},
      {"--steps 0" + kDisk, "--steps is 0", "1 or more"},
      {"--seconds -1" + kDisk, "--seconds is -1", "more than 0"},
      {"--tier tape", "--tier tape is unknown", "give one of host, nvme"},
      {"--tier nvme", "--nvme-path", "at least one folder"},
      {"--tier host --gradients nvme", "--nvme-path", "at least one folder"},
      {"--tier host --window 4", "--window is of the disk", "--tier nvme"},
      {"--gradients nvme --zero-stage 1" + kDisk, "--gradients nvme", "--zero-stage 2 or 3"},
      {"--parameters nvme --zero-stage 2" + kDisk, "--parameters nvme", "give --zero-stage 3"},
      {"--tier host --parameters none --gradients nvme --nvme-path " ZH_TEST_FOLDER,
       "--parameters none", "--tier nvme"},
      {"--master remainder --dtype fp16" + kDisk, "--master remainder", "--dtype bf16"},
      {"--throttle read=fast" + kDisk, "--throttle read=fast", "read=1GB/s"},
      {"--throttle latency=5" + kDisk, "--throttle latency=5", "latency=1ms"},
      {"--throttle link-latency=2h" + kDisk, "--throttle link-latency=2h", "link-latency=50us"},
      {"--forward -1" + kDisk, "--forward is -1", "0 to 3600"},
      {"--overlap-next-forward" + kDisk, "--overlap-next-forward needs", "--forward"},
      {"--window -1" + kDisk, "--window is -1", "to 4096"},
      {"--faults what=1" + kDisk, "\"what=1\"", "short, again, eio"},
      {"--nvme-path /no/such", "/no/such", "nvme_paths"},
  };
  for (const auto& c : cases) ExpectRefused(1, c.flags, c.names, c.mends);
}

TEST(Stress, RanksThatDisagree) {
  const Outcome outcome =
      RunShell(Mpirun(1) + Stress("--steps 2" + kDisk) + " : -n 1 " + Stress("--steps 3" + kDisk));
  EXPECT_EQ(outcome.exit_code, 1);
  EXPECT_THAT(outcome.err, HasSubstr("rank 1: steps=3, but steps=2 on rank 0"));
}

}  // namespace
}  // namespace zerohold::launch_test
