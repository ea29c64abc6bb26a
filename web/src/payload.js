// Reads what crates/oomph-report/src/html/payload.rs writes; the layout is described there.

const MAGIC = "OOMPHRPT";
const VERSION = 1;

/** The element's bytes; the element is emptied, since the text is large. */
async function embedded(id) {
  const element = document.getElementById(`oomph-${id}`);
  if (!element) return null;
  const text = element.textContent;
  element.remove();
  try {
    // The browser's own decoder is many times faster than a loop.
    return (await fetch(`data:application/octet-stream;base64,${text}`)).body;
  } catch {
    const binary = atob(text);
    const bytes = Uint8Array.from(binary, (letter) => letter.charCodeAt(0));
    return new Blob([bytes]).stream();
  }
}

/** One column: unsigned numbers of up to 48 bits, as byte planes. */
function column(bytes, at, count, width, differences) {
  const wide = width > 4;
  if (!differences && width <= 4) {
    const values = width <= 1 ? new Uint8Array(count) : width === 2 ? new Uint16Array(count) : new Uint32Array(count);
    for (let plane = 0; plane < width; plane++) {
      const from = at + plane * count;
      const shift = 8 * plane;
      for (let row = 0; row < count; row++) values[row] |= bytes[from + row] << shift;
    }
    return values;
  }
  const raw = wide ? new Float64Array(count) : new Uint32Array(count);
  for (let plane = 0; plane < width; plane++) {
    const from = at + plane * count;
    if (wide) {
      const factor = 2 ** (8 * plane);
      for (let row = 0; row < count; row++) raw[row] += bytes[from + row] * factor;
    } else {
      const shift = 8 * plane;
      for (let row = 0; row < count; row++) raw[row] |= bytes[from + row] << shift;
    }
  }
  if (!differences) return raw;
  const values = new Float64Array(count);
  let value = 0;
  for (let row = 0; row < count; row++) {
    const zigzag = raw[row];
    value += zigzag % 2 ? -(zigzag + 1) / 2 : zigzag / 2;
    values[row] = value;
  }
  return values;
}

/** `{head, columns}` of a payload, or `null` if the page has none of that name. */
export async function unpack(id) {
  const body = await embedded(id);
  if (!body) return null;
  const stream = body.pipeThrough(new DecompressionStream("deflate"));
  const buffer = await new Response(stream).arrayBuffer();
  const view = new DataView(buffer);
  const bytes = new Uint8Array(buffer);
  const text = new TextDecoder();
  if (text.decode(bytes.subarray(0, 8)) !== MAGIC || view.getUint16(8, true) !== VERSION) {
    throw new Error(`${id}: expected report data of version ${VERSION}`);
  }
  const length = view.getUint32(10, true);
  const head = JSON.parse(text.decode(bytes.subarray(14, 14 + length)));
  const columns = {};
  let at = 14 + length;
  for (const [name, count, width, differences] of head.columns) {
    columns[name] = column(bytes, at, count, width, differences);
    at += width * count;
  }
  return { head, columns };
}
