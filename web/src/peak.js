// What is alive at the chosen moment: a flame graph of what allocated it, and the same as a table.

import { bytes, frameText, percent } from "./format.js";
import { Surface, css, fill, fitText, h, tooltip } from "./dom.js";
import { change, follow, selectBlock, selectKinds, state } from "./state.js";
import { colour, kindNote, kindPlace, kindsAt, matching } from "./blocks.js";

const ROW = 21;
const ROWS_SHOWN = 200;
const GROUPINGS = { line: "line", module: "module", op: "operator", category: "category", block: "block" };

/** The tree to draw: names, parents before children, and the leaf of each kind. */
function flameTree(history, by, native, plumbing) {
  const { detail } = history;
  const nodes = [{ name: "all", parent: -1, depth: 0, mine: false }];
  const children = new Map();
  const child = (parent, key, make) => {
    const id = `${parent}\u0000${key}`;
    if (!children.has(id)) {
      children.set(id, nodes.length);
      nodes.push({ parent, depth: nodes[parent].depth + 1, ...make() });
    }
    return children.get(id);
  };
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
  let layout = [];
  let grouping = "line";
  let sort = ["bytes", -1];

  const canvas = h("canvas", { class: "flame", tabindex: "0", role: "img", "aria-label": "Flame graph of what is alive; the table below has the same figures" });
  const scroller = h("div", { class: "flame-box" }, canvas);
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
    scroller,
    h("header", {}, h("h3", {}, "Table"), tableControls),
    h("div", { class: "table-box" }, table),
  );
  const surface = new Surface(canvas, draw);

  follow((changed) => {
    if (changed.has("history") || changed.has("loaded")) {
      tree = null;
      root = 0;
    }
    if (["history", "loaded", "moment", "mode", "selection", "block", "query", "theme", "tab"].some((name) => changed.has(name))) update();
  });

  function update() {
    const { history } = state;
    if (!history || (state.tab !== "peak" && !document.body.classList.contains("printing"))) return;
    buttons();
    if (!history.detail) {
      empty.textContent = "Unpacking the blocks…";
      return;
    }
    const now = kindsAt(history, state.moment);
    title.textContent = `${bytes(now.total)} in ${now.alive.length.toLocaleString("en")} blocks`;
    empty.textContent = now.total ? "" : "Nothing is alive at this moment.";
    tree ??= prepare(flameTree(history, by, native, plumbing));
    measure(now);
    arrange();
    surface.request();
    rows(now);
  }

  function prepare(found) {
    // Parents come before their children.
    found.firstChild = new Int32Array(found.nodes.length).fill(-1);
    found.next = new Int32Array(found.nodes.length).fill(-1);
    for (let node = found.nodes.length - 1; node > 0; node--) {
      found.next[node] = found.firstChild[found.nodes[node].parent];
      found.firstChild[found.nodes[node].parent] = node;
    }
    return found;
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

  /** The boxes, in shares of the width. */
  function arrange() {
    const { nodes, value, firstChild, next } = tree;
    if (!value[root]) root = 0;
    layout = [];
    const ancestors = [];
    for (let node = nodes[root].parent; node >= 0; node = nodes[node].parent) ancestors.unshift(node);
    ancestors.forEach((node, depth) => layout.push({ node, depth, from: 0, to: 1, above: true }));
    let deepest = ancestors.length;
    const visit = (node, depth, from, to) => {
      layout.push({ node, depth, from, to });
      deepest = Math.max(deepest, depth);
      const children = [];
      for (let child = firstChild[node]; child >= 0; child = next[child]) if (value[child]) children.push(child);
      children.sort((a, b) => value[b] - value[a]);
      let at = from;
      for (const child of children) {
        const wide = ((to - from) * value[child]) / value[node];
        if (wide < 0.0006) break;
        visit(child, depth + 1, at, at + wide);
        at += wide;
      }
    };
    if (value[root]) visit(root, ancestors.length, 0, 1);
    canvas.style.height = `${(deepest + 1) * ROW + 2}px`;
  }

  function draw(context, width) {
    if (!tree?.value || !state.history?.detail) return;
    context.font = css("--font-small");
    context.textBaseline = "middle";
    context.textAlign = "left";
    const filtered = state.selection || state.query;
    for (const box of layout) {
      const node = tree.nodes[box.node];
      const x = box.from * width;
      const wide = (box.to - box.from) * width;
      const y = box.depth * ROW;
      const lit = !filtered || tree.lit[box.node] > 0;
      context.globalAlpha = (box.above ? 0.55 : 1) * (lit ? 1 : 0.25);
      context.fillStyle = box.node === 0 ? css("--root") : colour(state.mode, tree.main[box.node]);
      context.fillRect(x, y, Math.max(0.5, wide - 1), ROW - 1);
      if (box.node !== 0 && !node.mine) {
        // Library code is paler, so that the user's own lines stand out.
        context.fillStyle = css("--pale");
        context.fillRect(x, y, Math.max(0.5, wide - 1), ROW - 1);
      }
      if (wide > 26) {
        context.fillStyle = box.node === 0 || !node.mine ? css("--ink") : css("--on-colour");
        const name = box.node === 0 ? `all  ${bytes(tree.value[0])}` : node.name;
        const room = wide - 10;
        const full = `${name}  ${bytes(tree.value[box.node])}`;
        const text = box.node !== 0 && context.measureText(full).width <= room ? full : fitText(context, name, room);
        context.fillText(text, x + 5, y + ROW / 2);
      }
    }
    context.globalAlpha = 1;
  }

  function under(event) {
    const bounds = canvas.getBoundingClientRect();
    const depth = Math.floor((event.clientY - bounds.top) / ROW);
    const at = (event.clientX - bounds.left) / bounds.width;
    return layout.find((box) => box.depth === depth && box.from <= at && at < box.to);
  }

  canvas.addEventListener("pointermove", (event) => {
    const box = under(event);
    if (!box) return tooltip(event, null);
    const node = tree.nodes[box.node];
    const path = [];
    for (let at = node.parent; at > 0; at = tree.nodes[at].parent) path.push(tree.nodes[at].name);
    tooltip(event, [
      h("b", {}, box.node === 0 ? "everything alive" : node.name),
      h("div", {}, `${bytes(tree.value[box.node])} · ${percent(tree.value[box.node], tree.value[0])}`),
      h("div", { class: "quiet" }, `mostly ${state.history.modes[state.mode].names[tree.main[box.node]] || "unknown"}`),
      h("ol", { class: "stack" }, path.slice(0, 6).map((name) => h("li", {}, `← ${name}`))),
    ]);
  });
  canvas.addEventListener("pointerleave", (event) => tooltip(event, null));
  canvas.addEventListener("click", (event) => {
    const box = under(event);
    if (!box) return;
    show(box.node);
  });
  canvas.addEventListener("keydown", (event) => {
    const { nodes, value, firstChild, next } = tree ?? {};
    if (!value) return;
    const children = (node) => {
      const found = [];
      for (let child = firstChild[node]; child >= 0; child = next[child]) if (value[child]) found.push(child);
      return found.sort((a, b) => value[b] - value[a]);
    };
    const siblings = root ? children(nodes[root].parent) : [0];
    const at = siblings.indexOf(root);
    const to = { ArrowDown: children(root)[0], ArrowUp: root ? nodes[root].parent : 0, ArrowLeft: siblings[at - 1], ArrowRight: siblings[at + 1] }[event.key];
    if (to === undefined) return;
    event.preventDefault();
    show(to);
  });

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

  return { element, update, redraw: () => surface.now() };
}
