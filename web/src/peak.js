// What is alive at the chosen moment: a flame graph of what allocated it, and the same as a table.

import { bytes, frameText, percent } from "./format.js";
import { fill, h } from "./dom.js";
import { Flame, grower, linked } from "./flame.js";
import { change, follow, selectBlock, selectKinds, state } from "./state.js";
import { colour, kindNote, kindPlace, kindsAt, matching } from "./blocks.js";

const ROWS_SHOWN = 200;
const GROUPINGS = { line: "line", module: "module", op: "operator", category: "category", block: "block" };

/** The tree to draw: names, parents before children, and the leaf of each kind. */
function flameTree(history, by, native, plumbing) {
  const { detail } = history;
  const nodes = [{ name: "all", parent: -1, depth: 0, mine: false }];
  const child = grower(nodes);
  const leaf = new Uint32Array(detail.kind_node.length);
  if (by === "module") {
    for (let number = 0; number < leaf.length; number++) {
      const kind = history.kind(number);
      let at = 0;
      const parts = kind.module ? kind.module.split(".") : [`(${kind.phase === "unknown" ? "no module" : `${kind.phase}, no module`})`];
      for (const part of parts) at = child(at, part, () => ({ name: part, mine: true }));
      if (kind.op) at = child(at, kind.op, () => ({ name: kind.op, mine: false }));
      leaf[number] = at;
    }
    return { nodes, leaf };
  }
  const { node_parent: parent, node_frame: frame, frames } = detail;
  const mapped = new Uint32Array(parent.length);
  for (let node = 1; node < parent.length; node++) {
    const found = frames[frame[node]];
    const above = mapped[parent[node]];
    mapped[node] = (found[3] === 0 && !native) || (found[3] === 3 && !plumbing) ? above : child(above, frame[node], () => ({ name: frameText(found), mine: found[3] === 2, native: found[3] === 0 }));
  }
  for (let number = 0; number < leaf.length; number++) {
    const kind = history.kind(number);
    let at = mapped[kind.node];
    if (at === 0) {
      // Autograd's own threads have no Python stack; the module is all we know.
      at = child(0, `\u0001${kind.phase}`, () => ({ name: `${kind.phase === "unknown" ? "" : `${kind.phase}, `}no line of your own`, mine: false }));
      for (const part of [kind.module, kind.op].filter(Boolean)) at = child(at, part, () => ({ name: part, mine: false }));
    }
    leaf[number] = at;
  }
  return { nodes, leaf };
}

export function peak() {
  let by = "stack";
  let native = false;
  let plumbing = false;
  let root = 0;
  let tree = null;
  let grouping = "line";
  let sort = ["bytes", -1];

  const flame = new Flame("Flame graph of what is alive; the table below has the same figures", {
    amount: bytes,
    colour: (node) => colour(state.mode, tree.main[node]),
    lit: (node) => !(state.selection || state.query) || tree.lit[node] > 0,
    tip: (node) => [
      h("b", {}, node === 0 ? "everything alive" : tree.nodes[node].name),
      h("div", {}, `${bytes(tree.value[node])} · ${percent(tree.value[node], tree.value[0])}`),
      h("div", { class: "quiet" }, `mostly ${state.history.modes[state.mode].names[tree.main[node]] || "unknown"}`),
      h("ol", { class: "stack" }, flame.path(node).slice(0, 6).map((name) => h("li", {}, `← ${name}`))),
    ],
    picked: show,
  });
  const controls = h("div", { class: "controls" });
  const title = h("h3", {}, "");
  const empty = h("p", { class: "empty" });
  const table = h("table", { class: "grid" });
  const tableControls = h("div", { class: "controls" });
  const element = h(
    "div",
    { class: "peak" },
    h("header", {}, title, controls),
    empty,
    flame.element,
    h("header", {}, h("h3", {}, "Table"), tableControls),
    h("div", { class: "table-box" }, table),
  );
  follow((changed) => {
    if (changed.has("history") || changed.has("loaded")) {
      tree = null;
      root = 0;
      flame.show(null, 0);
    }
    if (["history", "loaded", "moment", "mode", "selection", "block", "query", "theme", "tab"].some((name) => changed.has(name))) update();
  });

  function update() {
    const { history } = state;
    if (!history || (state.tab !== "peak" && !document.body.classList.contains("printing"))) return;
    buttons();
    if (!history.detail) {
      flame.show(null, 0);
      empty.textContent = "Unpacking the blocks…";
      return;
    }
    const now = kindsAt(history, state.moment);
    title.textContent = `${bytes(now.total)} in ${now.alive.length.toLocaleString("en")} blocks`;
    empty.textContent = now.total ? "" : "Nothing is alive at this moment.";
    tree ??= linked(flameTree(history, by, native, plumbing));
    measure(now);
    flame.show(tree, root);
    root = flame.root;
    rows(now);
  }

  function measure(now) {
    const { nodes, leaf } = tree;
    const { history } = state;
    const value = new Float64Array(nodes.length);
    const lit = new Float64Array(nodes.length);
    const { names, of } = history.modes[state.mode];
    const key = history.detail[of];
    const categories = names.length;
    const parts = new Float64Array(nodes.length * categories);
    const query = state.query ? matching(history, state.query) : null;
    for (let kind = 0; kind < leaf.length; kind++) {
      const amount = now.amounts[kind];
      if (!amount) continue;
      value[leaf[kind]] += amount;
      if ((!state.selection || state.selection.mask[kind]) && (!query || query[kind])) lit[leaf[kind]] += amount;
      parts[leaf[kind] * categories + key[kind]] += amount;
    }
    for (let node = nodes.length - 1; node > 0; node--) {
      const { parent } = nodes[node];
      value[parent] += value[node];
      lit[parent] += lit[node];
      for (let category = 0; category < categories; category++) parts[parent * categories + category] += parts[node * categories + category];
    }
    tree.value = value;
    tree.lit = lit;
    tree.main = nodes.map((_, node) => {
      let best = 0;
      for (let category = 1; category < categories; category++) if (parts[node * categories + category] > parts[node * categories + best]) best = category;
      return best;
    });
  }

  function show(node) {
    root = node;
    if (node === 0) return change({ selection: null, block: null });
    // Everything below the node.
    const inside = new Uint8Array(tree.nodes.length);
    inside[node] = 1;
    for (let at = node + 1; at < tree.nodes.length; at++) if (inside[tree.nodes[at].parent]) inside[at] = 1;
    selectKinds(tree.nodes[node].name, [...tree.leaf.keys()].filter((kind) => inside[tree.leaf[kind]]));
  }

  function buttons() {
    const press = (label, values, current, set) =>
      h(
        "div",
        { class: "segmented", role: "group", "aria-label": label },
        values.map(([value, text]) => h("button", { type: "button", "aria-pressed": String(value === current), onclick: () => set(value) }, text)),
      );
    const { history } = state;
    const hasModules = history.head.grouped_by === "module";
    const hasPlumbing = history.detail?.frames.some((frame) => frame[3] === 3);
    const hasNative = history.detail?.frames.some((frame) => frame[3] === 0) && history.detail.frames.some((frame) => frame[3] > 0);
    fill(controls,
      press("Flame graph by", [["stack", "stack"], ...(hasModules ? [["module", "module"]] : [])], by, (value) => {
        by = value;
        tree = null;
        root = 0;
        update();
      }),
      hasPlumbing && by === "stack"
        ? press("All Python frames", [["yes", "all frames"]], plumbing ? "yes" : "", () => {
            plumbing = !plumbing;
            tree = null;
            root = 0;
            update();
          })
        : "",
      hasNative && by === "stack"
        ? press("C++ frames", [["yes", "C++ frames"]], native ? "yes" : "", () => {
            native = !native;
            tree = null;
            root = 0;
            update();
          })
        : "",
      root || state.selection ? h("button", { type: "button", class: "plain", onclick: () => show(0) }, "show all (Esc)") : "",
    );
    const possible = Object.entries(GROUPINGS).filter(([name]) => hasModules || !["module", "op"].includes(name));
    if (!possible.some(([name]) => name === grouping)) grouping = "line";
    fill(tableControls,
      press("Table by", possible, grouping, (value) => {
        grouping = value;
        update();
      }),
    );
  }

  function grouped(now) {
    const { history } = state;
    const query = state.query ? matching(history, state.query) : null;
    const wanted = (kind) => (!state.selection || grouping !== "block" || state.selection.mask[kind]) && (!query || query[kind]);
    if (grouping === "block") {
      return now.alive
        .filter((block) => wanted(history.detail.kind[block]))
        .map((block) => {
          const number = history.detail.kind[block];
          const kind = history.kind(number);
          return {
            name: kindPlace(history, number),
            note: kindNote(history, number),
            bytes: history.detail.bytes[block],
            blocks: 1,
            block,
            kinds: [number],
            category: kind.categoryIndex,
          };
        });
    }
    const groups = new Map();
    for (let number = 0; number < now.amounts.length; number++) {
      if (!now.blocks[number] || !wanted(number)) continue;
      const kind = history.kind(number);
      let name;
      let note = "";
      if (grouping === "line") {
        const frame = history.userFrame(kind.node);
        name = frame ? frameText(frame) : kindPlace(history, number);
        note = frame ? frame[0] : "";
      } else if (grouping === "module") name = kind.module || `(no module, ${kind.phase})`;
      else if (grouping === "op") name = kind.op || "(unknown)";
      else name = kind.category;
      const key = grouping === "line" ? `${name}\u0000${note}` : name;
      const group = groups.get(key) ?? { name, note, bytes: 0, blocks: 0, kinds: [], parts: new Map() };
      group.bytes += now.amounts[number];
      group.blocks += now.blocks[number];
      group.kinds.push(number);
      group.parts.set(kind.categoryIndex, (group.parts.get(kind.categoryIndex) ?? 0) + now.amounts[number]);
      groups.set(key, group);
    }
    return [...groups.values()].map((group) => ({ ...group, category: [...group.parts].sort((a, b) => b[1] - a[1])[0][0] }));
  }

  function rows(now) {
    const { history } = state;
    const [by, direction] = sort;
    const all = grouped(now).sort((a, b) => (by === "name" ? a.name.localeCompare(b.name) : a[by] - b[by]) * direction || b.bytes - a.bytes);
    const most = Math.max(1, ...all.slice(0, 5000).map((row) => row.bytes));
    const header = (name, text, kind) =>
      h(
        "th",
        { scope: "col", class: kind, "aria-sort": by === name ? (direction < 0 ? "descending" : "ascending") : "none" },
        h("button", { type: "button", onclick: () => ((sort = [name, by === name ? -direction : name === "name" ? 1 : -1]), update()) }, text, by === name ? (direction < 0 ? " ↓" : " ↑") : ""),
      );
    const pick = (row) => {
      if (row.block !== undefined) return selectBlock(row.block);
      if (state.selection?.label === row.name) return change({ selection: null });
      selectKinds(row.name, row.kinds);
    };
    fill(table,
      h("thead", {}, h("tr", {}, header("bytes", "bytes", "number"), h("th", { class: "number share" }, "share"), grouping === "block" ? h("th", {}, "category") : header("blocks", "blocks", "number"), header("name", GROUPINGS[grouping]))),
      h(
        "tbody",
        {},
        all.slice(0, ROWS_SHOWN).map((row) => {
          const chosen = row.block !== undefined ? row.block === state.block : state.selection?.label === row.name;
          return h(
            "tr",
            {
              tabindex: "0",
              "aria-selected": String(Boolean(chosen)),
              onclick: () => pick(row),
              onkeydown: (event) => (event.key === "Enter" || event.key === " ") && (event.preventDefault(), pick(row)),
            },
            h("td", { class: "number" }, bytes(row.bytes)),
            h("td", { class: "number share" }, h("span", { class: "bar" }, h("i", { style: { width: `${(row.bytes / most) * 100}%`, background: colour("category", row.category) } })), h("span", {}, percent(row.bytes, now.total))),
            grouping === "block" ? h("td", {}, history.head.categories[row.category]) : h("td", { class: "number" }, row.blocks.toLocaleString("en")),
            h("td", { class: "name", title: row.note || row.name }, row.name, row.note && grouping === "block" ? h("span", { class: "quiet" }, ` ${row.note}`) : null),
          );
        }),
      ),
      all.length > ROWS_SHOWN ? h("caption", {}, `The largest ${ROWS_SHOWN} of ${all.length.toLocaleString("en")}; the rest come to ${bytes(all.slice(ROWS_SHOWN).reduce((sum, row) => sum + row.bytes, 0))}.`) : all.length ? "" : h("caption", {}, state.query ? `Nothing alive here matches “${state.query}”.` : "Nothing is alive at this moment."),
    );
  }

  return { element, update, redraw: () => flame.surface.now() };
}
