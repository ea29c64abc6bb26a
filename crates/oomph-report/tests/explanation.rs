//! What people see, at several widths.

#![expect(clippy::unwrap_used, reason = "helpers of tests may fail loudly")]

use std::fs::File;
use std::path::Path;

use oomph_explain::{Options, diff, explain, explain_messages};
use oomph_report::explanation::{difference, explanation};
use oomph_trace::{Trace, text};

fn fixture(name: &str) -> File {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fixtures");
    File::open(root.join(name)).unwrap()
}

fn trace(name: &str) -> Trace {
    oomph_trace::snapshot::read(fixture(name), Path::new(name))
        .unwrap()
        .0
}

/// Without styles.
fn plain(styled: &str) -> String {
    let mut out = String::new();
    let mut escape = false;
    for character in styled.chars() {
        match (escape, character) {
            (false, '\u{1b}') => escape = true,
            (false, character) => out.push(character),
            (true, character) => escape = !character.is_ascii_alphabetic(),
        }
    }
    out
}

#[test]
fn failures() {
    for name in [
        "loss_accumulate",
        "fragmentation",
        "other_process",
        "long_tail",
    ] {
        let found = explain(
            &trace(&format!("oom/{name}.pickle.xz")),
            &Options::default(),
        );
        for width in [60, 80, 120, 200] {
            insta::assert_snapshot!(
                format!("{name}_{width}"),
                plain(&explanation(&found, width))
            );
        }
    }
}

#[test]
fn a_message_alone() {
    for name in ["batch_too_big", "other_process"] {
        let (messages, _) =
            text::read(fixture(&format!("oom/{name}.json")), Path::new(name)).unwrap();
        let found = explain_messages(&messages).unwrap();
        insta::assert_snapshot!(format!("message_{name}"), plain(&explanation(&found, 80)));
    }
}

#[test]
fn what_a_message_does_not_say_is_no_figure() {
    let cut = b"torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB.\n";
    let (messages, _) = text::read_from(&cut[..]).unwrap();
    let found = explain_messages(&messages).unwrap();
    let text = plain(&explanation(&found, 100));
    assert!(
        !text.contains("0 B") && !text.contains("full of tensors"),
        "{text}"
    );
    assert!(text.contains("2.0 GiB asked for"), "{text}");
}

#[test]
fn a_job_that_did_not_fail() {
    let mut found = explain(&trace("snapshots/gpt2_b8.pickle.xz"), &Options::default());
    insta::assert_snapshot!("healthy", plain(&explanation(&found, 80)));
    // The failure may be in what was cut off.
    let problem = oomph_trace::Problem::new(oomph_trace::ProblemKind::Truncated, "cut");
    found.add_problems([&problem]);
    assert!(plain(&explanation(&found, 80)).starts_with("? the file is truncated"));
}

#[test]
fn differences() {
    let a = trace("snapshots/resnet50_b32.pickle.xz");
    let b = trace("oom/eval_grad.pickle.xz");
    let found = diff(&a, &b, &Options::default());
    for width in [60, 100] {
        insta::assert_snapshot!(
            format!("diff_{width}"),
            plain(&difference(&found, ["a.pickle", "b.pickle"], width))
        );
    }
}

/// What is for copying may stick out; everything else fits.
#[test]
fn lines_fit_the_terminal() {
    let found = explain(&trace("oom/eval_grad.pickle.xz"), &Options::default());
    for width in [60, 80, 100, 120, 200] {
        for line in plain(&explanation(&found, width)).lines() {
            let for_copying = found
                .fixes
                .iter()
                .any(|fix| fix.apply.as_deref() == Some(line.trim()));
            if for_copying {
                continue;
            }
            let columns = line.chars().count();
            assert!(columns <= width, "{columns} of {width} columns: {line}");
        }
    }
}
