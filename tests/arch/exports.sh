#!/usr/bin/env bash
# The shared library exports what the public headers mark, and nothing else: exports.sh LIBRARY INCLUDE_DIR
set -euo pipefail
library=$1 include=$2
exported=$(nm -D --defined-only --demangle "$library" | cut -d' ' -f3-)
types='(typeinfo for |typeinfo name for |vtable for )?'
if foreign=$(grep -vE "^($types|guard variable for )zerohold::[A-Z]|^zh_" <<<"$exported"); then
  echo "exported, but not of the front door:"
  echo "$foreign"
  exit 1
fi
# What is marked must be there: the functions and classes that follow ZH_EXPORT.
marked=$(grep -hoE '^(class|struct) ZH_EXPORT \w+|^ *ZH_EXPORT [^(]*\b\w+\(' "$include"/zerohold/*.h |
  grep -oE '\w+\(?$' | tr -d '(')
failed=0
for name in $marked; do
  if ! grep -qE "^zerohold::(\w+::)*$name(::|\(|\[)" <<<"$exported"; then
    echo "marked ZH_EXPORT, but not exported: $name"
    failed=1
  fi
done
exit $failed
