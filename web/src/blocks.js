// What every view says about blocks and their kinds, in the same words and colours.

import { bytes, count, duration, frameText } from "./format.js";
import { css, h } from "./dom.js";
import { state } from "./state.js";

/** The colour of a series. Categories and phases have fixed ones; groups take turns. */
export function colour(mode, index) {
  return css(`--${mode}-${index}`) || css("--category-7");
}

/** Where a kind of blocks was allocated, in a few words. */
export function kindPlace(history, kind) {
  const { node, phase } = history.kind(kind);
  const frame = history.userFrame(node);
  if (frame) return frameText(frame);
  const innermost = history.frames(node).find((frame) => frame[3] === 1 || frame[3] === 0);
  if (innermost) return frameText(innermost);
  return phase === "unknown" ? "no stack recorded" : `${phase}, no line of your own`;
}

/** What distinguishes kinds of the same line: the module, or the library's innermost line. */
export function kindNote(history, kind) {
  const { node, module, op } = history.kind(kind);
  if (module || op) return [module, op].filter(Boolean).join(" · ");
  const innermost = history.frames(node).find((frame) => frame[3] === 1 || frame[3] === 2);
  return innermost && innermost[3] === 1 ? `← ${frameText(innermost)}` : "";
}

/** The colour of a kind, by whatever the timeline is stacked by. */
export function kindColour(history, kind) {
  return colour(state.mode, history.detail[history.modes[state.mode].of][kind]);
}

export function lifeText(history, block) {
  const { start, end } = history.detail;
  const stays = end[block] > history.moments;
  const parts = [];
  const step = history.steps.length ? history.stepAt(start[block]) : -1;
  if (start[block] === 0) parts.push("older than the history");
  else if (step >= 0) parts.push(`made in step ${history.steps[step].number}`);
  if (stays) parts.push("never freed");
  else if (history.hasTime && start[block] > 0) parts.push(`lived ${duration(history.timeAt(end[block]) - history.timeAt(start[block]))}`);
  else parts.push(`lived ${count(end[block] - start[block], "event")}`);
  return parts.join(", ");
}

/** What is shown beside the pointer over one block. */
export function blockTip(history, block) {
  const { detail } = history;
  const kind = history.kind(detail.kind[block]);
  return [
    h("b", {}, bytes(detail.bytes[block]), " ", h("span", { class: "chip", style: { "--chip": colour("category", kind.categoryIndex) } }, kind.category)),
    h("div", { class: "quiet" }, [kind.module, kind.op, kind.phase].filter((part) => part && part !== "unknown").join(" · ")),
    h("div", { class: "quiet" }, lifeText(history, block)),
    stack(history, kind.node, 8),
  ];
}

/** A stack with the user's own lines first; `most` limits the rest. */
export function stack(history, node, most = Infinity) {
  const frames = history.frames(node);
  if (!frames.length) return h("div", { class: "quiet" }, "no stack recorded");
  const own = frames.filter((frame) => frame[3] === 2);
  // C++ frames and frames that only pass calls on say least, and are most of a stack.
  const telling = frames.filter((frame) => frame[3] === 1 || frame[3] === 2);
  const list = (some) => h("ol", { class: "all" }, some.map((frame) => h("li", { class: frame[3] === 2 ? "mine" : frame[3] === 1 ? "python" : "native", title: frame[0] }, frameText(frame))));
  const below = telling.length ? telling : frames.filter((frame) => frame[3] === 0);
  const shown = below.slice(0, Math.max(3, most));
  return h(
    "div",
    { class: "stack" },
    own.length ? h("ol", { class: "own" }, own.map((frame) => h("li", { title: frame[0] }, frameText(frame)))) : null,
    shown.length > own.length ? list(shown) : null,
    shown.length ? null : h("div", { class: "quiet" }, "autograd called this: no line of your own"),
    frames.length > shown.length && most === Infinity ? h("details", {}, h("summary", {}, `whole stack, ${frames.length} frames`), list(frames)) : null,
    frames.length > shown.length && most !== Infinity ? h("div", { class: "quiet" }, `… ${frames.length - shown.length} more`) : null,
  );
}

/** The kinds that a search finds: by module, operator, category, or any frame. */
export function matching(history, query) {
  const words = query.toLowerCase().split(/\s+/).filter(Boolean);
  const { detail } = history;
  const frameHits = words.map((word) => Uint8Array.from(detail.frames, (frame) => frameText(frame).toLowerCase().includes(word) || frame[0].toLowerCase().includes(word)));
  const { node_parent: parent, node_frame: frame } = detail;
  // A node has a word if one of its frames has: parents come before their children.
  const nodeHits = frameHits.map((hits) => {
    const found = new Uint8Array(parent.length);
    for (let node = 1; node < parent.length; node++) found[node] = found[parent[node]] || hits[frame[node]];
    return found;
  });
  const mask = new Uint8Array(detail.kind_node.length);
  for (let number = 0; number < mask.length; number++) {
    const kind = history.kind(number);
    const text = `${kind.module} ${kind.op} ${kind.category} ${kind.phase}`.toLowerCase();
    mask[number] = words.every((word, index) => text.includes(word) || nodeHits[index][kind.node]) ? 1 : 0;
  }
  return mask;
}

/** Bytes and blocks of each kind at a moment; kept until the moment changes. */
let kept = null;
export function kindsAt(history, moment) {
  if (kept && kept.history === history && kept.moment === moment) return kept;
  const { detail } = history;
  const kinds = detail.kind_node.length;
  const amounts = new Float64Array(kinds);
  const blocks = new Uint32Array(kinds);
  const alive = history.alive(moment);
  let total = 0;
  for (const block of alive) {
    amounts[detail.kind[block]] += detail.bytes[block];
    blocks[detail.kind[block]]++;
    total += detail.bytes[block];
  }
  kept = { history, moment, amounts, blocks, alive, total };
  return kept;
}

/** Whether a kind is dimmed by the selection or the search. */
export function dimmed(kind) {
  return state.selection ? !state.selection.mask[kind] : false;
}
