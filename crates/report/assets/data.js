// The faults, unpacked from the page: columns of numbers, one entry a fault, in the order the faults began.

const classes = data.classes;
const NO_PAGE = 0xffffffff;

async function unpacked(points) {
  const text = atob(points.zlib_base64);
  const packed = new Uint8Array(text.length);
  for (let i = 0; i < text.length; i++) packed[i] = text.charCodeAt(i);
  const stream = new Blob([packed]).stream().pipeThrough(new DecompressionStream("deflate"));
  const bytes = new Uint8Array(await new Response(stream).arrayBuffer());
  const count = points.count;
  let at = 0;
  // Written as the lowest bytes of all, then the next of all.
  const column = (Type, width) => {
    const values = new Type(count);
    for (let plane = 0; plane < width; plane++, at += count) {
      for (let i = 0; i < count; i++) values[i] |= bytes[at + i] << (8 * plane);
    }
    return values;
  };
  const sums = (steps) => {
    for (let i = 1; i < count; i++) steps[i] += steps[i - 1];
    return steps;
  };
  const faults = {
    count,
    class: column(Uint8Array, 1),
    number: sums(column(Uint32Array, 4)),
    time: sums(column(Uint32Array, 4)),
    object: column(Uint32Array, 4),
    page: column(Uint32Array, 4),
    memory: column(Uint32Array, 4),
    cost: column(Uint16Array, 2),
    thread: column(Uint32Array, 4),
  };
  const ms = data.end_ns / 1e6 / 0xffffffff;
  faults.ms = new Float64Array(count);
  faults.us = new Float32Array(count);
  faults.logUs = new Float32Array(count);
  for (let i = 0; i < count; i++) {
    faults.ms[i] = faults.time[i] * ms;
    faults.us[i] = faults.cost[i] ? 2 ** ((faults.cost[i] - 1) / 1000) / 1000 : NaN;
    faults.logUs[i] = Math.log2(faults.us[i]);
  }
  const sizes = new Uint32Array(classes.length);
  for (let i = 0; i < count; i++) sizes[faults.class[i]]++;
  faults.ofClass = Array.from(sizes, (size) => new Uint32Array(size));
  sizes.fill(0);
  for (let i = 0; i < count; i++) faults.ofClass[faults.class[i]][sizes[faults.class[i]]++] = i;
  // How many recorded faults each one here stands for, by class: more than 1 where the page has a sample.
  faults.standsFor = classes.map((entry, kind) => entry.count / faults.ofClass[kind].length);
  return faults;
}

/** The first place in sorted `values` that is not below `value`. */
function firstFrom(values, value) {
  let low = 0, high = values.length;
  while (low < high) {
    const middle = (low + high) >> 1;
    if (values[middle] < value) low = middle + 1;
    else high = middle;
  }
  return low;
}

/** The region of memory that is drawn at `rank`. */
function regionAt(rank) {
  const { regions } = data.points;
  let [low, high] = [0, regions.length];
  while (high - low > 1) {
    const middle = (low + high) >> 1;
    if (regions[middle][0] <= rank) low = middle;
    else high = middle;
  }
  return low;
}

/** The page of memory that is drawn at `rank`, as an address. */
function addressAt(rank) {
  const [from, first] = data.points.regions[regionAt(rank)];
  return address(first + rank - from);
}

/**
 * The ways to lay faults out from bottom to top: one file's pages, all files one above the other, or memory by address
 * without its gaps. Each has a `y` for every fault (NaN where it has none), the height of all, and names for bands.
 */
function places(faults) {
  const objects = data.points.objects;
  // A region of memory is named by the object that faulted most in it.
  const mostFaulted = (count) => {
    const [object] = [...count].reduce((most, entry) => (entry[1] > most[1] ? entry : most));
    return shortName(objects[object].path);
  };
  const waited = new Float64Array(objects.length);
  for (let i = 0; i < faults.count; i++) {
    if (faults.us[i] > 0) waited[faults.object[i]] += faults.us[i] * faults.standsFor[faults.class[i]];
  }
  const files = objects.map((object, at) => ({ ...object, at })).filter((object) => object.pages > 0);
  files.sort((a, b) => waited[b.at] - waited[a.at]);
  const layout = (y, height, label, bands) => ({ y, height: Math.max(height, 1), label, bands });
  // A large file would leave no room for the others: heights grow with the root of the pages, and have no numbers.
  const allFiles = () => {
    const roots = files.map((file) => Math.sqrt(file.pages));
    const least = roots.reduce((sum, root) => sum + root, 0) / 24;
    const base = new Float64Array(objects.length).fill(NaN), perPage = new Float64Array(objects.length);
    const bands = [];
    let height = 0;
    files.forEach((file, place) => {
      const tall = Math.max(roots[place], least);
      base[file.at] = height;
      perPage[file.at] = tall / file.pages;
      const page = (y) => Math.floor(((y - bands[place].from) * file.pages) / tall);
      bands.push({ from: height, to: height + tall, name: shortName(file.path), page });
      height += tall * 1.02;
    });
    const y = new Float64Array(faults.count);
    for (let i = 0; i < faults.count; i++) {
      const object = faults.object[i];
      y[i] = faults.page[i] === NO_PAGE ? NaN : base[object] + faults.page[i] * perPage[object];
    }
    return layout(y, height, "file, and page within it from bottom to top", bands);
  };
  const oneFile = (file) => () => {
    const y = new Float64Array(faults.count);
    for (let i = 0; i < faults.count; i++) {
      y[i] = faults.object[i] === file.at && faults.page[i] !== NO_PAGE ? faults.page[i] : NaN;
    }
    return layout(y, file.pages, "page of the file", []);
  };
  const memory = () => {
    const { regions } = data.points;
    const [drawn, , pages] = regions.at(-1) ?? [0, 0, 0];
    const counts = regions.map(() => new Map());
    for (let i = 0; i < faults.count; i++) {
      const count = counts[regionAt(faults.memory[i])], object = faults.object[i];
      count.set(object, (count.get(object) ?? 0) + faults.standsFor[faults.class[i]]);
    }
    const bands = regions.map(([from, first, length], at) => ({
      from,
      to: from + length,
      name: mostFaulted(counts[at]),
      page: (y) => address(first + Math.floor(y - from)),
    }));
    return layout(Float64Array.from(faults.memory), drawn + pages, "memory by address, without gaps; named by most faults", bands);
  };
  const choices = [];
  if (files.length > 0) choices.push({ name: "all files", group: "", make: allFiles });
  choices.push({ name: "all memory, by address", group: "", make: memory, memory: true });
  for (const file of files.slice(0, 100)) choices.push({ name: file.path, group: "one file", make: oneFile(file) });
  return choices;
}

function address(page) {
  return "0x" + (BigInt(page) * 4096n).toString(16);
}

function shortName(path) {
  return path.slice(path.lastIndexOf("/") + 1) || path;
}
