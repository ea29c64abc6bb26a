// One memory history: the levels, which are available at once, and every block, once unpacked.
//
// Moments count events: the state at moment m is that after the m-th event. A block is alive
// for start <= m < end.

import { unpack } from "./payload.js";

/** The last index whose value is <= wanted, or 0. */
export function lastAtMost(values, wanted, from = 0, to = values.length - 1) {
  let [low, high] = [from, to];
  while (low < high) {
    const middle = (low + high + 1) >>> 1;
    if (values[middle] <= wanted) low = middle;
    else high = middle - 1;
  }
  return low;
}

export class History {
  static async open(number) {
    const overview = await unpack(`overview-${number}`);
    return overview && new History(number, overview);
  }

  constructor(number, { head, columns }) {
    this.number = number;
    this.head = head;
    this.moments = head.moments;
    this.levels = head.spans.map((span, level) => ({
      span,
      high: columns[`high${level}`],
      low: columns[`low${level}`],
      reserved: columns[`reserved${level}`],
      time: columns[`time${level}`],
      series: Array.from(
        { length: head.categories.length + head.phases.length + head.groups.length },
        (_, series) => columns[`series${level}.${series}`],
      ),
    }));
    this.steps = Array.from(columns.step_start, (start, index) => ({
      start,
      end: columns.step_end[index],
      number: columns.step_number[index],
    }));
    this.phaseStart = columns.phase_start;
    this.phase = columns.phase;
    this.detail = null;
    this.checkpoints = new Map();
    this.marked = null;
    const [categories, phases] = [head.categories.length, head.phases.length];
    this.modes = {
      category: { names: head.categories, offset: 0, of: "kind_category" },
      phase: { names: head.phases, offset: categories, of: "kind_phase" },
      group: { names: head.groups, offset: categories + phases, of: "kind_group" },
    };
  }

  /** Unpacks every block. */
  async load() {
    const found = await unpack(`detail-${this.number}`);
    if (!found) return;
    const { head, columns } = found;
    const blocks = columns.start.length;
    const start = Uint32Array.from(columns.start);
    const end = new Uint32Array(blocks);
    const size = new Float64Array(blocks);
    // Which block an event allocates (+number + 1) or frees (−number − 1).
    const events = new Int32Array(this.moments + 2);
    for (let block = 0; block < blocks; block++) {
      const life = columns.life[block];
      end[block] = life ? start[block] + life : this.moments + 1;
      size[block] = head.sizes[columns.size[block]][1];
      if (start[block] > 0) events[start[block]] = block + 1;
      if (life) events[end[block]] = -block - 1;
    }
    this.detail = { ...columns, ...head, blocks, start, end, bytes: size, events };
    this.time = columns.time ?? null;
  }

  get hasTime() {
    return this.head.span > 0;
  }

  /** µs of a moment. */
  timeAt(moment) {
    if (this.time) return this.time[Math.max(0, Math.min(this.moments, Math.floor(moment)))];
    const { span, time } = this.levels[0];
    if (!time) return moment;
    const bucket = Math.min(time.length - 1, Math.floor(moment / span));
    const next = bucket + 1 < time.length ? time[bucket + 1] : this.head.span;
    return time[bucket] + (next - time[bucket]) * ((moment - bucket * span) / span);
  }

  /** The moment at a time in µs. */
  momentAtTime(time) {
    if (this.time) return lastAtMost(this.time, time);
    const { span, time: starts } = this.levels[0];
    const bucket = lastAtMost(starts, time);
    const next = bucket + 1 < starts.length ? starts[bucket + 1] : this.head.span;
    const share = next > starts[bucket] ? Math.min(1, (time - starts[bucket]) / (next - starts[bucket])) : 0;
    return Math.min(this.moments, Math.floor((bucket + share) * span));
  }

  /** The number of the step at a moment within `steps`, or -1. */
  stepAt(moment) {
    let [low, high] = [0, this.steps.length - 1];
    while (low <= high) {
      const middle = (low + high) >> 1;
      if (this.steps[middle].start < moment || (middle === 0 && this.steps[0].start <= moment)) low = middle + 1;
      else high = middle - 1;
    }
    return high >= 0 && moment <= this.steps[high].end ? high : -1;
  }

  phaseAt(moment) {
    if (!this.phaseStart.length || this.phaseStart[0] > moment) return -1;
    return this.phase[lastAtMost(this.phaseStart, moment)];
  }

  reservedAt(moment) {
    if (!this.detail) {
      const level = this.levels[0];
      return level.reserved[Math.min(level.reserved.length - 1, Math.floor(moment / level.span))];
    }
    const { reserved_moment: moments, reserved } = this.detail;
    return reserved[lastAtMost(moments, moment)];
  }

  /** What is alive by series at every `span`-th moment, to start counting from. */
  checkpointsOf(mode) {
    if (this.checkpoints.has(mode)) return this.checkpoints.get(mode);
    const { detail } = this;
    const { names, of } = this.modes[mode];
    const key = detail[of];
    const width = names.length;
    const { span } = this.levels[0];
    const points = Math.floor(this.moments / span) + 1;
    const table = new Float64Array(points * width);
    const now = new Float64Array(width);
    for (let block = 0; block < detail.blocks && detail.start[block] === 0; block++) {
      now[key[detail.kind[block]]] += detail.bytes[block];
    }
    const { events, kind, bytes } = detail;
    for (let moment = 0; moment <= this.moments; moment++) {
      const event = events[moment];
      if (event > 0) now[key[kind[event - 1]]] += bytes[event - 1];
      else if (event < 0) now[key[kind[-event - 1]]] -= bytes[-event - 1];
      if (moment % span === 0) table.set(now, (moment / span) * width);
    }
    this.checkpoints.set(mode, table);
    return table;
  }

  /** Marks blocks of some kinds: how many of their bytes are alive, per bucket at most. */
  mark(mask) {
    this.marked = null;
    const { detail } = this;
    if (!mask || !detail) return;
    const { span } = this.levels[0];
    const points = Math.floor(this.moments / span) + 1;
    const high = new Float64Array(points);
    const start = new Float64Array(points);
    let now = 0;
    for (let block = 0; block < detail.blocks && detail.start[block] === 0; block++) {
      if (mask[detail.kind[block]]) now += detail.bytes[block];
    }
    for (let moment = 0; moment <= this.moments; moment++) {
      const event = detail.events[moment];
      const block = Math.abs(event) - 1;
      if (event && mask[detail.kind[block]]) now += event > 0 ? detail.bytes[block] : -detail.bytes[block];
      const bucket = Math.floor(moment / span);
      if (moment % span === 0) start[bucket] = now;
      if (now > high[bucket]) high[bucket] = now;
    }
    this.marked = { mask, high, start };
  }

  /**
   * What to draw: for each column x of `edges.length - 1`, where `edges[x]` is the moment at its
   * left edge, the series at the highest total within, the lowest total, and the most reserved.
   */
  columns(edges, mode) {
    const { names, offset } = this.modes[mode];
    const width = edges.length - 1;
    const series = names.length;
    const out = {
      series,
      values: new Float64Array(width * series),
      high: new Float64Array(width),
      low: new Float64Array(width),
      reserved: new Float64Array(width),
      marked: this.marked ? new Float64Array(width) : null,
    };
    const finest = this.levels[0];
    const average = (edges[width] - edges[0]) / width;
    if (this.detail && average < finest.span) this.fromBlocks(edges, mode, out);
    else this.fromLevels(edges, offset, out);
    return out;
  }

  fromLevels(edges, offset, out) {
    const { series, values, high, low, reserved, marked } = out;
    for (let x = 0; x < high.length; x++) {
      const wide = edges[x + 1] - edges[x];
      let level = this.levels[0];
      for (const coarser of this.levels) if (coarser.span * 2 <= wide) level = coarser;
      const last = level.high.length - 1;
      const from = Math.min(last, Math.floor(edges[x] / level.span));
      const to = Math.min(last, Math.max(from, Math.ceil(edges[x + 1] / level.span) - 1));
      let best = from;
      let least = level.low[from];
      let most = level.reserved[from];
      for (let bucket = from + 1; bucket <= to; bucket++) {
        if (level.high[bucket] > level.high[best]) best = bucket;
        if (level.low[bucket] < least) least = level.low[bucket];
        if (level.reserved[bucket] > most) most = level.reserved[bucket];
      }
      for (let index = 0; index < series; index++) values[x * series + index] = level.series[offset + index][best];
      high[x] = level.high[best];
      low[x] = least;
      reserved[x] = most;
      if (marked) {
        const { span } = this.levels[0];
        const end = Math.min(this.marked.high.length - 1, Math.max(Math.floor(edges[x] / span), Math.ceil(edges[x + 1] / span) - 1));
        for (let bucket = Math.floor(edges[x] / span); bucket <= end; bucket++) {
          if (this.marked.high[bucket] > marked[x]) marked[x] = this.marked.high[bucket];
        }
      }
    }
  }

  fromBlocks(edges, mode, out) {
    const { series, values, high, low, reserved, marked } = out;
    const { detail } = this;
    const { events, kind, bytes } = detail;
    const key = detail[this.modes[mode].of];
    const { span } = this.levels[0];
    const bucket = Math.floor(Math.max(0, edges[0]) / span);
    const now = this.checkpointsOf(mode).slice(bucket * series, (bucket + 1) * series);
    const mask = this.marked?.mask;
    let moment = bucket * span;
    let total = now.reduce((sum, value) => sum + value, 0);
    let chosen = mask ? this.marked.start[bucket] : 0;
    const step = () => {
      moment++;
      const event = events[moment];
      if (!event) return;
      const block = event > 0 ? event - 1 : -event - 1;
      const change = event > 0 ? bytes[block] : -bytes[block];
      now[key[kind[block]]] += change;
      total += change;
      if (mask && mask[kind[block]]) chosen += change;
    };
    const { reserved_moment: whenReserved, reserved: amounts } = detail;
    let at = lastAtMost(whenReserved, Math.max(0, edges[0]));
    for (let x = 0; x < high.length; x++) {
      const from = Math.floor(edges[x]);
      const to = Math.min(this.moments, Math.max(from, Math.ceil(edges[x + 1]) - 1));
      while (moment < from && moment < this.moments) step();
      const base = x * series;
      high[x] = low[x] = total;
      values.set(now, base);
      if (marked) marked[x] = chosen;
      while (moment < to) {
        step();
        if (total > high[x]) {
          high[x] = total;
          // A loop: `set` costs more than these few numbers.
          for (let index = 0; index < series; index++) values[base + index] = now[index];
        }
        if (total < low[x]) low[x] = total;
        if (marked && chosen > marked[x]) marked[x] = chosen;
      }
      while (at + 1 < whenReserved.length && whenReserved[at + 1] <= from) at++;
      reserved[x] = amounts[at] ?? 0;
      while (at + 1 < whenReserved.length && whenReserved[at + 1] <= to) reserved[x] = Math.max(reserved[x], amounts[++at]);
    }
  }

  /** The numbers of the blocks that are alive at a moment. */
  alive(moment) {
    const { start, end, blocks } = this.detail;
    const found = [];
    for (let block = 0; block < blocks && start[block] <= moment; block++) if (end[block] > moment) found.push(block);
    return found;
  }

  /** Series alive at a moment, by mode; exact once the blocks are unpacked. */
  seriesAt(moment, mode) {
    const { names, offset, of } = this.modes[mode];
    if (!this.detail) {
      const level = this.levels[0];
      const bucket = Math.min(level.high.length - 1, Math.floor(moment / level.span));
      return names.map((_, index) => level.series[offset + index][bucket]);
    }
    const { span } = this.levels[0];
    const bucket = Math.floor(moment / span);
    const now = Array.from(this.checkpointsOf(mode).slice(bucket * names.length, (bucket + 1) * names.length));
    const { events, kind, bytes } = this.detail;
    const key = this.detail[of];
    for (let at = bucket * span + 1; at <= moment; at++) {
      const event = events[at];
      const block = Math.abs(event) - 1;
      if (event) now[key[kind[block]]] += event > 0 ? bytes[block] : -bytes[block];
    }
    return now;
  }

  /** What is known of a kind of blocks. */
  kind(number) {
    const { detail } = this;
    return {
      category: this.head.categories[detail.kind_category[number]],
      categoryIndex: detail.kind_category[number],
      phase: this.head.phases[detail.kind_phase[number]],
      module: detail.names[detail.kind_module[number]],
      op: detail.names[detail.kind_op[number]],
      node: detail.kind_node[number],
    };
  }

  /** Frames of a stack, innermost first. */
  frames(node) {
    const { node_parent: parent, node_frame: frame, frames } = this.detail;
    const found = [];
    for (let at = node; at > 0; at = parent[at]) found.push(frames[frame[at]]);
    return found;
  }

  /** The innermost frame of the user's own code, or `null`. */
  userFrame(node) {
    const { node_parent: parent, node_frame: frame, frames } = this.detail;
    for (let at = node; at > 0; at = parent[at]) if (frames[frame[at]][3] === 2) return frames[frame[at]];
    return null;
  }
}
