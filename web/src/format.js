// Formats amounts and names by the same rules as the terminal.

const UNITS = ["KiB", "MiB", "GiB", "TiB"];

/** `27.3 GiB`, `512 B`. */
export function bytes(amount) {
  const size = Math.abs(amount);
  const sign = amount < 0 ? "−" : "";
  if (size < 1024) return `${sign}${Math.round(size)} B`;
  let value = size / 1024;
  let unit = 0;
  while (value >= 1023.95 && unit + 1 < UNITS.length) {
    value /= 1024;
    unit++;
  }
  return `${sign}${value.toFixed(1)} ${UNITS[unit]}`;
}

/** `+1.2 GiB`, `−3.4 MiB`. */
export function signed(amount) {
  return amount > 0 ? `+${bytes(amount)}` : amount < 0 ? bytes(amount) : "±0 B";
}

/** Microseconds: `1.234 s`, `12.3 ms`. `step` is the resolution. */
export function duration(us, step = us / 100) {
  const pick = (unit, name) => {
    const digits = Math.max(0, Math.min(3, Math.ceil(-Math.log10(step / unit) - 0.01)));
    return `${(us / unit).toFixed(digits)} ${name}`;
  };
  const size = Math.abs(us);
  if (size >= 120e6) {
    const minutes = Math.floor(us / 60e6);
    const seconds = (us - minutes * 60e6) / 1e6;
    const digits = Math.max(0, Math.min(6, Math.ceil(-Math.log10(step / 1e6) - 0.01)));
    return `${minutes} min ${seconds.toFixed(digits)} s`;
  }
  if (size >= 1e6) return pick(1e6, "s");
  if (size >= 1e3) return pick(1e3, "ms");
  return us === 0 ? "0" : pick(1, "µs");
}

/** Seconds with three digits, as the terminal writes them: `38.2 ms`. */
export function seconds(value) {
  const [scaled, unit] = value < 1e-3 ? [value * 1e6, "µs"] : value < 1 ? [value * 1e3, "ms"] : value < 120 ? [value, "s"] : value < 7200 ? [value / 60, "min"] : [value / 3600, "h"];
  return `${scaled.toFixed(scaled >= 99.95 ? 0 : scaled >= 9.995 ? 1 : 2)} ${unit}`;
}

export function count(number, one, many = `${one}s`) {
  return `${number.toLocaleString("en")} ${number === 1 ? one : many}`;
}

export function percent(part, whole) {
  if (!whole) return "0 %";
  const share = (part / whole) * 100;
  return `${share > 0 && share < 0.1 ? "< 0.1" : share.toFixed(share < 10 ? 1 : 0)} %`;
}

/** The last part of a path. */
export function base(path) {
  return path.slice(Math.max(path.lastIndexOf("/"), path.lastIndexOf("\\")) + 1);
}

/** A frame of `[file, function, line, kind]`. */
export function frameText([file, name, line]) {
  const place = line ? `${base(file)}:${line}` : base(file);
  if (!name || name === "<module>") return place;
  return place && place !== "??" ? `${name}  ${place}` : name;
}

/** Steps of 1, 2, 5 × 10ⁿ that give about `wanted` ticks. */
export function niceStep(range, wanted) {
  const rough = range / Math.max(1, wanted);
  const power = 10 ** Math.floor(Math.log10(rough));
  const rest = rough / power;
  return (rest <= 1 ? 1 : rest <= 2 ? 2 : rest <= 5 ? 5 : 10) * power;
}

/** Steps of 1, 2, 4, 8… bytes times a unit, for axes in binary units. */
export function niceBytes(range, wanted) {
  const rough = range / Math.max(1, wanted);
  return 2 ** Math.ceil(Math.log2(Math.max(1, rough)));
}
