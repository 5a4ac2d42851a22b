#!/usr/bin/env bash
# The quickstart, from another directory, over a build that is there: it says what it does, passes arguments on, and
# the loss ends below the unigram entropy of a text that is easy to learn.    Usage: quickstart_test.sh REPOSITORY BUILD
set -euo pipefail

folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
for _ in $(seq 200); do printf 'the same line again and again\n'; done >text
export ZEROHOLD_BUILD_DIR=$2
"$1/mpi-launch/quickstart" --layers 1 --width 32 --heads 2 --context 32 --steps 40 --learning-rate 0.02 \
  --data text --log log >output || { cat output; exit 1; }
cat output

fail() { echo "FAILED: $*"; exit 1; }
for said in '== packages' '== build into' '== this build and this machine' '== mpirun' '2 ranks' \
  '--zero-stage 3 --offload nvme' 'on disk: states in files in' 'parameters_hash'; do
  grep -q -- "$said" output || fail "did not say: $said"
done
last=$(tail -n 1 log)
[[ $last == '{"final":true,"steps":40,'* ]] || fail "last record: $last"
sed 2q log | grep -q '"disk_read_bytes":[1-9]' || fail "nothing came from disk"
compgen -G "$2/states.*" && fail "the folder of states is still there"
grep '^loss' output | awk '{ loss = $2; sub(/.*entropy /, ""); exit !(loss < $1 + 0) }' || fail "the loss did not fall"

# A folder of the caller's is the only one.
"$1/mpi-launch/quickstart" --layers 1 --width 32 --heads 2 --context 32 --steps 1 \
  --data text --nvme-path "$folder" >output || { cat output; exit 1; }
grep -qx "on disk: states in files in $folder" output || { cat output; fail "states lie elsewhere too"; }
