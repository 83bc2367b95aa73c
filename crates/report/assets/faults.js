// Plots in which each fault is a dot, or falls into a cell: a million of them are drawn pixel by pixel into a picture.

/** Slow classes are drawn last, so that they are on top: the index of classes in the order they are drawn. */
const DRAWN = ["zero-fill", "cached", "copy-on-write", "short", "unseen", "failed", "disk"].map((name) =>
  classes.findIndex((entry) => entry.name === name),
);
const visible = classes.map(() => true);

function colourNumber(css) {
  const context = document.createElement("canvas").getContext("2d");
  context.fillStyle = css;
  context.fillRect(0, 0, 1, 1);
  return new Uint32Array(context.getImageData(0, 0, 1, 1).data.buffer)[0];
}

const layer = document.createElement("canvas");

/** Draws into a picture of the plot's size and puts it there. */
function asPicture(context, bbox, draw) {
  const [width, height] = [Math.round(bbox.width), Math.round(bbox.height)];
  if (width < 1 || height < 1) return;
  layer.width = width;
  layer.height = height;
  const layerContext = layer.getContext("2d");
  const picture = layerContext.createImageData(width, height);
  draw(new Uint32Array(picture.data.buffer), width, height);
  layerContext.putImageData(picture, 0, 0);
  context.drawImage(layer, bbox.left, bbox.top);
}

/** Where values lie between the ends of a range, from 0 to 1. */
function position(range) {
  const factor = 1 / (range[1] - range[0] || 1);
  return (value) => (value - range[0]) * factor;
}

/** The y range of a view, in the unit of the values: logarithms where the axis is logarithmic. */
function yRange({ view, plan }) {
  return plan.y.log ? view.y.map(Math.log2) : view.y;
}

/** Draws the faults in view as dots at (xs[i], ys[i]). */
function dots(context, u, self, faults, xs, ys) {
  const [low, high] = yRange(self);
  const [from, to] = self.view.x;
  const first = firstFrom(xs, from), last = firstFrom(xs, to + 1e-9 * (1 + Math.abs(to)));
  const inView = last - first;
  const size = Math.round((inView < 3000 ? 4 : inView < 30000 ? 3 : 2) * pixelRatio());
  const half = size >> 1;
  const colours = classColours().map(colourNumber);
  const toX = position([from, to]), toY = position([low, high]);
  asPicture(context, u.bbox, (pixels, width, height) => {
    for (const kind of DRAWN) {
      if (!visible[kind]) continue;
      const colour = colours[kind];
      const members = faults.ofClass[kind];
      for (let at = firstFrom(members, first); at < members.length && members[at] < last; at++) {
        const i = members[at];
        const y = ys[i];
        if (!(y >= low && y <= high)) continue;
        const left = Math.max(Math.round(toX(xs[i]) * (width - 1)) - half, 0);
        const top = Math.max(Math.round((1 - toY(y)) * (height - 1)) - half, 0);
        const right = Math.min(left + size, width), bottom = Math.min(top + size, height);
        for (let row = top; row < bottom; row++) {
          for (let column = left; column < right; column++) pixels[row * width + column] = colour;
        }
      }
    }
  });
}

/** The fault nearest to the mouse, if any is near. */
function nearest(u, self, faults, xs, ys) {
  const NEAR = 8;
  const { view } = self;
  const [low, high] = yRange(self);
  const [width, height] = [u.over.clientWidth, u.over.clientHeight];
  const { left, top } = u.cursor;
  const first = firstFrom(xs, u.posToVal(left - NEAR, "x"));
  const last = firstFrom(xs, u.posToVal(left + NEAR, "x"));
  const toX = position(view.x), toY = position([low, high]);
  let best = -1, distance = NEAR * NEAR;
  for (let i = first; i < last; i++) {
    if (!visible[faults.class[i]] || !(ys[i] >= low && ys[i] <= high)) continue;
    const dx = toX(xs[i]) * width - left, dy = (1 - toY(ys[i])) * height - top;
    const now = dx * dx + dy * dy;
    if (now < distance) [best, distance] = [i, now];
  }
  return best;
}

function faultText(faults, i) {
  const object = data.points.objects[faults.object[i]];
  const page = faults.page[i] === NO_PAGE ? "" : `, page ${faults.page[i]}`;
  return [
    `${classes[faults.class[i]].name} fault ${faults.number[i]}: ${duration(faults.us[i])}`,
    `${object.path}${page}, at ${addressAt(faults.memory[i])}`,
    `${data.points.threads[faults.thread[i]]}, at ${exactMs(faults.ms[i])} ms`,
  ].join("\n");
}

/** The bands in view that are tall enough for a name, and where they end on the canvas. */
function tallBands(u, self, bands) {
  const least = 12 * pixelRatio();
  const ends = bands.map(({ from, to, name }) => ({
    name,
    bottom: u.valToPos(Math.max(from, self.view.y[0]), "y", true),
    top: u.valToPos(Math.min(to, self.view.y[1]), "y", true),
  }));
  return ends.filter(({ bottom, top }) => bottom - top >= least);
}

function bandLines(context, u, self, bands) {
  context.fillStyle = theme("band");
  for (const { bottom } of tallBands(u, self, bands)) context.fillRect(u.bbox.left, bottom, u.bbox.width, pixelRatio());
}

function bandNames(context, u, self, bands) {
  const ratio = pixelRatio();
  context.save();
  context.font = `${11 * ratio}px system-ui, "DejaVu Sans", sans-serif`;
  context.textBaseline = "middle";
  context.textAlign = "right";
  context.fillStyle = theme("text");
  for (const { name, bottom, top } of tallBands(u, self, bands)) {
    context.fillText(fittingName(context, name, (BESIDE - 8) * ratio), u.bbox.left - 6 * ratio, (bottom + top) / 2);
  }
  context.restore();
}

function faultPlots(faults, place) {
  const numbers = faults.number;
  const lastNumber = Math.max(faults.count ? numbers[faults.count - 1] : 1, 1);
  const xNumber = { label: () => "fault number, in the order the faults began", range: () => [0, lastNumber] };
  const y = () => ({
    label: () => place.layout.label,
    range: () => [0, place.layout.height],
    values: (value, step) => (place.layout.bands.length ? "" : shown(value, step)),
  });
  const order = plot(document.getElementById("order"), {
    together: "number",
    height: 430,
    x: xNumber,
    y: y(),
    draw: (context, u, self) => {
      bandLines(context, u, self, place.layout.bands);
      dots(context, u, self, faults, numbers, place.layout.y);
    },
    beside: (context, u, self) => bandNames(context, u, self, place.layout.bands),
    tip: (u, self) => {
      const i = nearest(u, self, faults, numbers, place.layout.y);
      return i < 0 ? null : faultText(faults, i);
    },
  });
  let [fastest, slowest] = [Infinity, 0];
  for (const us of faults.us) {
    if (us < fastest) fastest = us;
    if (us > slowest) slowest = us;
  }
  if (!(slowest > 0)) [fastest, slowest] = [0.1, 10];
  const cost = plot(document.getElementById("cost"), {
    together: "number",
    height: 300,
    x: xNumber,
    y: {
      label: () => "cost of the fault",
      log: true,
      range: () => [fastest / 1.3, slowest * 1.3],
      values: duration,
    },
    draw: (context, u, self) => dots(context, u, self, faults, numbers, faults.logUs),
    tip: (u, self) => {
      const i = nearest(u, self, faults, numbers, faults.logUs);
      return i < 0 ? null : faultText(faults, i);
    },
  });
  const heat = heatPlot(faults, place, y());
  return { order, cost, heat };
}

/** Time from left to right, places from bottom to top, the colour says how many faults or how long a wait. */
function heatPlot(faults, place, y) {
  const weight = document.getElementById("heat-weight");
  const CELL = 5;
  let cells = null;
  const self = plot(document.getElementById("heat"), {
    height: 400,
    x: { label: () => "milliseconds since the start", range: () => [0, data.end_ns / 1e6 || 1] },
    y,
    draw: (context, u, self) => {
      bandLines(context, u, self, place.layout.bands);
      cells = binned(u, self, weight.value === "cost");
      const colours = heatColours();
      const { bbox } = u;
      asPicture(context, bbox, (pixels, width, height) => {
        for (let row = 0; row < height; row++) {
          const cellRow = Math.min(Math.floor((row * cells.rows) / height), cells.rows - 1) * cells.columns;
          for (let column = 0; column < width; column++) {
            const value = cells.values[cellRow + Math.min(Math.floor((column * cells.columns) / width), cells.columns - 1)];
            if (value > 0) pixels[row * width + column] = colours[shade(value, cells.most)];
          }
        }
      });
      heatScale(cells.most, weight.value === "cost");
    },
    beside: (context, u, self) => bandNames(context, u, self, place.layout.bands),
    tip: (u) => {
      if (!cells) return null;
      const column = Math.floor((u.cursor.left / u.over.clientWidth) * cells.columns);
      const row = Math.floor((u.cursor.top / u.over.clientHeight) * cells.rows);
      const value = cells.values[row * cells.columns + column];
      if (!value) return null;
      const count = Math.round(value);
      const about = faults.standsFor.some((faults) => faults > 1) ? "about " : "";
      const what = weight.value === "cost" ? `waited ${about}${duration(value)}` : `${about}${count} fault${count === 1 ? "" : "s"}`;
      const y = u.posToVal(u.cursor.top, "y");
      const band = place.layout.bands.find(({ from, to }) => y >= from && y < to);
      const where = band ? `${band.name}, around ${band.page(y)}` : place.layout.bands.length ? "" : `around page ${Math.floor(y)}`;
      return `${what}\n${where}\nat ${exactMs(u.posToVal(u.cursor.left, "x"))} ms`;
    },
  });
  function binned(u, { view }, byCost) {
    const columns = Math.max(Math.round(u.over.clientWidth / CELL), 1);
    // Of a file with few pages each has a row.
    const rows = Math.max(Math.min(Math.round(u.over.clientHeight / CELL), Math.ceil(view.y[1] - view.y[0])), 1);
    const values = new Float64Array(columns * rows);
    const first = firstFrom(faults.ms, view.x[0]), last = firstFrom(faults.ms, view.x[1]);
    const perMs = columns / (view.x[1] - view.x[0]), perPage = rows / (view.y[1] - view.y[0]);
    let most = 0;
    for (let i = first; i < last; i++) {
      const at = place.layout.y[i];
      if (!visible[faults.class[i]] || !(at >= view.y[0] && at < view.y[1])) continue;
      const column = Math.min(Math.floor((faults.ms[i] - view.x[0]) * perMs), columns - 1);
      const row = rows - 1 - Math.min(Math.floor((at - view.y[0]) * perPage), rows - 1);
      const cell = row * columns + column;
      values[cell] += (byCost ? faults.us[i] || 0 : 1) * faults.standsFor[faults.class[i]];
      if (values[cell] > most) most = values[cell];
    }
    return { values, columns, rows, most };
  }
  weight.addEventListener("change", () => show(self));
  return self;
}

const SHADES = 64;

/** The colours of a heat map from little to much: cividis, which reads the same to all eyes. In the dark, from dark to bright. */
function heatColours() {
  const stops = theme("heat").split(/\s+/);
  const context = Object.assign(document.createElement("canvas"), { width: SHADES, height: 1 }).getContext("2d");
  const gradient = context.createLinearGradient(0, 0, SHADES, 0);
  stops.forEach((stop, at) => gradient.addColorStop(at / (stops.length - 1), stop));
  context.fillStyle = gradient;
  context.fillRect(0, 0, SHADES, 1);
  return new Uint32Array(context.getImageData(0, 0, SHADES, 1).data.buffer);
}

/** Logarithmic: one fault is seen beside a cell with thousands. */
function shade(value, most) {
  return Math.min(Math.floor((Math.log1p(value) / Math.log1p(most)) * SHADES), SHADES - 1);
}

function heatScale(most, byCost) {
  const element = document.getElementById("heat-scale");
  const stops = theme("heat").split(/\s+/).join(",");
  const name = (value) => (byCost ? duration(value) : shown(Math.round(value)));
  const names = [byCost ? "0" : "1", name(Math.expm1(Math.log1p(most) / 2)), name(most)];
  // Of few faults there are none between one and the most.
  if (new Set(names).size < names.length) names[1] = "";
  element.replaceChildren(
    ...[names[0], null, names[1], null, names[2]].map((text) => {
      const part = document.createElement("span");
      if (text === null) part.className = "bar";
      else part.textContent = text;
      return part;
    }),
    document.createTextNode(byCost ? " waited in a cell" : " faults in a cell"),
  );
  const bars = element.querySelectorAll(".bar");
  bars.forEach((bar, at) => {
    bar.style.background = `linear-gradient(90deg,${stops})`;
    bar.style.backgroundSize = "200% 100%";
    bar.style.backgroundPosition = at ? "100% 0" : "0 0";
  });
}
