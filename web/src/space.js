// The address space at the chosen moment: segments as bands, blocks in them, holes between.

import { bytes, count, duration, niceBytes, percent } from "./format.js";
import { Surface, css, fill, h, tooltip } from "./dom.js";
import { change, follow, selectBlock, state } from "./state.js";
import { blockTip, kindColour } from "./blocks.js";
import { failure } from "./timeline.js";

const GRAIN = 512;
const BAND = 20;
const GAP = 5;
const LEFT = 74;

export function space() {
  const canvas = h("canvas", { class: "space", tabindex: "0", role: "img", "aria-label": "Address space: blocks within the reserved segments" });
  const slider = h("input", { type: "range", min: "0", step: "1", "aria-label": "Moment", oninput: () => change({ moment: Number(slider.value) }) });
  const when = h("output", {});
  const facts = h("dl", { class: "facts" });
  const empty = h("p", { class: "empty" });
  const element = h("div", { class: "space-view" }, facts, h("div", { class: "slider" }, slider, when), empty, canvas);
  const surface = new Surface(canvas, draw);
  let rowBytes = 1;
  let map = null;
  let placed = [];

  follow((changed) => {
    if (changed.has("history") || changed.has("loaded")) map = null;
    if (["history", "loaded", "moment", "mode", "selection", "block", "theme", "tab"].some((name) => changed.has(name))) update();
  });

  function update() {
    const { history } = state;
    if (!history || (state.tab !== "space" && !document.body.classList.contains("printing"))) return;
    const { detail } = history;
    const shows = Boolean(detail?.has_space);
    for (const part of [canvas, slider, when, facts]) part.hidden = !shows;
    empty.textContent = shows ? "" : !detail ? "Unpacking the blocks…" : "This history has no segments (profiler traces have none), so it has no address space to show.";
    if (!shows) return;
    slider.max = String(history.moments);
    slider.value = String(state.moment);
    const parts = [`event ${state.moment.toLocaleString("en")} of ${history.moments.toLocaleString("en")}`];
    if (history.hasTime) parts.push(duration(history.timeAt(state.moment), history.head.span / 1000));
    when.textContent = parts.join(" · ");
    map ??= layout(history);
    const rows = Math.ceil(map.total / rowBytes);
    canvas.style.height = `${Math.max(1, rows) * (BAND + GAP) + 4}px`;
    summarize(history);
    surface.request();
  }

  /** Where each extent lies on the line without gaps. */
  function layout(history) {
    const { extent_addr: addresses, extent_size: sizes } = history.detail;
    const offsets = new Float64Array(sizes.length);
    let total = 0;
    for (let extent = 0; extent < sizes.length; extent++) {
      offsets[extent] = total;
      total += sizes[extent];
    }
    rowBytes = Math.max(1 << 20, niceBytes(total, 24));
    return { addresses, sizes, offsets, total };
  }

  function offsetOf(address) {
    let [low, high] = [0, map.addresses.length - 1];
    while (low < high) {
      const middle = (low + high + 1) >> 1;
      if (map.addresses[middle] <= address) low = middle;
      else high = middle - 1;
    }
    return map.offsets[low] + (address - map.addresses[low]);
  }

  function addressOf(offset) {
    let [low, high] = [0, map.offsets.length - 1];
    while (low < high) {
      const middle = (low + high + 1) >> 1;
      if (map.offsets[middle] <= offset) low = middle;
      else high = middle - 1;
    }
    return map.addresses[low] + (offset - map.offsets[low]);
  }

  /** Pieces of segments at the moment: [offset, size], by offset. */
  function pieces(history) {
    const { piece_addr: addresses, piece_size: sizes, piece_start: starts, piece_end: ends } = history.detail;
    const found = [];
    for (let piece = 0; piece < addresses.length; piece++) {
      if (starts[piece] <= state.moment && state.moment < ends[piece]) found.push([offsetOf(addresses[piece]), sizes[piece]]);
    }
    return found.sort((a, b) => a[0] - b[0]);
  }

  function current(history) {
    const { detail } = history;
    const blocks = history
      .alive(state.moment)
      .filter((block) => detail.place[block] > 0)
      .map((block) => [(detail.place[block] - 1) * GRAIN, detail.bytes[block], block])
      .sort((a, b) => a[0] - b[0]);
    return { blocks, segments: pieces(history) };
  }

  function summarize(history) {
    const { blocks, segments } = current(history);
    // Holes: parts of a segment that no block covers.
    let largest = 0;
    let holes = 0;
    let free = 0;
    let next = 0;
    const hole = (size) => {
      if (size <= 0) return;
      holes++;
      free += size;
      largest = Math.max(largest, size);
    };
    for (const [offset, size] of segments) {
      let at = offset;
      while (next < blocks.length && blocks[next][0] < offset + size) {
        hole(blocks[next][0] - at);
        at = Math.max(at, blocks[next][0] + blocks[next][1]);
        next++;
      }
      hole(offset + size - at);
    }
    const reserved = segments.reduce((sum, [, size]) => sum + size, 0);
    const failed = failure(history);
    const fact = (name, value) => h("div", {}, h("dt", {}, name), h("dd", {}, value));
    fill(facts,
      fact("reserved", bytes(reserved)),
      fact("in use", bytes(reserved - free)),
      fact("free within", `${bytes(free)} (${percent(free, reserved)})`),
      fact("largest hole", bytes(largest)),
      fact("holes", holes.toLocaleString("en")),
      fact("segments", segments.length.toLocaleString("en")),
      failed && Math.abs(failed.moment - state.moment) <= 1 ? fact("asked for", h("b", { class: "bad" }, bytes(failed.bytes))) : "",
    );
  }

  /** Calls `draw(x, y, width)` for each row that a range of the line touches. */
  function bands(offset, size, width, draw) {
    let from = offset;
    const end = offset + size;
    while (from < end) {
      const row = Math.floor(from / rowBytes);
      const to = Math.min(end, (row + 1) * rowBytes);
      const x = LEFT + ((from - row * rowBytes) / rowBytes) * (width - LEFT - 4);
      draw(x, row * (BAND + GAP), Math.max(0.75, ((to - from) / rowBytes) * (width - LEFT - 4)));
      from = to;
    }
  }

  function draw(context, width) {
    const { history } = state;
    if (!history?.detail?.has_space || !map) return;
    const { detail } = history;
    const { blocks, segments } = current(history);
    placed = blocks;
    context.font = css("--font-small");
    context.textBaseline = "middle";
    context.textAlign = "right";
    context.fillStyle = css("--quiet");
    const rows = Math.ceil(map.total / rowBytes);
    for (let row = 0; row < rows; row++) context.fillText(row ? bytes(row * rowBytes).replace(".0 ", " ") : "0", LEFT - 8, row * (BAND + GAP) + BAND / 2);
    for (let extent = 0; extent < map.sizes.length; extent++) {
      context.fillStyle = css("--unmapped");
      bands(map.offsets[extent], map.sizes[extent], width, (x, y, wide) => context.fillRect(x, y + BAND / 2 - 1, wide, 2));
    }
    for (const [offset, size] of segments) {
      context.fillStyle = css("--hole");
      bands(offset, size, width, (x, y, wide) => {
        context.fillRect(x, y, wide, BAND);
      });
    }
    const mask = state.selection?.mask;
    for (const [offset, size, block] of blocks) {
      const kind = detail.kind[block];
      context.globalAlpha = (mask && !mask[kind]) ? 0.25 : 1;
      context.fillStyle = kindColour(history, kind);
      bands(offset, size, width, (x, y, wide) => context.fillRect(x, y, wide > 3 ? wide - 0.5 : wide, BAND));
    }
    context.globalAlpha = 1;
    context.strokeStyle = css("--edge");
    context.lineWidth = 1;
    for (const [offset] of segments) {
      bands(offset, 1, width, (x, y) => {
        context.beginPath();
        context.moveTo(Math.round(x) + 0.5, y - 1.5);
        context.lineTo(Math.round(x) + 0.5, y + BAND + 1.5);
        context.stroke();
      });
    }
    if (state.block !== null) {
      const chosen = blocks.find(([, , block]) => block === state.block);
      context.strokeStyle = css("--ink");
      context.lineWidth = 2;
      if (chosen) bands(chosen[0], chosen[1], width, (x, y, wide) => context.strokeRect(x, y, Math.max(2, wide), BAND));
    }
  }

  function offsetUnder(event) {
    const bounds = canvas.getBoundingClientRect();
    const row = Math.floor((event.clientY - bounds.top) / (BAND + GAP));
    const share = (event.clientX - bounds.left - LEFT) / (bounds.width - LEFT - 4);
    if (share < 0 || share > 1) return null;
    return (row + share) * rowBytes;
  }

  function under(event) {
    const offset = offsetUnder(event);
    if (offset === null || !map) return null;
    let [low, high] = [0, placed.length - 1];
    while (low < high) {
      const middle = (low + high + 1) >> 1;
      if (placed[middle][0] <= offset) low = middle;
      else high = middle - 1;
    }
    const found = placed[low];
    return found && found[0] <= offset && offset < found[0] + found[1] ? found[2] : null;
  }

  canvas.addEventListener("pointermove", (event) => {
    const block = under(event);
    if (block !== null) return tooltip(event, blockTip(state.history, block));
    const offset = offsetUnder(event);
    if (offset === null || offset >= map.total) return tooltip(event, null);
    const segment = pieces(state.history).find(([from, size]) => from <= offset && offset < from + size);
    const address = `0x${addressOf(Math.floor(offset)).toString(16)}`;
    tooltip(event, segment ? [h("b", {}, "free"), h("div", { class: "quiet" }, `${address}, in a segment of ${bytes(segment[1])}`)] : [h("b", {}, "not reserved"), h("div", { class: "quiet" }, `${address}, at another moment a segment`)]);
  });
  canvas.addEventListener("pointerleave", (event) => tooltip(event, null));
  canvas.addEventListener("click", (event) => selectBlock(under(event)));
  canvas.addEventListener("keydown", (event) => {
    const by = { ArrowLeft: -1, ArrowRight: 1, PageDown: Math.ceil(state.history.moments / 50), PageUp: -Math.ceil(state.history.moments / 50) }[event.key];
    if (!by) return;
    event.preventDefault();
    change({ moment: Math.max(0, Math.min(state.history.moments, state.moment + by)) });
  });

  return { element, update, redraw: () => surface.now(), facts: () => Object.fromEntries([...facts.children].map((row) => [row.children[0].textContent, row.children[1].textContent])), count };
}
