#!/usr/bin/env bash
# Compiles each public header by itself: public_headers.sh COMPILER INCLUDE_DIR [MPI_INCLUDE_DIR ...]
# All but mpi.h must do without the MPI folders.
set -euo pipefail
compiler=$1 include=$2
shift 2
mpi_folders=("${@/#/-isystem}")
failed=0
for header in "$include"/zerohold/*.h; do
  name=zerohold/${header##*/}
  folders=("-I$include")
  [[ $name == zerohold/mpi.h ]] && folders+=("${mpi_folders[@]}")
  if ! echo "#include \"$name\"" |
    "$compiler" -std=c++20 -fsyntax-only -Wall -Wextra -Werror "${folders[@]}" -x c++ -; then
    echo "$name does not compile alone"
    failed=1
  fi
done
exit $failed
