// Draws what the tables say: the trade-off, faults saved over time, faults by memory size.

const COLOURS = ["#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#7f5fc4", "#8c6d31", "#666"];
const drawn = [];

function colour(at) {
  return COLOURS[at % COLOURS.length];
}

/** Colours come again after a while; then lines are dashed. */
function dash(at) {
  return at < COLOURS.length ? [] : [6 + 2 * Math.floor(at / COLOURS.length), 4];
}

function axis(label, size) {
  const [stroke, line] = [() => theme("text"), { stroke: () => theme("grid"), width: 1 }];
  return { label, size, stroke, grid: line, ticks: line, font: FONT, labelFont: FONT, labelSize: 22 };
}

/** A plot in the element `id`: x values, one series of y values for each name. */
function plot(id, xs, names, series, { x, y, height = 340, points = false, logarithmic = false, hooks = {} }) {
  const parent = document.getElementById(id);
  const line = (name, at) => ({
    label: name,
    stroke: colour(at),
    dash: dash(at),
    width: points ? 0 : 1.6,
    points: points ? { show: true, size: 11, fill: colour(at) } : { show: false },
    value: (_, value) => value ?? "",
  });
  const options = {
    width: Math.max(parent.clientWidth, 320),
    height,
    scales: { x: { time: false, distr: logarithmic ? 3 : 1, ...x.scale }, y: y.scale ?? {} },
    axes: [axis(x.label, 44), { ...axis(y.label, 78), ...(y.splits ? { splits: y.splits, filter: (_, splits) => splits } : {}) }],
    series: [{ label: x.short }, ...names.map(line)],
    cursor: { drag: { x: true, y: points } },
    hooks,
  };
  const u = new uPlot(options, [xs, ...series], parent);
  drawn.push({ parent, height, u });
  return u;
}

/** Around all of `values`, and a bit more. */
function roomy(values) {
  const [low, high] = [Math.min(...values), Math.max(...values)];
  const room = Math.max((high - low) * 0.12, high * 0.02, 1e-3);
  return [Math.max(0, low - room), high + room];
}

function tradeOff() {
  const order = data.policies.map((_, at) => at).sort((a, b) => data.policies[a].never_percent - data.policies[b].never_percent);
  const xs = order.map((at) => data.policies[at].never_percent);
  const series = data.policies.map((policy, at) => order.map((other) => (other === at ? Math.max(policy.hard, 0.5) : null)));
  const names = data.policies.map((policy) => policy.name);
  plot("trade-off", xs, names, series, {
    x: { label: "pages read and never touched, %", short: "never touched, %", scale: { range: (_, low, high) => roomy([low, high]) } },
    y: { label: "hard faults", scale: { distr: 3, range: (_, low, high) => [low / 1.3, high * 1.3] }, splits: roundNumbers },
    points: true,
    hooks: { draw: [labels] },
  });
}

/** Where a logarithmic axis has numbers: within less than a decade in more places, so that two at least can be read. */
function roundNumbers(_, __, low, high) {
  if (!(low > 0)) return [];
  const numbers = (steps) => {
    const splits = [];
    for (let decade = 10 ** Math.floor(Math.log10(low)); decade <= high; decade *= 10) {
      splits.push(...steps.map((step) => step * decade).filter((split) => split >= low && split <= high));
    }
    return splits;
  };
  const few = numbers([1, 2, 5]);
  return few.length > 2 ? few : numbers([1, 1.5, 2, 3, 4, 5, 6, 7, 8, 9]);
}

/** The names of policies beside their points, one below the other where they would lie on top of each other. */
function labels(u) {
  const context = u.ctx;
  const [ratio, line] = [devicePixelRatio, 14 * devicePixelRatio];
  context.save();
  context.font = `${12 * ratio}px system-ui, "DejaVu Sans", sans-serif`;
  context.textBaseline = "middle";
  context.textAlign = "left";
  const placed = [];
  const points = data.policies.map(({ name, hard, never_percent: never }, at) => {
    const [x, y] = [u.valToPos(never, "x", true), u.valToPos(Math.max(hard, 0.5), "y", true)];
    const width = context.measureText(name).width;
    const onLeft = x + width + 11 * ratio > u.bbox.left + u.bbox.width;
    return { name, at, x, y, width, left: onLeft ? x - width - 11 * ratio : x + 11 * ratio };
  });
  for (const point of points.sort((a, b) => a.y - b.y)) {
    if (!u.series[point.at + 1].show) continue;
    let top = point.y;
    const meets = (other) =>
      Math.abs(other.top - top) < line && other.left < point.left + point.width && point.left < other.left + other.width;
    for (let other = placed.find(meets); other; other = placed.find(meets)) top = other.top + line;
    placed.push({ top, left: point.left, width: point.width });
    if (top !== point.y) {
      context.strokeStyle = theme("faint");
      context.beginPath();
      context.moveTo(point.x, point.y);
      context.lineTo(point.left > point.x ? point.left : point.left + point.width, top);
      context.stroke();
    }
    context.fillStyle = theme("text");
    context.fillText(point.name, point.left, top);
  }
  context.restore();
}

function overTime() {
  const saved = (base) =>
    data.policies.map(({ samples }) => [0, ...samples.map(([, hard], at) => data.policies[base].samples[at][1] - hard)]);
  const xs = [0, ...data.policies[0].samples.map(([touches]) => touches)];
  const u = plot("saved", xs, data.policies.map((policy) => policy.name), saved(0), {
    x: { label: "touches", short: "touches" },
    y: { label: "hard faults saved" },
  });
  const select = document.getElementById("base");
  data.policies.forEach(({ name }, at) => select.append(new Option(name, at)));
  select.addEventListener("change", () => u.setData([xs, ...saved(Number(select.value))]));
}

function memory() {
  if (!data.memory) return;
  const { pages, rules } = data.memory;
  plot("memory", pages, rules.map(([name]) => name), rules.map(([, ratios]) => ratios), {
    x: { label: "memory in pages (for ws: window in touches)", short: "pages" },
    y: { label: "faults a touch", scale: { range: (_, low, high) => [0, high * 1.05] } },
    logarithmic: true,
  });
}

document.getElementById("plots").hidden = false;
tradeOff();
overTime();
memory();
addEventListener("resize", () => {
  for (const { parent, height, u } of drawn) u.setSize({ width: Math.max(parent.clientWidth, 320), height });
});
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => {
  for (const { u } of drawn) u.redraw(false, true);
});
document.documentElement.dataset.drawn = "true";
