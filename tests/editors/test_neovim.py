"""Neovim with the settings of docs/editors.md, if it is installed."""

import os
import shutil
import subprocess

import pytest

from tests.support import pages
from tests.support.command import BIN

TRAIN = """import torch

def train(model, loader, optimizer, criterion):
    total = 0.0
    for x, y in loader:
        loss = criterion(model(x.cuda()), y.cuda())
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        total += loss
    return total
"""

# What Neovim 0.7 lacks.
BEFORE = """
vim.lsp.start = vim.lsp.start or function(settings)
  vim.lsp.buf_attach_client(0, vim.lsp.start_client(settings))
end
"""

CHECK = """
local function say(...) io.stdout:write(table.concat({...}, " "), "\\n") end
vim.wait(20000, function() return #vim.diagnostic.get(0) > 0 end)
for _, found in ipairs(vim.diagnostic.get(0)) do
  say("found", found.lnum, found.col, found.code or found.user_data.lsp.code)
end
local at = { line = 9, character = 17 }
local params = { textDocument = vim.lsp.util.make_text_document_params(), range = { start = at, ["end"] = at }, context = { diagnostics = {} } }
for _, answer in pairs(vim.lsp.buf_request_sync(0, "textDocument/codeAction", params, 20000)) do
  say("action", answer.result[1].title)
  vim.lsp.util.apply_workspace_edit(answer.result[1].edit, "utf-16")
end
say("line", vim.api.nvim_buf_get_lines(0, 9, 10, false)[1])
say("mended", tostring(vim.wait(20000, function() return #vim.diagnostic.get(0) == 0 end)))
vim.cmd("qa!")
"""


@pytest.mark.skipif(shutil.which("nvim") is None, reason="Neovim is not installed")
def test_neovim_shows_and_fixes(tmp_path):
    page = pages.DOCS / "editors.md"
    (settings,) = [
        block.text for block in pages.blocks(page.read_text()) if block.language == "lua"
    ]
    for name, text in (
        ("train.py", TRAIN),
        ("pyproject.toml", '[tool.oomph.lint]\nselect = ["OOM101"]\n'),
        ("settings.lua", BEFORE + settings),
        ("check.lua", CHECK),
    ):
        (tmp_path / name).write_text(text)
    done = subprocess.run(
        ["nvim", "--headless", "--clean", "--cmd", "luafile settings.lua", "-c", "luafile check.lua", "train.py"],
        cwd=tmp_path, capture_output=True, text=True, timeout=90,
        env={**os.environ, "PATH": os.pathsep.join([BIN, os.environ["PATH"]]), "HOME": str(tmp_path)},
    )  # fmt: skip
    assert done.stdout.splitlines() == [
        "found 9 17 OOM101",
        "action Fix OOM101: detach the loss",
        "line         total += loss.detach()",
        "mended true",
    ], done.stdout + done.stderr
