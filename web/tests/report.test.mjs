// The report in a browser: what is shown is what the JSON says, and the views follow each other.
// make test-web

import assert from "node:assert/strict";
import { readFileSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import { after, before, test } from "node:test";
import { deflateSync, inflateSync } from "node:zlib";
import { launch, open } from "./browser.mjs";
import { CAUSES, REPORTS, difference, onCpu, oomph, planted, run } from "./reports.mjs";

let browser;
before(async () => (browser = await launch()));
after(async () => browser.close());

/** An amount as the page writes it. */
function bytes(amount) {
  const units = ["B", "KiB", "MiB", "GiB", "TiB"];
  let unit = 0;
  while (amount >= (unit ? 1023.95 : 1024) && unit < 4) {
    amount /= 1024;
    unit++;
  }
  return unit ? `${amount.toFixed(1)} ${units[unit]}` : `${amount} B`;
}

/** A page whose data was changed. */
function changed(page, name, change) {
  const html = readFileSync(page, "utf8").replace(/(id="oomph-page">)([^<]*)/, (_, before, payload) => {
    const raw = inflateSync(Buffer.from(payload, "base64"));
    const length = raw.readUInt32LE(10);
    const head = JSON.parse(raw.subarray(14, 14 + length));
    change(head);
    const text = Buffer.from(JSON.stringify(head));
    const start = Buffer.from(raw.subarray(0, 14));
    start.writeUInt32LE(text.length, 10);
    return before + deflateSync(Buffer.concat([start, text])).toString("base64");
  });
  const path = join(REPORTS, name);
  writeFileSync(path, html);
  return path;
}

const text = async (page, selector) => (await page.locator(selector).first().innerText()).replaceAll(/\s+/g, " ");
const alive = (page) =>
  page.evaluate(() => {
    const { state, history } = window.oomph;
    return history().seriesAt(state.moment, "category").reduce((sum, value) => sum + value, 0);
  });

for (const name of CAUSES) {
  test(`planted cause ${name}: verdict, failure and growth are those of the JSON`, async () => {
    const { page: path, json } = planted(name);
    const page = await open(browser, path);
    assert.equal(await text(page, "#verdict h1 span:last-child"), json.verdict);
    const facts = await text(page, "#verdict .facts");
    assert.match(facts, new RegExp(bytes(json.peak.live_bytes).replace(".", "\\.")));
    assert.equal(await alive(page), json.peak.live_bytes);
    assert.equal(await text(page, ".peak h3"), `${bytes(json.peak.live_bytes)} in ${await page.evaluate(() => window.oomph.history().alive(window.oomph.state.moment).length.toLocaleString("en"))} blocks`);
    for (const fix of json.fixes.slice(0, 6)) assert.ok((await text(page, ".fixes")).includes(bytes(fix.saves_bytes)), fix.what);
    for (const tab of await page.locator("[role=tab]").all()) {
      await tab.click();
      await page.waitForTimeout(60);
    }
    assert.deepEqual(page.problems, []);
    await page.close();
  });
}

test("a run: the verdict has the summary's numbers, and both histories are there", async () => {
  const { page: path, json } = run();
  const page = await open(browser, path);
  assert.match(await text(page, "#verdict h1"), /Out of memory in step \d+, backward/);
  const facts = await text(page, "#verdict .facts");
  for (const amount of [json.peak.used_bytes, json.gpu.memory_bytes, json.oom.short_bytes]) assert.ok(facts.includes(bytes(amount)), facts);
  const caption = await text(page, "figcaption");
  for (const [id, amount] of Object.entries(json.by_category)) if (amount) assert.ok(caption.includes(bytes(amount)), id);
  await page.getByRole("button", { name: "without a limit" }).click();
  const peak = await page.evaluate(() => window.oomph.history().head.peak_bytes);
  // PyTorch counts whole blocks, the history what was asked for: a little less.
  assert.ok(peak <= json.peak.allocated_bytes && peak > json.peak.allocated_bytes * 0.999, `${peak}`);
  await page.evaluate(() => window.oomph.change({ moment: window.oomph.history().head.peak }));
  assert.equal(await alive(page), peak);
  assert.deepEqual(page.problems, []);
  await page.close();
});

test("selecting in one view is seen in the others", async () => {
  const page = await open(browser, planted("loss_accumulate").page);
  // A row of the table selects; the inspector, the timeline and the flame graph follow.
  await page.locator(".peak tbody tr").first().click();
  const name = (await page.evaluate(() => window.oomph.state.selection.label)).replaceAll(/\s+/g, " ");
  assert.ok((await text(page, ".inspector h3")).startsWith(name));
  assert.ok((await text(page, ".legend")).includes(`selected: ${name}`));
  // Escape clears.
  await page.keyboard.press("Escape");
  assert.equal(await page.evaluate(() => window.oomph.state.selection), null);
  // A click on the timeline moves the moment; the peak view follows.
  await page.locator(".legend").scrollIntoViewIfNeeded();
  const plot = await page.locator(".plot").boundingBox();
  await page.mouse.click(plot.x + plot.width / 2, plot.y + plot.height / 2);
  assert.ok((await text(page, ".peak h3")).startsWith(bytes(await alive(page))));
  // The address space follows, and its slider moves all.
  await page.locator("#tab-space").click();
  const slider = page.locator(".slider input");
  assert.equal(Number(await slider.inputValue()), await page.evaluate(() => window.oomph.state.moment));
  await slider.fill("1200");
  assert.equal(await page.evaluate(() => window.oomph.state.moment), 1200);
  const reserved = await page.evaluate(() => window.oomph.history().reservedAt(1200));
  assert.ok((await text(page, ".space-view .facts")).includes(bytes(reserved)));
  // A block of the address space is shown in full.
  const spaces = await page.locator(".space").boundingBox();
  for (let y = 8; y < spaces.height && (await page.evaluate(() => window.oomph.state.block)) === null; y += 25) {
    await page.locator(".space").click({ position: { x: 120, y } });
  }
  assert.notEqual(await page.evaluate(() => window.oomph.state.block), null);
  assert.ok((await text(page, ".inspector")).includes("Stack"));
  assert.deepEqual(page.problems, []);
  await page.close();
});

test("zooming in ends at single blocks, whose sum is what the levels say", async () => {
  const page = await open(browser, run().page);
  const sums = await page.evaluate(() => {
    const { history, lines, state, change } = window.oomph;
    change({ axis: "events", view: [0, history().moments] });
    const found = [];
    for (let at = 0; at < 12; at++) {
      lines.zoom(0.5, 0.7);
      const [from, to] = state.view;
      const edges = Float64Array.from({ length: 201 }, (_, x) => from + ((to - from) * x) / 200);
      const coarse = { series: 8, values: new Float64Array(1600), high: new Float64Array(200), low: new Float64Array(200), reserved: new Float64Array(200), marked: null };
      const fine = history().columns(edges, "category");
      history().fromLevels(edges, 0, coarse);
      found.push([Math.max(...fine.high), Math.max(...coarse.high)]);
    }
    return found;
  });
  for (const [fine, coarse] of sums) assert.ok(fine <= coarse, `${fine} of ${coarse}`);
  await page.locator(".legend").scrollIntoViewIfNeeded();
  const plot = await page.locator(".plot").boundingBox();
  const clicked = [];
  for (const share of [0.3, 0.4, 0.5, 0.6, 0.7, 0.8]) {
    await page.mouse.click(plot.x + plot.width / 2, plot.y + plot.height * share);
    clicked.push(await page.evaluate(() => window.oomph.state.block));
  }
  assert.ok(clicked.some((block) => block !== null), "a single block can be clicked");
  await page.close();
});

test("growth and what-if show what was computed", async () => {
  const page = await open(browser, planted("fragmentation").page);
  await page.locator("#tab-what-if").click();
  const rows = await page.evaluate(() => window.oomph.state.page.what_if);
  assert.equal(await page.locator("#view-what-if tbody tr").count(), rows.length);
  assert.equal(rows[0].fits, false);
  const expandable = rows.find((row) => row.conf === "expandable_segments:True");
  assert.equal(expandable.fits, true);
  assert.ok((await text(page, "#view-what-if tbody")).includes(bytes(expandable.peak_reserved)));
  await page.close();
  const leak = await open(browser, planted("loss_accumulate").page);
  await leak.locator("#tab-growth").click();
  const usual = await leak.evaluate(() => {
    const sums = window.oomph.history().head.growth.steps.filter((step) => step.left).map((step) => step.left.reduce((a, b) => a + b));
    return sums.slice(1).sort((a, b) => a - b)[(sums.length - 1) >> 1];
  });
  assert.ok((await text(leak, ".growth .lead")).includes(bytes(usual)));
  await leak.close();
});

test("a difference shows both sides and every change", async () => {
  const { page: path, json } = difference();
  const page = await open(browser, path);
  assert.equal(await text(page, "#verdict h1 span:last-child"), json.verdict);
  const shown = await text(page, "#view-diff");
  for (const change of json.categories) assert.ok(shown.includes(bytes(change.bytes[1])), change.name);
  assert.equal(await page.locator(".histories button").count(), 2);
  assert.deepEqual(page.problems, []);
  await page.close();
});

test("the keyboard does what the help says", async () => {
  const page = await open(browser, planted("loss_accumulate").page);
  const view = () => page.evaluate(() => window.oomph.state.view);
  const whole = await view();
  await page.keyboard.press("+");
  const zoomed = await view();
  assert.ok(zoomed[1] - zoomed[0] < whole[1] - whole[0]);
  await page.keyboard.press("ArrowRight");
  assert.ok((await view())[0] > zoomed[0]);
  await page.keyboard.press("0");
  assert.deepEqual(await view(), whole);
  await page.keyboard.press("3");
  assert.equal(await page.evaluate(() => window.oomph.state.tab), "growth");
  await page.keyboard.press("/");
  await page.keyboard.type("resnet");
  // The page's own policy forbids the evaluation that waiting for a function needs.
  for (let tries = 0; tries < 50 && !(await page.evaluate(() => window.oomph.state.selection)); tries++) await page.waitForTimeout(50);
  assert.match(await text(page, ".inspector h3"), /resnet/);
  await page.keyboard.press("Escape");
  await page.keyboard.press("?");
  await page.locator("dialog").waitFor();
  await page.keyboard.press("Escape");
  await page.keyboard.press("t");
  assert.equal(await page.evaluate(() => document.documentElement.dataset.theme), "dark");
  await page.close();
});

test("a phone shows everything without scrolling sideways", async () => {
  const page = await open(browser, run().page, { viewport: { width: 390, height: 844 } });
  for (const tab of await page.locator("[role=tab]").all()) {
    await tab.click();
    await page.waitForTimeout(60);
    assert.ok(await page.evaluate(() => document.documentElement.scrollWidth <= innerWidth), await tab.innerText());
  }
  await page.close();
});

/** How many different colours a canvas or a picture has; a blank one has one. */
const colours = (page, selector) =>
  page.evaluate((selector) => {
    const canvas = document.querySelector(selector);
    const { data } = canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height);
    return { colours: new Set(new Uint32Array(data.buffer)).size, width: canvas.clientWidth };
  }, selector);

test("printing shows every view, drawn on light ground as wide as a page", async () => {
  const page = await open(browser, planted("loss_accumulate").page, { colorScheme: "dark" });
  // Handlers run while the page still has the screen's style.
  await page.evaluate(() => dispatchEvent(new Event("beforeprint")));
  await page.emulateMedia({ media: "print" });
  for (const view of ["peak", "space", "growth", "what-if"]) assert.ok(await page.locator(`#view-${view}`).isVisible(), view);
  for (const canvas of [".flame", ".space", ".bars"]) {
    const drawn = await colours(page, canvas);
    assert.ok(drawn.colours > 5, `${canvas} is blank`);
    assert.ok(drawn.width <= 700, `${canvas} is ${drawn.width} wide`);
  }
  assert.equal(await page.evaluate(() => getComputedStyle(document.documentElement).getPropertyValue("--ink").trim()), "#16191d");
  const wide = await page.evaluate(() => Math.max(...[...document.querySelectorAll("main, table, canvas, figure")].map((part) => part.getBoundingClientRect().width)));
  assert.ok(wide <= 700, `something is ${wide} wide`);
  const pdf = await page.pdf({ path: join(REPORTS, "print.pdf") });
  assert.ok(pdf.length > 10_000);
  await page.evaluate(() => dispatchEvent(new Event("afterprint")));
  assert.equal(await page.evaluate(() => document.documentElement.dataset.theme), undefined);
  await page.close();
});

test("red text can be read in both themes, on the page and on the plot", async () => {
  for (const colorScheme of ["light", "dark"]) {
    const page = await open(browser, planted("loss_accumulate").page, { colorScheme });
    const contrast = await page.evaluate(() => {
      const value = (name) => {
        const probe = document.body.appendChild(document.createElement("i"));
        probe.style.color = `var(${name})`;
        const parts = getComputedStyle(probe).color.match(/[\d.]+/g).map(Number);
        probe.remove();
        return parts.slice(0, 3).map((part) => (part / 255 <= 0.04045 ? part / 255 / 12.92 : ((part / 255 + 0.055) / 1.055) ** 2.4)).reduce((sum, part, at) => sum + part * [0.2126, 0.7152, 0.0722][at], 0);
      };
      const between = (a, b) => (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05);
      return Object.fromEntries(["--bad", "--good", "--warn", "--quiet"].flatMap((ink) => ["--surface", "--raised"].map((ground) => [`${ink} on ${ground}`, between(value(ink), value(ground))])));
    });
    for (const [pair, ratio] of Object.entries(contrast)) assert.ok(ratio >= 4.5, `${colorScheme}: ${pair} ${ratio.toFixed(2)}`);
    // The label of the failure stands on the surface's colour, not on what is drawn below it.
    const share = await page.evaluate(() => {
      const { state, history, lines, change } = window.oomph;
      change({ view: [0, history().head.span] });
      lines.redraw();
      const canvas = document.querySelector(".plot");
      const ratio = canvas.width / canvas.clientWidth;
      const [width, height] = [120 * ratio, 10 * ratio];
      const { data } = canvas.getContext("2d").getImageData(canvas.width - (14 + 126) * ratio, canvas.height - (22 + 14 + 19) * ratio, width, height);
      const probe = document.createElement("canvas").getContext("2d");
      probe.fillStyle = getComputedStyle(document.documentElement).getPropertyValue("--surface").trim();
      probe.fillRect(0, 0, 1, 1);
      const surface = probe.getImageData(0, 0, 1, 1).data;
      let same = 0;
      for (let at = 0; at < data.length; at += 4) if (data[at] === surface[0] && data[at + 1] === surface[1] && data[at + 2] === surface[2]) same++;
      return same / (data.length / 4);
    });
    assert.ok(share > 0.4, `${colorScheme}: ${share}`);
    await page.close();
  }
});

test("a job that dies in its first step shows that step, and all on request", async () => {
  const page = await open(browser, run().page);
  const found = await page.evaluate(() => {
    const { state, history, change, lines } = window.oomph;
    const opened = [...state.view];
    const onTime = state.axis === "time" && history().steps.length < 2;
    const whole = [0, history().head.span];
    change({ axis: "time", view: whole });
    const button = [...document.querySelectorAll(".timeline button")].find((button) => button.textContent === "first step");
    button?.click();
    const start = history().steps.length ? history().steps[0].start : history().phaseStart[history().phase.findIndex((phase) => !["setup", "load", "unknown"].includes(history().head.phases[phase]))];
    return { button: Boolean(button), start: history().timeAt(start), view: [...state.view], whole, opened, onTime };
  });
  const setup = found.start / found.whole[1];
  assert.equal(found.button, setup > 0.5);
  if (found.button && found.onTime) assert.deepEqual(found.opened, found.view);
  if (found.button) assert.ok((found.start - found.view[0]) / (found.view[1] - found.view[0]) < 0.1, JSON.stringify(found));
  await page.close();
});

test("a job on the CPU gets a sentence", async () => {
  const page = await open(browser, onCpu());
  assert.match(await text(page, "main"), /Nothing was allocated on the GPU.*the script ran on the CPU/);
  assert.deepEqual(page.problems, []);
  await page.close();
});

test("what fills the GPU has a colour for each part", async () => {
  const page = await open(browser, changed(run().page, "parts.html", (head) => {
    for (const name of ["other", "outside_allocator", "other_processes"]) head.summary.by_category[name] = 2 ** 30;
  }));
  const painted = await page.evaluate(() => [...document.querySelectorAll("#verdict .fill-bar i")].map((part) => getComputedStyle(part).backgroundColor));
  assert.ok(painted.length >= 6);
  assert.equal(new Set(painted).size, painted.length, painted.join(" "));
  await page.close();
});

test("a redacted report names nobody", async () => {
  const path = join(REPORTS, "redacted.html");
  oomph("report", run().directory, "--redact", "--out", path);
  const page = await open(browser, path);
  for (const tab of await page.locator("[role=tab]").all()) {
    await tab.click();
    await page.waitForTimeout(60);
    const shown = await page.evaluate(() => document.body.innerText);
    for (const secret of ["train_gpt", "GPT.", "examples", "/venv"]) assert.ok(!shown.includes(secret), `${secret} in ${await tab.innerText()}`);
  }
  assert.deepEqual(page.problems, []);
  await page.close();
});

test("a step's time divides as the JSON says, and its boxes can be searched and walked", async () => {
  const { page: path, json } = run();
  const { time } = json;
  const page = await open(browser, path);
  await page.locator("#tab-time").click();
  const words = (value) => {
    const [scaled, unit] = value < 1 ? [value * 1e3, "ms"] : [value, "s"];
    return `${scaled.toFixed(scaled >= 99.95 ? 0 : scaled >= 9.995 ? 1 : 2)} ${unit}`;
  };
  const shown = await text(page, "#view-time");
  // What takes less than a thousandth of the step has no place in its bars.
  const copies = [time.loading_seconds, time.input_seconds].filter((value) => value > time.step_seconds * 1e-3);
  for (const value of [time.step_seconds, time.low, time.high, ...copies, time.device_seconds - time.loading_seconds, time.host_seconds - time.input_seconds]) assert.ok(shown.includes(words(value)), `${words(value)} in ${shown}`);
  for (const { name, seconds } of time.consumers) assert.ok(shown.includes(`${name} ${words(seconds)}`), name);
  // Each bar is as wide as the step.
  for (const bar of await page.locator("#view-time .fill-bar").all()) {
    const share = await bar.evaluate((bar) => [...bar.children].reduce((sum, part) => sum + parseFloat(part.style.width), 0));
    assert.ok(Math.abs(share - 100) < 0.5, `${share} %`);
  }
  assert.ok((await colours(page, "#view-time .flame")).colours > 5);
  const pixels = () => page.evaluate(() => document.querySelector("#view-time .flame").toDataURL());
  const drawn = async (before) => {
    for (let tries = 0; tries < 50 && (await pixels()) === before; tries++) await page.waitForTimeout(40);
    return pixels();
  };
  const whole = await pixels();
  const rows = await page.evaluate(() => document.querySelector("#view-time .flame").clientHeight);
  await page.locator("#view-time .flame").focus();
  await page.keyboard.press("ArrowDown");
  const inside = await drawn(whole);
  assert.notEqual(inside, whole);
  await page.locator("#view-time .plain", { hasText: "show all" }).click();
  assert.equal(await drawn(inside), whole);
  await page.locator("#view-time").getByRole("button", { name: "kind of work" }).click();
  assert.notEqual(await drawn(whole), whole);
  await page.locator("#view-time").getByRole("button", { name: "module" }).click();
  await page.locator("#search").fill("attention");
  assert.notEqual(await drawn(whole), whole);
  assert.ok(rows > 60);
  assert.deepEqual(page.problems, []);
  await page.close();
  const unknown = await open(browser, changed(path, "no-time.html", (head) => (head.summary.time = null)));
  assert.equal(await unknown.locator("#tab-time").count(), 0);
  await unknown.close();
});

test("a picture has all plans by memory and time, and marks the chosen one", async () => {
  const row = (levers, memory, time_ratio, more) => ({ levers, planned_peak: memory, measured_peak: memory, time_ratio, same_results: "exact", verified: true, chosen: false, tried: false, ...more });
  const plans = [
    row("micro-batches: 2", 6 * 2 ** 30, 1.1, { chosen: true }),
    row("offload", 4 * 2 ** 30, 1.9, { measured_peak: null, verified: false }),
    row("as it is", 13 * 2 ** 30, 1, { verified: false, tried: true }),
    row("too little", 12 * 2 ** 30, 1.02, { verified: false, tried: true }),
  ];
  const page = await open(browser, changed(run().page, "trade-off.html", (head) => Object.assign(head, { kind: "fit", plans })));
  await page.locator("#tab-plans").click();
  const label = await page.locator(".trade-off").getAttribute("aria-label");
  for (const words of ["micro-batches: 2: 6.0 GiB, 1.10 ×, measured, chosen", "offload: 4.0 GiB, 1.90 ×, predicted", "as it is: 13.0 GiB, 1.00 ×, measured", "too little: 12.0 GiB, 1.02 ×, measured"]) assert.ok(label.includes(words), label);
  // What was only tried is no plan to choose from.
  assert.equal(await page.locator("#view-plans tbody tr").count(), 2);
  for (let tries = 0; tries < 50 && (await colours(page, ".trade-off")).colours < 6; tries++) await page.waitForTimeout(40);
  assert.ok((await colours(page, ".trade-off")).colours > 5);
  // Beside the pointer stands the nearest plan.
  const found = await page.evaluate(() => {
    const canvas = document.querySelector(".trade-off");
    const { left, top, width, height } = canvas.getBoundingClientRect();
    const names = new Set();
    for (let x = 48; x < width - 10; x += 6) for (let y = 10; y < height - 34; y += 6) {
      canvas.dispatchEvent(new PointerEvent("pointermove", { clientX: left + x, clientY: top + y }));
      const tip = document.querySelector(".tip");
      if (tip && !tip.hidden) names.add(tip.querySelector("b").textContent);
    }
    return [...names];
  });
  assert.deepEqual(found.sort(), plans.map((plan) => plan.levers).sort());
  assert.deepEqual(page.problems, []);
  await page.close();
});

test("plans stand side by side", async () => {
  // The page of a fit: the plans come from outside, so the data of a run is given some.
  const plans = [
    { levers: "bf16 autocast, checkpointing of 12 blocks", planned_peak: 8 * 2 ** 30, measured_peak: 8.2 * 2 ** 30, time_ratio: 0.55, same_results: "numerics change", verified: true, chosen: false },
    { levers: "micro-batch 8 × 2 <img src=x onerror=alert(1)>", planned_peak: 9 * 2 ** 30, measured_peak: null, time_ratio: null, same_results: "exact", verified: false, chosen: true },
  ];
  const path = changed(run().page, "fit.html", (head) => Object.assign(head, { kind: "fit", plans }));
  const fit = await open(browser, path);
  assert.equal(await fit.locator("#view-plans tbody tr").count(), 2);
  const shown = await text(fit, "#view-plans");
  for (const part of ["8.2 GiB", "0.55 ×", "numerics change", "not run", "<img src=x"]) assert.ok(shown.includes(part), part);
  assert.deepEqual(fit.problems, []);
  await fit.close();
  // On a phone every cell is within the screen, without scrolling the table.
  const phone = await open(browser, path, { viewport: { width: 420, height: 900 } });
  await phone.locator("#tab-plans").click();
  const right = await phone.evaluate(() => Math.max(...[...document.querySelectorAll("#view-plans td")].map((cell) => cell.getBoundingClientRect().right)));
  assert.ok(right <= 420, `${right}`);
  assert.match(await text(phone, "#view-plans tbody tr"), /verified ✓ fits|✓ fits/);
  await phone.close();
});

// What it looks like. Pictures differ a little between machines' fonts, so a picture may differ in a
// few of a hundred pixels; UPDATE=1 keeps new ones.
const SCENES = [
  ["run-peak", () => run().page, () => window.oomph.change({ tab: "peak" }), {}],
  ["run-time", () => run().page, () => (window.oomph.change({ tab: "time" }), document.querySelector(".views").scrollIntoView()), {}],
  ["leak-growth", () => planted("loss_accumulate").page, () => window.oomph.change({ tab: "growth" }), {}],
  ["fragmentation-space-dark", () => planted("fragmentation").page, () => window.oomph.change({ tab: "space" }), { colorScheme: "dark" }],
  ["diff", () => difference().page, () => {}, {}],
];
for (const [name, path, arrange, options] of SCENES) {
  test(`it looks as it did: ${name}`, async () => {
    const page = await open(browser, path(), { viewport: { width: 1100, height: 1200 }, ...options });
    await page.evaluate(arrange);
    await page.waitForTimeout(300);
    const reference = join(import.meta.dirname, "references", `${name}.png`);
    const now = await page.screenshot();
    if (process.env.UPDATE) {
      writeFileSync(reference, now);
      await page.close();
      return;
    }
    // The browser itself compares: shrunk to blocks, so that letters do not matter but layout does.
    const share = await page.evaluate(
      async ([before, after]) => {
        const pixels = async (data) => {
          const image = new Image();
          image.src = `data:image/png;base64,${data}`;
          await image.decode();
          const canvas = new OffscreenCanvas(220, 240);
          const context = canvas.getContext("2d");
          context.drawImage(image, 0, 0, 220, 240);
          return context.getImageData(0, 0, 220, 240).data;
        };
        const [a, b] = [await pixels(before), await pixels(after)];
        let differ = 0;
        for (let at = 0; at < a.length; at += 4) if (Math.abs(a[at] - b[at]) + Math.abs(a[at + 1] - b[at + 1]) + Math.abs(a[at + 2] - b[at + 2]) > 60) differ++;
        return differ / (a.length / 4);
      },
      [readFileSync(reference).toString("base64"), now.toString("base64")],
    );
    if (share >= 0.04) writeFileSync(join(REPORTS, `${name}.png`), now);
    assert.ok(share < 0.04, `${(share * 100).toFixed(1)} % of the picture changed; see .reports/${name}.png, and UPDATE=1 to keep it`);
    await page.close();
  });
}
