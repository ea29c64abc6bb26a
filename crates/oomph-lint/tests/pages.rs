//! Every rule's page is complete, its example is caught, what to use instead is not, and the
//! committed pages in `docs/rules/` are current.

#![expect(
    clippy::unwrap_used,
    clippy::expect_used,
    reason = "a test fails by panicking"
)]

use std::fmt::Write as _;
use std::fs;
use std::path::PathBuf;

use oomph_lint::{ALL, Applicability, FixAvailability, Fresh, Rule, Selection, Source, fix, lint};

const SECTIONS: &[&str] = &[
    "## What it does",
    "## Why it costs memory",
    "## Example",
    "## Use instead",
    "## When it is wrong",
    "## Fix safety",
];

/// The Python block of a section.
fn block(rule: &Rule, section: &str) -> String {
    let page = rule.page();
    let (_, rest) = page.split_once(&format!("\n{section}\n")).expect(section);
    let (_, rest) = rest.split_once("```python\n").expect("a Python block");
    let (code, _) = rest.split_once("```").expect("an end of the block");
    code.to_string()
}

fn codes(code: &str) -> Vec<&'static str> {
    let source = Source::python(code.to_string()).unwrap();
    let linted = lint(&source, &Selection::all());
    assert_eq!(linted.problems, [], "{code}");
    linted
        .findings
        .iter()
        .map(|finding| finding.rule.code)
        .collect()
}

#[test]
fn codes_are_unique_and_in_order() {
    let codes: Vec<_> = ALL.iter().map(|rule| rule.code).collect();
    let mut sorted = codes.clone();
    sorted.sort_unstable();
    sorted.dedup();
    assert_eq!(codes, sorted);
    assert!(codes.len() >= 30);
}

#[test]
fn pages_have_all_sections_in_order() {
    for rule in ALL {
        let page = rule.page();
        let mut at = 0;
        for section in SECTIONS {
            let found = page[at..].find(&format!("\n{section}\n"));
            at += found.unwrap_or_else(|| panic!("{}: no {section}", rule.code));
        }
        assert!(rule.summary().ends_with('.'), "{}", rule.code);
    }
}

#[test]
fn examples_are_caught() {
    let mut wrong = Vec::new();
    for rule in ALL {
        let mut found = codes(&block(rule, "## Example"));
        // All that OOM502 says OOM501 says as well, where both are selected.
        if rule.code == "OOM502" {
            assert_eq!(found, ["OOM501"]);
            let only = Selection::new(Some(&[rule.code.to_owned()]), &[], &[]).unwrap();
            let source = Source::python(block(rule, "## Example")).unwrap();
            found = lint(&source, &only)
                .findings
                .iter()
                .map(|finding| finding.rule.code)
                .collect();
        }
        if !found.contains(&rule.code) {
            wrong.push((rule.code, found));
        }
    }
    assert!(wrong.is_empty(), "examples not caught: {wrong:?}");
}

#[test]
fn what_to_use_instead_is_clean() {
    let mut wrong = Vec::new();
    for rule in ALL {
        let found = codes(&block(rule, "## Use instead"));
        if !found.is_empty() {
            wrong.push((rule.code, found));
        }
    }
    assert!(wrong.is_empty(), "not clean: {wrong:?}");
}

#[test]
fn examples_of_fixable_rules_are_fixed() {
    let mut wrong = Vec::new();
    for rule in ALL {
        let only = Selection::new(Some(&[rule.code.to_string()]), &[], &[]).unwrap();
        let source = Source::python(block(rule, "## Example")).unwrap();
        match (fix(&source, &only, Applicability::Unsafe), rule.fix) {
            (Some(fixed), FixAvailability::Sometimes) => {
                assert!(fixed.linted.findings.is_empty(), "{}", rule.code);
                assert!(
                    fix(&fixed.source, &only, Applicability::Unsafe).is_none(),
                    "{}: fixing twice is not fixing once",
                    rule.code
                );
            }
            (None, FixAvailability::None) => {}
            (fixed, _) => wrong.push((rule.code, fixed.is_some())),
        }
    }
    assert!(wrong.is_empty(), "fix does not match `fix:` of {wrong:?}");
}

/// The head of the list of all rules.
const INDEX: &str = "\
# Rules of `oomph lint`

Generated from the rules' doc comments.

A rule is on by default if it was right in nine of ten findings, of at least ten, in repositories that it had not seen. All others
are off until then: `--extend-select` turns them on by code, name or family, `--select ALL` turns on all. The figures count each
finding as its reader judged it first, for the rule of today that reports it: those of the sets forty and newer that one still reports, and,
if these are fewer than ten, all of older sets. What is wrong and what is true but matters little both count as not right.
A rule that was mended since has left behind some of what was not right, so its figure says more than its next findings will.
Set fifty, of 2026-11-28, is not counted yet: there OOM201 was right in 23 of 37 findings and OOM102 in none of 2; counted, both would be off.
[bench/lint](../../bench/lint/README.md) has the sets and each judgement. With a trace or after a run, `oomph explain` and `oomph run`
report rules about memory whatever their figures: what a line held is measured there.

| code | finds | right in unseen code | default | fix |
| --- | --- | ---: | --- | --- |
";

/// Set `OOMPH_UPDATE_DOCS=1` to write the pages.
#[test]
fn committed_pages_are_current() {
    let docs = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../docs/rules");
    let mut index = String::from(INDEX);
    let mut pages = Vec::new();
    for rule in ALL {
        let default = if rule.is_default() { "on" } else { "off" };
        let Fresh { right, judged } = rule.fresh;
        let fix = match rule.fix {
            FixAvailability::None => "",
            FixAvailability::Sometimes => "some",
        };
        let _ = writeln!(
            index,
            "| [{0}]({0}.md) `{1}` | {2} | {right} of {judged} | {default} | {fix} |",
            rule.code,
            rule.name,
            rule.summary()
        );
        pages.push((format!("{}.md", rule.code), rule.page()));
    }
    pages.push(("README.md".to_string(), index));
    let update = std::env::var_os("OOMPH_UPDATE_DOCS").is_some();
    if update {
        fs::create_dir_all(&docs).unwrap();
    }
    for (name, text) in &pages {
        let path = docs.join(name);
        if update {
            fs::write(&path, text).unwrap();
        }
        let committed = fs::read_to_string(&path).unwrap_or_default();
        assert!(
            committed == *text,
            "{name} is out of date: run `OOMPH_UPDATE_DOCS=1 cargo test -p oomph-lint --test pages`"
        );
    }
    let known: Vec<_> = pages.iter().map(|(name, _)| name.clone()).collect();
    for entry in fs::read_dir(&docs).unwrap() {
        let name = entry.unwrap().file_name().into_string().unwrap();
        assert!(known.contains(&name), "{name} belongs to no rule");
    }
}
