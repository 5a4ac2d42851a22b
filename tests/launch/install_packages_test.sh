#!/usr/bin/env bash
# install-packages with a list of its own and an apt-get that only tells: it asks for what is missing, and for nothing
# when nothing is.    Usage: install_packages_test.sh REPOSITORY
set -euo pipefail

folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cp "$1/mpi-launch/install-packages" "$folder"
mkdir "$folder/bin"
printf '#!/bin/sh\necho "apt-get $*" >>%q\n' "$folder/calls" >"$folder/bin/apt-get"
printf '#!/bin/sh\nexec "$@"\n' >"$folder/bin/sudo"
chmod +x "$folder/bin/"*
export PATH=$folder/bin:$PATH

fail() { echo "FAILED: $*"; cat "$folder/calls" 2>/dev/null; exit 1; }

printf '# a comment\n\nbash\ncoreutils\n' >"$folder/packages.txt"
output=$("$folder/install-packages")
[[ $output == "All 2 packages are there." ]] || fail "said: $output"
[[ ! -e $folder/calls ]] || fail "apt-get was called for nothing"

printf 'bash\nzh-no-such-package\n' >"$folder/packages.txt"
"$folder/install-packages" >/dev/null
grep -q 'update$' "$folder/calls" || fail "no update"
grep -q 'install -y --no-install-recommends zh-no-such-package$' "$folder/calls" || fail "not just what is missing"
grep -q 'DPkg::Lock::Timeout=300' "$folder/calls" || fail "another apt would end it"

# A failing apt-get fails the script.
printf '#!/bin/sh\nexit 100\n' >"$folder/bin/apt-get"
if "$folder/install-packages" >/dev/null 2>&1; then fail "apt-get failed unseen"; fi

# The real list: no name twice, and what is listed is what the error messages of the build name.
real=$(grep -v '^ *\(#\|$\)' "$1/mpi-launch/packages.txt")
[[ -z $(sort <<<"$real" | uniq -d) ]] || fail "a package is listed twice"
for package in libabsl-dev libopenmpi-dev openmpi-bin libtorch-dev libopenblas0 libxxhash-dev; do
  grep -qx "$package" <<<"$real" || fail "$package is not listed"
done
echo "ok"
