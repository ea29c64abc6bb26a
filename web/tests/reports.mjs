// Makes the reports that the tests look at, with the oomph of the project's environment.

import { execFileSync } from "node:child_process";
import { existsSync, mkdirSync, readdirSync, readFileSync, statSync, writeFileSync } from "node:fs";
import { join, resolve } from "node:path";

export const ROOT = resolve(import.meta.dirname, "../..");
export const REPORTS = join(import.meta.dirname, ".reports");
const OOMPH = process.env.OOMPH ?? join(ROOT, ".venv/bin/oomph");
const BUNDLE = join(ROOT, "web/dist/report.html");

/** Runs oomph; the exit status 3 (out of memory) is a result like 0. */
export function oomph(...words) {
  try {
    return execFileSync(OOMPH, words, { cwd: REPORTS, encoding: "utf8", stdio: ["ignore", "pipe", "pipe"], maxBuffer: 1 << 28 });
  } catch (error) {
    if (error.status === 3) return error.stdout;
    throw new Error(`oomph ${words.join(" ")}: ${error.stderr ?? error.message}`);
  }
}

mkdirSync(REPORTS, { recursive: true });

/** A page is made again when the bundle or the program is newer. */
const fresh = (path) => existsSync(path) && [BUNDLE, OOMPH].every((source) => statSync(source).mtimeMs < statSync(path).mtimeMs);

/** A planted cause: the page, and what `oomph explain --json` says. */
export function planted(name, folder = "oom") {
  const snapshot = join(ROOT, "fixtures", folder, `${name}.pickle.xz`);
  const page = join(REPORTS, `${folder}-${name}.html`);
  const json = join(REPORTS, `${folder}-${name}.json`);
  if (!fresh(page)) oomph("explain", snapshot, "--report", page, "--json", json);
  return { page, json: JSON.parse(readFileSync(json, "utf8")) };
}

/** A real run that does not fit: its page and its summary. */
export function run() {
  const directory = join(REPORTS, "run");
  if (!existsSync(join(directory, "summary.json"))) {
    oomph("run", "--gpu", "rtx-3060", "--steps", "3", "--out", directory, "--quiet", join(ROOT, "examples/train_gpt.py"));
  }
  const page = join(directory, "index.html");
  if (!fresh(page)) oomph("report", directory);
  return { page, json: JSON.parse(readFileSync(join(directory, "summary.json"), "utf8")), directory };
}

/** A run of a script that never uses the GPU. */
export function onCpu() {
  const directory = join(REPORTS, "cpu");
  const script = join(REPORTS, "cpu.py");
  if (!existsSync(join(directory, "summary.json"))) {
    writeFileSync(script, "import torch\n\ntorch.nn.Linear(10, 10)(torch.rand(4, 10)).sum().backward()\n");
    oomph("run", "--gpu", "rtx-3060", "--out", directory, "--quiet", script);
  }
  const page = join(directory, "index.html");
  if (!fresh(page)) oomph("report", directory);
  return page;
}

export function difference() {
  const page = join(REPORTS, "diff.html");
  const json = join(REPORTS, "diff.json");
  const [a, b] = ["snapshots/resnet50_b32", "oom/eval_grad"].map((name) => join(ROOT, "fixtures", `${name}.pickle.xz`));
  if (!fresh(page)) oomph("diff", a, b, "--report", page, "--json", json);
  return { page, json: JSON.parse(readFileSync(json, "utf8")) };
}

export const CAUSES = readdirSync(join(ROOT, "fixtures/oom"))
  .filter((name) => name.endsWith(".pickle.xz"))
  .map((name) => name.replace(".pickle.xz", ""));
