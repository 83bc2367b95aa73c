#!/bin/bash
# What recording costs: a warm `gcc -O2 -S` by itself, under `prepage record` and under `perf record` of the same
# faults. The three take turns, so that what else the machine does meets all alike; medians of the wall time.
# "whole" is what its user waits for; "gcc" is how long gcc itself took, without the recorder's own start and end.
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

# Runs gcc and notes the microseconds it took.
cat >"$dir/compile" <<'END'
start=${EPOCHREALTIME/./}
gcc -O2 -S "$1/big.c" -o "$1/big.s"
echo $((${EPOCHREALTIME/./} - start)) >"$1/inner"
END
compile=(bash "$dir/compile" "$dir")
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
    for kind in plain with_perf with_prepage; do
        timed "$kind" >>"$dir/$kind"
        cat "$dir/inner" >>"$dir/$kind.gcc"
    done
done

echo "a warm gcc -O2 -S, median of $ROUNDS interleaved runs, $(uname -sr), $(nproc) CPUs"
for kind in plain with_perf with_prepage; do
    echo "$kind $(median "$dir/$kind") $(median "$dir/$kind.gcc")"
done | awk '
    BEGIN { printf "  %-24s %10s %8s %10s %8s\n", "", "whole", "", "gcc", "" }
    { whole[$1] = $2; gcc[$1] = $3
      printf "  %-24s %7.1f ms %+6.1f %% %7.1f ms %+6.1f %%\n", $1, $2 / 1e3, 100 * ($2 / whole["plain"] - 1),
             $3 / 1e3, 100 * ($3 / gcc["plain"] - 1) }
    END { printf "prepage / perf: whole %.3f, gcc %.3f\n", whole["with_prepage"] / whole["with_perf"],
                 gcc["with_prepage"] / gcc["with_perf"] }'
