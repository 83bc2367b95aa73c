"""Geometric means of the starts that bench/start measured, with their 95 % intervals, beside what is wanted; and the share of
the time from warm to cold starts that prefetching saves, (cold − prefetched) ÷ (cold − warm), of the sums over the programs.

    python3 bench/summary.py DIRECTORY      one directory a place, one report of `prepage measure --json` a program

The interval is that of a bootstrap over the rounds: every round is drawn again, of every program.
"""
import glob
import json
import os
import random
import statistics
import sys
from statistics import geometric_mean

from programs import commands

# Of the first ten programs of bench/programs.py.
WANTED = {
    "local": "wanted: at most 0.57, no program above 0.85",
    "far": "wanted: at most 0.13",
    "counted": "wanted: at most 0.38",
}
RESAMPLES = 1000
# Its start is too short for a ratio: what is wanted of it is told apart.
NO_PROGRAM = "true"

FIRST = (6, 10)

random.seed(1)


def mean_with_interval(pairs):
    """Of medians' ratios, for pairs (starts, starts without)."""
    again = lambda starts: statistics.median(random.choices(starts, k=len(starts)))
    value = geometric_mean([statistics.median(a) / statistics.median(b) for a, b in pairs])
    drawn = sorted(geometric_mean([again(a) / again(b) for a, b in pairs]) for _ in range(RESAMPLES))
    return value, drawn[int(RESAMPLES * 0.025)], drawn[int(RESAMPLES * 0.975)]


def line(name, pairs, remark=""):
    value, low, high = mean_with_interval(pairs)
    print(f"  {name:34} {value:6.3f}   ({low:.3f} to {high:.3f})   {remark}")


def saved(reports):
    cold, prefetched, warm = (sum(statistics.median(report[caches][kind]["wall_ms"]) for report in reports)
                              for caches, kind in (("cold", "plain"), ("cold", "prefetched"), ("warm", "plain")))
    return f"saved {(cold - prefetched) / (cold - warm):.0%}" if cold > warm else "warm starts were no faster"


for place in ("local", "far", "counted"):
    paths = sorted(glob.glob(os.path.join(sys.argv[1], place, "*.json")))
    reports = {os.path.basename(path).removesuffix(".json"): json.load(open(path)) for path in paths}
    short = reports.pop(NO_PROGRAM, None)
    if short:
        plain, with_us = (statistics.median(short["cold"][kind]["wall_ms"]) for kind in ("plain", "prefetched"))
        own = f"`prepage run -- /bin/true` adds {with_us - plain:.1f} ms to {plain:.1f} ms, cold (wanted: at most 6 ms)"
    if not reports:
        continue
    print(f"\n{place}: {len(reports)} programs, geometric means of the ratios of medians (95 %)")
    cold = lambda report, kind: report["cold"][kind]["wall_ms"]
    names = list(commands(""))
    groups = {f"the first {count}": names[:count] for count in FIRST} | {f"all {len(reports)}": list(reports)}
    for group, members in groups.items():
        if lacking := [program for program in members if program not in reports]:
            print(f"  prefetched / cold, {group}: not told, for these were not measured: {' '.join(lacking)}")
            continue
        chosen = [reports[program] for program in members]
        wanted = f"; {WANTED[place]}" if group == f"the first {max(FIRST)}" else ""
        line(f"prefetched / cold, {group}", [(cold(r, "prefetched"), cold(r, "plain")) for r in chosen], saved(chosen) + wanted)
    line("warm / cold", [(r["warm"]["plain"]["wall_ms"], cold(r, "plain")) for r in reports.values()])
    for at, other in enumerate(next(iter(reports.values()))["others"]):
        name = other["name"]
        starts = lambda report: report["others"][at]["wall_ms"]
        line(f"{name} / cold", [(starts(r), cold(r, "plain")) for r in reports.values()])
        slower = [program for program, r in reports.items()
                  if statistics.median(cold(r, "prefetched")) >= statistics.median(starts(r))]
        remark = "faster in each" if not slower else f"not faster: {', '.join(slower)}"
        line(f"prefetched / {name}", [(cold(r, "prefetched"), starts(r)) for r in reports.values()], remark)
    line("prefetched / plain, warm", [(r["warm"]["prefetched"]["wall_ms"], r["warm"]["plain"]["wall_ms"])
                                      for r in reports.values()], "wanted: at most 1.02")
    worst = max(reports, key=lambda program: reports[program]["cold"]["ratio"])
    print(f"  largest ratio: {worst} {reports[worst]['cold']['ratio']:.2f}")
    if short:
        print(f"  {own}")
