// What each step leaves behind.

import { bytes, niceBytes, percent } from "./format.js";
import { Surface, css, fill, h, tooltip } from "./dom.js";
import { change, follow, position, selectKinds, state } from "./state.js";
import { colour, kindNote, kindPlace } from "./blocks.js";

const LEFT = 58;
const BOTTOM = 22;
const TOP = 8;

export function growth() {
  const canvas = h("canvas", { class: "bars", role: "img", "aria-label": "Bytes that each step leaves behind" });
  const text = h("p", { class: "lead" });
  const table = h("table", { class: "grid" });
  const heading = h("h3", {}, "Where it is allocated");
  const element = h("div", { class: "growth" }, text, canvas, heading, h("div", { class: "table-box" }, table));
  const surface = new Surface(canvas, draw);

  follow((changed) => {
    if (["history", "loaded", "selection", "theme", "tab"].some((name) => changed.has(name))) update();
  });

  /** Steps whose leftovers are known, and what a typical one leaves. */
  function known(history) {
    const steps = history.head.growth.steps.map((step, index) => ({ ...step, index }));
    const judged = steps.filter((step) => step.left);
    const sums = judged.map((step) => step.left.reduce((sum, value) => sum + value, 0));
    // The first step allocates the optimizer's state; what later steps leave is growth.
    const later = sums.slice(1).sort((a, b) => a - b);
    return { steps, judged, sums, usual: later.length ? later[later.length >> 1] : null };
  }

  function update() {
    const { history } = state;
    if (!history || (state.tab !== "growth" && !document.body.classList.contains("printing"))) return;
    const { judged, usual, steps } = known(history);
    const enough = judged.length > 0;
    canvas.hidden = heading.hidden = table.hidden = !enough;
    if (!enough) {
      text.textContent = steps.length
        ? "Only one step was recorded. What a step leaves behind is known at the end of the next step: record at least two."
        : "No steps were found in this history.";
      return;
    }
    const growing = usual !== null && usual > 0;
    fill(text,
      growing ? h("b", { class: "bad" }, `${bytes(usual)} stay behind with every step`) : h("b", {}, usual === null ? "Too few steps to tell growth from one-time allocations" : "Steps leave nothing behind"),
      growing
        ? ": the median of all steps but the first, which allocates what all later steps reuse."
        : usual === null
          ? ": the first step allocates what all later steps reuse, such as the optimizer's state."
          : ", except what the first step allocates once and all later steps reuse.",
    );
    surface.request();
    rows(history);
  }

  function draw(context, width, height) {
    const { history } = state;
    if (!history) return;
    const { judged, sums, steps } = known(history);
    if (!judged.length) return;
    const box = { x: LEFT, y: TOP, width: width - LEFT - 12, height: height - TOP - BOTTOM };
    const most = Math.max(1, ...sums) * 1.08;
    const y = (amount) => box.y + box.height * (1 - amount / most);
    context.font = css("--font-small");
    context.textAlign = "right";
    context.textBaseline = "middle";
    const step = niceBytes(most, box.height / 40);
    for (let amount = 0; amount <= most; amount += step) {
      context.strokeStyle = css("--grid");
      context.beginPath();
      context.moveTo(box.x, Math.round(y(amount)) + 0.5);
      context.lineTo(box.x + box.width, Math.round(y(amount)) + 0.5);
      context.stroke();
      context.fillStyle = css("--quiet");
      context.fillText(amount ? bytes(amount).replace(".0 ", " ") : "0", box.x - 6, y(amount));
    }
    const slot = box.width / steps.length;
    const wide = Math.max(1, Math.min(64, slot * 0.7));
    context.textAlign = "center";
    const every = Math.max(1, Math.ceil(54 / slot));
    for (const { left, number, index } of steps) {
      const middle = box.x + slot * (index + 0.5);
      if (index % every === 0) {
        context.fillStyle = css("--quiet");
        context.textBaseline = "alphabetic";
        context.fillText(slot > 54 ? `step ${number}` : String(number), middle, height - 6);
      }
      if (!left) {
        context.fillStyle = css("--quiet");
        if (slot > 90) context.fillText("not known yet", middle, box.y + box.height - 6);
        continue;
      }
      let level = 0;
      left.forEach((amount, category) => {
        if (!amount) return;
        context.fillStyle = colour("category", category);
        context.fillRect(middle - wide / 2, y(level + amount), wide, Math.max(1, y(level) - y(level + amount)));
        level += amount;
      });
    }
  }

  function stepUnder(event) {
    const bounds = canvas.getBoundingClientRect();
    const { steps } = known(state.history);
    const index = Math.floor(((event.clientX - bounds.left - LEFT) / (bounds.width - LEFT - 12)) * steps.length);
    return steps[index];
  }

  canvas.addEventListener("pointermove", (event) => {
    const step = stepUnder(event);
    if (!step) return tooltip(event, null);
    const { categories } = state.history.head;
    tooltip(event, [
      h("b", {}, `step ${step.number}`),
      h(
        "table",
        {},
        (step.left ?? []).map((amount, index) => amount > 0 && h("tr", {}, h("td", {}, h("i", { style: { background: colour("category", index) } }), categories[index]), h("td", {}, bytes(amount)))),
        h("tr", { class: "sum" }, h("td", {}, "left behind"), h("td", {}, step.left ? bytes(step.left.reduce((sum, value) => sum + value, 0)) : "not known yet")),
        h("tr", {}, h("td", {}, "alive at its end"), h("td", {}, bytes(step.end))),
        h("tr", {}, h("td", {}, "its peak"), h("td", {}, bytes(step.peak))),
      ),
    ]);
  });
  canvas.addEventListener("pointerleave", (event) => tooltip(event, null));
  canvas.addEventListener("click", (event) => {
    const step = stepUnder(event);
    const found = step && state.history.steps[step.index];
    if (found) change({ moment: Math.max(0, found.end), view: [position(found.start), position(found.end)] });
  });

  function rows(history) {
    const { detail, head } = history;
    if (!detail) return;
    const { kinds } = head.growth;
    const total = kinds.reduce((sum, kind) => sum + kind.bytes, 0);
    fill(table,
      h("thead", {}, h("tr", {}, h("th", { class: "number" }, "left"), h("th", { class: "number share" }, "share"), h("th", { class: "number" }, "blocks"), h("th", { class: "number" }, "in steps"), h("th", {}, "category"), h("th", {}, "made at"))),
      h(
        "tbody",
        {},
        kinds.map((row) => {
          const kind = history.kind(row.kind);
          const name = kindPlace(history, row.kind);
          const pick = () => selectKinds(name, [row.kind]);
          return h(
            "tr",
            { tabindex: "0", onclick: pick, onkeydown: (event) => event.key === "Enter" && pick(), "aria-selected": String(state.selection?.label === name && Boolean(state.selection.mask[row.kind])) },
            h("td", { class: "number" }, bytes(row.bytes)),
            h("td", { class: "number share" }, h("span", { class: "bar" }, h("i", { style: { width: `${(row.bytes / (kinds[0]?.bytes || 1)) * 100}%`, background: colour("category", kind.categoryIndex) } })), h("span", {}, percent(row.bytes, total))),
            h("td", { class: "number" }, row.blocks.toLocaleString("en")),
            h("td", { class: "number" }, row.steps.toLocaleString("en")),
            h("td", {}, kind.category),
            h("td", { class: "name" }, name, h("span", { class: "quiet" }, ` ${kindNote(history, row.kind)}`)),
          );
        }),
      ),
    );
  }

  return { element, update, redraw: () => surface.now() };
}
