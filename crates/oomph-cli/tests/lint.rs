//! `oomph lint`, end to end: files in, exit status and files out.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use tempfile::TempDir;

const BAD: &str = "import torch\n\ntorch.no_grad()\n";
/// Selects the rules of `BAD` and of late calls of `zero_grad()`, which are off by default.
const MORE: &str = "--extend-select=OOM203,OOM416";
/// Selects the rule that mends `FIXABLE`, which is off by default.
const DEPRECATED: &str = "--extend-select=OOM811";
const FIXABLE: &str = "import torch\n\nwith torch.cuda.amp.autocast():\n    pass\n";

fn folder(files: &[(&str, &str)]) -> TempDir {
    let folder = TempDir::new().unwrap();
    for (name, text) in files {
        let path = folder.path().join(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    }
    folder
}

/// In this process, with the rules that tests here are about: the exit status.
fn status(args: &[&str], path: &Path) -> i32 {
    plain_status(&[&[MORE], args].concat(), path)
}

/// In this process: the exit status.
fn plain_status(args: &[&str], path: &Path) -> i32 {
    let mut all: Vec<OsString> = vec!["lint".into(), "--quiet".into()];
    all.extend(args.iter().map(OsString::from));
    all.push(path.into());
    oomph_cli::main(all).into()
}

/// The `oomph` example, which Cargo builds beside the tests.
fn command() -> PathBuf {
    let mut path = std::env::current_exe().unwrap();
    path.pop();
    path.pop();
    path.join("examples")
        .join(format!("oomph{}", std::env::consts::EXE_SUFFIX))
}

/// In a process of its own: what it prints.
fn run(args: &[&str], cwd: &Path, stdin: Option<&str>) -> Output {
    use std::io::Write as _;
    let mut child = Command::new(command())
        .args(args)
        .current_dir(cwd)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    child
        .stdin
        .take()
        .unwrap()
        .write_all(stdin.unwrap_or_default().as_bytes())
        .unwrap();
    child.wait_with_output().unwrap()
}

#[test]
fn files_without_extension_are_python_by_their_first_line() {
    let tool = folder(&[("bin/train", &format!("#!/usr/bin/env python3\n{BAD}"))]);
    let shell = folder(&[
        ("bin/train", &format!("#!/bin/sh\n{BAD}")),
        ("LICENSE", BAD),
    ]);
    assert_eq!(status(&[], tool.path()), 3);
    assert_eq!(status(&[], shell.path()), 0);
}

#[cfg(unix)]
#[test]
fn a_directory_that_was_removed_is_not_an_empty_one() {
    let around = folder(&[]);
    let words = "mkdir gone && cd gone && rmdir ../gone && exec \"$0\" lint";
    let done = Command::new("sh")
        .args(["-c", words])
        .arg(command())
        .current_dir(around.path())
        .output()
        .unwrap();
    let error = String::from_utf8(done.stderr).unwrap();
    assert_eq!(done.status.code(), Some(2), "{error}");
    assert!(error.contains("current directory"), "{error}");
}

#[test]
fn async_arguments_of_old_code_are_read() {
    let old = "import torch\n\nx = x.cuda(async=True)\n";
    let cells = format!("{{\"cells\": [{{\"cell_type\": \"code\", \"source\": {old:?}}}]}}");
    let both = folder(&[("a.py", old), ("b.ipynb", &cells)]);
    assert_eq!(status(&["--select", "OOM605"], both.path()), 3);
    assert_eq!(status(&["--select", "OOM605", "--fix"], both.path()), 0);
    let script = fs::read_to_string(both.path().join("a.py")).unwrap();
    let notebook = fs::read_to_string(both.path().join("b.ipynb")).unwrap();
    assert!(script.contains("x.cuda(non_blocking=True)"));
    assert!(notebook.contains("x.cuda(non_blocking=True)"));
}

#[test]
fn exit_status_says_clean_findings_or_error() {
    let clean = folder(&[("a.py", "import torch\n")]);
    let bad = folder(&[("a.py", BAD)]);
    let broken = folder(&[("a.py", BAD), ("b.py", "def f(:\n")]);
    assert_eq!(status(&[], clean.path()), 0);
    assert_eq!(status(&[], bad.path()), 3);
    assert_eq!(status(&["--exit-zero"], bad.path()), 0);
    assert_eq!(status(&["--ignore", "OOM203"], bad.path()), 0);
    assert_eq!(plain_status(&[], bad.path()), 0, "it is off by default");
    assert_eq!(plain_status(&["--select", "OOM1"], bad.path()), 0);
    assert_eq!(
        plain_status(&["--select", "no-grad-without-effect"], bad.path()),
        3
    );
    assert_eq!(
        status(&["--ignore", "no-grad-without-effect"], bad.path()),
        0
    );
    assert_eq!(status(&[], broken.path()), 2);
    // As with ruff: a file that does not parse is reported, and the status is 0 all the same.
    assert_eq!(status(&["--exit-zero"], broken.path()), 0);
    assert_eq!(status(&["--exit-zero", "--diff"], broken.path()), 0);
    assert_eq!(status(&["--select", "E501"], clean.path()), 2);
    assert_eq!(status(&[], &clean.path().join("missing.py")), 2);
}

#[test]
fn settings_come_from_pyproject() {
    let project = folder(&[
        (
            "pyproject.toml",
            "[tool.oomph.lint]\nexclude = [\"old/\"]\n[tool.oomph.lint.per-file-ignores]\n\"tests/**\" = [\"OOM203\"]\n",
        ),
        ("old/a.py", BAD),
        ("tests/b.py", BAD),
        ("c.py", "import torch\n"),
    ]);
    assert_eq!(status(&[], project.path()), 0);
    assert_eq!(status(&["--isolated"], project.path()), 3);
    fs::write(
        project.path().join("pyproject.toml"),
        "[tool.oomph.lint]\nselekt = []\n",
    )
    .unwrap();
    assert_eq!(status(&[], project.path()), 2);
}

#[test]
fn gitignored_and_foreign_files_are_left_out() {
    let project = folder(&[
        (".gitignore", "generated/\n"),
        ("generated/a.py", BAD),
        ("venv/lib/b.py", BAD),
        ("data.txt", BAD),
    ]);
    assert_eq!(status(&[], project.path()), 0);
    assert_eq!(status(&[], &project.path().join("generated/a.py")), 3);
}

#[test]
fn fixes_are_written_and_only_the_safe_ones_unless_asked() {
    let project = folder(&[
        ("a.py", FIXABLE),
        ("b.py", "import torch\ns = torch.cuda.amp.GradScaler()\n"),
    ]);
    assert_eq!(status(&["--fix", DEPRECATED], project.path()), 3);
    let read = |name: &str| fs::read_to_string(project.path().join(name)).unwrap();
    assert!(read("a.py").contains("torch.amp.autocast(\"cuda\")"));
    assert!(read("b.py").contains("torch.cuda.amp.GradScaler()"));
    assert_eq!(status(&["--unsafe-fixes", DEPRECATED], project.path()), 0);
    assert!(read("b.py").contains("torch.amp.GradScaler(\"cuda\")"));
    let names: Vec<_> = fs::read_dir(project.path()).unwrap().collect();
    assert_eq!(names.len(), 2, "no temporary file is left");
}

#[test]
fn a_diff_shows_what_would_change_here_and_changes_nothing() {
    let project = folder(&[("a.py", FIXABLE), ("b.py", BAD)]);
    // Without a path: everything below this directory.
    let output = run(&["lint", "--diff", MORE, DEPRECATED], project.path(), None);
    assert_eq!(output.status.code(), Some(3));
    let diff = String::from_utf8(output.stdout).unwrap();
    assert!(
        diff.contains("\n-with torch.cuda.amp.autocast():\n+with torch.amp.autocast(\"cuda\"):\n"),
        "{diff}"
    );
    assert!(diff.starts_with("--- a/a.py\n+++ b/a.py\n"), "{diff}");
    assert!(!diff.contains("b.py"), "it has no fix: {diff}");
    let kept = fs::read_to_string(project.path().join("a.py")).unwrap();
    assert_eq!(kept, FIXABLE);
    fs::remove_file(project.path().join("a.py")).unwrap();
    let output = run(&["lint", "--diff", MORE, DEPRECATED], project.path(), None);
    assert!(output.stdout.is_empty());
}

#[test]
fn standard_input_is_linted_and_fixed() {
    let cwd = folder(&[]);
    let output = run(
        &[
            "lint",
            MORE,
            "-",
            "--stdin-filename",
            "x/train.py",
            "--output-format",
            "json",
        ],
        cwd.path(),
        Some(BAD),
    );
    assert_eq!(output.status.code(), Some(3));
    let parsed: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(parsed["findings"][0]["path"], "x/train.py");
    assert_eq!(parsed["findings"][0]["start"]["line"], 3);

    let output = run(
        &["lint", "--fix", DEPRECATED, "-"],
        cwd.path(),
        Some(FIXABLE),
    );
    assert_eq!(output.status.code(), Some(0));
    let text = String::from_utf8(output.stdout).unwrap();
    assert_eq!(
        text,
        FIXABLE.replace("torch.cuda.amp.autocast()", "torch.amp.autocast(\"cuda\")")
    );

    let output = run(&["lint", "--fix", "-"], cwd.path(), Some("def f(:\n"));
    assert_eq!(output.status.code(), Some(2));
    assert_eq!(output.stdout, b"def f(:\n");
}

#[test]
fn text_goes_to_stdout_and_the_summary_to_stderr() {
    let project = folder(&[("a.py", BAD), ("b.py", FIXABLE), ("c.py", "def f(:\n")]);
    let output = run(
        &["lint", "--isolated", MORE, DEPRECATED, "."],
        project.path(),
        None,
    );
    insta::assert_snapshot!("stdout", String::from_utf8(output.stdout).unwrap());
    insta::assert_snapshot!("stderr", String::from_utf8(output.stderr).unwrap());
}

#[test]
fn rules_explain_themselves() {
    let cwd = folder(&[]);
    let output = run(&["lint", "--explain", "oom101"], cwd.path(), None);
    assert_eq!(output.status.code(), Some(0));
    assert_eq!(
        String::from_utf8(output.stdout).unwrap(),
        oomph_lint::by_code("OOM101").unwrap().page()
    );
    let output = run(&["lint", "--explain", "OOM999"], cwd.path(), None);
    assert_eq!(output.status.code(), Some(2));
    let output = run(&["lint", "--list-rules"], cwd.path(), None);
    let text = String::from_utf8(output.stdout).unwrap();
    for rule in oomph_lint::ALL {
        assert!(text.contains(rule.code));
    }
}

/// As under `ulimit -u`, which does not bind root: here there is room for all but the threads' stacks.
#[test]
fn where_no_thread_can_be_started_one_does_the_work() {
    let project = folder(&[("a.py", BAD), ("b.py", BAD)]);
    let output = Command::new("sh")
        .args([
            "-c",
            "ulimit -v 4000000; exec \"$0\" lint --quiet --extend-select=OOM203",
        ])
        .arg(command())
        .env("RAYON_NUM_THREADS", "4")
        .env("RUST_MIN_STACK", (1_u64 << 40).to_string())
        .current_dir(project.path())
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(3), "{text}");
}

#[test]
fn the_pytorch_that_a_project_pins_decides_what_is_advised() {
    let late = "import torch\n\ndef train(net, loader, optimizer):\n    net.cuda()\n    for x in loader:\n        loss = net(x.cuda()).sum()\n        optimizer.zero_grad()\n        loss.backward()\n        optimizer.step()\n\ntrain(*make())\n";
    for (name, text, expected) in [
        ("notes.txt", "torch==1.13.1\n", 3),
        ("requirements.txt", "torch==1.13.1\n", 0),
        ("requirements.txt", "torch>=1.13.1\n", 3),
        ("environment.yml", "dependencies:\n  - pytorch=1.11\n", 0),
        // The nearest one counts.
        ("jobs/requirements.txt", "torch==2.1\n", 3),
    ] {
        let above = ("pyproject.toml", "dependencies = [\"torch<2\"]\n");
        let mut files = vec![("jobs/a/train.py", late), (name, text), (".git/HEAD", "")];
        if name.starts_with("jobs/") {
            files.push(above);
        }
        let project = folder(&files);
        assert_eq!(status(&[], project.path()), expected, "{name}: {text}");
        assert_eq!(
            status(&[], &project.path().join("jobs/a/train.py")),
            expected,
            "{name}: {text}"
        );
    }
}
