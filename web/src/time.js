// How a step's time divides: the GPU beside the host, the largest consumers, and a flame graph by module and kind of work.

import { percent, seconds } from "./format.js";
import { css, fill, h } from "./dom.js";
import { Flame, grower, linked, summed } from "./flame.js";
import { follow, state } from "./state.js";

const BOUNDS = { device: "the GPU", host: "the host", loading: "loading data", communication: "communication" };
/** What comes first in the flame graph, and what is within it. */
const ORDERS = {
  module: (part) => [...modules(part), part.work],
  phase: (part) => [part.phase || "no phase", ...modules(part), part.work],
  "kind of work": (part) => [part.work, ...modules(part)],
};
/** Kinds of work with a colour of their own; others share the last. */
const COLOURS = 11;

const modules = (part) => (part.module ? part.module.split(".") : [`(${part.phase || "no phase"}, no module)`]);

/** The kinds of work, the largest first, as [name, seconds]. */
function kindsOf(parts) {
  const sums = new Map();
  for (const { work, seconds } of parts) sums.set(work, (sums.get(work) ?? 0) + seconds);
  return [...sums].sort((a, b) => b[1] - a[1]);
}

/** One queue of a step as a bar: parts as [name, seconds, colour]; what is left of the step is waiting. */
function queue(title, parts, step) {
  const busy = parts.reduce((sum, [, time]) => sum + time, 0);
  const shown = [...parts, [title === "GPU" ? "waits for the host" : "waits for the GPU", step - busy, "var(--hole)"]].filter(([, time]) => time > step * 1e-3);
  const whole = Math.max(step, busy);
  return h(
    "figure",
    { class: "fill queue" },
    h("h4", {}, title),
    h("div", { class: "fill-bar", role: "img", "aria-label": `${title}: ${shown.map(([name, time]) => `${name} ${seconds(time)}`).join(", ")}` }, shown.map(([name, time, paint]) => h("i", { title: `${name}: ${seconds(time)}`, style: { width: `${(time / whole) * 100}%`, background: paint } }))),
    h("figcaption", {}, shown.map(([name, time, paint]) => h("span", {}, h("i", { style: { background: paint } }), `${name} `, h("b", {}, seconds(time)), ` ${percent(time, step)}`))),
  );
}

/** The view, or null where a page knows nothing of time. */
export function time() {
  const found = state.page.summary?.time;
  if (!found) return null;
  const step = found.step_seconds;
  const parts = found.parts ?? [];
  const kinds = kindsOf(parts);
  const number = new Map(kinds.map(([name], index) => [name, Math.min(index, COLOURS)]));
  const paint = (work) => `var(--group-${number.get(work) ?? COLOURS})`;
  let by = "module";
  let tree = null;
  let root = 0;

  const kernels = found.device_seconds - found.loading_seconds - found.communication_seconds;
  const lead = h(
    "p",
    { class: "lead" },
    h("b", {}, found.steps_differ ? `Steps differ: ${seconds(found.low)} to ${seconds(found.high)}, half of them below ${seconds(step)}` : `${seconds(step)} a step`),
    found.steps_differ ? "" : `, ${seconds(found.low)} to ${seconds(found.high)} in nine of ten cases`,
    `. What decides is ${BOUNDS[found.bound]} (${percent(found.share, 1)}). The host is ${found.host}. An estimate: nothing was computed on a GPU.`,
  );
  const queues = [
    queue("GPU", [["kernels", kernels, "var(--category-0)"], ["copies to and from the host", found.loading_seconds, "var(--category-4)"], ["communication", found.communication_seconds, "var(--category-2)"]], step),
    queue("Host", [["issues work", found.host_seconds - found.input_seconds, "var(--category-3)"], ["prepares batches", found.input_seconds, "var(--category-4)"]], step),
    found.beside_seconds ? queue("Copies beside the kernels", [["copies", found.beside_seconds, "var(--category-4)"]], step) : null,
  ];

  const flame = new Flame("Flame graph of what a step takes the GPU; the table below has the same figures by kind of work", {
    amount: seconds,
    colour: (node) => css(`--group-${tree.main[node]}`),
    lit: (node) => !state.query || tree.lit[node] > 0,
    tip: (node) => [
      h("b", {}, node === 0 ? "the whole step" : tree.nodes[node].name),
      h("div", {}, `${seconds(tree.value[node])} · ${percent(tree.value[node], tree.value[0])}`),
      h("ol", { class: "stack" }, flame.path(node).slice(0, 6).map((name) => h("li", {}, `← ${name}`))),
    ],
    picked(node) {
      root = node;
      update();
    },
  });
  const controls = h("div", { class: "controls" });
  const table = h(
    "div",
    { class: "table-box" },
    h(
      "table",
      { class: "grid static" },
      h("thead", {}, h("tr", {}, h("th", {}, "kind of work"), h("th", { class: "number" }, "GPU"), h("th", { class: "number" }, "share"), h("th", { class: "wide" }, ""))),
      h("tbody", {}, kinds.map(([name, sum]) => h("tr", {}, h("td", {}, name), h("td", { class: "number" }, seconds(sum)), h("td", { class: "number" }, percent(sum, found.device_seconds)), h("td", {}, h("span", { class: "bar wide" }, h("i", { style: { width: `${(sum / kinds[0][1]) * 100}%`, background: paint(name) } })))))),
    ),
  );
  const element = h(
    "div",
    { class: "time peak" },
    lead,
    queues,
    parts.length ? [h("header", {}, h("h3", {}, "What the GPU does"), controls), flame.element, table] : h("p", { class: "empty" }, "What modules take was not recorded."),
    found.unknown.length ? h("p", { class: "quiet" }, `Timed roughly, by their launches alone: ${found.unknown.join(", ")}`) : null,
  );

  function grown() {
    const nodes = [{ name: "step", parent: -1, depth: 0, mine: false }];
    const child = grower(nodes);
    const leaf = parts.map((part) => {
      let at = 0;
      ORDERS[by](part).forEach((name) => (at = child(at, name, () => ({ name, mine: name !== part.work || by === "kind of work" }))));
      return at;
    });
    const made = linked({ nodes });
    const value = new Float64Array(nodes.length);
    const most = new Float64Array(nodes.length * (COLOURS + 1));
    leaf.forEach((node, index) => {
      value[node] += parts[index].seconds;
      most[node * (COLOURS + 1) + number.get(parts[index].work)] += parts[index].seconds;
    });
    for (let node = nodes.length - 1; node > 0; node--) for (let kind = 0; kind <= COLOURS; kind++) most[nodes[node].parent * (COLOURS + 1) + kind] += most[node * (COLOURS + 1) + kind];
    made.value = summed(made, value);
    made.leaf = leaf;
    made.main = nodes.map((_, node) => {
      const of = most.subarray(node * (COLOURS + 1), (node + 1) * (COLOURS + 1));
      return of.indexOf(Math.max(...of));
    });
    return made;
  }

  function update() {
    if (!parts.length || (state.tab !== "time" && !document.body.classList.contains("printing"))) return;
    tree ??= grown();
    const words = state.query.toLowerCase().split(/\s+/).filter(Boolean);
    const has = (part) => words.every((word) => `${part.phase} ${part.module} ${part.work}`.toLowerCase().includes(word));
    const lit = new Float64Array(tree.nodes.length);
    parts.forEach((part, index) => has(part) && (lit[tree.leaf[index]] += part.seconds));
    tree.lit = summed(tree, lit);
    fill(controls,
      h(
        "div",
        { class: "segmented", role: "group", "aria-label": "Flame graph by" },
        Object.keys(ORDERS).map((name) =>
          h("button", { type: "button", "aria-pressed": String(name === by), onclick: () => {
            by = name;
            tree = null;
            root = 0;
            update();
          } }, name),
        ),
      ),
      root ? h("button", { type: "button", class: "plain", onclick: () => flame.about.picked(0) }, "show all") : "",
    );
    flame.show(tree, root);
  }

  follow((changed) => {
    if (["history", "query", "theme", "tab"].some((name) => changed.has(name))) update();
  });
  return { element, update, redraw: () => flame.surface.now() };
}
