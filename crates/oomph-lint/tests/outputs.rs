//! The forms of output, notebooks, `noqa`, and the order by held memory.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use oomph_lint::output::{FileReport, TextOptions, github, json, sarif, text};
use oomph_lint::{Applicability, HeldBytes, Scope, Selection, Source, fix, lint, order_by_held};

const CODE: &str = "\
import torch

def train(model, loader, optimizer, criterion):
    total = 0.0
    for x, y in loader:
        optimizer.zero_grad()
        loss = criterion(model(x), y)
        loss.backward()
        optimizer.step()
        total += loss
        torch.cuda.empty_cache()
    return total
";

/// All rules but some that speak of trade-offs.
fn rules() -> Selection {
    let others = [
        "OOM302", "OOM402", "OOM415", "OOM505", "OOM506", "OOM511", "OOM612", "OOM701", "OOM704",
        "OOM801", "OOM802", "OOM804", "OOM815",
    ]
    .map(str::to_owned);
    Selection::all().without(&others).unwrap()
}

fn report(path: &str, source: Source) -> FileReport {
    let linted = lint(&source, &rules());
    FileReport {
        path: path.to_string(),
        source: Some(source),
        findings: linted.findings,
        problems: linted.problems,
    }
}

fn reports() -> Vec<FileReport> {
    vec![
        report("src/train.py", Source::python(CODE.to_string()).unwrap()),
        report(
            "broken file.py",
            Source::python("import torch\ndef f(:\n".to_string()).unwrap(),
        ),
        report("note.ipynb", notebook()),
    ]
}

const NOTEBOOK: &str = r##"{
 "cells": [
  {
   "cell_type": "markdown",
   "source": [
    "# torch"
   ]
  },
  {
   "cell_type": "code",
   "execution_count": 1,
   "outputs": [],
   "source": [
    "%matplotlib inline\n",
    "import torch\n",
    "!nvidia-smi"
   ]
  },
  {
   "cell_type": "code",
   "source": [
    "%%bash\n",
    "ls -l"
   ]
  },
  {
   "cell_type": "code",
   "source": "torch.no_grad()"
  },
  {
   "cell_type": "code",
   "source": [
    "# ünïcode \"quoted\"\n",
    "with torch.cuda.amp.autocast():\n",
    "    pass"
   ]
  },
  {
   "cell_type": "code",
   "source": [
    "def broken(:\n"
   ]
  }
 ],
 "metadata": {"a":   1},
 "nbformat": 4
}
"##;

fn notebook() -> Source {
    Source::notebook(NOTEBOOK.to_string()).unwrap()
}

#[test]
fn text_at_several_widths() {
    for width in [50, 60, 80, 100, 120] {
        let options = TextOptions {
            width,
            wrap: oomph_report::terminal::wrap,
            ..TextOptions::default()
        };
        let written = text(&reports(), options);
        // What cannot be broken is a word: a name or a path.
        for line in written.lines() {
            let longest = line
                .split_whitespace()
                .map(|word| word.chars().count())
                .max();
            assert!(
                line.chars().count() <= width.max(24 + longest.unwrap_or(0)),
                "{width}: {line}"
            );
        }
        insta::assert_snapshot!(format!("text_{width}"), written);
    }
}

#[test]
fn concise() {
    let options = TextOptions {
        concise: true,
        ..TextOptions::default()
    };
    insta::assert_snapshot!(text(&reports(), options));
}

#[test]
fn json_form() {
    let written = json(&reports()).unwrap();
    let parsed: serde_json::Value = serde_json::from_str(&written).unwrap();
    assert_eq!(parsed["version"], 1);
    insta::assert_snapshot!(written);
}

#[test]
fn github_form() {
    insta::assert_snapshot!(github(&reports()));
}

#[test]
fn sarif_form() {
    let written = sarif(&reports()).unwrap();
    let mut parsed: serde_json::Value = serde_json::from_str(&written).unwrap();
    assert_eq!(parsed["version"], "2.1.0");
    let rules = parsed["runs"][0]["tool"]["driver"]["rules"].take();
    assert_eq!(rules.as_array().unwrap().len(), oomph_lint::ALL.len());
    for result in parsed["runs"][0]["results"].as_array().unwrap() {
        let index = result["ruleIndex"].as_u64().unwrap() as usize;
        assert_eq!(rules[index]["id"], result["ruleId"]);
    }
    let version = parsed["runs"][0]["tool"]["driver"]["version"].take();
    assert_eq!(version, env!("CARGO_PKG_VERSION"));
    insta::assert_snapshot!(serde_json::to_string_pretty(&parsed).unwrap());
}

#[test]
fn fixing_a_notebook_changes_the_cell_and_nothing_else() {
    let fixed = fix(&notebook(), &rules(), Applicability::Safe).unwrap();
    assert_eq!(fixed.applied, 1);
    let expected = NOTEBOOK.replace(
        "with torch.cuda.amp.autocast():",
        "with torch.amp.autocast(\\\"cuda\\\"):",
    );
    assert_eq!(fixed.text, expected);
}

/// A run of the notebook stops at a cell that does not parse.
#[test]
fn nothing_is_said_below_a_cell_that_does_not_parse() {
    let found = |cells: &[&str]| {
        let cells = cells
            .iter()
            .map(|cell| format!(r#"{{"cell_type": "code", "source": "{cell}"}}"#));
        let text = format!(r#"{{"cells": [{}]}}"#, cells.collect::<Vec<_>>().join(", "));
        let linted = lint(&Source::notebook(text).unwrap(), &rules());
        (linted.findings.len(), linted.problems.len())
    };
    let line = r"import torch\ntorch.no_grad()";
    assert_eq!(found(&[line, "print(("]), (1, 1));
    assert_eq!(found(&["print((", line]), (0, 1));
}

#[test]
fn what_is_no_notebook_is_a_problem_with_a_place() {
    let problem = Source::notebook("{\n \"cells\": [\n".to_string()).unwrap_err();
    assert!(problem.line > 1, "{problem}");
    assert!(problem.message.contains("not a Jupyter notebook"));
    let problem = Source::from_bytes("a.py", b"import torch\n\xff".to_vec()).unwrap_err();
    assert_eq!((problem.line, problem.message.as_str()), (2, "not UTF-8"));
}

#[test]
fn noqa_silences_lines_and_files() {
    let count = |code: &str| {
        let source = Source::python(code.to_string()).unwrap();
        lint(&source, &rules()).findings.len()
    };
    assert_eq!(count("import torch\ntorch.no_grad()\n"), 1);
    assert_eq!(count("import torch\ntorch.no_grad()  # noqa\n"), 0);
    assert_eq!(count("import torch\ntorch.no_grad()  # noqa: OOM203\n"), 0);
    assert_eq!(count("import torch\ntorch.no_grad()  # noqa: OOM2\n"), 0);
    assert_eq!(count("import torch\ntorch.no_grad()  # noqa: OOM101\n"), 1);
    assert_eq!(count("# oomph: noqa\nimport torch\ntorch.no_grad()\n"), 0);
    assert_eq!(
        count("# oomph: noqa: OOM203\nimport torch\ntorch.no_grad()\n"),
        0
    );
    assert_eq!(count("import torch\nx = '# noqa'; torch.no_grad()\n"), 1);
    // On the last line of a finding, too.
    let call =
        "import torch\nx = model.cuda()(torch.autograd.Variable(\n    y,\n    volatile=True,\n))";
    assert_eq!(count(call), 1);
    assert_eq!(count(&format!("{call}  # noqa: OOM204\n")), 0);
}

#[test]
fn findings_on_lines_that_hold_memory_come_first() {
    let source = Source::python(CODE.to_string()).unwrap();
    let mut held = HeldBytes::new();
    // Made by `loss = criterion(model(x), y)`, called from the loop's own line.
    held.add([("train.py", 7), ("train.py", 5)], 3 << 30);
    held.add([("train.py", 7)], 1 << 30);
    held.add([("train.py", 1), ("other.py", 7)], 9 << 30);
    let mut findings: Vec<_> = lint(&source, &rules())
        .findings
        .into_iter()
        .map(|finding| ("train.py", finding))
        .collect();
    findings.reverse();
    assert_eq!(findings[0].1.rule.code, "OOM611");
    order_by_held(&mut findings, &held);
    // The sum keeps what the loop made; the call to `empty_cache` made nothing itself.
    assert_eq!(findings[0].1.rule.code, "OOM101");
    assert_eq!(findings[0].1.scope, Scope::Loop(5, 11));
    assert_eq!(findings[0].1.held_bytes, Some(4 << 30));
    assert_eq!(findings[1].1.held_bytes, None);
    let file = FileReport {
        path: "train.py".to_string(),
        source: Some(source),
        findings: findings.into_iter().map(|(_, finding)| finding).collect(),
        problems: Vec::new(),
    };
    insta::assert_snapshot!(text(&[file], TextOptions::default()));
}

/// Fixes that a careless edit would get wrong.
#[test]
fn edits_keep_what_they_must() {
    let fixed = |code: &str| {
        let source = Source::python(code.to_string()).unwrap();
        fix(&source, &Selection::all(), Applicability::Unsafe).map(|fixed| fixed.text)
    };
    // Arguments that cannot be seen may already say it.
    assert_eq!(
        fixed("import torch\nm.cuda().load_state_dict(torch.load(*args))\n"),
        None
    );
    // A comment inside what would be removed.
    assert_eq!(
        fixed("import torch\noptimizer.zero_grad(\n    set_to_none=False,  # why\n)\n"),
        None
    );
    // A coroutine is not covered by the decorator.
    assert_eq!(
        fixed(
            "import torch\nasync def evaluate(model, loader):\n    model.eval()\n    for x in loader:\n        model(x.cuda())\n"
        ),
        None
    );
    // `torch` is not bound where the decorator runs.
    assert_eq!(
        fixed(
            "def evaluate(model, loader):\n    import torch\n    model.eval()\n    for x in loader:\n        model(x.cuda())\n"
        ),
        None
    );
    // Other decorators stay outside; indentation is kept.
    let method = "import torch\nclass T:\n    @property\n    def validate(self):\n        self.model.eval()\n        for x in self.loader:\n            self.model(x.cuda())\n";
    assert_eq!(
        fixed(method).unwrap(),
        method.replace("    def validate", "    @torch.no_grad()\n    def validate")
    );
    // Trailing commas and comments.
    assert_eq!(
        fixed("from torch.utils.checkpoint import checkpoint\ny = checkpoint(\n    f,\n    x,  # input\n)\n").unwrap(),
        "from torch.utils.checkpoint import checkpoint\ny = checkpoint(\n    f,\n    x, use_reentrant=False,  # input\n)\n"
    );
    // Positions of the old spelling get the names that they had.
    assert_eq!(
        fixed("import torch\nwith torch.cuda.amp.autocast(on, kind):\n    pass\n").unwrap(),
        "import torch\nwith torch.amp.autocast(\"cuda\", enabled=on, dtype=kind):\n    pass\n"
    );
}

/// An editor waits for it at each key. Rules that look through the whole file for each of its calls took sixteen times as long
/// for four times the lines.
#[test]
fn time_grows_with_the_lines_and_not_with_their_square() {
    const FUNCTION: &str = "
def train(model, loader, optimizer, criterion):
    total = 0.0
    for x, y in loader:
        optimizer.zero_grad()
        loss = criterion(model(x.cuda()), y.cuda())
        loss.backward()
        optimizer.step()
        total += loss
    return total
";
    let nanoseconds = |functions: usize| {
        let bodies = (0..functions).map(|n| FUNCTION.replace("train", &format!("train{n}")));
        let code = format!("import torch\n{}", bodies.collect::<String>());
        let source = Source::python(code).unwrap();
        // Of this thread on a processor, whatever else the machine does.
        let now = || {
            let text = std::fs::read_to_string("/proc/thread-self/schedstat").unwrap();
            let first = text.split(' ').next().unwrap();
            first.parse::<u64>().unwrap()
        };
        let runs = (0..5).map(|_| {
            let before = now();
            let linted = lint(&source, &rules());
            assert_eq!(linted.findings.len(), functions);
            now() - before
        });
        runs.min().unwrap()
    };
    // The square of 16 times the lines would take 256 times as long. Caches that other programs fill, and a processor that slows
    // down meanwhile, cost several times the time.
    let (few, many) = (nanoseconds(20), nanoseconds(320));
    assert!(
        many < 140 * few,
        "{many} ns for 320 functions, {few} for 20"
    );
}
