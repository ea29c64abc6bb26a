// What all views share. A change notifies every view; views never call each other.

export const state = {
  page: null,
  histories: [],
  history: null,
  /** "time", "steps" or "events". */
  axis: null,
  /** "category", "phase" or "group". */
  mode: "category",
  /** What the timeline shows, in positions of the axis. */
  view: [0, 1],
  /** The moment that peak and address space show. */
  moment: 0,
  /** Kinds of blocks: {label, mask}, or null. */
  selection: null,
  /** One block, or null. */
  block: null,
  query: "",
  tab: "peak",
};

const listeners = [];

/** Calls `listener(changed)` after each change; `changed` has the names of what changed. */
export function follow(listener) {
  listeners.push(listener);
}

export function change(values) {
  const changed = new Set();
  for (const [name, value] of Object.entries(values)) {
    if (state[name] !== value) {
      state[name] = value;
      changed.add(name);
    }
  }
  if (!changed.size) return;
  if (changed.has("selection")) for (const history of state.histories) history.mark(history === state.history ? state.selection?.mask : null);
  for (const listener of listeners) listener(changed);
}

/** Selects one block and with it all of its kind. */
export function selectBlock(block) {
  if (block === null) return change({ block: null });
  change({ block });
}

export function selectKinds(label, kinds) {
  if (!state.history.detail) return;
  const mask = new Uint8Array(state.history.detail.kind_node.length);
  for (const kind of kinds) mask[kind] = 1;
  change({ selection: { label, mask }, block: null });
}

export function clearSelection() {
  change({ selection: null, block: null });
}

// Positions along the axis.

export function position(moment, history = state.history, axis = state.axis) {
  if (axis === "time") return history.timeAt(moment);
  if (axis === "events") return moment;
  const { steps } = history;
  const first = steps[0].start;
  if (moment < first) return moment / first;
  const at = Math.max(0, history.stepAt(moment) >= 0 ? history.stepAt(moment) : steps.length - 1);
  const step = steps[at];
  return 1 + at + Math.min(1, (moment - step.start) / Math.max(1, step.end - step.start));
}

export function momentAt(position, history = state.history, axis = state.axis) {
  if (axis === "time") return history.momentAtTime(position);
  if (axis === "events") return Math.max(0, Math.min(history.moments, Math.floor(position)));
  const { steps } = history;
  if (position < 1) return Math.floor(Math.max(0, position) * steps[0].start);
  const at = Math.min(steps.length - 1, Math.floor(position - 1));
  const { start, end } = steps[at];
  return Math.min(history.moments, Math.floor(start + Math.min(1, position - 1 - at) * (end - start)));
}

export function axisRange(history = state.history, axis = state.axis) {
  if (axis === "time") return [0, Math.max(1, history.head.span)];
  if (axis === "events") return [0, Math.max(1, history.moments)];
  // Without anything before the first step there is no room for it.
  return [history.steps[0].start > 0 ? 0 : 1, 1 + history.steps.length];
}

export function axesOf(history) {
  const axes = [];
  if (history.hasTime) axes.push("time");
  if (history.steps.length > 1) axes.push("steps");
  axes.push("events");
  return axes;
}
