#!/usr/bin/env bash
# Installs the built tree into a fresh prefix and starts each installed program there: install.sh BUILD_FOLDER PREFIX
set -euo pipefail
build=$1 prefix=$2
rm -rf "$prefix"
cmake --install "$build" --prefix "$prefix"
for program in "$prefix"/bin/zh-*; do
  [[ -e $program ]] || continue
  ldd "$program" | grep "$prefix.*/libzerohold" || { echo "$program runs on another library"; exit 1; }
  "$program" --help >/dev/null
done
