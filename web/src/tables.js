// Views that are tables: allocator settings, plans, and what changed between two histories.

import { bytes, signed } from "./format.js";
import { h } from "./dom.js";
import { state } from "./state.js";

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

export function plans() {
  const { plans: rows, summary } = state.page;
  const capacity = summary?.gpu?.memory_bytes ?? state.histories[0]?.head.total ?? null;
  const most = Math.max(...rows.map((row) => Math.max(row.planned_peak, row.measured_peak ?? 0)), capacity ?? 0);
  return h(
    "div",
    { class: "plans" },
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
