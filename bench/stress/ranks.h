// The ranks of the job, for what the program itself tells and measures; the engine has a
// communicator of its own.
#pragma once

#include <mpi.h>

#include <string>
#include <utility>

#include "zerohold/communicator.h"

namespace zerohold::bench {

class Ranks {
 public:
  explicit Ranks(Communicator world) : world_(std::move(world)) {}

  int rank() const { return world_.rank(); }
  int size() const { return world_.size(); }
  int local_size() const { return world_.local_size(); }

  // All are collective and give the same on every rank.
  Status Agree(const Status& mine) { return world_.Agree(mine); }
  void Wait() const { MPI_Barrier(MPI_COMM_WORLD); }
  double Max(double mine) const { return Over(mine, MPI_MAX); }
  double Sum(double mine) const { return Over(mine, MPI_SUM); }
  std::string TextOfRank0(std::string text) const {
    unsigned long long bytes = text.size();
    MPI_Bcast(&bytes, 1, MPI_UNSIGNED_LONG_LONG, 0, MPI_COMM_WORLD);
    text.resize(bytes);
    MPI_Bcast(text.data(), static_cast<int>(bytes), MPI_CHAR, 0, MPI_COMM_WORLD);
    return text;
  }

 private:
  static double Over(double value, MPI_Op operation) {
    MPI_Allreduce(MPI_IN_PLACE, &value, 1, MPI_DOUBLE, operation, MPI_COMM_WORLD);
    return value;
  }

  Communicator world_;
};

}  // namespace zerohold::bench
