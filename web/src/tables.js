// Views that are tables: allocator settings, plans, and what changed between two histories.

import { bytes, niceBytes, niceStep, signed } from "./format.js";
import { Surface, css, h, tooltip } from "./dom.js";
import { follow, state } from "./state.js";

export function amountBar(amount, most, capacity, kind = "") {
  const share = (value) => `${Math.min(100, (value / most) * 100)}%`;
  return h(
    "span",
    { class: "bar wide" },
    h("i", { class: capacity && amount > capacity ? "over" : kind, style: { width: share(amount) } }),
    capacity && capacity <= most ? h("em", { title: `capacity ${bytes(capacity)}`, style: { left: share(capacity) } }) : null,
  );
}

function copyable(text) {
  const button = h("button", { type: "button", class: "copy", title: "Copy" }, "copy");
  button.addEventListener("click", async (event) => {
    event.stopPropagation();
    try {
      await navigator.clipboard.writeText(text);
      button.textContent = "copied";
    } catch {
      const range = document.createRange();
      range.selectNodeContents(button.previousSibling);
      getSelection().removeAllRanges();
      getSelection().addRange(range);
      button.textContent = "selected";
    }
    setTimeout(() => (button.textContent = "copy"), 1500);
  });
  return h("span", { class: "copyable" }, h("code", {}, text), button);
}

/** A table whose rows become cards on a phone; each cell knows the heading of its column. */
function stacking(heads, rows) {
  const titles = heads.map((head) => head.textContent);
  for (const row of rows) [...row.cells].forEach((cell, column) => cell.setAttribute("data-label", titles[column]));
  return h("div", { class: "table-box" }, h("table", { class: "grid static stacking" }, h("thead", {}, h("tr", {}, heads)), h("tbody", {}, rows)));
}

export function whatIf() {
  const rows = state.page.what_if ?? [];
  if (!rows.length) {
    return h("p", { class: "empty" }, "No other allocator settings were replayed: the history is too long for it here, or has no segments. ", h("code", {}, "oomph replay SNAPSHOT --search"), " tries them anyway.");
  }
  const most = Math.max(...rows.map((row) => Math.max(row.peak_reserved, row.needs ?? 0)));
  const [current] = rows;
  const needed = (row) => row.needs ?? row.peak_reserved;
  const best = rows.slice(1).find((row) => row.fits !== false && (needed(row) < needed(current) || (row.fits && !current.fits)));
  const nearest = rows.filter((row) => row.needs !== null).sort((a, b) => a.needs - b.needs)[0];
  const none = rows.every((row) => row.fits === false);
  const knows = rows.some((row) => row.fits !== null);
  const needs = rows.some((row) => row.needs !== null);
  return h(
    "div",
    { class: "what-if" },
    h(
      "p",
      { class: "lead" },
      best
        ? [h("b", {}, best.fits && !current.fits ? "Another setting would have fitted" : `Another setting needs ${bytes(needed(current) - needed(best))} less`), ": replayed on the exact history, with every other byte unchanged."]
        : none
        ? [h("b", {}, "No setting fits"), nearest ? `: the nearest needs ${bytes(nearest.needs)}.` : "."]
        : [h("b", {}, "No setting needs less"), ": replayed on the exact history, the current settings are as good as any."],
    ),
    stacking(
      [h("th", {}, "PYTORCH_CUDA_ALLOC_CONF"), needs ? h("th", { class: "number" }, "needs") : null, h("th", { class: "number" }, "peak reserved"), h("th", { class: "wide" }, ""), knows ? h("th", {}, "result") : null, h("th", { class: "number" }, "cache emptied")].filter(Boolean),
      rows.map((row) =>
        h(
          "tr",
          { class: row === best ? "best" : "" },
          h("td", {}, row.current ? h("b", {}, row.conf ? `${row.conf} (this run)` : "the defaults (this run)") : copyable(row.conf)),
          needs ? h("td", { class: "number" }, row.needs === null || row.fits === false ? "–" : bytes(row.needs)) : null,
          h("td", { class: "number" }, bytes(row.peak_reserved)),
          h("td", {}, amountBar(row.needs ?? row.peak_reserved, most)),
          knows ? h("td", { class: row.fits ? "good" : "bad" }, row.fits ? "✓ fits" : "✗ out of memory") : null,
          h("td", { class: "number" }, row.retries ? `${row.retries} ×` : "–"),
        ),
      ),
    ),
  );
}

/** Memory against time: each plan that was tried, measured or predicted, and the one that was chosen. */
function tradeOff(rows, capacity) {
  const points = rows.filter((row) => row.time_ratio !== null).map((row) => ({ ...row, memory: row.measured_peak ?? row.planned_peak }));
  if (points.length < 2) return null;
  const margin = { left: 46, right: 16, top: 14, bottom: 34 };
  const most = Math.max(...points.map((point) => point.memory), capacity ?? 0) * 1.06;
  const times = points.map((point) => point.time_ratio);
  const [least, slowest] = [Math.min(...times, 1), Math.max(...times, 1)];
  const log = slowest > 4 * least;
  const scale = log ? Math.log : (value) => value;
  const room = (scale(slowest) - scale(least)) * 0.12 || 0.05;
  const [low, high] = [scale(least) - room, scale(slowest) + room];
  const ticks = () => {
    if (log) return [0.5, 1, 2, 5, 10, 20, 50, 100, 200, 500].filter((value) => scale(value) >= low && scale(value) <= high);
    const step = niceStep(high - low, 5);
    return Array.from({ length: 12 }, (_, index) => (Math.ceil(low / step) + index) * step).filter((value) => value <= high);
  };
  const words = (point) => `${point.levers}: ${bytes(point.memory)}, ${point.time_ratio.toFixed(2)} ×, ${point.measured_peak === null ? "predicted" : "measured"}${point.chosen ? ", chosen" : ""}`;
  const canvas = h("canvas", { class: "trade-off", role: "img", "aria-label": `Memory against time. ${points.map(words).join("; ")}` });
  const place = (point, width, height) => [margin.left + (point.memory / most) * (width - margin.left - margin.right), height - margin.bottom - ((scale(point.time_ratio) - low) / (high - low)) * (height - margin.top - margin.bottom)];
  const surface = new Surface(canvas, (context, width, height) => {
    const across = (memory) => margin.left + (memory / most) * (width - margin.left - margin.right);
    const bottom = height - margin.bottom;
    context.font = css("--font-small");
    context.lineWidth = 1;
    context.textBaseline = "middle";
    context.textAlign = "right";
    for (const value of ticks()) {
      const [, y] = place({ memory: 0, time_ratio: value }, width, height);
      context.strokeStyle = css("--grid");
      context.beginPath();
      context.moveTo(margin.left, y);
      context.lineTo(width - margin.right, y);
      context.stroke();
      context.fillStyle = css("--quiet");
      context.fillText(`${Number(value.toFixed(2))} ×`, margin.left - 6, y);
    }
    context.textAlign = "center";
    const step = niceBytes(most, width / 90);
    for (let memory = 0; memory <= most; memory += step) {
      context.fillStyle = css("--quiet");
      context.fillText(bytes(memory).replace(".0 ", " "), Math.max(across(memory), 20), bottom + 12);
    }
    context.fillText("memory", (width + margin.left) / 2, height - 7);
    if (capacity) {
      context.strokeStyle = css("--bad");
      context.setLineDash([5, 4]);
      context.beginPath();
      context.moveTo(across(capacity), margin.top);
      context.lineTo(across(capacity), bottom);
      context.stroke();
      context.setLineDash([]);
      context.fillStyle = css("--bad");
      context.textAlign = "right";
      context.fillText("capacity", across(capacity) - 5, margin.top + 4);
    }
    // The chosen one last: it lies above the others.
    for (const point of [...points].sort((a, b) => a.chosen - b.chosen)) {
      const [x, y] = place(point, width, height);
      const paint = point.chosen ? css("--marked") : css("--accent");
      context.beginPath();
      context.arc(x, y, point.chosen ? 6 : 4.5, 0, 2 * Math.PI);
      context.fillStyle = point.measured_peak === null ? css("--surface") : paint;
      context.fill();
      context.strokeStyle = paint;
      context.lineWidth = 1.6;
      context.stroke();
      const label = point.chosen ? "chosen" : point.levers === "as it is" ? point.levers : "";
      if (label) {
        const left = x > width / 2;
        context.textAlign = left ? "right" : "left";
        context.fillStyle = point.chosen ? paint : css("--quiet");
        context.fillText(label, x + (left ? -10 : 10), y - 9);
      }
    }
  });
  canvas.addEventListener("pointermove", (event) => {
    const bounds = canvas.getBoundingClientRect();
    const far = (point) => {
      const [x, y] = place(point, bounds.width, bounds.height);
      return Math.hypot(event.clientX - bounds.left - x, event.clientY - bounds.top - y);
    };
    const near = points.reduce((best, point) => (far(point) < far(best) ? point : best));
    tooltip(event, far(near) < 18 ? [h("b", {}, near.levers), h("div", {}, `${bytes(near.memory)} · ${near.time_ratio.toFixed(2)} × the time · ${near.measured_peak === null ? "predicted" : "measured"}`)] : null);
  });
  canvas.addEventListener("pointerleave", (event) => tooltip(event, null));
  return { surface, element: h("figure", {}, h("h3", {}, "Memory against time"), canvas, h("figcaption", { class: "quiet" }, "Filled: a run measured it. Hollow: predicted.")) };
}

export function plans() {
  const { plans: all, summary } = state.page;
  // Others were only tried.
  const rows = all.filter((row) => !row.tried);
  const capacity = summary?.gpu?.memory_bytes ?? state.histories[0]?.head.total ?? null;
  const most = Math.max(...rows.map((row) => Math.max(row.planned_peak, row.measured_peak ?? 0)), capacity ?? 0);
  const picture = tradeOff(all, capacity);
  const element = h(
    "div",
    { class: "plans" },
    picture?.element,
    h("p", { class: "lead" }, capacity ? `Peaks against the capacity of ${bytes(capacity)}; the line marks it.` : "Peaks as planned, and as measured."),
    stacking(
      [h("th", {}, "plan"), h("th", { class: "number" }, "planned"), h("th", { class: "number" }, "measured"), h("th", { class: "wide" }, ""), h("th", { class: "number" }, "time"), h("th", {}, "same result"), h("th", {}, "verified")],
      rows.map((row) =>
        h(
          "tr",
          { class: row.chosen ? "best" : "" },
          h("td", {}, row.chosen ? h("b", {}, "◄ ", row.levers) : row.levers),
          h("td", { class: "number" }, bytes(row.planned_peak)),
          h("td", { class: "number" }, row.measured_peak === null ? "–" : bytes(row.measured_peak)),
          h("td", {}, amountBar(row.planned_peak, most, capacity, "planned"), row.measured_peak === null ? null : amountBar(row.measured_peak, most, capacity)),
          h("td", { class: "number" }, row.time_ratio === null ? "–" : `${row.time_ratio.toFixed(2)} ×`),
          h("td", {}, row.same_results),
          h("td", { class: row.verified ? "good" : "quiet" }, row.verified ? "✓ fits" : "not run"),
        ),
      ),
    ),
  );
  follow((changed) => {
    if (["theme", "tab"].some((name) => changed.has(name))) picture?.surface.request();
  });
  return { element, update() {}, redraw: () => picture?.surface.now() };
}

export function difference() {
  const { diff } = state.page;
  const table = (title, rows) => {
    if (!rows?.length) return null;
    const most = Math.max(...rows.map((row) => Math.abs(row.bytes[1] - row.bytes[0])), 1);
    const shown = rows.slice(0, 100);
    return [
      h("h3", {}, title),
      h(
        "div",
        { class: "table-box" },
        h(
          "table",
          { class: "grid static" },
          h("thead", {}, h("tr", {}, h("th", { class: "number" }, "change"), h("th", { class: "diverging" }, ""), h("th", { class: "number" }, "A"), h("th", { class: "number" }, "B"), h("th", { class: "number" }, "blocks"), h("th", {}, ""))),
          h(
            "tbody",
            {},
            shown.map((row) => {
              const delta = row.bytes[1] - row.bytes[0];
              const half = (Math.abs(delta) / most) * 50;
              return h(
                "tr",
                {},
                h("td", { class: `number ${delta > 0 ? "bad" : "good"}` }, signed(delta)),
                h("td", { class: "diverging" }, h("span", { class: "bar" }, h("i", { class: delta > 0 ? "more" : "less", style: { width: `${half}%`, left: `${delta > 0 ? 50 : 50 - half}%` } }))),
                h("td", { class: "number" }, bytes(row.bytes[0])),
                h("td", { class: "number" }, bytes(row.bytes[1])),
                h("td", { class: "number" }, `${row.blocks[0].toLocaleString("en")} → ${row.blocks[1].toLocaleString("en")}`),
                h("td", { class: "name" }, row.name),
              );
            }),
          ),
          rows.length > shown.length ? h("caption", {}, `The largest ${shown.length} of ${rows.length}.`) : null,
        ),
      ),
    ];
  };
  const parts = [table("By kind", diff.categories), table("By module", diff.modules), table("By line", diff.places)].flat().filter(Boolean);
  return h("div", { class: "diff" }, parts.length ? parts : h("p", { class: "empty" }, "Nothing changed between the two peaks."));
}
