//! Mutated sources: nothing panics, and a fix never breaks a file.
//!
//! `OOMPH_LINT_CORPUS=DIR` mutates the Python files of a folder instead of the fixtures, and
//! `PROPTEST_CASES` says how often.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use oomph_lint::{Applicability, Selection, Source, fix, lint};
use proptest::prelude::*;

fn corpus() -> &'static [String] {
    static CORPUS: OnceLock<Vec<String>> = OnceLock::new();
    CORPUS.get_or_init(|| {
        let root = std::env::var_os("OOMPH_LINT_CORPUS").map_or_else(
            || PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures"),
            PathBuf::from,
        );
        let mut files = Vec::new();
        gather(&root, &mut files);
        files.sort();
        files
            .into_iter()
            .filter_map(|path| fs::read_to_string(path).ok())
            .filter(|text| text.len() < 40_000)
            .map(|text| {
                // Without it, the model would not be built.
                if text.contains("torch") {
                    text
                } else {
                    format!("import torch\n{text}")
                }
            })
            .collect()
    })
}

fn gather(folder: &Path, files: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(folder).unwrap().flatten() {
        let path = entry.path();
        if path.is_dir() {
            gather(&path, files);
        } else if path.extension().is_some_and(|extension| extension == "py") {
            files.push(path);
        }
    }
}

/// Pieces that mean something to the rules, and pieces that break syntax.
const PIECES: &[&str] = &[
    "loss",
    ".backward()",
    "model(x)",
    "with torch.no_grad():",
    "(",
    ")",
    "[",
    "]",
    "{",
    "}",
    ":",
    "\n",
    "    ",
    "\t",
    "+=",
    "=",
    ".item()",
    "torch.load(p)",
    "for x in loader:",
    "if True:",
    "else:",
    "lambda x: ",
    "*",
    "**kwargs",
    ", ",
    "# noqa",
    "\"",
    "'''",
    "f\"{",
    "é",
    "\u{3000}",
    "\\\n",
    ";",
    "try:",
    "except RuntimeError as e:",
    "yield",
    "await ",
    "del ",
    "return ",
    "@torch.no_grad()\n",
    "optimizer.zero_grad(set_to_none=False)",
    "torch.cuda.amp.autocast()",
    "\r\n",
    "\0",
    "pass",
];

#[derive(Clone, Debug)]
enum Mutation {
    DeleteLine(usize),
    DuplicateLine(usize, usize),
    SwapLines(usize, usize),
    DeleteBytes(usize, usize),
    Insert(usize, usize),
    Indent(usize, usize),
    JoinFile(usize),
    Truncate(usize),
}

fn mutation() -> impl Strategy<Value = Mutation> {
    let n = any::<usize>;
    prop_oneof![
        n().prop_map(Mutation::DeleteLine),
        (n(), n()).prop_map(|(a, b)| Mutation::DuplicateLine(a, b)),
        (n(), n()).prop_map(|(a, b)| Mutation::SwapLines(a, b)),
        (n(), 1..12usize).prop_map(|(a, b)| Mutation::DeleteBytes(a, b)),
        (n(), n()).prop_map(|(a, b)| Mutation::Insert(a, b)),
        (n(), 1..6usize).prop_map(|(a, b)| Mutation::Indent(a, b)),
        n().prop_map(Mutation::JoinFile),
        n().prop_map(Mutation::Truncate),
    ]
}

fn boundary(text: &str, at: usize) -> usize {
    let mut at = at % (text.len() + 1);
    while !text.is_char_boundary(at) {
        at -= 1;
    }
    at
}

fn apply(text: &str, mutation: &Mutation) -> String {
    let mut lines: Vec<&str> = text.split_inclusive('\n').collect();
    if lines.is_empty() {
        lines.push("\n");
    }
    let count = lines.len();
    match *mutation {
        Mutation::DeleteLine(at) => {
            lines.remove(at % count);
            lines.concat()
        }
        Mutation::DuplicateLine(from, to) => {
            lines.insert(to % count, lines[from % count]);
            lines.concat()
        }
        Mutation::SwapLines(a, b) => {
            lines.swap(a % count, b % count);
            lines.concat()
        }
        Mutation::DeleteBytes(at, length) => {
            let start = boundary(text, at);
            let end = boundary(text, (start + length).min(text.len()));
            format!("{}{}", &text[..start], &text[end.max(start)..])
        }
        Mutation::Insert(at, piece) => {
            let at = boundary(text, at);
            format!(
                "{}{}{}",
                &text[..at],
                PIECES[piece % PIECES.len()],
                &text[at..]
            )
        }
        Mutation::Indent(at, by) => {
            let at = at % count;
            let line = format!("{}{}", " ".repeat(by), lines[at]);
            lines[at] = &line;
            lines.concat()
        }
        Mutation::JoinFile(other) => {
            let files = corpus();
            format!("{text}\n{}", files[other % files.len()])
        }
        Mutation::Truncate(at) => text[..boundary(text, at)].to_string(),
    }
}

fn check(code: &str) -> Result<(), TestCaseError> {
    let Ok(source) = Source::python(code.to_string()) else {
        return Ok(());
    };
    let all = Selection::all();
    let linted = lint(&source, &all);
    for problem in &linted.problems {
        prop_assert!(!problem.message.contains("oomph failed"), "panicked");
    }
    for finding in &linted.findings {
        prop_assert!(code.get(finding.span.clone()).is_some(), "{finding:?}");
        prop_assert!(finding.start <= finding.end, "{finding:?}");
    }
    for least in [Applicability::Safe, Applicability::Unsafe] {
        let fixes = linted
            .findings
            .iter()
            .filter_map(|finding| finding.fix.as_ref())
            .any(|fix| fix.applicability >= least);
        let after = fix(&source, &all, least);
        // A fix that would not parse is dropped by `fix`: here that counts as a wrong fix.
        prop_assert!(!fixes || after.is_some(), "a fix does not parse");
        if let Some(fixed) = after {
            prop_assert!(fixed.linted.problems.is_empty());
            let again = fix(&fixed.source, &all, least);
            prop_assert!(again.is_none(), "fixing twice is not fixing once");
        }
    }
    Ok(())
}

#[test]
fn the_corpus_itself() {
    for code in corpus() {
        if let Err(error) = check(code) {
            panic!("{error}\n{}", code.chars().take(2000).collect::<String>());
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig {
        failure_persistence: None,
        ..ProptestConfig::default()
    })]

    #[test]
    fn mutated_files(file in any::<usize>(), mutations in prop::collection::vec(mutation(), 1..8)) {
        let files = corpus();
        let mut text = files[file % files.len()].clone();
        for mutation in &mutations {
            text = apply(&text, mutation);
        }
        check(&text)?;
    }

    #[test]
    fn any_text(text in "\\PC*") {
        check(&format!("import torch\n{text}"))?;
    }

    #[test]
    fn mutated_notebooks(cells in prop::collection::vec("\\PC{0,40}", 0..4), cut in any::<usize>()) {
        let cells: Vec<_> = cells
            .iter()
            .map(|text| serde_json::json!({"cell_type": "code", "source": [text, "\n", "import torch"]}))
            .collect();
        let raw = serde_json::json!({"cells": cells, "nbformat": 4}).to_string();
        for raw in [raw.clone(), raw[..boundary(&raw, cut)].to_string()] {
            if let Ok(source) = Source::notebook(raw) {
                let linted = lint(&source, &Selection::all());
                for problem in linted.problems {
                    prop_assert!(!problem.message.contains("oomph failed"));
                }
            }
        }
    }
}

#[test]
fn deep_nesting_is_refused_or_linted_but_never_crashes() {
    let shapes: &[(&str, &str, &str)] = &[
        ("(", "1", ")"),
        ("[", "", "]"),
        ("f(", "1", ")"),
        ("-", "1", ""),
        ("not ", "x", ""),
        ("lambda: ", "1", ""),
        ("1 if x else ", "2", ""),
        ("2 ** ", "2", ""),
        ("x.a(", "1", ")"),
        ("{1: ", "2", "}"),
    ];
    for depth in [10, 199, 1_000, 9_000, 60_000] {
        for (open, middle, close) in shapes {
            let code = format!(
                "import torch\nx = {}{middle}{}\n",
                open.repeat(depth),
                close.repeat(depth)
            );
            let linted = lint(&Source::python(code).unwrap(), &Selection::all());
            for problem in linted.problems {
                assert!(!problem.message.contains("oomph failed"), "{open}");
            }
        }
        let chain = format!("import torch\nx = a{}\n", ".b()".repeat(depth));
        lint(&Source::python(chain).unwrap(), &Selection::all());
        let sum = format!("import torch\nx = 1{}\n", " + 1".repeat(depth));
        lint(&Source::python(sum).unwrap(), &Selection::all());
    }
    let mut blocks = String::new();
    for depth in 0..90 {
        blocks.push_str(&" ".repeat(depth));
        blocks.push_str(
            "if x:
",
        );
    }
    let code = format!("import torch\n{blocks}{}pass\n", " ".repeat(90));
    let linted = lint(&Source::python(code).unwrap(), &Selection::all());
    assert_eq!(linted.problems, []);
}
