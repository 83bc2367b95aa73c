// Plots: axes, theme, zoom. uPlot draws the axes and follows the mouse; what is in between each plot draws itself.

const plots = [];

function classColours() {
  return classes.map((entry) => theme("class-" + entry.name));
}

/** Room for numbers and names at the left of every plot: the same for all, so that their times stand below each other. */
const BESIDE = 104;

/** Pixels of the canvas in a pixel of the page. */
function pixelRatio() {
  return devicePixelRatio || 1;
}

/**
 * A plot in `parent`. `plan`: x and y ({label, log, range: () => [from, to], values}), draw(context, plot), tip(plot) → text
 * or null, height, beside(context, plot) for what is written at the left. Plots with the same `together` zoom along x together.
 */
function plot(parent, plan) {
  const axis = (which, side) => ({
    side,
    stroke: () => theme("text"),
    grid: { stroke: () => theme("grid"), width: 1, filter: numbered(plan[which]) },
    ticks: { stroke: () => theme("grid"), width: 1, filter: numbered(plan[which]) },
    font: FONT,
    labelFont: FONT,
    label: plan[which].label(),
    labelSize: 22,
    size: which === "y" ? BESIDE : 34,
    values: (_, splits, __, ___, step) => splits.map((split) => (split === null ? "" : tick(plan[which], split, step))),
    ...(plan[which].log ? { filter: decades } : which === "x" ? { space: room } : {}),
  });
  const view = { x: plan.x.range(), y: plan.y.range(), full: true };
  const scale = (which) => ({ time: false, auto: false, range: (_, from, to) => [from, to], distr: plan[which].log ? 3 : 1 });
  const self = { plan, view, parent };
  const u = new uPlot(
    {
      width: Math.max(parent.clientWidth, 320),
      height: plan.height,
      scales: { x: scale("x"), y: scale("y") },
      axes: [axis("x", 2), axis("y", 3)],
      series: [{}, { show: true, paths: () => null, points: { show: false } }],
      legend: { show: false },
      cursor: {
        drag: { x: true, y: true, uni: 30, setScale: false },
        points: { show: false },
        bind: { dblclick: () => () => reset(self) },
      },
      hooks: {
        drawAxes: [
          (u) => {
            clipped(u, (context) => plan.draw(context, u, self));
            plan.beside?.(u.ctx, u, self);
          },
        ],
        setSelect: [(u) => zoomTo(self, u)],
        setCursor: [() => tell(self)],
      },
    },
    [[0, 1], [null, null]],
    parent,
  );
  self.u = u;
  plots.push(self);
  u.over.addEventListener("wheel", (event) => wheel(self, event), { passive: false });
  u.over.addEventListener("mouseleave", hideTip);
  show(self);
  return self;
}

/** An axis whose ticks have no numbers has no grid either. */
function numbered(axis) {
  return (u, splits) => splits.map((split) => (split !== null && tick(axis, split) === "" ? null : split));
}

function tick(axis, value, step) {
  return axis.values ? axis.values(value, step) : shown(value, axis.log ? 0 : step);
}

/** Pixels from one number of a horizontal axis to the next: the narrower the range, the more digits tell its numbers apart. */
function room(u, axis, from, to) {
  return 50 + 8 * Math.max(Math.ceil(Math.log10(Math.max(Math.abs(from), Math.abs(to)) / (to - from))), 0);
}

/** Of a logarithmic axis, the decades have numbers. */
function decades(u, splits) {
  return splits.map((split) => (Math.abs(Math.log10(split) - Math.round(Math.log10(split))) < 1e-9 ? split : null));
}

/** `text`, cut at its end where it is wider. */
function fitting(context, text, width) {
  return cut(context, text, width, (left) => text.slice(0, left) + "…");
}

/** `name` of a file, cut in its middle where it is wider: such names often differ only at their ends. */
function fittingName(context, name, width) {
  return cut(context, name, width, (left) => name.slice(0, left >> 1) + "…" + name.slice(name.length - ((left + 1) >> 1)));
}

/** `text`, or `shortened` to as many letters as fit. */
function cut(context, text, width, shortened) {
  if (context.measureText(text).width <= width) return text;
  let [low, high] = [0, text.length];
  while (low < high) {
    const middle = (low + high + 1) >> 1;
    if (context.measureText(shortened(middle)).width <= width) low = middle;
    else high = middle - 1;
  }
  return low > 2 ? shortened(low) : "";
}

function clipped(u, draw) {
  const { ctx: context, bbox } = u;
  context.save();
  context.beginPath();
  context.rect(bbox.left, bbox.top, bbox.width, bbox.height);
  context.clip();
  draw(context);
  context.restore();
}

function show(self) {
  const { u, view } = self;
  u.batch(() => {
    u.setScale("x", { min: view.x[0], max: view.x[1] });
    u.setScale("y", { min: view.y[0], max: view.y[1] });
  });
  u.redraw(false, true);
}

function together(self) {
  const { together } = self.plan;
  return together ? plots.filter((other) => other.plan.together === together) : [self];
}

function zoom(self, x, y) {
  if (y) self.view.y = y;
  for (const other of together(self)) {
    other.view.x = x;
    other.view.full = false;
    show(other);
  }
}

function reset(self) {
  for (const other of together(self)) {
    Object.assign(other.view, { x: other.plan.x.range(), y: other.plan.y.range(), full: true });
    show(other);
  }
}

function zoomTo(self, u) {
  const { left, top, width, height } = u.select;
  if (width < 3 && height < 3) return;
  const whole = height >= u.over.clientHeight - 1;
  const x = width < 3 ? self.view.x : [u.posToVal(left, "x"), u.posToVal(left + width, "x")];
  const y = whole ? null : [u.posToVal(top + height, "y"), u.posToVal(top, "y")];
  u.setSelect({ left: 0, top: 0, width: 0, height: 0 }, false);
  zoom(self, x, y);
}

/** Only with a key held: without one the wheel scrolls the page. */
function wheel(self, event) {
  if (!event.ctrlKey && !event.metaKey) return;
  event.preventDefault();
  const { u, view, plan } = self;
  const box = u.over.getBoundingClientRect();
  const factor = event.deltaY < 0 ? 0.75 : 1 / 0.75;
  const around = (range, full, log, middle) => {
    const [to, from] = log ? [Math.log10, (v) => 10 ** v] : [(v) => v, (v) => v];
    const [low, high, pivot] = [to(range[0]), to(range[1]), to(middle)];
    const next = [from(pivot - (pivot - low) * factor), from(pivot + (high - pivot) * factor)];
    return [Math.max(next[0], full[0]), Math.min(next[1], full[1])];
  };
  const x = around(view.x, plan.x.range(), plan.x.log, u.posToVal(event.clientX - box.left, "x"));
  const y = around(view.y, plan.y.range(), plan.y.log, u.posToVal(event.clientY - box.top, "y"));
  zoom(self, x, event.shiftKey ? null : y);
}

const tip = document.getElementById("tip");

function tell(self) {
  const { u, plan } = self;
  const text = u.cursor.left >= 0 && plan.tip ? plan.tip(u, self) : null;
  if (!text) return hideTip();
  const box = u.over.getBoundingClientRect();
  showTip(text, box.left + u.cursor.left, box.top + u.cursor.top);
}

function showTip(text, x, y) {
  tip.textContent = text;
  tip.hidden = false;
  const left = Math.min(x + 14, innerWidth - tip.offsetWidth - 8);
  const top = y + 14 + tip.offsetHeight > innerHeight ? y - 14 - tip.offsetHeight : y + 14;
  tip.style.left = Math.max(left, 4) + "px";
  tip.style.top = top + "px";
}

function hideTip() {
  tip.hidden = true;
}

/** Gives a plot another range, after what it shows has changed. */
function retell(self) {
  self.u.axes[1].label = self.plan.y.label();
  self.u.axes[0].label = self.plan.x.label();
  reset(self);
}

function redrawAll() {
  for (const self of plots) self.u.redraw(false, true);
}

let resizing = 0;
addEventListener("resize", () => {
  cancelAnimationFrame(resizing);
  resizing = requestAnimationFrame(() => {
    for (const { u, parent, plan } of plots) u.setSize({ width: Math.max(parent.clientWidth, 320), height: plan.height });
    drawFlame();
  });
});
