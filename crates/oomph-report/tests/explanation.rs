//! What people see, at several widths.

#![expect(clippy::unwrap_used, reason = "helpers of tests may fail loudly")]

use std::fs::File;
use std::path::Path;

use oomph_explain::{Options, diff, explain, explain_messages, explain_pool, explain_profile};
use oomph_report::explanation::{difference, explanation};
use oomph_trace::pprof::{Held, Profile};
use oomph_trace::{Frame, Trace, text};

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

/// What JAX holds: kind, device, lines of the user's script from the innermost on, how many, bytes.
fn profile(held: &[(&str, &str, &[u32], u64, u64)]) -> Profile {
    let mut profile = Profile::default();
    let names = &mut profile.names;
    for &(kind, device, lines, count, bytes) in held {
        let mut frame = |file: &str, line| {
            names.stacks.intern_frame(Frame {
                file: names.strings.intern(file),
                name: names
                    .strings
                    .intern(if line == 1 { "<module>" } else { "step" }),
                line,
            })
        };
        let mut stack = vec![frame(
            "/venv/lib/python3.12/site-packages/jax/_src/pjit.py",
            9,
        )];
        stack.extend(lines.iter().map(|&line| frame("/home/me/train.py", line)));
        profile.held.push(Held {
            kind: names.strings.intern(kind),
            device: names.strings.intern(device),
            stack: names.stacks.intern(&stack),
            count,
            bytes,
        });
    }
    profile
}

#[test]
fn what_jax_holds() {
    let held = profile(&[
        ("buffer", "cuda:0", &[7, 1], 3, 768 << 20),
        ("buffer", "cuda:1", &[7, 1], 1, 256 << 20),
        ("buffer", "cuda:0", &[9, 7, 1], 40, 4 << 30),
        ("buffer", "cuda:0", &[], 1, 64 << 20),
        ("executable", "", &[7, 1], 5, 1 << 20),
        // A backend that does not say how large it is.
        ("executable", "", &[12], 2, 0),
    ]);
    let found = explain_profile(&held, &Options::default()).unwrap();
    insta::assert_snapshot!("profile_of_jax", plain(&explanation(&found, 80)));
    assert_eq!(found.peak.live_bytes, (5 << 30) + (65 << 20));
    let of = |device| Options {
        device: Some(device),
        device_total: Some(24 << 30),
        ..Options::default()
    };
    let found = explain_profile(&held, &of(1)).unwrap();
    let expected = "JAX held 257.0 MiB of 24.0 GiB on cuda:1 when";
    assert!(found.verdict.starts_with(expected), "{}", found.verdict);
    assert!(explain_profile(&held, &of(2)).is_none());
    let cpu = profile(&[("buffer", "cpu:0", &[7], 1, 64)]);
    let found = explain_profile(&cpu, &Options::default()).unwrap();
    assert!(
        found
            .verdict
            .contains("on cpu:0, which is the host's memory"),
        "{}",
        found.verdict
    );
    let many = [u64::MAX / 2; 3].map(|size| ("buffer", "cuda:0", &[7][..], size, size));
    let found = explain_profile(&profile(&many), &Options::default()).unwrap();
    assert_eq!(found.peak.live_bytes, u64::MAX);
}

#[test]
fn what_a_pool_held_when_it_found_no_room() {
    // Of JAX 0.11.2 on a virtual H200, in a pool of 4.2 GiB: the log, and the file of TF_BFC_MEMORY_DUMP.
    // And both of TensorFlow 2.21 there, in a pool of 4 GiB.
    for of in ["jax", "tensorflow"] {
        let name = format!("messages/bfc_{of}.log");
        let (messages, _) = text::read(fixture(&name), Path::new(&name)).unwrap();
        let found = explain_messages(&messages).unwrap();
        insta::assert_snapshot!(format!("pool_of_{of}_log"), plain(&explanation(&found, 80)));
    }
    for (of, name) in [
        ("jax", "bfc_dump.pb"),
        ("tensorflow", "bfc_dump_tensorflow.pb"),
    ] {
        let path = fixture(&format!("messages/{name}"));
        let (content, _) = oomph_trace::read(path, Path::new(name)).unwrap();
        let oomph_trace::Content::Pool(pool) = content else {
            panic!("{content:?}")
        };
        let found = explain_pool(&pool);
        insta::assert_snapshot!(
            format!("pool_of_{of}_file"),
            plain(&explanation(&found, 80))
        );
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
