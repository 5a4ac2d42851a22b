#!/usr/bin/env bash
# Builds a trainer against an installed ZeroHold and runs it, far from ZeroHold's own tree:
#   consume.sh cmake|pkgconfig PREFIX TRAINER.cc|README.md WORK_FOLDER [LAUNCHER ...]
# Of a README it takes the one block that begins with ```cpp. With a launcher (mpirun -n 2) the trainer runs once more
# under it. CXX and CXXFLAGS are the compiler and its flags.
set -euo pipefail
how=$1 prefix=$2 source=$3 work=$4
shift 4

rm -rf "$work"
mkdir -p "$work"
cp "$(dirname "${BASH_SOURCE[0]}")/project/CMakeLists.txt" "$work"
if [[ $source == *.md ]]; then
  awk '/^```cpp$/ {inside = 1; next} /^```$/ {inside = 0} inside' "$source" >"$work/trainer.cc"
  grep -q 'int main' "$work/trainer.cc" || { echo "$source shows no trainer"; exit 1; }
else
  cp "$source" "$work/trainer.cc"
fi
cd "$work"

case $how in
  cmake)
    cmake -G Ninja -S . -B build "-DCMAKE_PREFIX_PATH=$prefix" -DTRAINER=trainer.cc
    cmake --build build
    trainer=build/trainer
    ;;
  pkgconfig)
    package_file=$(find "$prefix" -name zerohold.pc)
    export PKG_CONFIG_PATH=${package_file%/*}
    read -ra flags <<<"$(pkg-config --cflags --libs zerohold)"
    read -ra extra <<<"${CXXFLAGS-}"
    "${CXX:-c++}" -std=c++20 -Wall -Wextra "${extra[@]}" trainer.cc "${flags[@]}" -o trainer
    trainer=./trainer
    ;;
esac
ldd "$trainer" | grep "$prefix.*/libzerohold" || { echo "the trainer runs on another library"; exit 1; }
"$trainer"
if (($#)); then "$@" "$trainer"; fi
