// Opens a page in headless Chromium and prints how long it takes and how smoothly it pans.
// node bench/report/browser.mjs PAGE

import { resolve } from "node:path";
import { launch, open } from "../../web/tests/browser.mjs";

const browser = await launch();
const page = await open(browser, resolve(process.argv[2]));
const marks = await page.evaluate(() => Object.fromEntries(performance.getEntriesByType("mark").map((mark) => [mark.name, mark.startTime / 1000])));
const pan = [];
for (const share of [1 / 3, 1 / 30, 1 / 300, 1 / 3000, 1 / 30000]) {
  pan.push(
    await page.evaluate(async (share) => {
      const FRAMES = 120;
      const { lines, state } = window.oomph;
      lines.whole();
      const [from, to] = state.view;
      const range = (to - from) * share;
      lines.setView(from + (to - from) * 0.4, from + (to - from) * 0.4 + range);
      const frame = () => new Promise(requestAnimationFrame);
      await frame();
      await frame();
      const began = performance.now();
      for (let count = 0; count < FRAMES; count++) {
        lines.pan(0.005);
        await frame();
      }
      const fps = (FRAMES * 1000) / (performance.now() - began);
      const before = performance.now();
      for (let count = 0; count < 20; count++) {
        lines.pan(-0.005);
        lines.redraw();
      }
      return { share, fps, drawing: (performance.now() - before) / 20 };
    }, share),
  );
}
console.log(JSON.stringify({ drawn: marks["oomph-overview"], complete: marks["oomph-detail"], pan, problems: page.problems }));
await browser.close();
