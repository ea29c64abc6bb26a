// Which program to start, without VS Code.

const path = require("node:path");

/**
 * The program and its arguments: the path of the settings, else the one beside the Python interpreter, else the
 * one on the PATH.
 */
function serverCommand(configured, trace, interpreter, exists) {
  const args = trace ? ["lsp", "--trace", trace] : ["lsp"];
  if (configured) return { command: configured, args };
  const beside = interpreter && path.join(path.dirname(interpreter), "oomph");
  return { command: beside && exists(beside) ? beside : "oomph", args };
}

module.exports = { serverCommand };
