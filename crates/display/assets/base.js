// What all scripts build on: the data, the theme, numbers as text.

const data = JSON.parse(document.getElementById("data").textContent);
const FONT = '12px system-ui, "Segoe UI", Roboto, "DejaVu Sans", sans-serif';

function theme(name) {
  return getComputedStyle(document.documentElement).getPropertyValue("--" + name).trim();
}

/** A number as a tick or a tip shows it: of ticks, with as many digits as it takes to tell it from one `step` away. */
function shown(value, step) {
  if (value === 0) return "0";
  const size = Math.abs(value);
  // A step has two digits at most: 25.
  const digits = step ? Math.min(Math.max(Math.ceil(Math.log10(size / step)) + 2, 4), 15) : 4;
  if (size >= 1e9) return trimmed(value / 1e9, digits) + "G";
  if (size >= 1e6) return trimmed(value / 1e6, digits) + "M";
  if (size >= 1e4) return trimmed(value / 1e3, digits) + "k";
  return trimmed(value, digits);
}

function trimmed(value, digits = 4) {
  return Number(value.toPrecision(digits)).toString();
}

/** Milliseconds since the start as a tip shows them: to the microsecond, however late. */
function exactMs(ms) {
  return Number(ms.toFixed(3)).toString();
}

/** Microseconds in the unit that reads best. */
function duration(us) {
  if (!(us >= 0)) return "unknown";
  if (us < 1) return trimmed(us * 1000) + " ns";
  if (us < 1000) return trimmed(us) + " µs";
  if (us < 1e6) return trimmed(us / 1000) + " ms";
  return trimmed(us / 1e6) + " s";
}
