// Assembles the page and handles the keyboard.

import { unpack } from "./payload.js";
import { bytes, count } from "./format.js";
import { fill, forgetColours, h, tooltip } from "./dom.js";
import { History } from "./history.js";
import { axesOf, axisRange, change, clearSelection, follow, selectKinds, state } from "./state.js";
import { blockTip, colour, kindNote, kindPlace, kindsAt, lifeText, matching, stack } from "./blocks.js";
import { failure, firstStep, timeline } from "./timeline.js";
import { peak } from "./peak.js";
import { space } from "./space.js";
import { growth } from "./growth.js";
import { time } from "./time.js";
import { difference, plans, whatIf } from "./tables.js";
import { verdict } from "./verdict.js";

const HELP = [
  ["← →", "pan the timeline"],
  ["+ −", "zoom"],
  ["0", "show everything"],
  ["p", "go to the peak or the failure"],
  ["Shift ← →", "one event back or forward (timeline focused)"],
  ["1 … 8", "the view below"],
  ["/", "search names, modules, lines"],
  ["Esc", "clear selection and search"],
  ["t", "dark or light"],
  ["?", "this list"],
];

async function start() {
  const app = document.getElementById("app");
  if (typeof DecompressionStream === "undefined") {
    fill(app, h("p", { class: "loading" }, "This report needs a browser from 2023 or later."));
    return;
  }
  const found = await unpack("page");
  if (!found) {
    fill(app, h("p", { class: "loading" }, "This file contains no report data."));
    return;
  }
  const page = found.head;
  state.page = page;
  document.title = `${page.title} · oomph`;
  for (let number = 0; number < page.histories; number++) {
    const history = await History.open(number);
    if (history) state.histories.push(history);
  }
  theme();
  const has = state.histories.length > 0;
  const lines = has ? timeline() : null;
  const tabs = has ? views() : { element: tables(), redraw() {} };
  const inspector = has ? inspect() : null;
  fill(app,
    top(),
    verdict(),
    ...(has ? [lines.element, h("div", { class: "below" }, tabs.element, inspector)] : [tabs.element]),
    h("footer", {}, `oomph ${page.oomph}`, " · this file is self-contained and works offline"),
  );
  app.removeAttribute("aria-busy");
  keyboard(lines, tabs);
  if (!has) {
    document.body.dataset.ready = "true";
    return;
  }
  show(state.histories[0]);
  printing(() => {
    tabs.redraw();
    lines.redraw();
  });
  window.oomph = { state, change, history: () => state.history, lines, tabs };
  // First what is visible, then every block.
  await new Promise((done) => requestAnimationFrame(() => setTimeout(done)));
  performance.mark("oomph-overview");
  const opened = state.view;
  for (const history of state.histories) {
    await history.load();
    if (history === state.history) {
      // Times are exact only now; a view that nobody has moved follows.
      const view = state.view === opened ? opening(history) : state.view;
      change({ loaded: performance.now(), view });
      performance.mark("oomph-detail");
    }
  }
  change({ loaded: performance.now() });
  document.body.dataset.ready = "true";
}

function show(history) {
  const axes = axesOf(history);
  // A virtual GPU computes nothing, so its clock is only an estimate.
  const usual = state.page.summary?.gpu.virtual && axes.includes("steps") ? "steps" : axes[0];
  state.axis = axes.includes(state.axis) ? state.axis : usual;
  const moment = failure(history)?.moment ?? history.head.peak;
  state.history = null;
  state.moment = -1;
  for (const other of state.histories) other.mark(null);
  const view = opening(history);
  change({ history, mode: usualMode(history), view, moment, selection: null, block: null });
}

/** What is shown at first. A job that dies in its first step is about that step, not about the setup before it. */
function opening(history) {
  return (history.steps.length < 2 && firstStep(history, state.axis)) || axisRange(history, state.axis);
}

/** Categories, unless most of the peak has none: then lines or phases say more. */
function usualMode(history) {
  const of = (mode) => history.seriesAt(history.head.peak, mode);
  const sum = (values) => values.reduce((total, value) => total + value, 0);
  const unknown = of("category").at(-1);
  return unknown > sum(of("category")) * 0.6 && of("group").at(-1) < sum(of("group")) * 0.6 ? "group" : "category";
}

function top() {
  const search = h("input", { type: "search", id: "search", placeholder: "Search lines, modules, operators  ( / )", "aria-label": "Search", oninput: () => find(search.value) });
  const histories =
    state.histories.length > 1
      ? h(
          "div",
          { class: "segmented histories", role: "group", "aria-label": "History" },
          state.histories.map((history) => h("button", { type: "button", "data-history": history.number, onclick: () => show(history) }, history.head.name)),
        )
      : null;
  follow((changed) => {
    if (changed.has("history")) histories?.querySelectorAll("button").forEach((button) => button.setAttribute("aria-pressed", String(Number(button.dataset.history) === state.history.number)));
    if (changed.has("query") && search.value !== state.query) search.value = state.query;
  });
  return h(
    "header",
    { class: "top" },
    h("span", { class: "brand" }, "oomph"),
    h("span", { class: "title", title: state.page.title }, state.page.title),
    histories,
    h("span", { class: "spring" }),
    state.histories.length ? search : null,
    h("button", { type: "button", class: "plain", title: "Dark or light (t)", "aria-label": "Dark or light", onclick: flip }, "◐"),
    h("button", { type: "button", class: "plain", title: "Keys (?)", "aria-label": "Keyboard help", onclick: help }, "?"),
  );
}

let searching = 0;
function find(text) {
  clearTimeout(searching);
  searching = setTimeout(() => {
    const query = text.trim();
    change({ query });
    const { history } = state;
    if (!history?.detail) return;
    if (!query) return change({ selection: null });
    const mask = matching(history, query);
    if (mask.some(Boolean)) selectKinds(`“${query}”`, [...mask.keys()].filter((kind) => mask[kind]));
    else change({ selection: null });
  }, 120);
}

function tables() {
  const { diff, plans: rows } = state.page;
  if (!diff && !rows.length) return h("section", { class: "card" }, h("p", { class: "empty" }, nothing()));
  return h("section", { class: "card" }, diff ? difference() : null, rows.length ? plans().element : null);
}

/** Why there is nothing to show. */
function nothing() {
  if (state.page.summary && !state.page.summary.peak.used_bytes) return "Nothing was allocated on the GPU, so there is no memory to show: the script ran on the CPU. If it should use the GPU, move the model and its batches there with .to(\"cuda\").";
  return "This report has no memory history.";
}

function views() {
  const all = [];
  const { page } = state;
  const flame = peak();
  const addresses = space();
  const left = growth();
  if (page.diff) all.push(["diff", "Difference", { element: difference(), redraw() {}, update() {} }]);
  if (page.plans.length) all.push(["plans", "Plans", plans()]);
  all.push(["peak", "Peak", flame]);
  const times = time();
  if (times) all.push(["time", "Time", times]);
  all.push(["space", "Address space", addresses], ["growth", "Growth", left]);
  if (!page.diff) all.push(["what-if", "What if", { element: whatIf(), redraw() {}, update() {} }]);
  state.tab = all[0][0];
  const buttons = all.map(([name, title], index) => h("button", { type: "button", role: "tab", id: `tab-${name}`, "aria-controls": `view-${name}`, title: `${title} (${index + 1})`, onclick: () => change({ tab: name }) }, title));
  const panels = all.map(([name, title, view]) => h("section", { role: "tabpanel", id: `view-${name}`, "aria-labelledby": `tab-${name}` }, h("h2", { class: "print-only" }, title), view.element));
  const bar = h("div", { class: "tabs", role: "tablist", "aria-label": "Views" }, buttons);
  bar.addEventListener("keydown", (event) => {
    const by = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
    if (!by) return;
    event.preventDefault();
    event.stopPropagation();
    const at = all.findIndex(([name]) => name === state.tab);
    const next = (at + by + all.length) % all.length;
    change({ tab: all[next][0] });
    buttons[next].focus();
  });
  const select = () =>
    all.forEach(([name, , view], index) => {
      const on = state.tab === name;
      buttons[index].setAttribute("aria-selected", String(on));
      buttons[index].tabIndex = on ? 0 : -1;
      panels[index].classList.toggle("off", !on);
    });
  follow((changed) => {
    if (changed.has("tab")) select();
  });
  select();
  return {
    element: h("div", { class: "card views" }, bar, panels),
    names: all.map(([name]) => name),
    redraw() {
      for (const [, , view] of all) {
        view.update();
        view.redraw();
      }
    },
  };
}

/** What is selected, in full: the block, or the kinds, with their stacks. */
function inspect() {
  const element = h("aside", { class: "card inspector", "aria-label": "Selection", "aria-live": "polite" });
  const fact = (name, value) => value && h("div", {}, h("dt", {}, name), h("dd", {}, value));
  follow((changed) => {
    if (!["selection", "block", "moment", "history", "loaded"].some((name) => changed.has(name))) return;
    const { history, block, selection, moment } = state;
    if (!history?.detail) return fill(element, h("h3", {}, "Selection"), h("p", { class: "quiet" }, "Unpacking the blocks…"));
    if (block !== null) {
      const number = history.detail.kind[block];
      const kind = history.kind(number);
      const requested = history.detail.sizes[history.detail.size[block]][0];
      return fill(element,
        h("h3", {}, "Block", h("button", { type: "button", class: "plain", onclick: () => change({ block: null }) }, "clear")),
        h(
          "dl",
          { class: "facts column" },
          fact("size", requested === history.detail.bytes[block] ? bytes(requested) : `${bytes(history.detail.bytes[block])} (asked for ${requested.toLocaleString("en")} B)`),
          fact("holds", h("span", { class: "chip", style: { "--chip": colour("category", kind.categoryIndex) } }, kind.category)),
          fact("module", kind.module),
          fact("operator", kind.op),
          fact("phase", kind.phase === "unknown" ? "" : kind.phase),
          fact("life", lifeText(history, block)),
        ),
        h("button", { type: "button", class: "plain", onclick: () => selectKinds(kindPlace(history, number), [number]) }, "select all like it"),
        h("h4", {}, "Stack"),
        stack(history, kind.node),
      );
    }
    const now = kindsAt(history, moment);
    const mask = selection?.mask;
    let [amount, blocks] = [0, 0];
    const kinds = [];
    for (let number = 0; number < now.amounts.length; number++) {
      if (mask && !mask[number]) continue;
      amount += now.amounts[number];
      blocks += now.blocks[number];
      if (now.amounts[number]) kinds.push(number);
    }
    kinds.sort((a, b) => now.amounts[b] - now.amounts[a]);
    fill(element,
      h("h3", {}, selection ? selection.label : "Largest here", selection ? h("button", { type: "button", class: "plain", onclick: clearSelection }, "clear") : null),
      selection ? h("p", {}, h("b", {}, bytes(amount)), ` in ${count(blocks, "block")} at this moment`) : h("p", { class: "quiet" }, "Click anything: a category, a box, a row, a block. Every view follows."),
      h(
        "ol",
        { class: "kinds" },
        kinds.slice(0, 6).map((number) => {
          const kind = history.kind(number);
          return h(
            "li",
            {},
            h("b", {}, bytes(now.amounts[number])),
            ` · ${count(now.blocks[number], "block")} `,
            h("span", { class: "chip", style: { "--chip": colour("category", kind.categoryIndex) } }, kind.category),
            h("details", { open: kinds.length === 1 }, h("summary", {}, kindPlace(history, number), h("span", { class: "quiet" }, ` ${kindNote(history, number)}`)), stack(history, kind.node)),
          );
        }),
      ),
      kinds.length > 6 ? h("p", { class: "quiet" }, `and ${kinds.length - 6} more`) : null,
    );
  });
  return element;
}

/** Paper is light, as wide as a page, and has no tabs: hidden views get their size before they are drawn. */
function printing(redraw) {
  let shown = null;
  addEventListener("beforeprint", () => {
    if (document.body.classList.contains("printing")) return;
    shown = document.documentElement.dataset.theme ?? "";
    document.documentElement.dataset.theme = "light";
    document.body.classList.add("printing");
    forgetColours();
    // Once for the rows of canvases whose height depends on their content, once for these.
    redraw();
    redraw();
  });
  addEventListener("afterprint", () => {
    document.body.classList.remove("printing");
    if (shown) document.documentElement.dataset.theme = shown;
    else delete document.documentElement.dataset.theme;
    repaint();
    redraw();
  });
}

function theme() {
  let wanted = null;
  try {
    wanted = localStorage.getItem("oomph-theme");
  } catch {
    // Files have no storage in some browsers.
  }
  if (wanted) document.documentElement.dataset.theme = wanted;
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", repaint);
}

function flip() {
  const dark = getComputedStyle(document.documentElement).getPropertyValue("--is-dark").trim() === "1";
  document.documentElement.dataset.theme = dark ? "light" : "dark";
  try {
    localStorage.setItem("oomph-theme", document.documentElement.dataset.theme);
  } catch {
    // It lasts as long as the page.
  }
  repaint();
}

function repaint() {
  forgetColours();
  change({ theme: {} });
}

function help() {
  const dialog = document.body.appendChild(
    h("dialog", { class: "help", onclose: () => dialog.remove() }, h("h2", {}, "Keys"), h("dl", {}, HELP.map(([keys, what]) => [h("dt", {}, h("kbd", {}, keys)), h("dd", {}, what)])), h("form", { method: "dialog" }, h("button", { class: "plain" }, "close"))),
  );
  dialog.showModal();
}

function keyboard(lines, tabs) {
  addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    const writing = event.target.matches?.("input, textarea, select");
    if (event.key === "Escape") {
      tooltip(event, null);
      if (writing) event.target.blur();
      change({ query: "" });
      return clearSelection();
    }
    if (writing || event.defaultPrevented) return;
    const keys = {
      "/": () => document.getElementById("search")?.focus(),
      "?": help,
      t: flip,
      "+": () => lines?.zoom(0.5),
      "=": () => lines?.zoom(0.5),
      "-": () => lines?.zoom(2),
      0: () => lines?.whole(),
      p: () => lines?.toPeak(),
      ArrowLeft: () => lines?.pan(-0.1),
      ArrowRight: () => lines?.pan(0.1),
    };
    const number = Number(event.key);
    const action = keys[event.key] ?? (number >= 1 && tabs.names?.[number - 1] ? () => change({ tab: tabs.names[number - 1] }) : null);
    if (!action) return;
    event.preventDefault();
    action();
  });
}

start().catch((error) => {
  fill(document.getElementById("app"), h("p", { class: "loading" }, `This report cannot be shown: ${error.message}`));
  throw error;
});
