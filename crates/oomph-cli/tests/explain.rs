//! `oomph explain`, `replay` and `diff` as commands: exit status, JSON, errors.

#![expect(clippy::unwrap_used, reason = "helpers of tests may fail loudly")]

use std::ffi::OsString;
use std::path::{Path, PathBuf};

use serde_json::Value;

fn fixture(name: &str) -> String {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../../fixtures")
        .join(name)
        .display()
        .to_string()
}

fn run(arguments: &[&str]) -> i32 {
    // Tests leave no pages behind.
    let pages = matches!(arguments.first(), Some(&("explain" | "diff")));
    let arguments = arguments.iter().chain(pages.then_some(&"--no-report"));
    oomph_cli::main(arguments.map(OsString::from)).into()
}

fn json(arguments: &[&str]) -> (i32, Value) {
    let dir = tempfile::tempdir().unwrap();
    let out: PathBuf = dir.path().join("out.json");
    let target = out.display().to_string();
    let status = run(&[arguments, &["--json", &target]].concat());
    let text = std::fs::read_to_string(&out).unwrap();
    (status, serde_json::from_str(&text).unwrap())
}

#[test]
fn explain_writes_the_documented_json() {
    let (status, found) = json(&["explain", &fixture("oom/loss_accumulate.pickle.xz")]);
    assert_eq!(status, 3);
    assert_eq!(found["format"], "oomph.explain/1");
    assert_eq!(found["cause"]["id"], "graph_retained");
    assert!(found["cause"]["confidence"].as_f64().unwrap() > 0.8);
    assert!(found["fixes"][0]["saves_bytes"].as_u64().unwrap() > 5 << 30);
    assert_eq!(found["fixes"][0]["advice"], "detach");
    assert!(found["peak"]["needed_bytes"].is_u64());
    assert!(found["problems"].is_array());
    assert!(
        found["holders"][0]["stack"][0]
            .as_str()
            .unwrap()
            .starts_with("scenarios.py:42")
    );
}

#[test]
fn a_log_and_a_snapshot_are_one_failure() {
    let (status, found) = json(&[
        "explain",
        &fixture("oom/other_process.pickle.xz"),
        &fixture("oom/other_process.json"),
    ]);
    assert_eq!(status, 3);
    assert_eq!(found["cause"]["id"], "other_process");
    assert!(found["cause"]["confidence"].as_f64().unwrap() > 0.95);
    assert!(found["peak"]["device_total_bytes"].as_u64().unwrap() > 139 << 30);
}

#[test]
fn several_ranks_are_compared() {
    let (status, found) = json(&[
        "explain",
        &fixture("oom/loss_accumulate.pickle.xz"),
        &fixture("snapshots/gpt2_b8.pickle.xz"),
    ]);
    assert_eq!(status, 3);
    assert_eq!(found["format"], "oomph.explain-ranks/1");
    assert_eq!(found["ranks"].as_array().unwrap().len(), 2);
    let verdict = found["verdict"].as_str().unwrap();
    assert!(verdict.contains("1 of 2 files"), "{verdict}");
    assert!(verdict.contains("not equal ranks"), "{verdict}");
}

#[test]
fn a_healthy_snapshot_is_no_finding() {
    let (status, found) = json(&["explain", &fixture("snapshots/lstm_lm.pickle.xz")]);
    assert_eq!(status, 0);
    assert_eq!(found["out_of_memory"], false);
    assert!(found["cause"].is_null());
}

#[test]
fn replay_writes_the_documented_json() {
    let (status, found) = json(&[
        "replay",
        &fixture("oom/fragmentation.pickle.xz"),
        "--alloc-conf",
        "expandable_segments:True",
    ]);
    assert_eq!(status, 0);
    assert_eq!(found["format"], "oomph.replay/1");
    assert_eq!(found["events"], 1547);
    assert_eq!(found["mismatches"], 0);
    assert_eq!(found["peak_reserved_bytes"]["recorded"], 6_442_450_944_u64);
    assert_eq!(found["peak_reserved_bytes"]["replayed"], 6_442_450_944_u64);
    assert_eq!(found["settings"][0]["fits"], false);
    assert_eq!(
        found["settings"][1]["alloc_conf"],
        "expandable_segments:True"
    );
    assert_eq!(found["settings"][1]["fits"], true);
    assert_eq!(found["best"], "expandable_segments:True");
}

#[test]
fn replay_without_enough_memory_is_a_finding() {
    let (status, found) = json(&[
        "replay",
        &fixture("snapshots/gpt2_b8.pickle.xz"),
        "--memory",
        "12GiB",
        "--search",
    ]);
    assert_eq!(status, 3);
    assert_eq!(found["memory_bytes"], 12_u64 << 30);
    assert!(
        found["settings"]
            .as_array()
            .unwrap()
            .iter()
            .all(|s| s["fits"] == false)
    );
    let (status, _) = json(&[
        "replay",
        &fixture("snapshots/gpt2_b8.pickle.xz"),
        "--memory",
        "12.8GiB",
        "--alloc-conf",
        "expandable_segments:True",
    ]);
    assert_eq!(status, 0);
}

#[test]
fn diff_writes_json() {
    let (status, found) = json(&[
        "diff",
        &fixture("snapshots/resnet50_b32.pickle.xz"),
        &fixture("oom/eval_grad.pickle.xz"),
    ]);
    assert_eq!(status, 0);
    assert_eq!(found["format"], "oomph.diff/1");
    assert_eq!(found["places"][0]["what"], "appeared");
}

#[test]
fn wrong_usage_is_status_2() {
    let snapshot = fixture("snapshots/lstm_lm.pickle.xz");
    for arguments in [
        vec!["explain"],
        vec!["explain", "/nowhere.pickle"],
        vec!["explain", "Cargo.toml"],
        vec!["explain", &snapshot, "--device", "7"],
        vec!["replay", &snapshot, "--alloc-conf", "expandable:True"],
        vec!["replay", &snapshot, "--memory", "lots"],
        vec!["diff", &snapshot],
    ] {
        assert_eq!(run(&arguments), 2, "{arguments:?}");
    }
}
