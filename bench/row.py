"""One row of the table of starts for each report of `prepage measure --json`; the headings without one.

saved: share of what a warm start saves, (cold − prefetched) ÷ (cold − warm), of medians.
"""
import json
import statistics
import sys

COLUMNS = ("cold ms", "prefetched", "ratio", "95 %", "saved", "whole-1", "whole-4", "warm ms", "run/warm", "95 %", "faults", "left", "MB", "unused")
WIDTHS = (9, 11, 7, 13, 7, 9, 9, 9, 10, 13, 8, 6, 7, 8)


def untouched(report):
    """Megabytes: as seen, at least or at most so many, or unknown."""
    if report["untouched_bytes"] is None:
        return "-"
    sign = {"at least": "≥ ", "at most": "≤ "}.get(report["untouched_bound"], "")
    return f"{sign}{report['untouched_bytes'] / 1e6:.1f}"


if len(sys.argv) == 1:
    print(f"{'program':10}" + "".join(f"{c:>{w}}" for c, w in zip(COLUMNS, WIDTHS)))
for path in sys.argv[1:]:
    report = json.load(open(path))
    cold, warm = report["cold"], report["warm"]
    median = lambda starts, what="wall_ms": statistics.median(starts[what])
    interval = lambda pair: "-" if pair["ratio_low"] is None else f"{pair['ratio_low']:.2f} to {pair['ratio_high']:.2f}"
    plain, prefetched, in_memory = median(cold["plain"]), median(cold["prefetched"]), median(warm["plain"])
    saved = (plain - prefetched) / (plain - in_memory) if plain > in_memory else float("nan")
    cells = (
        f"{plain:.1f}",
        f"{prefetched:.1f}",
        f"{cold['ratio']:.2f}",
        interval(cold),
        f"{saved:.2f}",
        *(f"{median(other):.1f}" for other in report["others"]),
        f"{in_memory:.1f}",
        f"{warm['ratio']:.3f}",
        interval(warm),
        f"{median(cold['plain'], 'disk_faults'):.0f}",
        f"{median(cold['prefetched'], 'disk_faults'):.0f}",
        f"{report['planned_bytes'] / 1e6:.1f}",
        untouched(report),
    )
    name = path.rsplit("/", 1)[-1].removesuffix(".json")
    same = "" if report["differing_starts"] == 0 else f"  output differed in {report['differing_starts']} starts"
    print(f"{name:10}" + "".join(f"{c:>{w}}" for c, w in zip(cells, WIDTHS)) + same, flush=True)
