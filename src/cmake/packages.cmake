# The packages that no build does without. Nothing is downloaded here: what is missing is named with its Debian package.

# zh_find(PACKAGE DEBIAN_PACKAGE [find_package arguments ...])
macro(zh_find package debian)
  find_package(${package} ${ARGN} QUIET)
  if(NOT ${package}_FOUND)
    message(FATAL_ERROR "${package} is missing: apt-get install ${debian}, or run mpi-launch/install-packages")
  endif()
endmacro()

zh_find(Threads libc6-dev)
zh_find(absl libabsl-dev)
zh_find(Boost libboost-dev 1.74)
set(MPI_CXX_SKIP_MPICXX TRUE)  # the deprecated C++ bindings of MPI
zh_find(MPI "openmpi-bin libopenmpi-dev" COMPONENTS CXX)
zh_find(nlohmann_json nlohmann-json3-dev)
zh_find(CLI11 libcli11-dev)
zh_find(GTest "libgtest-dev libgmock-dev")
zh_find(PkgConfig pkg-config)
pkg_check_modules(XXHASH QUIET IMPORTED_TARGET libxxhash)
if(NOT XXHASH_FOUND)
  message(FATAL_ERROR "xxHash is missing: apt-get install libxxhash-dev, or run mpi-launch/install-packages")
endif()
