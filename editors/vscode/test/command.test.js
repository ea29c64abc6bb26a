const assert = require("node:assert");
const test = require("node:test");
const { serverCommand } = require("../command");

test("the settings win, then the interpreter's neighbour, then the PATH", () => {
  const python = "/venv/bin/python";
  const there = (file) => file === "/venv/bin/oomph";
  const command = (configured, interpreter, exists) =>
    serverCommand(configured, "", interpreter, exists).command;
  assert.equal(command("/opt/oomph", python, there), "/opt/oomph");
  assert.equal(command("", python, there), "/venv/bin/oomph");
  assert.equal(command("", python, () => false), "oomph");
  assert.equal(command("", undefined, there), "oomph");
});

test("a trace is handed on", () => {
  assert.deepEqual(serverCommand("", "runs/a", undefined, () => false).args, ["lsp", "--trace", "runs/a"]);
});
