"""`%%oomph` in a real IPython shell."""

import html
import re

import pytest

IPython = pytest.importorskip("IPython")

CODE = """
import torch
x = torch.zeros(rows, 1024, 1024, device="cuda")
print("made", x.shape[0])
"""


@pytest.fixture
def shell(tmp_path, monkeypatch):
    """A shell in an empty directory, with the extension loaded, that keeps what is displayed."""
    from IPython.core.interactiveshell import InteractiveShell

    monkeypatch.chdir(tmp_path)
    shell = InteractiveShell()
    shown = []
    monkeypatch.setattr("IPython.display.display", shown.append)
    shell.run_cell("%load_ext oomph", store_history=True).raise_error()
    shell.shown = shown
    return shell


def page_of(shown):
    """The report inside the frame."""
    return html.unescape(re.search(r'srcdoc="([^"]*)"', shown.data).group(1))


def test_a_cell_shows_its_report(shell, capsys, tmp_path):
    shell.run_cell("rows = 64", store_history=True).raise_error()
    shell.run_cell(f"%%oomph --gpu rtx-4090 --cells 2{CODE}", store_history=True).raise_error()
    out = capsys.readouterr().out
    assert "made 64" in out and "✓ fits" in out
    (shown,) = shell.shown
    page = page_of(shown)
    assert page == (tmp_path / "oomph-report/cell-1/index.html").read_text(encoding="utf-8")
    assert 'sandbox="allow-scripts"' in shown.data
    # Nothing ran in the kernel itself.
    assert "x" not in shell.user_ns


def test_out_of_memory_is_a_report_too(shell, capsys):
    code = CODE.replace("rows", "16 * 1024")
    shell.run_cell(f"%%oomph --gpu rtx-4090{code}").raise_error()
    assert "out of memory" in capsys.readouterr().out
    assert len(shell.shown) == 1


def test_a_run_that_is_there(shell, tmp_path):
    shell.run_cell(f"%%oomph --gpu t4{CODE.replace('rows', '4')}").raise_error()
    shell.run_cell("%oomph --height 500 oomph-report/cell-1").raise_error()
    assert len(shell.shown) == 2
    assert page_of(shell.shown[0]) == page_of(shell.shown[1])
    assert "height:500px" in shell.shown[1].data


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("%oomph nowhere", "nowhere: no such file or directory"),
        ("%oomph", "expected one run or snapshot, found 0"),
        ("%oomph --height tall x", "--height: expected a number of pixels, found 'tall'"),
        ("%%oomph --cells 90\npass", "--cells 90: these cells have not run"),
        ("%%oomph --out x --gpu t4\npass", "--out is not available"),
    ],
)
def test_wrong_use_says_what_was_expected(shell, capsys, line, message):
    shell.run_cell(line).raise_error()
    assert message in capsys.readouterr().err
    assert shell.shown == []


def test_wrong_options_are_those_of_the_command(shell, capsys):
    shell.run_cell("%%oomph --gpu no-such-gpu\npass").raise_error()
    assert "no-such-gpu" in capsys.readouterr().out
    assert shell.shown == []
