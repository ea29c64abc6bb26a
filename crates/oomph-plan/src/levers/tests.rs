//! What holds for all levers; a lever's own facets are tested in its file.

use std::fs;
use std::path::{Path, PathBuf};

use super::*;
use crate::PlanFile;

/// A plan with every lever, as files have had it since the format's first version.
const EVERY: &str = include_str!("../../tests/every_lever.toml");

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

fn every() -> Vec<Lever> {
    PlanFile::parse(EVERY).unwrap().levers
}

#[test]
fn plan_files_are_read_and_written_as_before() {
    let plan = PlanFile::parse(EVERY).unwrap();
    let names: Vec<&str> = plan.levers.iter().map(Lever::name).collect();
    assert_eq!(names, NAMES);
    assert_eq!(plan.to_toml(), EVERY);
    // What is not said of several GPUs has a default, and is not written.
    let shard: Lever = serde_json::from_str(r#"{"name": "shard", "gpus": 2}"#).unwrap();
    assert_eq!(shard, data_parallel(2));
    let written = serde_json::to_string(&shard).unwrap();
    assert_eq!(written, r#"{"name":"shard","gpus":2}"#);
}

#[test]
fn unknown_parameters_are_refused() {
    for lever in every() {
        let mut value = serde_json::to_value(&lever).unwrap();
        value["paramter"] = 1.into();
        let error = serde_json::from_value::<Lever>(value).unwrap_err();
        assert!(
            error.to_string().contains("unknown field `paramter`"),
            "{error}"
        );
    }
}

#[test]
fn each_lever_is_a_file_on_each_side() {
    let names = |folder: &str, end: &str| {
        let files = fs::read_dir(root().join(folder)).unwrap();
        let mut names: Vec<String> = files
            .map(|file| file.unwrap().file_name().into_string().unwrap())
            .filter_map(|name| Some(name.strip_suffix(end)?.to_owned()))
            .filter(|name| !["mod", "tests", "__init__"].contains(&name.as_str()))
            .collect();
        names.sort();
        names
    };
    let mut known: Vec<&str> = NAMES.to_vec();
    known.sort_unstable();
    assert_eq!(names("crates/oomph-plan/src/levers", ".rs"), known);
    assert_eq!(names("python/oomph/levers", ".py"), known);
}

#[test]
fn each_lever_says_what_it_is() {
    let mut labels: Vec<String> = Vec::new();
    for mut lever in every() {
        let label = lever.to_string();
        assert!(!label.is_empty() && !labels.contains(&label), "{label}");
        labels.push(label);
        assert!(!lever.facets().snippet().is_empty(), "{lever:?}");
        // Modules that are known stand in what is said of them, and can be left out of the plan.
        let named = serde_json::to_value(&lever)
            .unwrap()
            .get("modules")
            .is_some();
        assert_eq!(lever.modules_mut().is_some(), named, "{lever:?}");
    }
}

#[test]
fn what_is_further_outside_steps_in_first() {
    let order = application_order();
    assert_eq!(order.len(), NAMES.len());
    let at = |name: &str| order.iter().position(|other| *other == name).unwrap();
    for (outside, inside) in [
        ("split_batch", "micro_batch"),
        ("micro_batch", "shard"),
        ("shard", "mixed_precision"),
        ("mixed_precision", "set_to_none"),
        ("int8_linear", "half_weights"),
        ("load_on_cpu", "half_weights"),
        ("offload_activations", "checkpoint"),
        ("checkpoint", "recompute"),
        ("recompute", "fused_modules"),
        ("fused_modules", "compile"),
    ] {
        assert!(at(outside) < at(inside), "{outside} {inside}");
    }
}

#[test]
fn training_loops_may_apply_what_needs_no_other_script() {
    let found: Vec<&str> = midway().collect();
    assert_eq!(
        found,
        ["checkpoint", "offload_activations", "optimizer_on_cpu"]
    );
}

/// Files that name a lever: as a string, a type, a path, or as a word if it is no word of English.
fn files_that_name(name: &str, sources: &[(PathBuf, String)]) -> Vec<PathBuf> {
    const WORDS: [&str; 10] = [
        "allocator",
        "attention",
        "checkpoint",
        "compile",
        "inference_mode",
        "optimizer_step",
        "recompute",
        "set_to_none",
        "shard",
        "tf32",
    ];
    let lever = every().into_iter().find(|lever| lever.name() == name);
    let debug = format!("{:?}", lever.unwrap());
    let class = debug.split('(').next().unwrap();
    let is_word = |text: &str, word: &str| {
        text.match_indices(word).any(|(at, _)| {
            let inside = |character: char| character.is_alphanumeric() || character == '_';
            let before = text[..at].chars().next_back();
            let after = text[at + word.len()..].chars().next();
            !before.is_some_and(inside) && !after.is_some_and(inside)
        })
    };
    let names = |text: &str| {
        if WORDS.contains(&name) {
            let quoted = format!("\"{name}\"");
            let (typed, imported) = (format!("Lever::{class}"), format!("levers.{name} "));
            let imports = format!("parameters::{class}");
            [
                quoted,
                typed,
                imported,
                imports,
                format!("levers::{name}::"),
            ]
            .iter()
            .any(|one| text.contains(one.as_str()))
        } else {
            is_word(text, name) || is_word(text, class)
        }
    };
    let found = sources.iter().filter(|(_, text)| names(text));
    found.map(|(path, _)| path.clone()).collect()
}

fn sources(folder: &Path, found: &mut Vec<(PathBuf, String)>) {
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        let name = path.file_name().unwrap().to_str().unwrap();
        if path.is_dir() {
            if !["tests", "examples", "target"].contains(&name) {
                sources(&path, found);
            }
        } else if name != "tests.rs" && (name.ends_with(".rs") || name.ends_with(".py")) {
            let text = fs::read_to_string(&path).unwrap();
            // Tests are at the end of a file.
            let text = text.split("#[cfg(test)]\nmod tests {").next().unwrap();
            found.push((path, text.to_owned()));
        }
    }
}

#[test]
fn a_lever_stands_in_its_two_files_and_hardly_anywhere_else() {
    /// Its two files, the list of all levers, and one that knows it by name.
    const MOST: usize = 4;
    let mut all = Vec::new();
    for folder in ["crates", "python"] {
        sources(&root().join(folder), &mut all);
    }
    let found: Vec<(&str, Vec<PathBuf>)> = NAMES
        .iter()
        .map(|name| (*name, files_that_name(name, &all)))
        .filter(|(_, files)| files.len() > MOST)
        .collect();
    assert!(found.is_empty(), "{found:#?}");
}
