//! `oomph explain`, `replay` and `diff` as commands: exit status, JSON, errors.

#![expect(clippy::unwrap_used, reason = "helpers of tests may fail loudly")]

use std::ffi::OsString;
use std::path::{Path, PathBuf};

use oomph_allocator::study::{Question, Study};
use oomph_report::replay::{ReplayReport, replay_text};
use oomph_trace::Content;
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

fn json_of_log(text: &str) -> (i32, Value) {
    let dir = tempfile::tempdir().unwrap();
    let log = dir.path().join("job.log");
    std::fs::write(&log, text).unwrap();
    json(&["explain", &log.display().to_string()])
}

#[test]
fn messages_of_other_programs_are_in_the_json() {
    let (status, found) = json_of_log(
        "starting\nggml_backend_cuda_buffer_type_alloc_buffer: allocating 2304.00 MiB on device 1: \
         cudaMalloc failed: out of memory\n",
    );
    assert_eq!(status, 3);
    assert_eq!(found["cause"]["id"], "device_memory");
    let message = &found["message"];
    assert_eq!(message["program"], "llama.cpp");
    assert_eq!(message["memory"], "device");
    assert_eq!(message["device"], 1);
    assert_eq!(message["asked_bytes"], 2304_u64 << 20);
    assert_eq!(message["line"], 2);
    assert_eq!(found["messages"].as_array().unwrap().len(), 1);
    assert!(!message["unsaid"].as_array().unwrap().is_empty());
    assert!(
        found["next"][0]["command"]
            .as_str()
            .unwrap()
            .starts_with("-ngl")
    );
}

#[test]
fn the_chunks_of_a_pool_are_explained_from_a_file_and_from_a_log() {
    let (status, found) = json(&["explain", &fixture("messages/bfc_dump.pb")]);
    assert_eq!(status, 0);
    assert_eq!(found["holders"][0]["bytes"], 1 << 30);
    let (status, found) = json(&["explain", &fixture("messages/bfc_jax.log")]);
    assert_eq!(
        (status, &found["message"]["program"]),
        (3, &Value::from("jax"))
    );
    assert_eq!(found["holders"][0]["stack"][0], "the program jit__lambda");
}

#[test]
fn the_hosts_memory_has_its_own_cause_and_steps() {
    let (status, found) = json_of_log(
        "[Mon Nov  6 13:27:03 2023] Memory cgroup out of memory: Killed process 69134 (python) \
         total-vm:10251224kB, anon-rss:6400000kB, file-rss:51200kB, shmem-rss:0kB\n",
    );
    assert_eq!(status, 3);
    assert_eq!(found["cause"]["id"], "host_memory");
    let message = &found["message"];
    assert_eq!(message["program"], "kernel");
    assert_eq!(message["memory"], "host");
    assert_eq!(message["pid"], 69134);
    assert!(message["device"].is_null());
    let steps = found["next"].to_string();
    assert!(
        !steps.contains("oomph fit") && !steps.contains("nvidia-smi"),
        "{steps}"
    );
}

#[test]
fn a_warning_after_which_the_program_went_on_is_no_finding() {
    let (status, found) = json_of_log(
        "W tensorflow/core/common_runtime/bfc_allocator.cc:211] Allocator (GPU_0_bfc) ran out of memory \
         trying to allocate 2.29GiB. The caller indicates that this is not a failure, but may mean that \
         there could be performance gains if more memory is available.\n",
    );
    assert_eq!(status, 0);
    assert_eq!(found["message"]["handled"], true);
}

/// Lines of one failure are not listed as others; warnings are named as such.
#[test]
fn other_messages_of_a_log_are_other_failures() {
    let printed = |text: &str| {
        let messages = oomph_trace::text::find(text);
        let found = oomph_explain::explain_messages(&messages).unwrap();
        oomph_report::explanation::explanation(&found, 200)
    };
    let one = printed(
        "W bfc_allocator.cc:482] Allocator (GPU_0_bfc) ran out of memory trying to allocate 6.00MiB (rounded to 6291456)\n\
         E external/xla/client.cc:1] RESOURCE_EXHAUSTED: Out of memory while trying to allocate 6291456 bytes.\n\
         jaxlib.XlaRuntimeError: RESOURCE_EXHAUSTED: Out of memory while trying to allocate 6291456 bytes.",
    );
    assert!(!one.contains("also in the log"), "{one}");
    let warning = "W external/xla/bfc_allocator.cc:3] Allocator (GPU_0_bfc) ran out of memory trying to allocate";
    let warned = printed(&format!(
        "{warning} 3.37GiB. The caller indicates that this is not a failure\n\
         {warning} 4.49GiB. The caller indicates that this is not a failure\n\
         jaxlib.XlaRuntimeError: RESOURCE_EXHAUSTED: Out of memory while trying to allocate 3199993600 bytes."
    ));
    let words = "2 warnings that are no failures, from line 1 on (3.4 GiB to 4.5 GiB asked for)";
    assert!(warned.contains(words), "{warned}");
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
    // What does not fit is not the best, and is not offered.
    assert_eq!(found["best"], Value::Null);
    assert!(found["nearest"]["short_bytes"].as_u64().unwrap() > 0);
    let text = replay_text_of("snapshots/gpt2_b8.pickle.xz", 12 << 30);
    assert!(!text.contains("best") && !text.contains("try it"), "{text}");
    assert!(text.contains("none of these settings fits"), "{text}");
    let text = replay_text_of("oom/fragmentation.pickle.xz", 6 << 30);
    assert!(text.contains("◄ best") && text.contains("try it"), "{text}");
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

/// What `oomph replay --search` prints.
fn replay_text_of(name: &str, memory: u64) -> String {
    let path = fixture(name);
    let (content, problems) = oomph_job::files::read(Path::new(&path)).unwrap();
    let trace = match content {
        Content::Trace(trace) => Some(trace),
        _ => None,
    };
    let trace = trace.unwrap();
    let question = Question {
        memory: Some(memory),
        search: true,
        ..Question::default()
    };
    let study = Study::new(&trace, &question).unwrap();
    replay_text(&ReplayReport::new(Path::new(name), &study, &problems), 100)
}

/// Of a run that failed, `diff` takes its run without a limit: the history of the failure is cut off.
#[test]
fn diff_takes_the_run_without_a_limit() {
    let directory = tempfile::tempdir().unwrap();
    let recorded = |name: &str, target: &Path| {
        std::fs::create_dir_all(target).unwrap();
        let from = fixture(&format!("run/causes/{name}.oomph.xz"));
        std::fs::copy(from, target.join("trace.oomph")).unwrap();
        std::fs::write(target.join("summary.json"), "{}").unwrap();
    };
    let place = |name: &str| directory.path().join(name);
    let diff = |before: &str, after: &str| {
        let [before, after] = [before, after].map(|name| place(name).display().to_string());
        json(&["diff", &before, &after]).1
    };
    recorded("video_batch", &place("cut"));
    recorded("video_batch", &place("failed"));
    recorded("video_batch.without_limit", &place("failed/unlimited"));
    recorded("video_batch.without_limit", &place("whole"));

    let found = diff("failed", "whole");
    assert_eq!(found["live_bytes"][0], found["live_bytes"][1]);
    assert_eq!(
        found["notes"][0],
        "A ran out of memory; this is its run without a limit"
    );
    let found = diff("cut", "whole");
    assert!(found["live_bytes"][0].as_u64() < found["live_bytes"][1].as_u64());
    assert!(
        found["notes"][0]
            .as_str()
            .unwrap()
            .contains("is missing here")
    );
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
