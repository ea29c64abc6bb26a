//! What `oomph run` prints, at several widths.

use std::collections::BTreeMap;
use std::path::Path;

use oomph_report::run::run_report;
use oomph_report::terminal::ascii;
use oomph_run::summary::{
    Assumption, Basis, FORMAT, GpuSummary, Oom, Peak, Share, StepPeak, Summary, Verdict,
};

const GIB: u64 = 1 << 30;

/// A training job of two steps that runs out of memory in the second.
fn summary(verdict: Verdict) -> Summary {
    let step = (0..60).map(|at: u64| GIB + at.min(60 - at) * (GIB / 3));
    Summary {
        format: FORMAT,
        verdict,
        basis: Basis::WholeScript,
        growth: None,
        script: vec!["/home/someone/project/train.py".to_owned()],
        gpu: GpuSummary {
            name: "NVIDIA GeForce RTX 3060".to_owned(),
            memory_bytes: 12_488_540_160,
            usable_bytes: 12_363_497_472,
            r#virtual: true,
        },
        framework: None,
        engine: None,
        peak: Peak {
            allocated_bytes: 11 * GIB,
            reserved_bytes: 12 * GIB,
            used_bytes: 13_897_039_872,
            lower_bound: false,
        },
        time: None,
        time_unknown: None,
        by_category: BTreeMap::from([
            ("activations", 8 * GIB),
            ("parameters", GIB / 2),
            ("optimizer_state", GIB),
            ("other", 1_640_000_000),
            ("cached", GIB),
            ("cuda_context", 125_042_688),
        ]),
        modules: vec![
            share(
                "GPT.blocks.0.mlp.a_projection_with_a_rather_long_name_of_its_own",
                3 * GIB,
            ),
            share(
                "GPT.blocks.1.mlp.a_projection_with_a_rather_long_name_of_its_own",
                3 * GIB,
            ),
            share("GPT.head", GIB),
            share("", GIB),
        ],
        operators: vec![share("aten::addmm", 4 * GIB)],
        phases: vec![
            share("backward", 11 * GIB),
            share("optimizer step", 2 * GIB),
        ],
        steps: vec![
            StepPeak {
                step: 0,
                peak_allocated_bytes: GIB,
            },
            StepPeak {
                step: 1,
                peak_allocated_bytes: 11 * GIB,
            },
        ],
        peak_phase: "backward".to_owned(),
        peak_step: 2,
        step_count: 1,
        trains: true,
        processes: Vec::new(),
        ranks: Vec::new(),
        outlier: None,
        culprit: None,
        oom: (verdict == Verdict::OutOfMemory).then(|| Oom {
            step: 2,
            phase: "backward".to_owned(),
            module: Some("GPT.head".to_owned()),
            location: Some("/home/someone/project/train.py:87".to_owned()),
            requested_bytes: GIB,
            short_bytes: Some(1_408_499_712),
            unlimited_failure: None,
            process: None,
        }),
        net_bytes: 0,
        handled_oom_count: 0,
        failure: (verdict == Verdict::ScriptFailed).then(|| "ValueError: no such file".to_owned()),
        ending: None,
        assumptions: vec![Assumption {
            kind: "value".to_owned(),
            what: "the script read a GPU value, which oomph does not compute: it got zero"
                .to_owned(),
            location: Some("/home/someone/project/train.py:91".to_owned()),
            count: 2,
        }],
        seconds: 4.9,
        timeline: step.clone().chain(step).collect(),
        plan: None,
        levers: None.into_iter().collect(),
        versions: BTreeMap::from([("torch", "2.11.0+cu130".to_owned())]),
    }
}

fn share(name: &str, bytes: u64) -> Share {
    Share {
        name: name.to_owned(),
        bytes,
    }
}

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

fn report(verdict: Verdict, width: usize, verbose: bool) -> String {
    let place = Path::new("oomph-report/train-1/index.html");
    plain(&run_report(
        &summary(verdict),
        None,
        &[],
        place,
        width,
        verbose,
        (verdict == Verdict::OutOfMemory).then_some("oomph fit --gpu rtx-4090 train.py"),
    ))
}

#[test]
fn out_of_memory_at_every_width() {
    for width in [60, 80, 120, 200] {
        insta::assert_snapshot!(
            format!("run_{width}"),
            report(Verdict::OutOfMemory, width, false)
        );
    }
}

#[test]
fn more_with_verbose() {
    insta::assert_snapshot!("run_verbose", report(Verdict::Fits, 100, true));
}

#[test]
fn without_unicode() {
    let text = ascii(&report(Verdict::OutOfMemory, 80, false));
    assert!(text.is_ascii(), "{text}");
    insta::assert_snapshot!("run_ascii", text);
}

#[test]
fn it_is_one_screen_and_fits_the_terminal() {
    for verdict in [Verdict::OutOfMemory, Verdict::Fits, Verdict::ScriptFailed] {
        for width in [60, 72, 80, 100, 132, 200] {
            let text = report(verdict, width, false);
            assert!(text.lines().count() <= 30, "{text}");
            let widest = text.lines().map(|line| line.chars().count()).max().unwrap();
            assert!(widest <= width, "{widest} of {width} columns:\n{text}");
        }
    }
}
