// A flame graph: each box is as wide as what it holds, below the box that holds it.

import { Surface, css, fitText, h, tooltip } from "./dom.js";

const ROW = 21;

/** A tree of `nodes` (parents before children) with the children of each. */
export function linked(tree) {
  tree.firstChild = new Int32Array(tree.nodes.length).fill(-1);
  tree.next = new Int32Array(tree.nodes.length).fill(-1);
  for (let node = tree.nodes.length - 1; node > 0; node--) {
    tree.next[node] = tree.firstChild[tree.nodes[node].parent];
    tree.firstChild[tree.nodes[node].parent] = node;
  }
  return tree;
}

/** The number of the child of `parent` with this key; `make` makes its node if there is none. */
export function grower(nodes) {
  const children = new Map();
  return (parent, key, make) => {
    const id = `${parent}\u0000${key}`;
    if (!children.has(id)) {
      children.set(id, nodes.length);
      nodes.push({ parent, depth: nodes[parent].depth + 1, ...make() });
    }
    return children.get(id);
  };
}

/** Adds to each node of a tree what its children have. */
export function summed(tree, values) {
  for (let node = tree.nodes.length - 1; node > 0; node--) values[tree.nodes[node].parent] += values[node];
  return values;
}

export class Flame {
  /**
   * `amount(value)` is a value in words, `colour(node)` a box's colour, `lit(node)` whether it is not dimmed, `tip(node)` what is shown
   * beside the pointer, `picked(node)` is called for the box that was clicked. A node is paler unless it is `mine`.
   */
  constructor(label, about) {
    this.about = about;
    this.tree = null;
    this.root = 0;
    this.layout = [];
    this.canvas = h("canvas", { class: "flame", tabindex: "0", role: "img", "aria-label": label });
    this.element = h("div", { class: "flame-box" }, this.canvas);
    this.surface = new Surface(this.canvas, (context, width) => this.draw(context, width));
    this.canvas.addEventListener("pointermove", (event) => {
      const box = this.under(event);
      tooltip(event, box ? about.tip(box.node) : null);
    });
    this.canvas.addEventListener("pointerleave", (event) => tooltip(event, null));
    this.canvas.addEventListener("click", (event) => {
      const box = this.under(event);
      if (box) about.picked(box.node);
    });
    this.canvas.addEventListener("keydown", (event) => this.walk(event));
  }

  /** Shows a tree with its values from `root` down; null shows nothing. */
  show(tree, root) {
    this.tree = tree;
    this.root = tree && tree.value[root] ? root : 0;
    if (tree) this.arrange();
    this.surface.request();
  }

  /** The children of a node that hold something, the largest first. */
  children(node) {
    const { nodes, firstChild, next, value } = this.tree;
    const found = [];
    for (let child = firstChild[node]; child >= 0; child = next[child]) if (value[child]) found.push(child);
    return found.sort((a, b) => (Math.abs(value[b] - value[a]) > 1e-9 * value[0] ? value[b] - value[a] : nodes[a].name.localeCompare(nodes[b].name, "en", { numeric: true })));
  }

  /** The boxes, in shares of the width. */
  arrange() {
    const { nodes, value } = this.tree;
    this.layout = [];
    const ancestors = [];
    for (let node = nodes[this.root].parent; node >= 0; node = nodes[node].parent) ancestors.unshift(node);
    ancestors.forEach((node, depth) => this.layout.push({ node, depth, from: 0, to: 1, above: true }));
    let deepest = ancestors.length;
    const visit = (node, depth, from, to) => {
      this.layout.push({ node, depth, from, to });
      deepest = Math.max(deepest, depth);
      let at = from;
      for (const child of this.children(node)) {
        const wide = ((to - from) * value[child]) / value[node];
        if (wide < 0.0006) break;
        visit(child, depth + 1, at, at + wide);
        at += wide;
      }
    };
    if (value[this.root]) visit(this.root, ancestors.length, 0, 1);
    this.canvas.style.height = `${(deepest + 1) * ROW + 2}px`;
  }

  draw(context, width) {
    const { tree, about } = this;
    if (!tree) return;
    context.font = css("--font-small");
    context.textBaseline = "middle";
    context.textAlign = "left";
    for (const box of this.layout) {
      const node = tree.nodes[box.node];
      const x = box.from * width;
      const wide = (box.to - box.from) * width;
      const y = box.depth * ROW;
      context.globalAlpha = (box.above ? 0.55 : 1) * (about.lit(box.node) ? 1 : 0.25);
      context.fillStyle = box.node === 0 ? css("--root") : about.colour(box.node);
      context.fillRect(x, y, Math.max(0.5, wide - 1), ROW - 1);
      if (box.node !== 0 && !node.mine) {
        // Library code is paler, so that the user's own stands out.
        context.fillStyle = css("--pale");
        context.fillRect(x, y, Math.max(0.5, wide - 1), ROW - 1);
      }
      if (wide > 26) {
        context.fillStyle = box.node === 0 || !node.mine ? css("--ink") : css("--on-colour");
        const name = box.node === 0 ? `${node.name}  ${about.amount(tree.value[0])}` : node.name;
        const room = wide - 10;
        const full = `${name}  ${about.amount(tree.value[box.node])}`;
        const text = box.node !== 0 && context.measureText(full).width <= room ? full : fitText(context, name, room);
        context.fillText(text, x + 5, y + ROW / 2);
      }
    }
    context.globalAlpha = 1;
  }

  under(event) {
    const bounds = this.canvas.getBoundingClientRect();
    const depth = Math.floor((event.clientY - bounds.top) / ROW);
    const at = (event.clientX - bounds.left) / bounds.width;
    return this.layout.find((box) => box.depth === depth && box.from <= at && at < box.to);
  }

  /** The names of what holds a node, the innermost first. */
  path(node) {
    const path = [];
    for (let at = this.tree.nodes[node].parent; at > 0; at = this.tree.nodes[at].parent) path.push(this.tree.nodes[at].name);
    return path;
  }

  walk(event) {
    if (!this.tree) return;
    const { root } = this;
    const { parent } = this.tree.nodes[root];
    const siblings = root ? this.children(parent) : [0];
    const at = siblings.indexOf(root);
    const to = { ArrowDown: this.children(root)[0], ArrowUp: root ? parent : 0, ArrowLeft: siblings[at - 1], ArrowRight: siblings[at + 1] }[event.key];
    if (to === undefined) return;
    event.preventDefault();
    this.about.picked(to);
  }
}
