#!/bin/bash
# What recording costs: a warm `gcc -O2 -S` by itself, under `prepage record` and under `perf record` of the same
# faults. The three take turns, so that what else the machine does meets all alike; medians of the wall time.
#
#   PREPAGE=path/to/prepage ROUNDS=31 bench/record.sh
set -euo pipefail

PREPAGE=${PREPAGE:-prepage}
ROUNDS=${ROUNDS:-31}

for tool in gcc perf "$PREPAGE"; do
    if ! command -v "$tool" >/dev/null; then
        echo "bench/record.sh: $tool is missing" >&2
        echo "  try: apt-get install gcc linux-perf, and PREPAGE=path/to/prepage" >&2
        exit 1
    fi
done

dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT

# A file that takes gcc long enough for a start-up cost not to be all there is.
{
    echo '#include <stdio.h>'
    for n in $(seq 1 150); do
        echo "static int f$n(int a, int b) { int s = 0; for (int i = 0; i < a; i++) { s += (i * $n) ^ b; if (s % ($n + 7) == 3) s -= b; } return s; }"
    done
    echo 'int main(int c, char **v) { int s = 0;'
    for n in $(seq 1 150); do echo "s += f$n(c, s);"; done
    echo 'printf("%d\n", s); return 0; }'
} >"$dir/big.c"

compile=(gcc -O2 -S "$dir/big.c" -o "$dir/big.s")
plain() { "${compile[@]}"; }
with_perf() { perf record -q -e page-faults -c 1 -d -o "$dir/perf.data" -- "${compile[@]}" 2>/dev/null; }
with_prepage() { "$PREPAGE" record -q -o "$dir/prepage.parquet" -- "${compile[@]}"; }

# Microseconds of wall time that the rest of the line takes.
timed() {
    local start=${EPOCHREALTIME/./}
    "$@"
    echo $((${EPOCHREALTIME/./} - start))
}
median() { sort -n "$1" | awk '{ v[NR] = $1 } END { print (v[int((NR + 1) / 2)] + v[int(NR / 2) + 1]) / 2 }'; }

for kind in plain with_perf with_prepage; do "$kind"; done # warm
for _ in $(seq "$ROUNDS"); do
    for kind in plain with_perf with_prepage; do timed "$kind" >>"$dir/$kind"; done
done

plain=$(median "$dir/plain")
perf=$(median "$dir/with_perf")
prepage=$(median "$dir/with_prepage")
echo "wall time of a warm gcc -O2 -S, median of $ROUNDS interleaved runs, $(uname -sr), $(nproc) CPUs"
awk -v plain="$plain" -v perf="$perf" -v prepage="$prepage" 'BEGIN {
    printf "  %-28s %8.1f ms\n", "by itself", plain / 1e3
    printf "  %-28s %8.1f ms  %+6.1f %%\n", "perf record -c 1 -d", perf / 1e3, 100 * (perf / plain - 1)
    printf "  %-28s %8.1f ms  %+6.1f %%\n", "prepage record", prepage / 1e3, 100 * (prepage / plain - 1)
    printf "prepage / perf: %.3f\n", prepage / perf
}'
