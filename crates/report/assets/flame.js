// A flame graph: the outermost call above, its callees below it, as wide as the faults or the waiting they led to.

const ROW = 19;
const flame = { root: data.flame.root, shown: data.flame.root, path: [], boxes: [], canvas: null };
const [NAME, COUNT, COST, CALLS] = [0, 1, 2, 3];

function setUpFlame() {
  const parent = document.getElementById("flame");
  const weight = document.getElementById("flame-weight");
  const resetButton = document.getElementById("flame-reset");
  if (!data.flame.stacked) {
    document.getElementById("flame-title").textContent = "Code that touched the pages";
    document.getElementById("flame-note").hidden = false;
  }
  if (!flame.root[COST]) weight.value = "count";
  flame.canvas = document.createElement("canvas");
  parent.append(flame.canvas);
  weight.addEventListener("change", drawFlame);
  resetButton.addEventListener("click", () => {
    [flame.shown, flame.path] = [flame.root, []];
    drawFlame();
  });
  flame.canvas.addEventListener("click", (event) => {
    const box = boxAt(event);
    if (!box) return;
    [flame.shown, flame.path] = [box.branch, box.path];
    drawFlame();
  });
  flame.canvas.addEventListener("mousemove", (event) => {
    const box = boxAt(event);
    flame.canvas.style.cursor = box ? "pointer" : "";
    if (!box) return hideTip();
    const { branch } = box;
    const share = (100 * branch[weightIndex()]) / (flame.root[weightIndex()] || 1);
    const lines = [branch[NAME], `${branch[COUNT]} faults, waited ${duration(branch[COST] / 1e3)}`, `${trimmed(share)} % of all`];
    showTip(lines.join("\n"), event.clientX, event.clientY);
  });
  flame.canvas.addEventListener("mouseleave", hideTip);
  drawFlame();
}

function weightIndex() {
  return document.getElementById("flame-weight").value === "cost" ? COST : COUNT;
}

function boxAt(event) {
  const { offsetX, offsetY } = event;
  return flame.boxes.find(({ x, y, width }) => offsetX >= x && offsetX < x + width && offsetY >= y && offsetY < y + ROW);
}

function drawFlame() {
  const { canvas, path, shown } = flame;
  if (!canvas) return;
  document.getElementById("flame-reset").hidden = shown === flame.root;
  const ratio = pixelRatio();
  const width = canvas.parentElement.clientWidth;
  flame.boxes = [];
  const weight = weightIndex();
  // What leads to the call shown stands above it, as wide as it.
  path.forEach((branch, depth) => flame.boxes.push({ branch, path: path.slice(0, depth), x: 0, y: depth * ROW, width, faded: true }));
  layOut(shown, path, 0, width, weight);
  const height = Math.max(...flame.boxes.map((box) => box.y)) + ROW;
  canvas.width = Math.round(width * ratio);
  canvas.height = Math.round(height * ratio);
  canvas.style.width = width + "px";
  canvas.style.height = height + "px";
  const context = canvas.getContext("2d");
  context.scale(ratio, ratio);
  context.font = FONT;
  context.textBaseline = "middle";
  const colours = theme("flame").split(/\s+/);
  for (const { branch, x, y, width, faded } of flame.boxes) {
    context.globalAlpha = faded ? 0.55 : 1;
    context.fillStyle = colours[hash(branch[NAME]) % colours.length];
    context.fillRect(x, y, Math.max(width - 1, 0.5), ROW - 1);
    if (width > 24) {
      context.fillStyle = theme("flame-text");
      context.fillText(fitting(context, branch[NAME], width - 8), x + 4, y + ROW / 2);
    }
  }
}

function layOut(branch, path, x, width, weight) {
  flame.boxes.push({ branch, path, x, y: path.length * ROW, width });
  const calls = branch[CALLS] ?? [];
  const below = [...path, branch];
  for (const call of [...calls].sort((a, b) => b[weight] - a[weight])) {
    const share = (width * call[weight]) / (branch[weight] || 1);
    if (share >= 0.6) layOut(call, below, x, share, weight);
    x += share;
  }
}

/** The same name has the same colour everywhere. */
function hash(text) {
  let value = 7;
  for (let i = 0; i < text.length; i++) value = (value * 31 + text.charCodeAt(i)) >>> 0;
  return value;
}
