// The verdict: one sentence, the numbers, the cause, what helps.

import { base, bytes, count, percent, signed } from "./format.js";
import { h } from "./dom.js";
import { change, state } from "./state.js";
import { colour } from "./blocks.js";
import { failure } from "./timeline.js";
import { amountBar } from "./tables.js";

/** Categories of a run's summary: their names and colours. */
const PARTS = [
  ["parameters", "parameters", 0],
  ["gradients", "gradients", 1],
  ["optimizer_state", "optimizer state", 2],
  ["activations", "activations", 3],
  ["inputs", "inputs", 4],
  ["workspace", "workspace", 5],
  ["other", "other", 6],
  ["cached", "cached, unused", "cached"],
  ["outside_allocator", "not PyTorch's", "outside"],
  ["other_processes", "other processes", "processes"],
  ["cuda_context", "CUDA context", "context"],
];

/** What each step leaves behind. */
function grows({ bytes_per_step, place, full_at_step }) {
  return `it grows by ${bytes(bytes_per_step)} a step${place ? ` (${base(place)})` : ""}, full near step ${full_at_step.toLocaleString("en")}`;
}

function sentence() {
  const { summary, explanation, diff, kind } = state.page;
  if (kind === "diff") return { mark: "Δ", tone: "neutral", text: diff.verdict };
  if (!summary) {
    if (!explanation) return { mark: "·", tone: "neutral", text: "A memory history" };
    return { mark: explanation.out_of_memory ? "✗" : "✓", tone: explanation.out_of_memory ? "bad" : "good", text: explanation.verdict };
  }
  const steps = count(summary.step_count, "step");
  if (summary.verdict === "fits") {
    if (!summary.peak.used_bytes) return { mark: "✓", tone: "good", text: "The script used no GPU memory" };
    if (summary.growth) return { mark: "!", tone: "warn", text: `It fits for ${steps}; ${grows(summary.growth)}` };
    return { mark: "✓", tone: "good", text: summary.basis === "whole_script" ? "It fits: the whole script ran" : `It fits, if later steps are like the last of the ${steps}` };
  }
  if (summary.verdict === "no_verdict") return { mark: "?", tone: "warn", text: "No verdict: the script was ended before two steps were alike" };
  if (summary.verdict === "script_failed") return { mark: "✗", tone: "bad", text: "The script failed; this is its memory until then" };
  const { oom } = summary;
  if (!oom && summary.growth) return { mark: "✗", tone: "bad", text: `It runs out of memory in a later step: ${grows(summary.growth)}` };
  const place = oom ? ` in step ${oom.step}, ${oom.phase}${oom.module ? `, at ${oom.module}` : ""}${oom.location ? ` (${base(oom.location)})` : ""}` : "";
  return { mark: "✗", tone: "bad", text: `Out of memory${place}` };
}

function numbers() {
  const { summary, explanation, diff } = state.page;
  const facts = [];
  const add = (name, value, tone) => facts.push(h("div", { class: tone ?? "" }, h("dt", {}, name), h("dd", {}, value)));
  if (diff) {
    add("in use at the peak", `${bytes(diff.live_bytes[0])} → ${bytes(diff.live_bytes[1])}`);
    add("peak reserved", `${bytes(diff.peak_reserved_bytes[0])} → ${bytes(diff.peak_reserved_bytes[1])}`);
  } else if (summary) {
    const { peak, gpu, oom } = summary;
    const failed = summary.verdict === "out_of_memory";
    if (peak.used_bytes) add(failed && oom ? "needed" : "peak", `${peak.lower_bound ? "at least " : ""}${bytes(peak.used_bytes)}`);
    add("capacity", bytes(gpu.memory_bytes));
    if (failed && oom?.short_bytes) add("too much", bytes(oom.short_bytes), "bad");
    if (!failed && !peak.lower_bound && peak.used_bytes) add("to spare", `${bytes(Math.max(0, gpu.memory_bytes - peak.used_bytes))} (${percent(Math.max(0, gpu.memory_bytes - peak.used_bytes), gpu.memory_bytes)})`, "good");
    if (peak.allocated_bytes) add("in tensors", bytes(peak.allocated_bytes));
    if (summary.peak_phase) add("peak reached", `step ${summary.peak_step}, ${summary.peak_phase}`);
  } else if (explanation) {
    const { peak } = explanation;
    add(explanation.out_of_memory ? "in use" : "peak", bytes(peak.live_bytes));
    if (peak.request_bytes) add("asked for", bytes(peak.request_bytes), "bad");
    if (peak.reserved_bytes) add("reserved", bytes(peak.reserved_bytes));
    if (peak.unused_bytes) add("reserved, unused", bytes(peak.unused_bytes));
    if (peak.room_at_least_bytes) add("room for", bytes(peak.room_at_least_bytes));
    else if (peak.device_total_bytes) add("device", bytes(peak.device_total_bytes));
  }
  return h("dl", { class: "facts" }, facts);
}

/** One bar: what fills the GPU at the peak, against its capacity. */
function fillBar() {
  const { summary, explanation } = state.page;
  let parts;
  let capacity = null;
  if (summary?.peak.used_bytes) {
    parts = PARTS.map(([id, name, index]) => [name, summary.by_category[id] ?? 0, index]);
    capacity = summary.gpu.memory_bytes;
  } else if (explanation?.peak.categories?.length && state.histories[0]) {
    const { categories } = state.histories[0].head;
    parts = explanation.peak.categories.map(({ category, bytes }) => {
      const index = categories.findIndex((name) => name === category.replace("_", " "));
      return [index < 0 ? category : categories[index], bytes, Math.max(0, index)];
    });
    if (explanation.peak.unused_bytes) parts.push(["reserved, unused", explanation.peak.unused_bytes, "cached"]);
    if (explanation.peak.request_bytes) parts.push(["asked for", explanation.peak.request_bytes, "request"]);
    capacity = explanation.peak.device_total_bytes ?? explanation.peak.room_at_least_bytes ?? null;
  } else return null;
  parts = parts.filter(([, amount]) => amount > 0);
  const sum = parts.reduce((total, [, amount]) => total + amount, 0);
  const whole = Math.max(sum, capacity ?? 0) || 1;
  const paint = (index) => (typeof index === "number" ? colour("category", index) : `var(--${index})`);
  return h(
    "figure",
    { class: "fill" },
    h(
      "div",
      { class: "fill-bar", role: "img", "aria-label": parts.map(([name, amount]) => `${name} ${bytes(amount)}`).join(", ") },
      parts.map(([name, amount, index]) => h("i", { title: `${name}: ${bytes(amount)}`, style: { width: `${(amount / whole) * 100}%`, background: paint(index) } })),
      capacity && capacity < whole * 0.995 ? h("em", { style: { left: `${(capacity / whole) * 100}%` } }) : null,
    ),
    capacity && capacity < whole * 0.995 ? h("div", { class: capacity < whole * 0.15 ? "fill-mark right" : "fill-mark", style: { left: `${(capacity / whole) * 100}%` } }, `capacity ${bytes(capacity)}`) : null,
    h(
      "figcaption",
      {},
      [...parts].sort((a, b) => b[1] - a[1]).map(([name, amount, index]) => h("span", {}, h("i", { style: { background: paint(index) } }), `${name} `, h("b", {}, bytes(amount)))),
    ),
  );
}

/** The members of a job, a row each, which fold up where they are many. */
function members(title, notes, heads, rows) {
  const table = h("table", { class: "grid static" }, h("thead", {}, h("tr", {}, heads)), h("tbody", {}, rows));
  return h("details", { class: "ranks", open: rows.length <= 16 }, h("summary", {}, title), notes, h("div", { class: "table-box" }, table));
}

/** Each rank of a distributed job: its peak, and which rank differs or failed. */
function ranks() {
  const { summary } = state.page;
  if (!summary?.ranks?.length) return null;
  const { ranks: all, outlier, culprit } = summary;
  const capacity = summary.gpu.memory_bytes;
  const most = Math.max(capacity, ...all.map((rank) => rank.peak.used_bytes));
  const states = { fits: "fits", out_of_memory: "out of memory", script_failed: "failed", refused: "refused", no_verdict: "no verdict" };
  const row = (rank) =>
    h(
      "tr",
      { class: rank.rank === (culprit ?? outlier)?.rank ? "best" : "" },
      h("td", { class: "number" }, String(rank.rank)),
      h("td", { class: "number" }, rank.peak.used_bytes ? bytes(rank.peak.used_bytes) : "–"),
      h("td", {}, amountBar(rank.peak.used_bytes, most, capacity)),
      h("td", { class: rank.verdict === "fits" ? "good" : "quiet" }, rank.terminated ? "ended by its launcher" : states[rank.verdict]),
    );
  const parts = (outlier?.by_category ?? []).slice(0, 3).map((part) => `${PARTS.find(([id]) => id === part.name)?.[1] ?? part.name} ${signed(part.bytes)}`);
  return members(
    count(all.length, "rank"),
    [
      outlier ? h("p", {}, h("b", {}, `rank ${outlier.rank}`), ` differs from the others by ${signed(outlier.difference_bytes)}`, parts.length ? ` (${parts.join(", ")})` : "") : null,
      culprit ? h("p", {}, h("b", {}, `rank ${culprit.rank}`), " made the others fail", culprit.failure ? `: ${culprit.failure.split("\n")[0]}` : "") : null,
    ],
    [h("th", { class: "number" }, "rank"), h("th", { class: "number" }, "peak"), h("th", { class: "wide" }, ""), h("th", {}, "")],
    all.map(row),
  );
}

/** Each process of a run whose processes share the GPU. */
function processes() {
  const { summary } = state.page;
  const all = summary?.processes ?? [];
  if (!all.length) return null;
  const capacity = summary.gpu.memory_bytes;
  const row = (process) =>
    h(
      "tr",
      {},
      h("td", { class: "number" }, String(process.process)),
      h("td", { class: "number" }, bytes(process.held_bytes)),
      h("td", {}, amountBar(process.held_bytes, capacity, capacity)),
      h("td", {}, h("code", {}, process.command)),
      h("td", { class: "quiet" }, process.out_of_memory ? "out of memory" : process.recorded ? "" : "not recorded"),
    );
  return members(
    `${count(all.length, "process", "processes")} on one GPU`,
    [],
    [h("th", { class: "number" }, "process"), h("th", { class: "number" }, "at the peak"), h("th", { class: "wide" }, ""), h("th", {}, "command"), h("th", {}, "")],
    all.map(row),
  );
}

function cause() {
  const { explanation } = state.page;
  const found = explanation?.cause;
  if (!found) return null;
  const others = (explanation.causes ?? []).slice(1).filter((other) => other.confidence >= 0.3);
  return h(
    "div",
    { class: "cause" },
    h("h3", {}, "Why"),
    state.page.summary ? h("p", { class: "lead" }, found.verdict) : null,
    h("p", { class: "quiet" }, h("code", {}, found.id), ` · confidence ${Math.round(found.confidence * 100)} %`, others.length ? ` · also possible: ${others.map((other) => `${other.id} (${Math.round(other.confidence * 100)} %)`).join(", ")}` : ""),
    h(
      "ul",
      { class: "evidence" },
      (found.evidence ?? []).filter((item) => !/^\d+ blocks?$/.test(item.what)).slice(0, 6).map((item) =>
        h("li", {}, item.bytes !== undefined && item.bytes !== null ? h("b", {}, bytes(item.bytes), " ") : null, item.what, item.stack?.length ? h("div", { class: "quiet" }, item.stack.join(" ← ")) : null),
      ),
    ),
  );
}

function fixes() {
  const found = state.page.explanation?.fixes ?? [];
  if (!found.length) return null;
  return h(
    "div",
    { class: "fixes" },
    h("h3", {}, "What helps"),
    h(
      "ol",
      {},
      found.slice(0, 6).map((fix) =>
        h(
          "li",
          {},
          fix.what,
          h("b", { class: "good" }, ` saves ${fix.basis === "estimated" ? "about " : ""}${bytes(fix.saves_bytes)}`),
          fix.enough ? h("b", { class: "good" }, ", enough alone") : fix.left_bytes ? `, ${bytes(fix.left_bytes)} still too much` : null,
          h("span", { class: "quiet" }, ` · ${fix.same_result} · ${fix.basis}`),
          fix.apply ? h("pre", {}, fix.apply) : null,
        ),
      ),
    ),
  );
}

function notes() {
  const { summary, explanation } = state.page;
  const list = [];
  for (const item of summary?.assumptions ?? []) list.push(["assumed", `${item.what}${item.location ? ` (${base(item.location)})` : ""}${item.count > 1 ? `, ${item.count} ×` : ""}`]);
  for (const item of explanation?.assumptions ?? []) list.push(["assumed", item]);
  if (explanation?.cause && explanation.lower_bound) list.push(["note", `the figures of causes and fixes are lower bounds: ${explanation.without_limit ? "the run without a limit did not come to an end either" : "they come from the run that was cut off"}`]);
  for (const item of explanation?.message?.corrections ?? []) list.push(["the message", item]);
  for (const item of explanation?.problems ?? []) list.push(["note", item.message]);
  if (summary?.failure) list.push(["error", summary.failure]);
  for (const history of state.histories) {
    if (history.head.left_out) list.push(["note", `${history.head.name}: ${count(history.head.left_out, "block")} below ${bytes(history.head.left_out_below)} count in the sums but are not shown individually`]);
  }
  if (!list.length) return null;
  return h(
    "details",
    { class: "notes", open: list.length <= 2 },
    h("summary", {}, `Assumptions and notes (${list.length})`),
    h("ul", {}, list.map(([name, text]) => h("li", {}, h("b", {}, name), " ", text))),
  );
}

function about() {
  const { summary, page = state.page } = { summary: state.page.summary };
  const parts = [];
  if (summary) {
    parts.push(`${summary.gpu.virtual ? "virtual " : ""}${summary.gpu.name}`, bytes(summary.gpu.memory_bytes));
    for (const name of ["torch", "jax", "cupy"]) if (summary.versions?.[name]) parts.push(`${name} ${summary.versions[name].split("+")[0]}`);
    if (!summary.framework) parts.push(count(summary.step_count, "step"));
    parts.push(`${summary.seconds.toFixed(1)} s`);
  } else {
    const [history] = state.histories;
    if (history?.head.device_name) parts.push(history.head.device_name);
    if (history) parts.push(count(history.head.events, "event"), `device ${history.head.device}`);
  }
  if (page.redacted) parts.push("names and paths replaced");
  return parts.join(" · ");
}

export function verdict() {
  const { mark, tone, text } = sentence();
  const why = cause();
  const what = fixes();
  const failed = state.histories[0] && failure(state.histories[0]);
  return h(
    "section",
    { class: `card verdict ${tone}`, id: "verdict", "aria-label": "Verdict" },
    h("p", { class: "about" }, about()),
    h("h1", {}, h("span", { class: "mark", "aria-hidden": "true" }, mark), h("span", {}, text)),
    numbers(),
    fillBar(),
    ranks(),
    processes(),
    why || what ? h("div", { class: "two" }, why, what) : null,
    failed ? h("p", { class: "jump" }, h("button", { type: "button", class: "plain", onclick: () => change({ moment: failed.moment, tab: "peak" }) }, "Show the failure in the views below")) : null,
    notes(),
  );
}
