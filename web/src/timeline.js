// The timeline: what is alive through time, stacked; zoom from the whole job to one block.

import { bytes, duration, niceBytes, niceStep, count } from "./format.js";
import { Surface, css, fill, fitText, h, tooltip } from "./dom.js";
import { axesOf, axisRange, change, follow, momentAt, position, selectBlock, selectKinds, state } from "./state.js";
import { blockTip, colour, kindPlace } from "./blocks.js";

const LEFT = 58;
const RIGHT = 14;
const TOP = 22;
const AXIS = 22;
const RIBBON = 14;
/** Fewer moments than this are drawn block by block. */
const FEW_MOMENTS = 700;
const FEW_BLOCKS = 240;
const TITLES = { category: "category", phase: "phase", group: "module" };
const AXES = { time: "time", steps: "steps", events: "events" };

export function timeline() {
  const canvas = h("canvas", { class: "plot", tabindex: "0", role: "img", "aria-label": "Memory through time. Arrow keys pan, + and − zoom, Enter moves the moment." });
  const strip = h("canvas", { class: "strip", "aria-hidden": "true" });
  const legend = h("div", { class: "legend" });
  const controls = h("div", { class: "controls" });
  const reading = h("output", { class: "reading" });
  const element = h(
    "section",
    { class: "card timeline", id: "timeline", "aria-label": "Timeline" },
    h("header", {}, h("h2", {}, "Timeline"), reading, controls),
    canvas,
    strip,
    legend,
  );
  const surface = new Surface(canvas, draw);
  const overview = new Surface(strip, drawStrip);
  let drawn = null;

  follow((changed) => {
    if (["history", "axis", "mode", "view", "moment", "selection", "block", "theme", "loaded"].some((name) => changed.has(name))) {
      surface.request();
      overview.request();
    }
    if (["history", "axis", "mode", "selection", "theme", "loaded"].some((name) => changed.has(name))) controlsAndLegend();
    if (changed.has("moment") || changed.has("history") || changed.has("loaded")) read();
  });

  function read() {
    const { history, moment } = state;
    if (!history) return;
    const total = history.seriesAt(moment, "category").reduce((sum, value) => sum + value, 0);
    const parts = [];
    const step = history.steps.length ? history.stepAt(moment) : -1;
    if (step >= 0) parts.push(`step ${history.steps[step].number}`);
    const phase = history.phaseAt(moment);
    if (phase > 0) parts.push(history.head.phases[phase]);
    if (history.hasTime) parts.push(duration(history.timeAt(moment), history.head.span / 1000));
    parts.push(`${bytes(total)} in use`, `${bytes(history.reservedAt(moment))} reserved`);
    const name = moment === failure(history)?.moment ? "failure" : moment === history.head.peak ? "peak" : "moment";
    fill(reading, h("b", {}, name), ` ${parts.join(" · ")}`);
  }

  function choice(label, values, current, set) {
    return h(
      "div",
      { class: "segmented", role: "group", "aria-label": label },
      values.map(([value, text]) => h("button", { type: "button", "aria-pressed": String(value === current), onclick: () => set(value) }, text)),
    );
  }

  function controlsAndLegend() {
    const { history, mode, axis } = state;
    if (!history) return;
    const group = history.head.grouped_by === "line" ? "line" : TITLES.group;
    fill(controls,
      choice("Stack by", Object.keys(history.modes).map((name) => [name, name === "group" ? group : TITLES[name]]), mode, (mode) => change({ mode })),
      choice("Axis", axesOf(history).map((name) => [name, AXES[name]]), axis, (axis) => {
        const range = axisRange(history, axis);
        const [from, to] = state.view.map((edge) => momentAt(edge));
        const whole = isWhole();
        change({ axis, view: whole ? range : [position(from, history, axis), Math.max(position(to, history, axis), position(from, history, axis) + 1e-6)] });
      }),
      h(
        "div",
        { class: "segmented", role: "group", "aria-label": "Zoom" },
        h("button", { type: "button", title: "Zoom in (+)", onclick: () => zoom(0.5) }, "+"),
        h("button", { type: "button", title: "Zoom out (−)", onclick: () => zoom(2) }, "−"),
        h("button", { type: "button", title: "Show everything (0)", onclick: whole }, "all"),
        firstStep(history) ? h("button", { type: "button", title: "Show the first step without the setup before it", onclick: () => setView(...firstStep(history)) }, "first step") : null,
        h("button", { type: "button", title: "Go to the peak (p)", onclick: toPeak }, failure(history) ? "failure" : "peak"),
      ),
    );
    const { names, offset } = history.modes[mode];
    const ever = names.map((_, index) => Math.max(...history.levels.at(-1).series[offset + index]));
    fill(legend,
      ...names
        .map((name, index) => [name, index])
        .filter(([, index]) => ever[index] > 0)
        .map(([name, index]) =>
          h(
            "button",
            {
              type: "button",
              class: "key",
              "aria-pressed": String(state.selection?.label === name),
              title: `Highlight ${name || "unknown"}`,
              onclick: () => {
                if (!history.detail) return;
                if (state.selection?.label === name) return change({ selection: null });
                const of = history.detail[history.modes[mode].of];
                selectKinds(name, [...of.keys()].filter((kind) => of[kind] === index));
              },
            },
            h("i", { style: { background: colour(mode, index) } }),
            name || "unknown",
          ),
        ),
      h("span", { class: "key" }, h("i", { class: "line reserved" }), "reserved"),
      capacityOf(history) ? h("span", { class: "key" }, h("i", { class: "line capacity" }), "capacity") : "",
      state.selection ? h("span", { class: "key" }, h("i", { class: "line marked" }), `selected: ${state.selection.label}`) : "",
    );
    legend.querySelectorAll("[aria-pressed=true]").forEach((key) => key.classList.add("on"));
  }

  // ---- drawing ----

  function area(width, height) {
    return { x: LEFT, y: TOP, width: Math.max(10, width - LEFT - RIGHT), height: Math.max(10, height - TOP - AXIS - RIBBON) };
  }

  function draw(context, width, height) {
    const { history, view } = state;
    if (!history) return;
    const box = area(width, height);
    const columns = Math.max(1, Math.floor(box.width));
    const edges = new Float64Array(columns + 1);
    for (let x = 0; x <= columns; x++) edges[x] = momentAt(view[0] + ((view[1] - view[0]) * x) / columns);
    // Positions are floored to moments; the right edge itself belongs to the view.
    if (view[1] >= axisRange()[1]) edges[columns] = history.moments + 1;
    const data = history.columns(edges, state.mode);
    const top = ceiling(history, data);
    const y = (amount) => box.y + box.height * (1 - amount / top);
    drawn = { box, edges, data, top, y, blocks: null };

    grid(context, box, top, y);
    context.save();
    context.beginPath();
    context.rect(box.x, box.y, box.width, box.height);
    context.clip();
    const exact = history.detail && edges[columns] - edges[0] <= FEW_MOMENTS;
    if (exact) drawn.blocks = drawBlocks(context, box, edges, top, y);
    else drawAreas(context, box, data, y);
    drawLines(context, box, data, y, exact);
    context.restore();
    marks(context, box, y);
    axisLabels(context, box, height);
    ribbon(context, box);
  }

  /** The amount at the upper edge. */
  function ceiling(history, data) {
    let high = 1;
    for (let x = 0; x < data.high.length; x++) high = Math.max(high, data.high[x], data.reserved[x]);
    const most = Math.max(history.head.peak_bytes, history.head.peak_reserved, 1);
    const capacity = capacityOf(history) ?? 0;
    // The same scale while panning: the whole job's, with the capacity where it is near.
    const near = capacity && capacity < most * 2.2;
    return Math.max(high, most, near ? capacity : 0) * 1.06;
  }

  function grid(context, box, top, y) {
    context.font = css("--font-small");
    context.textBaseline = "middle";
    context.textAlign = "right";
    const step = niceBytes(top, box.height / 46);
    context.lineWidth = 1;
    for (let amount = 0; amount <= top; amount += step) {
      const at = Math.round(y(amount)) + 0.5;
      context.strokeStyle = css("--grid");
      context.beginPath();
      context.moveTo(box.x, at);
      context.lineTo(box.x + box.width, at);
      context.stroke();
      context.fillStyle = css("--quiet");
      const text = amount === 0 ? "0" : bytes(amount).replace(".0 ", " ");
      context.fillText(text, box.x - 6, at);
    }
  }

  function drawAreas(context, box, data, y) {
    const width = data.high.length;
    const stacked = new Float64Array(width);
    const dim = state.selection ? 0.35 : 1;
    const order = seriesOrder(data.series);
    for (const index of order) {
      context.beginPath();
      let any = false;
      for (let x = 0; x < width; x++) {
        const at = y(stacked[x]);
        if (x === 0) context.moveTo(box.x, at);
        context.lineTo(box.x + x, at);
        context.lineTo(box.x + x + 1, at);
      }
      for (let x = width - 1; x >= 0; x--) {
        const value = data.values[x * data.series + index];
        if (value > 0) any = true;
        stacked[x] += value;
        const at = y(stacked[x]);
        context.lineTo(box.x + x + 1, at);
        context.lineTo(box.x + x, at);
      }
      if (!any) continue;
      context.closePath();
      context.globalAlpha = dim;
      context.fillStyle = colour(state.mode, index);
      context.fill();
    }
    context.globalAlpha = 1;
  }

  /** Persistent series below, transient ones above. */
  function seriesOrder(series) {
    return [...Array(series).keys()];
  }

  function drawBlocks(context, box, edges, top, y) {
    const { history, mode } = state;
    const { detail } = history;
    const first = Math.max(0, Math.floor(edges[0]));
    const last = Math.min(history.moments, Math.ceil(edges[edges.length - 1]));
    const key = detail[history.modes[mode].of];
    const series = history.modes[mode].names.length;
    const atLeast = (top / box.height) * 1.2;
    // Blocks large enough for their own band; the rest of each series lies below them.
    let shown = [];
    for (let block = 0; block < detail.blocks && detail.start[block] <= last; block++) {
      if (detail.end[block] > first && detail.bytes[block] >= atLeast) shown.push(block);
    }
    if (shown.length > FEW_BLOCKS) {
      shown.sort((a, b) => detail.bytes[b] - detail.bytes[a]);
      shown.length = FEW_BLOCKS;
    }
    const own = Array.from({ length: series }, () => []);
    shown.sort((a, b) => detail.start[a] - detail.start[b]);
    for (const block of shown) own[key[detail.kind[block]]].push(block);
    const isShown = new Set(shown);
    // Amounts of the rest, moment by moment.
    const rest = history.seriesAt(first, mode);
    for (const block of shown) if (detail.start[block] <= first) rest[key[detail.kind[block]]] -= detail.bytes[block];
    const placed = [];
    const open = new Map();
    const x = (moment) => box.x + ((position(moment) - state.view[0]) / (state.view[1] - state.view[0])) * box.width;
    const close = (id, until) => {
      const run = open.get(id);
      if (!run) return;
      open.delete(id);
      placed.push({ ...run, to: until });
    };
    for (let moment = first; moment <= last; moment++) {
      if (moment > first) {
        const event = detail.events[moment];
        const block = Math.abs(event) - 1;
        if (event && !isShown.has(block)) rest[key[detail.kind[block]]] += event > 0 ? detail.bytes[block] : -detail.bytes[block];
      }
      const from = moment === first ? box.x : x(moment);
      let level = 0;
      const put = (id, block, index, amount) => {
        const run = open.get(id);
        if (run && run.low === level && run.amount === amount) {
          level += amount;
          return;
        }
        close(id, from);
        if (amount > 0) open.set(id, { from, block, index, low: level, amount });
        level += amount;
      };
      for (let index = 0; index < series; index++) {
        put(-index - 1, -1, index, Math.max(0, rest[index]));
        for (const block of own[index]) {
          if (detail.start[block] <= moment && moment < detail.end[block]) put(block, block, index, detail.bytes[block]);
          else close(block, from);
        }
      }
    }
    for (const id of [...open.keys()]) close(id, box.x + box.width);
    const line = css("--surface");
    const mask = state.selection?.mask;
    context.font = css("--font-small");
    context.textBaseline = "middle";
    context.textAlign = "left";
    for (const run of placed) {
      const [high, low] = [y(run.low + run.amount), y(run.low)];
      const wide = run.to - run.from;
      context.globalAlpha = (mask && (run.block < 0 || !mask[detail.kind[run.block]])) ? 0.3 : 1;
      context.fillStyle = colour(mode, run.index);
      context.fillRect(run.from, high, wide, low - high);
      if (run.block < 0) continue;
      if (low - high > 2.5 && wide > 2) {
        context.strokeStyle = line;
        context.lineWidth = 0.75;
        context.strokeRect(run.from, high, wide, low - high);
      }
      if (run.block === state.block) {
        context.strokeStyle = css("--marked");
        context.lineWidth = 2;
        context.strokeRect(run.from, high, wide, low - high);
      }
      if (low - high > 13 && wide > 60) {
        const { module, op } = history.kind(detail.kind[run.block]);
        const text = `${bytes(detail.bytes[run.block])}  ${module || op || kindPlace(history, detail.kind[run.block])}`;
        context.fillStyle = css("--on-colour");
        const visible = Math.max(run.from, box.x);
        context.fillText(fitText(context, text, Math.min(run.to, box.x + box.width) - visible - 8), visible + 4, (low + high) / 2);
      }
    }
    context.globalAlpha = 1;
    return placed;
  }

  function stepLine(context, box, values, y) {
    context.beginPath();
    for (let x = 0; x < values.length; x++) {
      const at = y(values[x]);
      if (x === 0) context.moveTo(box.x, at);
      context.lineTo(box.x + x, at);
      context.lineTo(box.x + x + 1, at);
    }
    context.stroke();
  }

  function drawLines(context, box, data, y, exact) {
    context.lineWidth = 1;
    if (!exact) {
      let varies = 0;
      for (let x = 0; x < data.high.length; x++) if (data.low[x] < data.high[x] * 0.98) varies++;
      if (varies > data.high.length / 4) {
        // What stays alive between the peaks within one pixel.
        context.strokeStyle = css("--low");
        stepLine(context, box, data.low, y);
      }
    }
    context.strokeStyle = css("--reserved");
    context.lineWidth = 1.5;
    stepLine(context, box, data.reserved, y);
    if (data.marked) {
      context.strokeStyle = css("--marked");
      context.lineWidth = 2;
      stepLine(context, box, data.marked, y);
      const path = new Path2D();
      path.moveTo(box.x, y(0));
      for (let x = 0; x < data.marked.length; x++) {
        path.lineTo(box.x + x, y(data.marked[x]));
        path.lineTo(box.x + x + 1, y(data.marked[x]));
      }
      path.lineTo(box.x + data.marked.length, y(0));
      context.globalAlpha = 0.35;
      context.fillStyle = css("--marked");
      context.fill(path);
      context.globalAlpha = 1;
    }
  }

  const xOf = (box, moment) => box.x + ((position(moment) - state.view[0]) / (state.view[1] - state.view[0])) * box.width;

  function marks(context, box, y) {
    const { history } = state;
    context.font = css("--font-small");
    const capacity = capacityOf(history);
    if (capacity) {
      const at = y(capacity);
      const inside = at >= box.y - 4;
      context.fillStyle = css("--bad");
      context.textBaseline = "alphabetic";
      context.textAlign = "left";
      if (inside) {
        context.strokeStyle = css("--bad");
        context.lineWidth = 1.5;
        context.setLineDash([6, 4]);
        context.beginPath();
        context.moveTo(box.x, at);
        context.lineTo(box.x + box.width, at);
        context.stroke();
        context.setLineDash([]);
      }
      const text = inside ? `capacity ${bytes(capacity)}` : `capacity ${bytes(capacity)} ↑`;
      label(context, text, box.x + 6, inside ? Math.max(at - 7, 12) : box.y + 12);
    }
    const edge = (x) => x >= box.x - 1 && x <= box.x + box.width + 1;
    if (history.steps.length) {
      context.textAlign = "left";
      context.textBaseline = "alphabetic";
      const visible = history.steps.filter((step) => edge(xOf(box, step.start)));
      const dense = visible.length > box.width / 24;
      let lastText = -1e9;
      for (const step of dense ? [] : visible) {
        const x = Math.round(xOf(box, step.start)) + 0.5;
        context.strokeStyle = css("--step");
        context.lineWidth = 1;
        context.beginPath();
        context.moveTo(x, box.y - 4);
        context.lineTo(x, box.y + box.height);
        context.stroke();
        const text = `step ${step.number}`;
        const wide = context.measureText(text).width;
        if (x - lastText > wide + 14 && x + 4 + wide < box.x + box.width + RIGHT && state.axis !== "steps") {
          context.fillStyle = css("--quiet");
          context.fillText(text, x + 4, box.y - 8);
          lastText = x;
        }
      }
    }
    for (const failed of history.head.failures) {
      const x = xOf(box, failed.moment + 1);
      if (!edge(x)) continue;
      context.strokeStyle = css("--bad");
      context.lineWidth = 2;
      context.beginPath();
      context.moveTo(x, box.y);
      context.lineTo(x, box.y + box.height);
      context.stroke();
      if (failed !== history.head.failures.at(-1) && history.head.failures.length > 4) continue;
      const text = `✗ asked for ${bytes(failed.bytes)}`;
      const left = x - context.measureText(text).width - 8;
      context.textAlign = "left";
      context.fillStyle = css("--bad");
      label(context, text, left > box.x ? left : x + 8, box.y + box.height - 10);
    }
    const x = xOf(box, state.moment);
    if (edge(x)) {
      context.strokeStyle = css("--ink");
      context.lineWidth = 1.25;
      context.beginPath();
      context.moveTo(x, box.y);
      context.lineTo(x, box.y + box.height);
      context.stroke();
      context.fillStyle = css("--ink");
      context.beginPath();
      context.moveTo(x - 5, box.y - 1);
      context.lineTo(x + 5, box.y - 1);
      context.lineTo(x, box.y + 6);
      context.fill();
    }
    if (state.block !== null && history.detail) {
      const [from, to] = [xOf(box, history.detail.start[state.block]), xOf(box, Math.min(history.moments + 1, history.detail.end[state.block]))];
      context.fillStyle = css("--marked");
      context.fillRect(Math.max(box.x, from), box.y + box.height - 4, Math.max(2, Math.min(box.x + box.width, to) - Math.max(box.x, from)), 4);
    }
  }

  /** Text on a ground of its own: an outline does not make red readable on an orange area. */
  function label(context, text, x, y) {
    const ink = context.fillStyle;
    const { width, actualBoundingBoxAscent: up, actualBoundingBoxDescent: down } = context.measureText(text);
    context.fillStyle = css("--surface");
    context.beginPath();
    context.roundRect(x - 4, y - up - 3, width + 8, up + down + 6, 4);
    context.fill();
    context.fillStyle = ink;
    context.fillText(text, x, y);
  }

  function axisLabels(context, box, height) {
    const { history, axis, view } = state;
    context.font = css("--font-small");
    context.fillStyle = css("--quiet");
    context.textBaseline = "alphabetic";
    const baseline = height - RIBBON - 6;
    const range = view[1] - view[0];
    let free = 0;
    const put = (text, x) => {
      const half = context.measureText(text).width / 2;
      const middle = Math.max(box.x + half - 4, Math.min(box.x + box.width - half, x));
      if (middle - half < free) return;
      free = middle + half + 10;
      context.textAlign = "center";
      context.fillText(text, middle, baseline);
    };
    if (axis === "steps" && range < 2 && view[0] >= 1) {
      const step = niceStep(range, box.width / 110);
      for (let tick = Math.ceil(view[0] / step); tick * step <= view[1]; tick++) {
        const [at, share] = [Math.floor(tick * step + 1e-9) - 1, ((tick * step + 1e-9) % 1) * 100];
        if (history.steps[at]) put(`step ${history.steps[at].number}, ${share.toFixed(step < 0.01 ? 1 : 0)} %`, box.x + ((tick * step - view[0]) / range) * box.width);
      }
      return;
    }
    if (axis === "steps") {
      const step = Math.max(1, niceStep(range, box.width / 56));
      if (view[0] < 1 && 1 - view[0] > range * 0.04) put("setup", box.x + ((Math.max(view[0], 0) + 1) / 2 - view[0]) / range * box.width);
      for (let at = 0; at < history.steps.length; at += Math.max(1, Math.round(step))) {
        const middle = 1.5 + at;
        if (middle >= view[0] && middle <= view[1]) put(`step ${history.steps[at].number}`, box.x + ((middle - view[0]) / range) * box.width);
      }
      return;
    }
    const step = axis === "events" ? Math.max(1, niceStep(range, box.width / 110)) : niceStep(range, box.width / 100);
    for (let tick = Math.ceil(view[0] / step); tick * step <= view[1]; tick++) {
      const at = tick * step;
      const text = axis === "time" ? duration(at, step) : at.toLocaleString("en");
      put(text, box.x + ((at - view[0]) / range) * box.width);
    }
  }

  function ribbon(context, box) {
    const { history, view } = state;
    const { phaseStart, phase } = history;
    const y = canvas.clientHeight - RIBBON + 2;
    const height = RIBBON - 4;
    if (!phaseStart.length) return;
    context.save();
    context.beginPath();
    context.rect(box.x, y, box.width, height);
    context.clip();
    context.font = css("--font-tiny");
    context.textBaseline = "middle";
    context.textAlign = "left";
    // Column by column, so that a million runs cost no more than a thousand.
    let from = box.x;
    let current = -1;
    const flush = (until) => {
      if (current > 0 && until > from) {
        context.fillStyle = colour("phase", current);
        context.fillRect(from, y, until - from, height);
        const name = history.head.phases[current];
        if (context.measureText(name).width + 8 < until - from) {
          context.fillStyle = css("--on-colour");
          context.fillText(name, from + 4, y + height / 2 + 0.5);
        }
      }
    };
    for (let x = 0; x < box.width; x++) {
      const moment = momentAt(view[0] + ((x + 0.5) / box.width) * (view[1] - view[0]));
      const now = history.phaseAt(Math.max(1, moment));
      if (now !== current) {
        flush(box.x + x);
        from = box.x + x;
        current = now;
      }
    }
    flush(box.x + box.width);
    context.restore();
  }

  function drawStrip(context, width, height) {
    const { history } = state;
    if (!history) return;
    const range = axisRange();
    const box = { x: LEFT, width: width - LEFT - RIGHT, y: 0, height };
    const level = history.levels.at(-1);
    const top = Math.max(history.head.peak_bytes, 1) * 1.05;
    const columns = Math.max(1, Math.floor(box.width));
    const edges = new Float64Array(columns + 1);
    for (let x = 0; x <= columns; x++) edges[x] = momentAt(range[0] + ((range[1] - range[0]) * x) / columns);
    context.fillStyle = css("--strip");
    for (let x = 0; x < columns; x++) {
      const from = Math.floor(edges[x] / level.span);
      const to = Math.max(from, Math.floor(edges[x + 1] / level.span));
      let high = 0;
      for (let bucket = from; bucket <= to && bucket < level.high.length; bucket++) high = Math.max(high, level.high[bucket]);
      const tall = (high / top) * height;
      context.fillRect(box.x + x, height - tall, 1, tall);
    }
    const [from, to] = state.view.map((edge) => box.x + ((edge - range[0]) / (range[1] - range[0])) * box.width);
    context.fillStyle = css("--veil");
    context.fillRect(box.x, 0, from - box.x, height);
    context.fillRect(to, 0, box.x + box.width - to, height);
    context.strokeStyle = css("--ink");
    context.lineWidth = 1;
    context.strokeRect(from + 0.5, 0.5, Math.max(2, to - from - 1), height - 1);
  }

  // ---- moving ----

  function setView(from, to) {
    const [least, most] = axisRange();
    const smallest = state.axis === "steps" ? 1e-4 : state.axis === "time" ? 2 : 2;
    let range = Math.min(most - least, Math.max(smallest, to - from));
    from = Math.max(least, Math.min(most - range, from));
    change({ view: [from, from + range] });
  }

  const isWhole = () => state.view[0] <= axisRange()[0] && state.view[1] >= axisRange()[1];

  function whole() {
    change({ view: axisRange() });
  }

  function zoom(factor, at = 0.5) {
    const [from, to] = state.view;
    const pivot = from + (to - from) * at;
    setView(pivot - (pivot - from) * factor, pivot + (to - pivot) * factor);
  }

  function pan(share) {
    const range = state.view[1] - state.view[0];
    setView(state.view[0] + range * share, state.view[1] + range * share);
  }

  function toPeak() {
    const { history } = state;
    const moment = failure(history)?.moment ?? history.head.peak;
    change({ moment });
    const at = position(moment);
    if (at < state.view[0] || at > state.view[1]) setView(at - (state.view[1] - state.view[0]) / 2, at + (state.view[1] - state.view[0]) / 2);
  }

  const share = (event, target = canvas) => {
    const bounds = target.getBoundingClientRect();
    return (event.clientX - bounds.left - LEFT) / (bounds.width - LEFT - RIGHT);
  };
  const momentUnder = (event) => momentAt(state.view[0] + Math.max(0, Math.min(1, share(event))) * (state.view[1] - state.view[0]));

  canvas.addEventListener(
    "wheel",
    (event) => {
      if (!(event.ctrlKey || event.metaKey || event.shiftKey || event.altKey) && Math.abs(event.deltaX) <= Math.abs(event.deltaY) && isWhole() && event.deltaY > 0) return;
      event.preventDefault();
      if (Math.abs(event.deltaX) > Math.abs(event.deltaY) || event.shiftKey) pan((event.deltaX || event.deltaY) / canvas.clientWidth);
      else zoom(Math.exp(event.deltaY * 0.0018), Math.max(0, Math.min(1, share(event))));
    },
    { passive: false },
  );

  const touches = new Map();
  let drag = null;
  canvas.addEventListener("pointerdown", (event) => {
    canvas.setPointerCapture(event.pointerId);
    touches.set(event.pointerId, event);
    drag = { x: event.clientX, view: state.view, moved: false };
  });
  canvas.addEventListener("pointermove", (event) => {
    if (touches.has(event.pointerId)) {
      const before = touches.get(event.pointerId);
      if (touches.size === 2) {
        const other = [...touches.values()].find((touch) => touch.pointerId !== event.pointerId);
        const [was, is] = [Math.abs(before.clientX - other.clientX), Math.abs(event.clientX - other.clientX)];
        if (was > 8 && is > 8) zoom(was / is, Math.max(0, Math.min(1, share(other))));
        drag.moved = true;
      } else if (drag) {
        const moved = event.clientX - drag.x;
        if (Math.abs(moved) > 3) drag.moved = true;
        if (drag.moved) {
          const range = drag.view[1] - drag.view[0];
          const by = (moved / (canvas.clientWidth - LEFT - RIGHT)) * range;
          setView(drag.view[0] - by, drag.view[1] - by);
        }
      }
      touches.set(event.pointerId, event);
      return tooltip(event, null);
    }
    hover(event);
  });
  const release = (event) => {
    touches.delete(event.pointerId);
    if (drag && !drag.moved && event.type === "pointerup") {
      const moment = momentUnder(event);
      const block = blockUnder(event);
      change({ moment, block });
    }
    if (!touches.size) drag = null;
  };
  canvas.addEventListener("pointerup", release);
  canvas.addEventListener("pointercancel", release);
  canvas.addEventListener("pointerleave", (event) => tooltip(event, null));
  canvas.addEventListener("dblclick", (event) => zoom(0.25, share(event)));

  function blockUnder(event) {
    if (!drawn?.blocks) return null;
    const bounds = canvas.getBoundingClientRect();
    const [x, y] = [event.clientX - bounds.left, event.clientY - bounds.top];
    const found = drawn.blocks.find((run) => run.block >= 0 && run.from <= x && x < run.to && drawn.y(run.low + run.amount) <= y && y < drawn.y(run.low));
    return found ? found.block : null;
  }

  function hover(event) {
    const { history, mode } = state;
    if (!history || !drawn) return;
    const block = blockUnder(event);
    if (block !== null) return tooltip(event, blockTip(history, block));
    const at = Math.floor(share(event) * drawn.data.high.length);
    if (at < 0 || at >= drawn.data.high.length) return tooltip(event, null);
    const { data, edges } = drawn;
    const { names } = history.modes[mode];
    const moment = Math.min(history.moments, Math.floor(edges[at]));
    const step = history.steps.length ? history.stepAt(moment) : -1;
    const phase = history.phaseAt(moment);
    const title = [
      history.hasTime ? duration(history.timeAt(moment), state.axis === "time" ? (state.view[1] - state.view[0]) / 1000 : history.head.span / 1000) : count(moment, "event"),
      step >= 0 ? `step ${history.steps[step].number}` : null,
      phase > 0 ? history.head.phases[phase] : null,
    ];
    const rows = names
      .map((name, index) => [name, data.values[at * data.series + index], index])
      .filter(([, value]) => value > 0)
      .reverse();
    tooltip(event, [
      h("b", {}, title.filter(Boolean).join(" · ")),
      h(
        "table",
        {},
        rows.map(([name, value, index]) =>
          h("tr", {}, h("td", {}, h("i", { style: { background: colour(mode, index) } }), name || "unknown"), h("td", {}, bytes(value))),
        ),
        h("tr", { class: "sum" }, h("td", {}, "in use"), h("td", {}, bytes(data.high[at]))),
        h("tr", {}, h("td", {}, "reserved"), h("td", {}, bytes(data.reserved[at]))),
        data.marked ? h("tr", {}, h("td", {}, "selected"), h("td", {}, bytes(data.marked[at]))) : null,
      ),
    ]);
  }

  let brush = null;
  strip.addEventListener("pointerdown", (event) => {
    strip.setPointerCapture(event.pointerId);
    const range = axisRange();
    const at = range[0] + share(event, strip) * (range[1] - range[0]);
    const inside = !isWhole() && at >= state.view[0] && at <= state.view[1];
    brush = { at, inside, view: state.view };
  });
  strip.addEventListener("pointermove", (event) => {
    if (!brush) return;
    const range = axisRange();
    const at = range[0] + Math.max(0, Math.min(1, share(event, strip))) * (range[1] - range[0]);
    if (brush.inside) setView(brush.view[0] + at - brush.at, brush.view[1] + at - brush.at);
    else if (Math.abs(at - brush.at) > (range[1] - range[0]) / 400) setView(Math.min(at, brush.at), Math.max(at, brush.at));
  });
  strip.addEventListener("pointerup", () => (brush = null));

  canvas.addEventListener("keydown", (event) => {
    const keys = {
      ArrowLeft: () => (event.shiftKey ? change({ moment: Math.max(0, state.moment - 1) }) : pan(-0.1)),
      ArrowRight: () => (event.shiftKey ? change({ moment: Math.min(state.history.moments, state.moment + 1) }) : pan(0.1)),
      Enter: () => change({ moment: momentAt((state.view[0] + state.view[1]) / 2) }),
    };
    if (!keys[event.key]) return;
    event.preventDefault();
    keys[event.key]();
  });

  return { element, zoom, pan, whole, toPeak, setView, surface, redraw: () => (surface.now(), overview.now()) };
}

/** Where the first step begins: one that was cut off is no step yet, but its phases are known. */
function firstMoment(history) {
  if (history.steps.length) return history.steps[0].start;
  const before = ["setup", "load", "unknown"];
  const at = history.phase.findIndex((phase) => !before.includes(history.head.phases[phase]));
  return at > 0 ? history.phaseStart[at] : null;
}

/** The first step on the axis, with a little before it, where the setup takes most of the room. */
export function firstStep(history, axis = state.axis) {
  const moment = firstMoment(history);
  if (moment === null || axis === "steps") return null;
  const [from, to] = axisRange(history, axis);
  const start = position(moment, history, axis);
  const end = history.steps.length > 1 ? position(history.steps[1].start, history, axis) : to;
  if (start - from < (to - from) / 2 || end <= start) return null;
  return [Math.max(from, start - (end - start) * 0.04), end];
}

export function failure(history) {
  return history.head.failures.at(-1) ?? null;
}

export function capacityOf(history) {
  return history.head.total ?? null;
}
