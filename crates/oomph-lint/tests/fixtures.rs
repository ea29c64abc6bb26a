//! Fixtures: one file per rule. A line is marked with the code that must be found on it; every
//! other line must stay clean. What the fixes make of the file is a snapshot.

#![expect(
    clippy::unwrap_used,
    clippy::panic,
    reason = "a test fails by panicking"
)]

use std::fs;
use std::path::PathBuf;

use oomph_lint::output::{FileReport, TextOptions, text};
use oomph_lint::{ALL, Applicability, Finding, Rule, Selection, Source, fix, lint};

fn fixture(rule: &Rule) -> (String, Source) {
    let path = PathBuf::from(env!("CARGO_MANIFEST_DIR"))
        .join("tests/fixtures")
        .join(format!("{}.py", rule.code));
    let code = fs::read_to_string(&path).unwrap_or_else(|_| panic!("no {}", path.display()));
    (code.clone(), Source::python(code).unwrap())
}

fn only(rule: &Rule) -> Selection {
    Selection::new(Some(&[rule.code.to_string()]), &[], &[]).unwrap()
}

fn lines(findings: &[Finding]) -> Vec<usize> {
    let mut lines: Vec<usize> = findings.iter().map(|each| each.start.line).collect();
    lines.dedup();
    lines
}

#[test]
fn marked_lines_are_caught_and_no_others() {
    let mut wrong = Vec::new();
    for rule in ALL {
        let (code, source) = fixture(rule);
        let marked: Vec<usize> = code
            .lines()
            .enumerate()
            .filter(|(_, line)| line.ends_with(&format!("# {}", rule.code)))
            .map(|(index, _)| index + 1)
            .collect();
        let linted = lint(&source, &only(rule));
        assert_eq!(linted.problems, [], "{}", rule.code);
        assert!(!marked.is_empty(), "{} has no marked line", rule.code);
        let found = lines(&linted.findings);
        if found != marked {
            wrong.push(format!("{}: marked {marked:?}, found {found:?}", rule.code));
        }
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
}

#[test]
fn fixes_are_complete_and_stay() {
    for rule in ALL {
        let (code, source) = fixture(rule);
        for least in [Applicability::Safe, Applicability::Unsafe] {
            let Some(fixed) = fix(&source, &only(rule), least) else {
                continue;
            };
            assert_ne!(fixed.text, code, "{}", rule.code);
            assert_eq!(fixed.linted.problems, [], "{}", rule.code);
            let left = fixed
                .linted
                .findings
                .iter()
                .filter(|each| {
                    each.fix
                        .as_ref()
                        .is_some_and(|fix| fix.applicability >= least)
                })
                .count();
            assert_eq!(left, 0, "{}: {left} fixes are left", rule.code);
            assert!(
                fix(&fixed.source, &only(rule), least).is_none(),
                "{}: fixing twice is not fixing once",
                rule.code
            );
        }
    }
}

#[test]
fn snapshots() {
    for rule in ALL {
        let (_, source) = fixture(rule);
        let linted = lint(&source, &only(rule));
        let report = FileReport {
            path: format!("{}.py", rule.code),
            source: Some(source.clone()),
            findings: linted.findings,
            problems: linted.problems,
        };
        insta::assert_snapshot!(rule.code, text(&[report], TextOptions::default()));
        if let Some(fixed) = fix(&source, &only(rule), Applicability::Unsafe) {
            insta::assert_snapshot!(format!("{}_fixed", rule.code), fixed.text);
        }
    }
}

/// Whole scripts, under all rules but these that speak of trade-offs: every marked code on its line, and nothing else.
#[test]
fn scripts() {
    let folder = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/scripts");
    let mut wrong = Vec::new();
    let others = [
        "OOM402", "OOM415", "OOM506", "OOM511", "OOM612", "OOM801", "OOM802", "OOM811", "OOM815",
    ]
    .map(str::to_owned);
    let selection = Selection::all().without(&others).unwrap();
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        let code = fs::read_to_string(&path).unwrap();
        let mut marked: Vec<(usize, String)> = Vec::new();
        for (index, line) in code.lines().enumerate() {
            let codes = line.split_once("# OOM").map_or("", |(_, rest)| rest);
            for part in codes.split_whitespace() {
                marked.push((index + 1, format!("OOM{}", part.trim_start_matches("OOM"))));
            }
        }
        let source = Source::python(code).unwrap();
        let mut found: Vec<(usize, String)> = lint(&source, &selection)
            .findings
            .iter()
            .map(|each| (each.start.line, each.rule.code.to_string()))
            .collect();
        found.sort();
        found.dedup();
        let name = path.file_name().unwrap().to_string_lossy().into_owned();
        for (line, rule) in found.iter().filter(|each| !marked.contains(each)) {
            wrong.push(format!("{name}:{line}: {rule} was found"));
        }
        for (line, rule) in marked.iter().filter(|each| !found.contains(each)) {
            wrong.push(format!("{name}:{line}: {rule} was not found"));
        }
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
}
