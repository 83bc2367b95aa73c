// Plots of tallies: how long threads waited when, and how many faults cost how much. They count all faults.

function waitingPlot() {
  const slices = data.slices_ns;
  const sliceMs = data.end_ns / 1e6 / slices.length;
  // A wait counts where it began; threads wait side by side.
  const height = (slice) => slice.reduce((sum, ns, kind) => sum + (visible[kind] ? ns : 0), 0) / 1e6;
  return plot(document.getElementById("waiting"), {
    height: 190,
    x: { label: () => `milliseconds since the start, ${duration(sliceMs * 1000)} a bar`, range: () => [0, data.end_ns / 1e6 || 1] },
    y: {
      label: () => "ms waited",
      range: () => [0, (Math.max(...slices.map(height)) || 1) * 1.05],
    },
    draw: (context, u) => {
      const colours = classColours();
      slices.forEach((slice, at) => {
        const left = u.valToPos(at * sliceMs, "x", true), right = u.valToPos((at + 1) * sliceMs, "x", true);
        let bottom = 0;
        slice.forEach((ns, kind) => {
          if (!visible[kind] || !ns) return;
          const low = u.valToPos(bottom, "y", true);
          bottom += ns / 1e6;
          const high = u.valToPos(bottom, "y", true);
          context.fillStyle = colours[kind];
          context.fillRect(left, high, Math.max(right - left - 0.5, 1), low - high);
        });
      });
      for (const [second] of data.lost_by_second) {
        const left = Math.floor(u.valToPos(second * 1000, "x", true)), right = u.valToPos((second + 1) * 1000, "x", true);
        context.fillStyle = theme("lost");
        // Of an hour a second is narrower than a pixel, and is seen nevertheless.
        context.fillRect(left, u.bbox.top, Math.max(right - left, 2 * pixelRatio()), 5 * pixelRatio());
      }
    },
    tip: (u) => {
      const at = Math.floor(u.posToVal(u.cursor.left, "x") / sliceMs);
      const slice = slices[at];
      if (!slice) return null;
      const lines = slice.map((ns, kind) => (ns ? `${classes[kind].name} ${duration(ns / 1000)}` : null)).filter(Boolean);
      // Losses are known by the second: those of all seconds that the bar has a part of.
      const first = Math.floor((at * sliceMs) / 1000), last = Math.ceil(((at + 1) * sliceMs) / 1000) - 1;
      const lost = data.lost_by_second.filter(([second]) => second >= first && second <= last);
      const records = lost.reduce((sum, [, records]) => sum + records, 0);
      if (records) lines.push(`${records} records lost in ${last > first ? "these seconds" : "this second"}`);
      return [`${exactMs(at * sliceMs)} to ${exactMs((at + 1) * sliceMs)} ms`, ...lines].join("\n");
    },
  });
}

function distributionPlot() {
  const bins = data.cost_bins;
  const from = bins.length ? bins[0][0] / 1e3 : 0.1, to = bins.length ? bins.at(-1)[1] / 1e3 : 10;
  const most = () => Math.max(1, ...bins.flatMap(([, , counts]) => counts.filter((_, kind) => visible[kind])));
  const drawnKinds = () => DRAWN.filter((kind) => visible[kind] && classes[kind].timed > 0);
  return plot(document.getElementById("distribution"), {
    height: 280,
    x: { label: () => "cost of the fault", log: true, range: () => [from, to], values: duration },
    y: { label: () => "faults", log: true, range: () => [0.7, most() * 1.5] },
    draw: (context, u) => {
      const colours = classColours();
      const floor = u.bbox.top + u.bbox.height;
      for (const kind of drawnKinds()) {
        context.beginPath();
        for (const [low, high, counts] of bins) {
          const left = u.valToPos(low / 1e3, "x", true), right = u.valToPos(high / 1e3, "x", true);
          const top = counts[kind] ? u.valToPos(counts[kind], "y", true) : floor + 2;
          context.lineTo(left, top);
          context.lineTo(right, top);
        }
        context.lineTo(u.valToPos(to, "x", true), floor + 2);
        context.lineTo(u.valToPos(from, "x", true), floor + 2);
        context.closePath();
        context.globalAlpha = 0.18;
        context.fillStyle = colours[kind];
        context.fill();
        context.globalAlpha = 1;
        context.strokeStyle = colours[kind];
        context.lineWidth = 2 * pixelRatio();
        context.stroke();
      }
    },
    tip: (u) => {
      const us = u.posToVal(u.cursor.left, "x");
      const bin = bins.find(([low, high]) => us >= low / 1e3 && us < high / 1e3);
      if (!bin) return null;
      const lines = bin[2].map((count, kind) => (count ? `${classes[kind].name} ${count}` : null)).filter(Boolean);
      return [`${duration(bin[0] / 1e3)} to ${duration(bin[1] / 1e3)}`, ...lines].join("\n");
    },
  });
}
