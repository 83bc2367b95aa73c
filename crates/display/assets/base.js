// What all scripts build on: the data, the theme, numbers as text.

const data = JSON.parse(document.getElementById("data").textContent);
const FONT = '12px system-ui, "Segoe UI", Roboto, "DejaVu Sans", sans-serif';

function theme(name) {
  return getComputedStyle(document.documentElement).getPropertyValue("--" + name).trim();
}

/** A number as a tick or a tip shows it. */
function shown(value) {
  if (value === 0) return "0";
  const size = Math.abs(value);
  if (size >= 1e9) return trimmed(value / 1e9) + "G";
  if (size >= 1e6) return trimmed(value / 1e6) + "M";
  if (size >= 1e4) return trimmed(value / 1e3) + "k";
  return trimmed(value);
}

function trimmed(value) {
  return Number(value.toPrecision(4)).toString();
}

/** Microseconds in the unit that reads best. */
function duration(us) {
  if (!(us >= 0)) return "unknown";
  if (us < 1) return trimmed(us * 1000) + " ns";
  if (us < 1000) return trimmed(us) + " µs";
  if (us < 1e6) return trimmed(us / 1000) + " ms";
  return trimmed(us / 1e6) + " s";
}
