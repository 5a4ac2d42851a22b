// The trace file, read back as a viewer would.
#include "src/telemetry/trace.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <stdlib.h>
#include <unistd.h>

#include <cstdio>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <thread>
#include <vector>

namespace zerohold::telemetry {
namespace {

using nlohmann::json;
using testing::HasSubstr;

class TraceTest : public testing::Test {
 protected:
  void SetUp() override { ASSERT_GE(fd_ = mkstemp(path_), 0); }
  void TearDown() override {
    close(fd_);
    unlink(path_);
  }

  std::vector<json> Written(Trace& trace) {
    const absl::Status status = trace.Write();
    EXPECT_TRUE(status.ok()) << status;
    std::ifstream file(path_);
    return json::parse(file)["traceEvents"].get<std::vector<json>>();
  }
  static std::vector<json> Spans(const std::vector<json>& events) {
    std::vector<json> out;
    for (const json& event : events) {
      if (event["ph"] == "X") out.push_back(event);
    }
    return out;
  }
  // Row of the picture by its name.
  static std::map<std::string, int> Rows(const std::vector<json>& events) {
    std::map<std::string, int> out;
    for (const json& event : events) {
      if (event["name"] == "thread_name") out[event["args"]["name"]] = event["tid"];
    }
    return out;
  }

  char path_[32] = "/tmp/zh-trace-XXXXXX";
  int fd_ = -1;
};

TEST_F(TraceTest, WithoutAPathNothingIsRecorded) {
  Trace trace("", 0);
  EXPECT_FALSE(trace.enabled());
  trace.Record(Lane::kComm, "send", 1, 2, 3);
  { Span span(trace, Lane::kUpdate, "update"); }
  EXPECT_TRUE(trace.Write().ok());
}

TEST_F(TraceTest, NamesTheProcessAndTheLanes) {
  Trace trace(path_, 3);
  const std::vector<json> events = Written(trace);
  EXPECT_EQ(events[0]["name"], "process_name");
  EXPECT_EQ(events[0]["args"]["name"], "rank 3");
  const std::map<std::string, int> rows = Rows(events);
  EXPECT_THAT(rows, testing::ElementsAre(testing::Pair("calls", 1), testing::Pair("comm", 2),
                                         testing::Pair("compute", 0), testing::Pair("update", 3)));
  for (const json& event : events) EXPECT_EQ(event["pid"], 3);
}

TEST_F(TraceTest, ASpanKeepsItsTimesToTheNanosecond) {
  Trace trace(path_, 0);
  constexpr int64_t kBegin = 123'456'789'012'345'007;
  trace.Record(Lane::kComm, "reduce-scatter", 12, kBegin, kBegin + 2'005);
  trace.Record(Lane::kComm, "agree", -1, kBegin + 3'000, kBegin + 3'000);
  ASSERT_TRUE(trace.Write().ok());
  std::ifstream file(path_);
  const std::string text((std::istreambuf_iterator<char>(file)), {});
  EXPECT_THAT(text, HasSubstr("\"ts\":123456789012345.007,\"dur\":2.005,"));
  const std::vector<json> spans = Spans(json::parse(text)["traceEvents"]);
  ASSERT_EQ(spans.size(), 2u);
  EXPECT_EQ(spans[0]["name"], "reduce-scatter 12");
  EXPECT_EQ(spans[0]["cat"], "reduce-scatter");
  EXPECT_EQ(spans[0]["args"]["index"], 12);
  EXPECT_EQ(spans[0]["tid"], static_cast<int>(Lane::kComm));
  EXPECT_EQ(spans[1]["name"], "agree");
  EXPECT_FALSE(spans[1].contains("args"));
}

TEST_F(TraceTest, NamesAreEscaped) {
  Trace trace(path_, 0);
  const char* const name = "a \"b\" \\ \n\t\x01 ü";
  trace.Record(Lane::kCalls, name, -1, 0, 1);
  EXPECT_EQ(Spans(Written(trace))[0]["name"], name);
}

TEST_F(TraceTest, SpansThatOverlapWithoutNestingGetRowsOfTheirOwn) {
  Trace trace(path_, 0);
  trace.Record(Lane::kUpdate, "a", -1, 1000, 5000);
  trace.Record(Lane::kUpdate, "inside a", -1, 2000, 3000);
  trace.Record(Lane::kUpdate, "overlaps a", -1, 4000, 8000);
  trace.Record(Lane::kUpdate, "after a", -1, 5000, 6000);
  const std::vector<json> events = Written(trace);
  std::map<std::string, int> row_of;
  for (const json& span : Spans(events)) row_of[span["name"]] = span["tid"];
  std::map<std::string, int> rows = Rows(events);
  EXPECT_EQ(row_of["a"], rows["update"]);
  EXPECT_EQ(row_of["inside a"], rows["update"]);
  EXPECT_EQ(row_of["after a"], rows["update"]);
  EXPECT_EQ(row_of["overlaps a"], rows["update 2"]);
}

TEST_F(TraceTest, ManyThreadsLoseNothing) {
  constexpr int kThreads = 4, kEach = 1200;  // more than a block holds
  Trace trace(path_, 0);
  std::vector<std::thread> threads;
  for (int t = 0; t < kThreads; ++t) {
    threads.emplace_back([&trace, t] {
      for (int i = 0; i < kEach; ++i) Span(trace, static_cast<Lane>(t), "span", i);
    });
  }
  for (std::thread& thread : threads) thread.join();
  const std::vector<json> spans = Spans(Written(trace));
  EXPECT_EQ(spans.size(), static_cast<size_t>(kThreads * kEach));
  std::vector<int> next(kThreads, 0);
  for (const json& span : spans) {
    ASSERT_EQ(span["args"]["index"], next[span["tid"].get<int>()]++);
    ASSERT_GE(span["dur"].get<double>(), 0.0);
  }
}

TEST_F(TraceTest, AFileThatCannotBeWrittenIsNamedWithTheReason) {
  Trace nowhere("/nonexistent/trace.json", 0);
  const absl::Status missing = nowhere.Write();
  EXPECT_EQ(missing.code(), absl::StatusCode::kInternal);
  EXPECT_THAT(std::string(missing.message()), HasSubstr("/nonexistent/trace.json: No such file"));

  Trace full("/dev/full", 0);
  const absl::Status no_space = full.Write();
  EXPECT_EQ(no_space.code(), absl::StatusCode::kInternal);
  EXPECT_THAT(std::string(no_space.message()), HasSubstr("/dev/full: No space left"));
}

}  // namespace
}  // namespace zerohold::telemetry
