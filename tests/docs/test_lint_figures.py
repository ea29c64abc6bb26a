"""The table of the linter's rules says how each was judged, and which are on follows from that."""

import re
import runpy
from pathlib import Path

ROOT = Path(__file__).parents[2]
ROW = re.compile(r"\| \[(OOM\d+)\].*\| (\d+) of (\d+) \| (on|off) \|")


def test_the_table_says_what_the_judgements_count():
    counted = runpy.run_path(str(ROOT / "bench" / "lint" / "fresh.py"))["figures"]()
    rows = ROW.findall((ROOT / "docs" / "rules" / "README.md").read_text(encoding="utf-8"))
    assert len(rows) > 50
    said = {code: (int(right), int(judged)) for code, right, judged, _ in rows}
    assert said == {code: counted.get(code, (0, 0)) for code in said}
    on = {code for code, _, _, default in rows if default == "on"}
    assert on == {
        code for code, (right, judged) in said.items() if judged >= 10 and right >= 0.9 * judged
    }
