//! Checks the sources against what ARCHITECTURE.md says of the crates.

#![expect(clippy::unwrap_used, reason = "helpers of tests may fail loudly")]

use std::path::{Path, PathBuf};

/// The crates that open files, start processes, print, or speak C or Python.
const OUTER: [&str; 6] = [
    "oomph-cli",
    "oomph-fit",
    "oomph-job",
    "oomph-py",
    "oomph-vgpu",
    "oomph-net",
];

/// What only those may use. `oomph-report` asks for the terminal's width and variables.
const INPUT_OUTPUT: [&str; 9] = [
    "std::fs",
    "std::net",
    "std::process",
    "std::env",
    "File::open",
    "stdin()",
    "stdout()",
    "println!",
    "pyo3",
];
const EXCEPTION: (&str, &str) = ("oomph-report/src/terminal.rs", "std::env");

fn sources(folder: &Path, found: &mut Vec<PathBuf>) {
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            sources(&path, found);
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            found.push(path);
        }
    }
}

/// The code of a file without its tests, which come last, and without comments.
fn code(text: &str) -> impl Iterator<Item = &str> {
    text.lines()
        .take_while(|line| !line.trim_start().starts_with("#[cfg(test)]"))
        .filter(|line| !line.trim_start().starts_with("//"))
}

fn offences(crates: &[&str]) -> Vec<String> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap();
    let mut offences = Vec::new();
    for name in crates {
        let mut files = Vec::new();
        sources(&root.join(name).join("src"), &mut files);
        assert!(!files.is_empty(), "{name} has no sources");
        // A file `tests.rs` is a module of tests alone.
        files.retain(|file| file.file_name().is_none_or(|name| name != "tests.rs"));
        for file in files {
            let text = std::fs::read_to_string(&file).unwrap();
            let file = file.strip_prefix(root).unwrap().display().to_string();
            for line in code(&text) {
                let used = INPUT_OUTPUT.iter().filter(|what| line.contains(**what));
                offences.extend(
                    used.filter(|what| (file.as_str(), **what) != EXCEPTION)
                        .map(|what| format!("{file}: {what}: {}", line.trim())),
                );
            }
        }
    }
    offences
}

#[test]
fn core_crates_do_no_input_or_output_and_know_no_python() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap();
    let names: Vec<String> = std::fs::read_dir(root)
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    let core: Vec<&str> = names
        .iter()
        .map(String::as_str)
        .filter(|name| !OUTER.contains(name))
        .collect();
    assert!(core.len() >= 10, "{core:?}");
    assert_eq!(offences(&core), Vec::<String>::new());
    // The search finds what it looks for where it is allowed.
    for outer in OUTER {
        assert!(!offences(&[outer]).is_empty(), "{outer} does none");
    }
}
