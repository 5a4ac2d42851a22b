// The one main of all tests. Under mpirun it starts MPI; rank 0 tells the course of the tests, the
// others only what fails on them, and any failing rank fails the job.
#include <gtest/gtest.h>
#include <mpi.h>

#include <cstdio>
#include <cstdlib>

namespace {

class FailuresOfRank : public testing::EmptyTestEventListener {
 public:
  explicit FailuresOfRank(int rank) : rank_(rank) {}
  void OnTestPartResult(const testing::TestPartResult& result) override {
    if (result.passed() || result.skipped()) return;
    std::fprintf(stderr, "[rank %d] %s:%d: %s\n", rank_, result.file_name(), result.line_number(),
                 result.message());
  }
  void OnTestEnd(const testing::TestInfo& test) override {
    if (test.result()->Passed() || test.result()->Skipped()) return;
    std::fprintf(stderr, "[rank %d] failed: %s.%s\n", rank_, test.test_suite_name(), test.name());
  }

 private:
  const int rank_;
};

}  // namespace

int main(int argc, char** argv) {
  testing::InitGoogleTest(&argc, argv);
  const bool under_mpirun = std::getenv("OMPI_COMM_WORLD_SIZE") != nullptr;
  if (!under_mpirun) return RUN_ALL_TESTS();
  int provided = 0;
  MPI_Init_thread(&argc, &argv, MPI_THREAD_MULTIPLE, &provided);
  int rank = 0;
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  if (rank != 0) {
    testing::TestEventListeners& listeners = testing::UnitTest::GetInstance()->listeners();
    delete listeners.Release(listeners.default_result_printer());
    listeners.Append(new FailuresOfRank(rank));
  }
  const int failed = RUN_ALL_TESTS();
  int any = 0;
  MPI_Allreduce(&failed, &any, 1, MPI_INT, MPI_MAX, MPI_COMM_WORLD);
  MPI_Finalize();
  return any;
}
