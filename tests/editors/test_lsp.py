"""`oomph lsp` with a real client, that of pygls."""

import asyncio
import os
import subprocess

import pytest
from lsprotocol import types
from pygls.lsp.client import LanguageClient

from tests.support.command import OOMPH

TRAIN = """
import torch

model = torch.nn.Linear(2048, 2048).cuda()
optimizer = torch.optim.SGD(model.parameters())
total = 0.0
for step in range(6):
    optimizer.zero_grad()
    loss = model(torch.randn(512, 2048, device="cuda")).relu().mean()
    loss.backward(retain_graph=True)
    optimizer.step()
    total += loss
""".lstrip()


async def edit(place, work):
    """Start the server in `place`, let `work(client, shown)` work with it, and end it: its exit status."""
    client, shown = LanguageClient("tests", "1"), asyncio.Queue()
    client.feature(types.TEXT_DOCUMENT_PUBLISH_DIAGNOSTICS)(
        lambda published: shown.put_nowait(published)
    )
    await client.start_io(OOMPH, "lsp", cwd=place)
    folder = types.WorkspaceFolder(uri=place.as_uri(), name="project")
    capabilities = types.ClientCapabilities(
        general=types.GeneralClientCapabilities(position_encodings=["utf-8", "utf-16"])
    )
    answer = await client.initialize_async(
        types.InitializeParams(capabilities=capabilities, workspace_folders=[folder])
    )
    assert answer.capabilities.position_encoding == "utf-8"
    client.initialized(types.InitializedParams())
    await asyncio.wait_for(work(client, shown), 60)
    await client.shutdown_async(None)
    client.exit(None)
    server = client._server
    await asyncio.wait_for(server.wait(), 10)
    await client.stop()
    return server.returncode


def test_findings_fixes_and_bytes(oomph, tmp_path):
    assert oomph(TRAIN, "--no-measure").status == 0
    (tmp_path / "pyproject.toml").write_text('[tool.oomph.lint]\nselect = ["OOM101"]\n')
    (tmp_path / "oomph-report").mkdir()
    os.symlink(tmp_path / "run", tmp_path / "oomph-report" / "latest")
    script = tmp_path / "script.py"
    document = types.TextDocumentIdentifier(uri=script.as_uri())

    async def work(client, shown):
        async def until(holds):
            while not holds(await shown.get()):
                pass

        opened = types.TextDocumentItem(document.uri, "python", 1, TRAIN)
        client.text_document_did_open(types.DidOpenTextDocumentParams(opened))
        # Shown at once, and again with the bytes of the run.
        (finding,) = (await shown.get()).diagnostics
        assert finding.code == "OOM101"
        assert finding.range == types.Range(types.Position(10, 13), types.Position(10, 17))
        await until(lambda said: "this loop held " in said.diagnostics[0].message)

        at = types.Position(7, 10)
        hover = await client.text_document_hover_async(types.HoverParams(document, at))
        assert "that tensors held at the peak came through this line" in hover.contents.value
        assert "moved" not in hover.contents.value

        context = types.CodeActionContext([finding])
        actions = await client.text_document_code_action_async(
            types.CodeActionParams(document, finding.range, context)
        )
        assert actions[0].title == "Fix OOM101: detach the loss"
        (change,) = actions[0].edit.changes[document.uri]
        part = types.TextDocumentContentChangePartial(range=change.range, text=change.new_text)
        version = types.VersionedTextDocumentIdentifier(version=2, uri=document.uri)
        client.text_document_did_change(types.DidChangeTextDocumentParams(version, [part]))
        await until(lambda said: said.version == 2 and not said.diagnostics)

    assert asyncio.run(edit(tmp_path, work)) == 0


@pytest.mark.parametrize(
    ("options", "said", "message"),
    [
        (["--trace", "nowhere"], b"", "nowhere: no such file or directory"),
        ([], b"Content-Length: 2\r\n\r\n{}", "expected a client of the language server protocol"),
    ],
)
def test_wrong_use_is_one_line(tmp_path, options, said, message):
    ended = subprocess.run(
        [OOMPH, "lsp", *options], input=said, capture_output=True, cwd=tmp_path, timeout=30
    )
    assert ended.returncode == 2
    assert message in ended.stderr.decode() and ended.stderr.count(b"\n") == 1
    assert ended.stdout == b""
