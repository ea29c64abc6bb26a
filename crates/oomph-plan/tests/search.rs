//! The search on a recorded run: `fixtures/plan/tiny_gpt.py` on a virtual RTX 3060.

#![expect(clippy::unwrap_used, reason = "helpers of tests may fail loudly")]

use std::path::Path;
use std::sync::LazyLock;

use oomph_allocator::Config;
use oomph_plan::draft::Pace;

use oomph_plan::model::Model;
use oomph_plan::parameters::{Checkpoint, OptimizerOnCpu, OptimizerStep, Recompute, Step};
use oomph_plan::search::{Base, Found, Options, search};
use oomph_plan::{Dtype, Lever, Results};
use oomph_run::Record;
use proptest::prelude::*;

/// The run, and the most that its process used.
static RUN: LazyLock<(Base, u64)> = LazyLock::new(|| {
    let place = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fixtures/plan/tiny_gpt");
    let record = {
        let path = place.join("record.json");
        Record::parse(&std::fs::read_to_string(&path).unwrap(), &path).unwrap()
    };
    let (trace, problems) = {
        let path = place.join("trace.oomph");
        oomph_trace::oomph_file::read(std::fs::File::open(&path).unwrap(), &path).unwrap()
    };
    assert!(problems.is_empty(), "{problems:?}");
    let device = record.busiest().unwrap();
    let model = Model::new(&trace, &record).unwrap();
    let base = Base::new(
        model,
        Vec::new(),
        device.peak_allocated_bytes,
        device.peak_reserved_bytes,
        &Config::default(),
    );
    (base, device.peak_used_bytes)
});

fn options(budget: u64) -> Options {
    Options {
        budget,
        keep_results: false,
        allow: None,
        forbid: Vec::new(),
        dtype: Dtype::Bf16,
        tf32: true,
        config: Config::default(),
        pace: Pace::default(),
        lessons: Vec::new(),
        evaluations: Vec::new(),
        failed: Vec::new(),
        clashes: Vec::new(),
        left: Vec::new(),
        cluster: None,
        stop: oomph_plan::Stop::default(),
    }
}

fn plans(options: &Options) -> Found {
    search(std::slice::from_ref(&RUN.0), options).unwrap()
}

/// The least cost among plans of at most this weak a promise.
fn cost(found: &Found, results: Results) -> Option<f64> {
    let kept = found.plans.iter().filter(|plan| plan.results <= results);
    kept.map(oomph_plan::search::Plan::cost)
        .min_by(f64::total_cmp)
}

const LEVERS: [&str; 7] = [
    "checkpoint",
    "recompute",
    "offload_activations",
    "mixed_precision",
    "micro_batch",
    "chunked_cross_entropy",
    "allocator",
];

proptest! {
    // A search plays millions of events; `PROPTEST_CASES` says how often.
    #![proptest_config(ProptestConfig {
        cases: std::env::var("PROPTEST_CASES").ok().and_then(|n| n.parse().ok()).unwrap_or(4),
        ..ProptestConfig::default()
    })]

    #[test]
    fn more_memory_never_gives_a_worse_plan(
        low in 0.15..1.05_f64,
        more in 0.0..0.3_f64,
        keep_results: bool,
        forbidden in proptest::sample::subsequence(&LEVERS, 0..=2),
    ) {
        let used = RUN.1 as f64;
        let asked = |share: f64| Options {
            keep_results,
            forbid: forbidden.iter().map(|name| (*name).to_owned()).collect(),
            ..options((used * share) as u64)
        };
        let (little, much) = (plans(&asked(low)), plans(&asked(low + more)));
        for found in [&little, &much] {
            for plan in &found.plans {
                prop_assert!(plan.levers.iter().all(|lever| !forbidden.contains(&lever.name())));
                prop_assert!(!keep_results || plan.results <= Results::Rounding);
            }
        }
        for results in [Results::Exact, Results::Rounding, Results::Numerics] {
            if let Some(before) = cost(&little, results) {
                let now = cost(&much, results);
                prop_assert!(now.is_some_and(|now| now <= before + 1e-9), "{results:?}: {before} with less, {now:?} with more");
            }
        }
    }
}

#[test]
fn every_plan_fits_its_budget_and_the_first_costs_least() {
    let (_, used) = *RUN;
    for share in [90, 60, 40, 30] {
        let budget = used * share / 100;
        let found = plans(&options(budget));
        assert!(!found.plans.is_empty(), "{share} %: {:?}", found.least);
        assert!(found.plans.iter().all(|plan| plan.used <= budget));
        assert!(
            found
                .plans
                .windows(2)
                .all(|pair| pair[0].cost() <= pair[1].cost())
        );
    }
    // Nothing fits: the least is named all the same.
    let found = plans(&options(used / 100));
    assert!(found.plans.is_empty() && found.least.is_some());
}

#[test]
fn a_job_that_fits_is_left_alone() {
    let found = plans(&options(RUN.1));
    let first = found.plans.first().unwrap();
    assert!(first.time_ratio <= 1.0, "{first:?}");
    assert!(
        cost(&found, Results::Exact).unwrap() <= 1.0,
        "nothing to do costs nothing: {:?}",
        found.plans
    );
    assert!(
        !first
            .levers
            .iter()
            .any(|lever| matches!(lever, Lever::OffloadActivations(_)))
    );
}

#[test]
fn how_many_steps_were_recorded_does_not_narrow_the_search() {
    let budget = RUN.1 / 2;
    let mut long = RUN.0.clone();
    long.model.events *= 30;
    let found = search(std::slice::from_ref(&long), &options(budget)).unwrap();
    assert_eq!(found.plans, plans(&options(budget)).plans);
}

#[test]
fn recomputation_saves_memory_for_time_and_leaves_checkpointed_blocks_alone() {
    let only = |names: &[&str], budget| {
        plans(&Options {
            allow: Some(names.iter().map(|name| (*name).to_owned()).collect()),
            ..options(budget)
        })
    };
    let found = only(&["recompute"], RUN.1 / 100);
    let least = found.least.unwrap();
    assert!(
        matches!(&least.levers[..], [Lever::Recompute(Recompute { modules })] if !modules.is_empty()),
        "{least:?}"
    );
    assert!(least.used < RUN.1 && least.time_ratio > 1.0 && least.results == Results::Exact);
    // With blocks checkpointed as well, no module is named twice over.
    let found = only(&["recompute", "checkpoint"], RUN.1);
    let both = found
        .plans
        .iter()
        .chain(&found.least)
        .filter(|plan| plan.levers.len() == 2);
    for plan in both {
        let [
            Lever::Checkpoint(Checkpoint { modules: blocks }),
            Lever::Recompute(Recompute { modules }),
        ] = &plan.levers[..]
        else {
            panic!("{plan:?}");
        };
        for module in modules {
            assert!(
                !blocks
                    .iter()
                    .any(|block| module.starts_with(&format!("{block}.")))
            );
        }
    }
}

#[test]
fn only_as_many_modules_are_computed_again_as_needed() {
    let only = |budget| {
        plans(&Options {
            allow: Some(vec!["recompute".to_owned()]),
            ..options(budget)
        })
    };
    let least = only(RUN.1 / 100).least.unwrap();
    let count = |plan: &oomph_plan::search::Plan| match &plan.levers[..] {
        [Lever::Recompute(Recompute { modules })] => modules.len(),
        other => panic!("{other:?}"),
    };
    // Halfway to the least: fewer modules, in less time.
    let found = only(u64::midpoint(RUN.1, least.used));
    let plan = found.plans.first().unwrap();
    assert!(count(plan) < count(&least), "{plan:?} {least:?}");
    assert!(plan.time_ratio < least.time_ratio, "{plan:?} {least:?}");
}

#[test]
fn what_checkpointed_blocks_are_given_may_wait_on_the_host() {
    /// Without it the loss would take the most.
    const LOSS: &str = "chunked_cross_entropy";
    // A block's argument has 160 MiB, more than may be under way at a time.
    let base = RUN.0.scaled(20, 1);
    let search = |names: &[&str], budget| {
        let names = names.iter().chain(&[LOSS]);
        let options = Options {
            allow: Some(names.map(|name| (*name).to_owned()).collect()),
            ..options(budget)
        };
        search(std::slice::from_ref(&base), &options).unwrap()
    };
    let least = |name| search(&[name], RUN.1).least.unwrap().used;
    let budget = u64::midpoint(least("checkpoint"), least("offload_activations"));
    let quickest = |names: &[&str]| search(names, budget).plans.into_iter().next();
    let both = ["checkpoint", "offload_activations"];
    let plan = quickest(&both).unwrap();
    for name in both {
        assert!(
            plan.levers.iter().any(|lever| lever.name() == name),
            "{plan:?}"
        );
        assert!(
            quickest(&[name]).is_none_or(|alone| alone.time_ratio > plan.time_ratio),
            "{name}"
        );
    }
}

#[test]
fn only_as_much_of_the_state_goes_as_needed() {
    let only = |budget| {
        plans(&Options {
            allow: Some(vec!["optimizer_on_cpu".to_owned()]),
            ..options(budget)
        })
    };
    let least = only(RUN.1 / 100).least.unwrap();
    let whole = [Lever::from(OptimizerOnCpu::default())];
    assert_eq!(least.levers, whole);
    let budget = least.used + (RUN.1 - least.used) / 3;
    let found = only(budget);
    let plan = found.plans.first().unwrap();
    let [
        Lever::OptimizerOnCpu(OptimizerOnCpu {
            percent: Some(percent),
        }),
    ] = plan.levers[..]
    else {
        panic!("{plan:?}");
    };
    assert!(plan.time_ratio < least.time_ratio, "{plan:?} {least:?}");
    let less = OptimizerOnCpu {
        percent: Some(percent - 10),
    };
    let budget = options(budget);
    let less = oomph_plan::search::predict(&RUN.0, &RUN.0, &[less.into()], &budget);
    assert!(
        plan.used <= budget.budget && less.used > budget.budget,
        "{plan:?} {less:?}"
    );
}

#[test]
fn a_fused_step_saves_time() {
    // Of its own, as what was found before is kept for one pace at a time.
    let base = &RUN.0.scaled(1, 1);
    let lever = Lever::from(OptimizerStep { kind: Step::Fused });
    // The record is of a clock that took steps over lists to be quicker than they are.
    let options = Options {
        pace: Pace {
            memory_bytes_per_s: 1e13,
            ..Pace::default()
        },
        ..options(u64::MAX)
    };
    let predict = |levers: &[Lever]| oomph_plan::search::predict(base, base, levers, &options);
    let (plain, fused) = (predict(&[]), predict(&[lever]));
    assert!(fused.time_ratio < plain.time_ratio, "{fused:?}");
    assert!(fused.allocated <= plain.allocated);
}

#[test]
fn inexact_results_must_save_time() {
    let cost = oomph_plan::search::cost;
    assert!(cost(0.995, &[], Results::Rounding) > cost(1.0, &[], Results::Exact));
    assert!(cost(0.98, &[], Results::Rounding) < cost(1.0, &[], Results::Exact));
}
