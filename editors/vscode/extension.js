// Starts `oomph lsp` and hands it to VS Code's client. All that is known of code and memory is the server's.

const fs = require("node:fs");
const path = require("node:path");
const vscode = require("vscode");
const { LanguageClient } = require("vscode-languageclient/node");
const { serverCommand } = require("./command");

let client;

/** The interpreter that is selected in the Python extension, if that is there. */
async function interpreter() {
  const python = vscode.extensions.getExtension("ms-python.python");
  const api = python && (await python.activate());
  return api?.environments?.getActiveEnvironmentPath(workspaceFolder()?.uri)?.path;
}

function workspaceFolder() {
  return vscode.workspace.workspaceFolders?.[0];
}

async function start() {
  const settings = vscode.workspace.getConfiguration("oomph");
  const server = serverCommand(settings.get("path"), settings.get("trace"), await interpreter(), fs.existsSync);
  const options = { cwd: workspaceFolder()?.uri.fsPath };
  client = new LanguageClient("oomph", "oomph", { ...server, options }, {
    documentSelector: [{ language: "python" }],
    synchronize: { fileEvents: vscode.workspace.createFileSystemWatcher("**/{pyproject.toml,*.py}") },
  });
  try {
    await client.start();
  } catch (error) {
    const choice = await vscode.window.showErrorMessage(
      `oomph: cannot start \`${server.command} lsp\`: ${error.message}. \`pip install oomph\` into the selected interpreter, or set "oomph.path".`,
      "Open settings",
    );
    if (choice) await vscode.commands.executeCommand("workbench.action.openSettings", "oomph.path");
  }
}

async function stop() {
  const running = client;
  client = undefined;
  if (running?.isRunning()) await running.stop();
}

async function openReport() {
  const root = workspaceFolder()?.uri.fsPath ?? ".";
  const report = path.join(root, "oomph-report", "latest", "index.html");
  if (fs.existsSync(report)) {
    await vscode.env.openExternal(vscode.Uri.file(report));
  } else {
    await vscode.window.showInformationMessage(
      "oomph: no run yet in oomph-report. `oomph run --gpu rtx-3060 train.py` makes one.",
    );
  }
}

async function activate(context) {
  const restart = async () => {
    await stop();
    await start();
  };
  context.subscriptions.push(
    vscode.commands.registerCommand("oomph.restart", restart),
    vscode.commands.registerCommand("oomph.openReport", openReport),
    vscode.workspace.onDidChangeConfiguration((change) => change.affectsConfiguration("oomph") && restart()),
  );
  await start();
}

module.exports = { activate, deactivate: stop };
