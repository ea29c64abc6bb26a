// The system's Chromium through Playwright.

import { existsSync } from "node:fs";
import { chromium } from "playwright-core";

const PLACES = [process.env.CHROMIUM, "/usr/bin/chromium", "/usr/bin/chromium-browser", "/usr/bin/google-chrome"];

export async function launch() {
  const executablePath = PLACES.find((path) => path && existsSync(path));
  if (!executablePath) throw new Error("no Chromium was found: install it, or name it in CHROMIUM");
  // Containers often run as root, where Chromium has no sandbox.
  return chromium.launch({ executablePath, args: ["--no-sandbox", "--force-color-profile=srgb", "--font-render-hinting=none"] });
}

/** Opens a page and waits until every block is there; its errors and requests are collected. */
export async function open(browser, path, options = {}) {
  const page = await browser.newPage({ viewport: { width: 1400, height: 1000 }, colorScheme: "light", ...options });
  page.problems = [];
  page.on("pageerror", (error) => page.problems.push(String(error.stack)));
  page.on("console", (message) => message.type() === "error" && page.problems.push(message.text()));
  page.on("request", (request) => /^(https?|ws):/.test(request.url()) && page.problems.push(`asked for ${request.url()}`));
  page.on("dialog", (dialog) => {
    page.problems.push(`dialog: ${dialog.message()}`);
    dialog.dismiss();
  });
  await page.goto(`file://${path}`);
  await page.waitForSelector("body[data-ready]", { timeout: 60_000 });
  return page;
}
