// A few helpers for the document. Text only ever enters it as text.

/** An element with attributes (`on…` are listeners) and children (strings become text). */
export function h(name, attributes = {}, ...children) {
  const element = document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) {
    if (value === undefined || value === null || value === false) continue;
    if (key.startsWith("on")) element.addEventListener(key.slice(2), value);
    else if (key === "style") for (const [name, text] of Object.entries(value)) element.style.setProperty(name, text);
    else element.setAttribute(key, value === true ? "" : value);
  }
  element.append(...children.flat(3).filter((child) => child !== null && child !== undefined && child !== false));
  return element;
}

/** Replaces an element's children; omits empty ones, as `h` does. */
export function fill(element, ...children) {
  element.replaceChildren(...children.flat(3).filter((child) => child !== null && child !== undefined && child !== false));
}

/** A canvas that is sharp on every screen; `draw(context, width, height)` in CSS pixels. */
export class Surface {
  constructor(canvas, draw) {
    this.canvas = canvas;
    this.context = canvas.getContext("2d");
    this.draw = draw;
    this.pending = false;
    new ResizeObserver(() => this.request()).observe(canvas);
  }

  request() {
    if (this.pending) return;
    this.pending = true;
    requestAnimationFrame(() => {
      this.pending = false;
      this.now();
    });
  }

  now() {
    const { clientWidth: width, clientHeight: height } = this.canvas;
    if (!width || !height) return;
    const ratio = Math.min(3, window.devicePixelRatio || 1);
    const [w, h] = [Math.round(width * ratio), Math.round(height * ratio)];
    if (this.canvas.width !== w || this.canvas.height !== h) {
      this.canvas.width = w;
      this.canvas.height = h;
    }
    this.context.setTransform(ratio, 0, 0, ratio, 0, 0);
    this.context.clearRect(0, 0, width, height);
    this.draw(this.context, width, height);
  }
}

let tip;

/** Shows `content` beside the pointer; `null` hides it. */
export function tooltip(event, content) {
  tip ??= document.body.appendChild(h("div", { class: "tip", role: "tooltip", hidden: true }));
  if (!content) {
    tip.hidden = true;
    return;
  }
  tip.replaceChildren(...[content].flat());
  tip.hidden = false;
  const { offsetWidth: width, offsetHeight: height } = tip;
  const x = event.clientX + 14 + width > innerWidth ? event.clientX - width - 10 : event.clientX + 14;
  const y = Math.min(event.clientY + 14, innerHeight - height - 6);
  tip.style.left = `${Math.max(4, x)}px`;
  tip.style.top = `${Math.max(4, y)}px`;
}

/** The value of a CSS variable. */
const cache = new Map();
export function css(name) {
  if (!cache.has(name)) cache.set(name, getComputedStyle(document.documentElement).getPropertyValue(name).trim());
  return cache.get(name);
}
export function forgetColours() {
  cache.clear();
}

/** `text` cut at its end to fit `width`. */
export function fitText(context, text, width) {
  if (context.measureText(text).width <= width) return text;
  let [low, high] = [0, text.length];
  while (low < high) {
    const middle = (low + high + 1) >> 1;
    if (context.measureText(`${text.slice(0, middle)}…`).width <= width) low = middle;
    else high = middle - 1;
  }
  return low > 1 ? `${text.slice(0, low)}…` : "";
}
