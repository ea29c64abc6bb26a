//! The search's decisions, with attempts that are played: `fixtures/plan/tiny_gpt` stands for every run,
//! and each test says how those end that it is about.

use std::path::{Path, PathBuf};
use std::sync::LazyLock;
use std::time::{Duration, Instant};

use oomph_allocator::Config;
use oomph_job::settings::Fewer;
use oomph_job::{RunDirectory, RunFile};
use oomph_plan::draft::Pace;
use oomph_plan::search::HostTime;
use oomph_plan::{Lever, Results, Stop, Stopped, sharding};
use oomph_run::record::LeverReport;
use oomph_run::rhythm::Growth;
use oomph_run::summary::{StepPeak, summarize};
use oomph_trace::Category;

use crate::cache::{Answer, Kept};
use crate::corrections::RealRun;
use crate::fitter::Fitter;
use crate::rehearsal::{self, Chosen, Decision, Place, Scene};
use crate::select::{LONGER, MOST_MISSES};
use crate::{
    Attempts, Clock, Ended, Ending, Found, Goal, Measurement, Ranks, Request, Wanted, changed, fit,
};
use oomph_plan::result::Outcome;

const LEVERS: [&str; 5] = [
    "checkpoint",
    "offload_activations",
    "optimizer_on_cpu",
    "set_to_none",
    "shard",
];

/// A recorded run of `fixtures/plan/tiny_gpt.py`.
pub(crate) fn tiny_gpt() -> RunDirectory {
    RunDirectory::at(Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fixtures/plan/tiny_gpt"))
}

static PLAIN: LazyLock<Measurement> = LazyLock::new(|| {
    let place = tiny_gpt();
    let record = place.record().unwrap().unwrap();
    let trace = place.trace().unwrap().unwrap();
    Measurement {
        summary: summarize(&record, Some(&trace), None),
        record,
        trace: Some(trace),
        directory: place,
        ranks: Vec::new(),
        rehearsed: false,
    }
});

/// A request as it was made.
#[derive(Debug, Clone, PartialEq)]
struct Made {
    name: String,
    levers: Vec<Lever>,
    limit: Option<u64>,
    steps: u32,
    fewer: Option<Fewer>,
    gpus: u32,
    ranks: Ranks,
}

impl Made {
    fn has(&self, lever: &str) -> bool {
        self.levers.iter().any(|other| other.name() == lever)
    }

    /// Whether it tells if a plan fits; the run for more steps is another.
    fn verifies(&self) -> bool {
        self.name.starts_with("plan-") && !self.name.ends_with("-longer")
    }
}

/// Attempts as a test plays them; where it has nothing to say, they go through as asked: plans in nine tenths of the
/// capacity.
struct Played<F> {
    made: Vec<Made>,
    /// How many runs each time were side by side.
    beside: Vec<usize>,
    at_once: usize,
    capacity: u64,
    ending: F,
}

impl<F> Played<F> {
    /// One run after the other.
    fn new(capacity: u64, ending: F) -> Self {
        Self {
            made: Vec::new(),
            beside: Vec::new(),
            at_once: 1,
            capacity,
            ending,
        }
    }
}

impl<F: FnMut(&Made) -> Option<Ended>> Attempts for Played<F> {
    fn run(&mut self, request: &Request) -> anyhow::Result<Ended> {
        let made = Made {
            name: request.name.clone(),
            levers: request.levers.to_vec(),
            limit: request.limit,
            steps: request.steps,
            fewer: request.fewer,
            gpus: request.gpus,
            ranks: request.ranks,
        };
        let ended = (self.ending)(&made);
        self.made.push(made.clone());
        let capacity = made.verifies().then_some(self.capacity).or(made.limit);
        Ok(ended.unwrap_or_else(|| through(&made, capacity.map(|bytes| bytes / 10 * 9))))
    }

    fn at_once(&self) -> usize {
        self.at_once
    }

    fn run_all(&mut self, requests: &[Request]) -> Vec<anyhow::Result<Ended>> {
        self.beside.push(requests.len());
        requests.iter().map(|request| self.run(request)).collect()
    }
}

/// The run goes through and uses so many bytes; as many as the recorded one if that is not said.
fn through(made: &Made, used: Option<u64>) -> Ended {
    let mut run = PLAIN.clone();
    run.record.steps = made.steps;
    run.record.levers = made
        .levers
        .iter()
        .map(|lever| LeverReport {
            name: lever.name().to_owned(),
            applied: 1,
            note: None,
            left: Vec::new(),
            switch: None,
        })
        .collect();
    if let Some(used) = used {
        let peak = &mut run.summary.peak;
        let held = used.saturating_sub(outside());
        (peak.used_bytes, peak.reserved_bytes, peak.allocated_bytes) = (used, held, held);
    }
    Ended::Through(Box::new(run))
}

fn out_of_memory() -> Ended {
    Ended::OutOfMemory(Box::new(PLAIN.clone()))
}

fn failed(why: &str) -> Ended {
    Ended::Failed {
        lever: None,
        why: why.to_owned(),
        log: PathBuf::from(RunFile::Log.name()),
    }
}

/// Both runs have the same usual step; of the later one's two, one evaluates. Then a lever's time of the host counts, and what
/// copies on the virtual clock wait for.
#[test]
fn runs_are_compared_by_their_usual_steps() {
    let gpu = oomph_clock::Figures::of(oomph_gpus::find("h200").unwrap()).unwrap();
    let clock = Clock {
        gpu,
        host: oomph_clock::Host::default(),
    };
    let run = |steps: &[usize], busy: &[u64]| {
        let mut run = PLAIN.clone();
        run.record.work = oomph_clock::Steps {
            table: vec![
                oomph_clock::Work::Operator(false),
                oomph_clock::Work::Moving(1.0, "fill".to_owned()),
            ],
            steps: (std::iter::once(&1).chain(steps))
                .map(|&operators| oomph_clock::Step(1, [0, 1].repeat(operators)))
                .collect(),
            ..oomph_clock::Steps::default()
        };
        let mut end = 0;
        run.record.clock = (1..)
            .zip(std::iter::once(&0).chain(busy))
            .map(|(step, &busy)| {
                end += busy;
                (step, end, 0)
            })
            .collect();
        run.record.clock_calls = vec![0; busy.len() + 1];
        run
    };
    let time = |run: &Measurement, levers_ns| {
        let host = HostTime {
            beside_ns: levers_ns,
            alone_ns: 0.0,
        };
        run.step_time(&Pace::default(), host, Some(&clock)).unwrap()
    };
    let plain = time(&run(&[1000], &[1_000_000]), 0.0);
    let evaluates = run(&[1000, 9000], &[1_000_000, 90_000_000]);
    assert!((time(&evaluates, 0.0) / plain - 1.0).abs() < 1e-9);
    assert!((time(&evaluates, 5e6) - plain - 5e6).abs() < 1e3);
    let [waits, longer] = [90_000_000, 100_000_000].map(|busy| time(&run(&[1000], &[busy]), 0.0));
    assert!((longer - waits - 10e6).abs() < 1e3 && waits > plain);
}

/// What the job holds outside of the allocator.
fn outside() -> u64 {
    PLAIN.used_bytes() - PLAIN.reserved_bytes()
}

/// Three quarters of what the job needs.
fn budget() -> u64 {
    PLAIN.used_bytes() / 4 * 3
}

fn wanted() -> Wanted {
    Wanted {
        script: vec!["train.py".to_owned()],
        gpu: oomph_gpus::parse_spec("rtx-3060").unwrap(),
        total_bytes: budget(),
        margin_bytes: 0,
        steps: 3,
        goal: Goal::SameResults,
        keep_results: true,
        // Few levers make a short search.
        allow: Some(LEVERS.map(str::to_owned).into()),
        forbid: Vec::new(),
        inference: false,
        compile: false,
        sizes: Vec::new(),
        variants: true,
        watch: false,
        allocator: Config::default(),
        clock: None,
        stop: Stop::default(),
    }
}

/// The same within half of what the job needs.
fn half() -> Wanted {
    Wanted {
        total_bytes: PLAIN.used_bytes() / 2,
        ..wanted()
    }
}

/// What a search finds where attempts end as `ending` says, and the attempts that it made.
fn search(wanted: Wanted, ending: impl FnMut(&Made) -> Option<Ended>) -> (Ending, Vec<Made>) {
    let mut played = Played::new(wanted.total_bytes - wanted.margin_bytes, ending);
    (fit(&mut played, wanted).unwrap(), played.made)
}

/// The same where the script runs.
fn found(wanted: Wanted, ending: impl FnMut(&Made) -> Option<Ended>) -> (Found, Vec<Made>) {
    match search(wanted, ending) {
        (Ending::Found(found), made) => (*found, made),
        (Ending::ScriptFailed { why, .. }, _) => panic!("{why}"),
        (Ending::Stopped(stopped), _) => panic!("{stopped}"),
    }
}

fn chosen(found: &Found) -> &oomph_plan::result::PlanResult {
    &found.fit.plans[found.fit.chosen.unwrap()]
}

/// Runs of plans, those for more steps apart.
fn verifications(made: &[Made]) -> Vec<&Made> {
    made.iter().filter(|made| made.verifies()).collect()
}

#[test]
fn a_job_that_fits_is_run_once() {
    let wanted = Wanted {
        total_bytes: PLAIN.used_bytes(),
        ..wanted()
    };
    let (found, made) = found(wanted, |_| None);
    assert_eq!(found.fit.outcome, Outcome::AlreadyFits);
    assert_eq!(made.len(), 1);
    assert_eq!(found.fit.runs, 1);
    assert!(found.plan_file(oomph_plan::PlanJob::default()).is_none());
}

/// What the first three steps leave behind is not known to be growth.
#[test]
fn a_job_that_fits_at_first_is_watched_for_more_steps() {
    let wanted = Wanted {
        total_bytes: PLAIN.used_bytes(),
        watch: true,
        ..wanted()
    };
    let grows = |ended: fn(Box<Measurement>) -> Ended| {
        move |made: &Made| {
            let Ended::Through(mut run) = through(made, None) else {
                return None;
            };
            run.record.stopped = true;
            if made.name != "plain-longer" {
                return Some(Ended::Through(run));
            }
            run.summary.growth = Some(Growth {
                bytes_per_step: 1 << 20,
                place: None,
                full_at_step: 70,
            });
            Some(ended(run))
        }
    };
    let (open, made) = found(wanted.clone(), grows(Ended::Through));
    assert_eq!(open.fit.outcome, Outcome::AlreadyFits);
    assert_eq!(open.fit.growth.unwrap().full_at_step, 70);
    let longer = made.last().unwrap();
    assert_eq!(
        (longer.steps, longer.limit),
        (LONGER, Some(PLAIN.used_bytes()))
    );
    // The script's own loop is long enough to fill the GPU.
    let (known, _) = found(wanted.clone(), grows(Ended::OutOfMemory));
    assert_eq!(known.fit.outcome, Outcome::NothingFits);
    // A larger batch may come later.
    let mut played = Played {
        made: Vec::new(),
        beside: Vec::new(),
        at_once: 1,
        capacity: PLAIN.used_bytes(),
        ending: |made: &Made| {
            if made.name == "plain-longer" {
                return Some(out_of_memory());
            }
            let Ended::Through(mut run) = through(made, None) else {
                return None;
            };
            run.record.stopped = true;
            Some(Ended::Through(run))
        },
    };
    let error = fit(&mut played, wanted).unwrap_err().to_string();
    assert!(error.contains("give --steps"), "{error}");
}

/// Nobody has to say how many steps that takes.
#[test]
fn a_job_that_runs_out_in_a_later_step_is_planned_by_that_step() {
    let wanted = Wanted {
        watch: true,
        ..wanted()
    };
    let at_first = budget() / 10 * 9;
    let (found, made) = found(wanted, |made| {
        let used = match made.name.as_str() {
            "plain" => at_first,
            "plain-longer" => return Some(out_of_memory()),
            "plain-later" => PLAIN.used_bytes(),
            _ => return None,
        };
        let Ended::Through(mut run) = through(made, Some(used)) else {
            return None;
        };
        run.record.stopped = made.name == "plain";
        Some(Ended::Through(run))
    });
    assert_eq!(found.fit.outcome, Outcome::Fits);
    assert_eq!(found.fit.plain.used_bytes, PLAIN.used_bytes());
    assert_eq!(chosen(&found).steps, LONGER);
    let after = made.iter().skip_while(|made| made.name != "plain-later");
    assert!(after.clone().count() > 1 && after.into_iter().all(|made| made.steps == LONGER));
}

#[test]
fn a_plan_is_verified_and_then_run_longer() {
    let (found, made) = found(wanted(), |_| None);
    assert_eq!(found.fit.outcome, Outcome::Fits);
    let chosen = chosen(&found);
    assert!(chosen.verified && chosen.same_results <= Results::Rounding);
    assert_eq!(chosen.steps, LONGER);
    let last = made.last().unwrap();
    assert_eq!(last.levers, chosen.levers);
    assert_eq!((last.steps, last.limit), (LONGER, Some(budget())));
    let file = found.plan_file(oomph_plan::PlanJob::default()).unwrap();
    assert_eq!(file.levers, chosen.levers);
    assert!(file.planned.unwrap().verified);
}

#[test]
fn a_plan_that_runs_out_of_memory_later_is_given_up() {
    let mut first = None;
    let (found, made) = found(wanted(), |made| {
        if !made.name.ends_with("-longer") {
            return None;
        }
        let first = first.get_or_insert_with(|| made.levers.clone());
        (*first == made.levers).then(out_of_memory)
    });
    assert_ne!(chosen(&found).levers, first.unwrap());
    assert_eq!(chosen(&found).steps, LONGER);
    let longer = made.iter().filter(|made| made.steps == LONGER);
    assert!(longer.count() >= 2);
}

#[test]
fn a_script_with_nothing_more_to_do_keeps_its_plan() {
    let (found, made) = found(wanted(), |made| {
        (made.steps == LONGER).then(|| failed("it ended without a record"))
    });
    let chosen = chosen(&found);
    assert_eq!(chosen.steps, 3);
    assert!(
        chosen.notes.iter().any(|note| note.contains("for 3 steps")),
        "{:?}",
        chosen.notes
    );
    assert_eq!(made.iter().filter(|made| made.steps == LONGER).count(), 1);
}

/// A microsecond between two steps, which is less than the script takes to start.
fn with_quick_steps(made: &Made, mut run: Box<Measurement>) -> Ended {
    run.record.step_ends = (0..i64::from(made.steps)).collect();
    run.record.stopped = true;
    Ended::Through(run)
}

#[test]
fn where_steps_cost_less_than_a_start_a_plans_first_run_has_all_of_them() {
    let (found, made) = found(wanted(), |made| {
        if made.levers.is_empty() {
            return Some(with_quick_steps(made, Box::new(PLAIN.clone())));
        }
        None
    });
    assert_eq!(chosen(&found).steps, LONGER);
    assert!(!made.iter().any(|made| made.name.ends_with("-longer")));
    assert!(verifications(&made).iter().all(|made| made.steps == LONGER));
}

/// With levers steps may take far longer than the job's own: a plan's first run ends before the last of them, and the chosen one
/// then runs for all.
#[test]
fn a_first_run_that_was_cut_short_is_run_longer() {
    let (found, made) = found(wanted(), |made| {
        if made.levers.is_empty() {
            return Some(with_quick_steps(made, Box::new(PLAIN.clone())));
        }
        let fewer = made.fewer?;
        let Ended::Through(mut run) = through(made, Some(budget() / 10 * 9)) else {
            return None;
        };
        (run.record.steps, run.record.stopped) = (fewer.steps, true);
        Some(Ended::Through(run))
    });
    let first = verifications(&made)[0];
    let fewer = first.fewer.unwrap();
    assert_eq!((first.steps, fewer.steps), (LONGER, 3));
    assert!(fewer.seconds > 0.0 && (1..budget()).contains(&fewer.bytes));
    let longer = made.iter().find(|made| made.name.ends_with("-longer"));
    assert_eq!(longer.unwrap().fewer, None);
    assert_eq!(chosen(&found).steps, LONGER);
}

#[test]
fn a_script_that_fails_in_a_later_step_keeps_its_plan() {
    let (found, made) = found(wanted(), |made| {
        if made.levers.is_empty() {
            return Some(with_quick_steps(made, Box::new(PLAIN.clone())));
        }
        (made.steps == LONGER).then(|| failed("ZeroDivisionError: in step 7"))
    });
    assert_eq!(chosen(&found).steps, 3);
    let tried = verifications(&made);
    assert_eq!((tried[0].steps, tried[1].steps), (LONGER, 3));
    assert_eq!(tried[0].levers, tried[1].levers);
}

#[test]
fn each_plan_that_is_run_after_one_that_holds_promises_twice_as_much() {
    let ratios = [1.5, 1.47, 1.42, 1.33];
    let gains: Vec<bool> = ratios
        .windows(2)
        .zip(0..)
        .map(|(pair, since)| pair[1] <= Goal::SameResults.worth(pair[0], since))
        .collect();
    assert_eq!(gains, [true, true, true]);
    assert!(1.47 > Goal::SameResults.worth(1.5, 1));
    assert!(Goal::LeastMemory.worth(100.0, 1) < Goal::LeastMemory.worth(100.0, 0));
}

/// The lever that the first verified plan of an undisturbed search ends with.
fn last_lever() -> String {
    let (_, made) = found(wanted(), |_| None);
    let lever = verifications(&made)[0].levers.last().unwrap();
    lever.name().to_owned()
}

/// A run that a lever ended.
fn refusal(lever: &str, why: &str) -> Ended {
    Ended::Refused {
        lever: Some(lever.to_owned()),
        modules: Vec::new(),
        beside: None,
        why: why.to_owned(),
    }
}

/// A recomputation that cannot be says in its reason: "or checkpoint it".
#[test]
fn the_lever_that_refuses_is_left_out_and_not_one_that_its_reason_names() {
    let wanted = half();
    let mut pair = None;
    let (found, made) = found(wanted, |made| {
        if pair.is_none() && made.levers.len() > 1 {
            // The reason names the one that stands first in the plan.
            pair = Some((made.levers[0].name(), made.levers[1].name()));
        }
        let (named, refused) = pair?;
        let why =
            format!("the lever {refused} cannot be applied: use {named} instead of {refused}");
        made.has(refused).then(|| refusal(refused, &why))
    });
    let (named, refused) = pair.unwrap();
    assert_eq!(made.iter().filter(|made| made.has(refused)).count(), 1);
    assert!(made.last().unwrap().has(named), "{made:#?}");
    let rejected: Vec<&str> = found.fit.rejected.iter().map(|row| &*row.lever).collect();
    assert!(rejected.contains(&refused) && !rejected.contains(&named));
}

#[test]
fn a_refused_lever_is_left_out() {
    let refused = last_lever();
    let why = format!("the lever {refused} cannot be applied: no module of that name");
    let (found, made) = found(wanted(), |made| {
        (made.verifies() && made.has(&refused)).then(|| refusal(&refused, &why))
    });
    let verified = verifications(&made);
    assert!(verified[0].has(&refused));
    assert!(verified[1..].iter().all(|made| !made.has(&refused)));
    let rejected = found.fit.rejected.iter().find(|row| row.lever == refused);
    assert_eq!(rejected.unwrap().why, why);
}

/// Gradients on the host cannot be weighted in parts of a batch, say; without parts they can be there.
#[test]
fn levers_that_do_not_go_together_are_tried_apart() {
    let wanted = half();
    let mut pair = None;
    let (found, made) = found(wanted, |made| {
        if pair.is_none() && made.levers.len() > 1 {
            pair = Some((made.levers[0].name(), made.levers[1].name()));
        }
        let (one, other) = pair?;
        (made.has(one) && made.has(other)).then(|| Ended::Refused {
            lever: Some(one.to_owned()),
            modules: Vec::new(),
            beside: Some(other.to_owned()),
            why: "not both".to_owned(),
        })
    });
    let (one, other) = pair.unwrap();
    let both = made.iter().filter(|made| made.has(one) && made.has(other));
    assert_eq!(both.count(), 1, "{made:#?}");
    assert!(
        made.iter().any(|made| made.has(one) != made.has(other)),
        "{made:#?}"
    );
    let rejected: Vec<&str> = found.fit.rejected.iter().map(|row| &*row.lever).collect();
    assert!(rejected.contains(&&*format!("{one} beside {other}")));
    assert!(!rejected.contains(&one) && !rejected.contains(&other));
}

/// A failure names no lever. Plans that fail alike have the guilty one in common.
#[test]
fn a_lever_that_was_blamed_for_another_is_taken_back() {
    let wanted = half();
    let mut guilty = None;
    let (found, made) = found(wanted, |made| {
        if guilty.is_none() && made.verifies() && made.levers.len() > 1 {
            // The search suspects the last one first.
            guilty = made.levers.first().map(Lever::name);
        }
        guilty
            .filter(|name| made.has(name))
            .map(|_| failed("RuntimeError: not with this"))
    });
    let guilty = guilty.unwrap();
    let failures = made.iter().filter(|made| made.has(guilty)).count();
    assert!(failures > 1, "{made:#?}");
    let rejected: Vec<&str> = found.fit.rejected.iter().map(|row| &*row.lever).collect();
    assert_eq!(rejected, [guilty]);
    assert!(!chosen(&found).levers.is_empty());
}

/// The modules of a checkpoint among levers.
fn checkpointed(levers: &[Lever]) -> Vec<String> {
    let value = |lever: &Lever| serde_json::to_value(lever).unwrap();
    let checkpoint = levers.iter().find(|lever| lever.name() == "checkpoint");
    let modules = checkpoint.map(|lever| value(lever)["modules"].clone());
    modules.map_or_else(Vec::new, |modules| serde_json::from_value(modules).unwrap())
}

/// One block may change its input in place; the lever is for the others.
#[test]
fn a_module_that_a_lever_refuses_is_left_out_and_the_lever_stays() {
    let wanted = Wanted {
        allow: Some(vec!["checkpoint".to_owned()]),
        ..half()
    };
    let mut refused: Vec<String> = Vec::new();
    let (found, made) = found(wanted, |made| {
        let modules = checkpointed(&made.levers);
        let first = modules.first().filter(|_| refused.is_empty())?;
        refused.push(first.clone());
        Some(Ended::Refused {
            lever: Some("checkpoint".to_owned()),
            modules: vec![first.clone()],
            beside: None,
            why: "it changes its input in place".to_owned(),
        })
    });
    let plans: Vec<Vec<String>> = made.iter().map(|made| checkpointed(&made.levers)).collect();
    let with: Vec<_> = plans.iter().filter(|modules| !modules.is_empty()).collect();
    assert!(with.len() > 1, "{plans:?}");
    assert!(
        with[1..]
            .iter()
            .all(|modules| !modules.contains(&refused[0]))
    );
    assert_eq!(found.fit.rejected[0].lever, "checkpoint");
}

/// Each budget of a compiled model takes a run, which compiles it again.
#[test]
fn budgets_of_compiled_models_that_cannot_be_enough_are_not_run() {
    let plain = PLAIN.used_bytes();
    let wanted = Wanted {
        total_bytes: plain / 100 * 65,
        allow: Some(vec!["activation_memory_budget".to_owned()]),
        ..wanted()
    };
    let percent = |made: &Made| -> Option<u64> {
        let lever = serde_json::to_value(made.levers.first()?).unwrap();
        lever["percent"].as_u64()
    };
    let (_, made) = found(wanted, |made| {
        let used = percent(made).map_or(100, |percent| if percent > 10 { 90 } else { 60 });
        let Ended::Through(mut run) = through(made, Some(plain / 100 * used)) else {
            unreachable!("it goes through");
        };
        run.record.facts.compiled = true;
        Some(Ended::Through(run))
    });
    let probed = made.iter().filter(|made| made.name.starts_with("probe-"));
    assert_eq!(probed.filter_map(percent).collect::<Vec<_>>(), [70, 10]);
}

/// What is compiled is not taken apart; without compilation it is like any other job.
#[test]
fn a_compiled_job_may_run_without_compilation_and_with_what_is_ruled_out_otherwise() {
    let eager = |made: &Made| made.levers.iter().any(|lever| lever.name() == "uncompiled");
    let allow = LEVERS.map(str::to_owned).into_iter();
    let wanted = Wanted {
        allow: Some(allow.chain(["uncompiled".to_owned()]).collect()),
        ..wanted()
    };
    let (found, made) = found(wanted, |made| {
        let is_base = made.levers.is_empty() || made.levers.len() == 1 && eager(made);
        let used = Some(if is_base {
            PLAIN.used_bytes()
        } else {
            budget() / 2
        });
        let Ended::Through(mut run) = through(made, used) else {
            unreachable!("it goes through");
        };
        run.record.facts.compiled = !eager(made);
        Some(Ended::Through(run))
    });
    assert_eq!(found.fit.outcome, Outcome::Fits);
    let with: Vec<&Made> = made.iter().filter(|made| eager(made)).collect();
    assert!(
        with[0].name.starts_with("probe-") && with.len() > 1,
        "{made:?}"
    );
    assert!(with.iter().any(|made| made.has("checkpoint")), "{made:?}");
    let noted = |one: &&oomph_plan::result::Rejected| one.why.contains("torch.compile is used");
    assert!(found.fit.rejected.iter().any(|one| noted(&one)));
}

/// A compiled model without compilation fits, and takes far longer.
#[test]
fn a_dear_plan_does_not_end_the_search_for_a_degree_of_a_setting() {
    let eager = |made: &Made| made.levers.iter().any(|lever| lever.name() == "uncompiled");
    let percent = |made: &Made| {
        made.levers.iter().find_map(|lever| match lever {
            Lever::ActivationMemoryBudget(degree) => Some(degree.percent),
            _ => None,
        })
    };
    let others = ["uncompiled", "activation_memory_budget"];
    let allow = LEVERS.into_iter().chain(others).map(str::to_owned);
    let wanted = Wanted {
        allow: Some(allow.collect()),
        ..wanted()
    };
    let (found, made) = found(wanted, |made| {
        let is_base = made.levers.is_empty() || made.levers.len() == 1 && eager(made);
        let used = match percent(made) {
            Some(70) => PLAIN.used_bytes() / 100 * 95,
            None if is_base => PLAIN.used_bytes(),
            _ => budget() / 2,
        };
        let Ended::Through(mut run) = through(made, Some(used)) else {
            unreachable!("it goes through");
        };
        run.record.facts.compiled = !eager(made);
        for [busy, ..] in &mut run.record.scope_times {
            // So many times that the GPU decides.
            *busy *= if eager(made) { 100 } else { 1 };
        }
        Some(Ended::Through(run))
    });
    let probed = made.iter().filter(|made| made.name.starts_with("probe-"));
    assert_eq!(probed.filter_map(percent).collect::<Vec<_>>(), [70, 10]);
    let chosen = chosen(&found);
    assert!(
        chosen.what.contains("0.1") && chosen.time_ratio < 1.3,
        "{chosen:?}"
    );
}

#[test]
fn a_lever_without_effect_is_left_out() {
    let idle = last_lever();
    let (found, made) = found(wanted(), |made| {
        let Ended::Through(mut run) = through(made, Some(budget() / 2)) else {
            unreachable!("it goes through");
        };
        let plain = made.levers.is_empty();
        let levers = &mut run.record.levers;
        let report = levers.iter_mut().find(|report| report.name == idle)?;
        report.applied = 0;
        (!plain).then_some(Ended::Through(run))
    });
    let with = made.iter().filter(|made| made.has(&idle)).count();
    assert_eq!(with, 1, "{made:?}");
    let rejected = found.fit.rejected.iter().find(|row| row.lever == idle);
    assert!(rejected.unwrap().why.contains("no effect"));
}

#[test]
fn a_lever_that_no_plan_has_worked_with_is_blamed_for_a_failure() {
    let broken = last_lever();
    let (found, made) = found(wanted(), |made| {
        (made.verifies() && made.has(&broken)).then(|| failed("RuntimeError: boom"))
    });
    let with = verifications(&made);
    assert_eq!(with.iter().filter(|made| made.has(&broken)).count(), 1);
    let rejected = found.fit.rejected.iter().find(|row| row.lever == broken);
    let expected = "the script failed with it: RuntimeError: boom";
    assert_eq!(rejected.unwrap().why, expected);
}

#[test]
fn a_plan_that_does_not_fit_is_run_once_and_not_made_again() {
    let mut missed = None;
    let (found, made) = found(wanted(), |made| {
        (made.name == "plan-1").then(|| {
            missed = Some(made.levers.clone());
            through(made, Some(budget() * 2))
        })
    });
    let missed = missed.unwrap();
    let with = made.iter().filter(|made| made.levers == missed);
    assert_eq!(with.count(), 1);
    // The lesson: plans with the same levers are seen to need more than they were first predicted to.
    assert_eq!(found.fit.outcome, Outcome::Fits);
    assert_ne!(chosen(&found).levers, missed);
    let names = |levers: &[Lever]| levers.iter().map(Lever::name).collect::<Vec<_>>();
    let next = verifications(&made)[1];
    assert_ne!(
        names(&next.levers),
        names(&missed),
        "twice as much is no small miss"
    );
}

/// A plan that needs far too much after one step ends there; what all its steps need is not known then, and not said. A look at
/// samples may need more than the steps do.
#[test]
fn a_plan_that_needs_far_too_much_ends_after_one_step() {
    let (found, made) = found(wanted(), |made| {
        if !made.verifies() {
            return None;
        }
        let Ended::Through(mut run) = through(made, Some(budget() * 2)) else {
            return None;
        };
        let far = |fewer: Fewer| fewer.first_bytes < run.reserved_bytes();
        if made.fewer.is_some_and(far) {
            (run.record.steps, run.record.stopped) = (1, true);
        }
        Some(Ended::Through(run))
    });
    let plans = made.iter().filter(|made| made.fewer.is_some());
    for plan in plans {
        let fewer = plan.fewer.unwrap();
        if plan.levers.iter().any(Lever::looks_at_samples) {
            assert_eq!(fewer.first_bytes, u64::MAX);
        } else {
            assert!((fewer.bytes + 1..budget() * 2).contains(&fewer.first_bytes));
        }
    }
    assert_eq!(found.fit.outcome, Outcome::NothingFits);
    assert!(found.fit.least.is_none_or(|least| least.steps != 1));
}

/// A run of a plan that reserves a byte too much, of which it caches a tenth.
fn near_miss(made: &Made) -> Ended {
    let Ended::Through(mut run) = through(made, Some(budget() / 10 * 9)) else {
        unreachable!("it goes through");
    };
    run.summary.peak.used_bytes = budget() + 1;
    run.summary.peak.reserved_bytes = budget() + 1 - outside();
    Ended::Through(run)
}

/// The same where nothing is cached, and a tenth is work space.
fn near_miss_by_work_space(made: &Made) -> Ended {
    let Ended::Through(mut run) = through(made, Some(budget() + 1)) else {
        unreachable!("it goes through");
    };
    let work_space = run.summary.by_category.entry(Category::Workspace.name());
    *work_space.or_default() = budget() / 10;
    Ended::Through(run)
}

/// What the allocator caches it gives back where there is a limit, and convolutions take less work space.
#[test]
fn a_plan_that_needs_less_than_the_allocator_holds_is_run_with_the_limit() {
    for (holds, near_miss) in [
        (true, near_miss as fn(&Made) -> Ended),
        (false, near_miss),
        (true, near_miss_by_work_space),
    ] {
        let mut near = None;
        let (found, made) = found(wanted(), |made| {
            if made.name == "plan-1" {
                near = Some(made.levers.clone());
                return Some(near_miss(made));
            }
            if made.name.ends_with("-limited") {
                return (!holds).then(out_of_memory);
            }
            (made.verifies() && near.as_ref() != Some(&made.levers))
                .then(|| through(made, Some(budget() * 2)))
        });
        let near = near.unwrap();
        // Where nothing fits, smaller variants of the job have its levers.
        let plans = made.iter().filter(|made| made.name.starts_with("plan-"));
        let limits = plans.filter(|made| made.levers == near);
        let limits: Vec<Option<u64>> = limits.map(|made| made.limit).collect();
        assert_eq!(limits, [None, Some(budget())]);
        // Emptying the cache may not be enough in a later step.
        let limited = made.iter().find(|made| made.name.ends_with("-limited"));
        assert_eq!(limited.unwrap().steps, LONGER);
        let chosen = found.fit.chosen.map(|_| &chosen(&found).levers);
        assert_eq!(chosen, holds.then_some(&near));
    }
}

/// Nor does it wait for others where there is time for few runs: that one is as long as the time allows.
#[test]
fn a_plan_that_is_hardly_too_large_runs_with_the_limit_at_once_where_time_is_short() {
    let wanted = Wanted {
        stop: Stop::after(Some(Duration::from_hours(1))),
        ..wanted()
    };
    let mut played = Played::new(budget(), |made: &Made| {
        made.limit.is_none().then(|| near_miss(made))
    });
    let mut fitter = Fitter::new(&mut played, wanted);
    let base = fitter.base(&PLAIN, Vec::new()).unwrap();
    let lever = serde_json::from_str::<Lever>(r#"{"name": "set_to_none"}"#).unwrap();
    let plan = oomph_plan::search::predict(&base, &base, &[lever], &fitter.options);
    fitter.trains = true;
    (fitter.rounds, fitter.run_seconds) = (3, 3.0 * 3600.0);
    fitter.attempt(&plan).unwrap();
    assert_eq!((fitter.verified.len(), fitter.tight.len()), (1, 0));
    let [first, limited] = &played.made[..] else {
        panic!("two runs");
    };
    assert_eq!((first.limit, limited.limit), (None, Some(budget())));
    let fewer = limited.fewer.unwrap();
    assert_eq!((limited.steps, fewer.steps), (LONGER, 3));
    assert!(fewer.seconds <= 1800.0 && fewer.bytes == u64::MAX);
}

/// A lever that looks at samples in the first step looks at fewer where there is a limit; another needs what it needs.
#[test]
fn a_plan_that_needs_too_much_in_the_first_step_alone_is_run_with_the_limit() {
    for (lever, gives_way) in [("split_forward", true), ("checkpoint", false)] {
        let wanted = Wanted {
            allow: Some(vec![lever.to_owned()]),
            variants: false,
            ..wanted()
        };
        let (found, made) = found(wanted, |made| {
            if !made.verifies() || made.limit.is_some() {
                return None;
            }
            let Ended::Through(mut run) = through(made, Some(budget() / 10 * 15)) else {
                unreachable!("it goes through");
            };
            let allocated = run.summary.peak.allocated_bytes;
            run.summary.steps = (1..4)
                .map(|step| StepPeak {
                    step,
                    peak_allocated_bytes: allocated / u64::from(step),
                })
                .collect();
            Some(Ended::Through(run))
        });
        assert!(made.iter().any(Made::verifies), "{lever}");
        let limited = made.iter().any(|made| made.name.ends_with("-limited"));
        assert_eq!(limited, gives_way, "{lever}");
        assert_eq!(found.fit.outcome == Outcome::Fits, gives_way, "{lever}");
    }
}

/// Nothing is predicted to fit, and the plan of least memory does with a limit: what gave way there may in cheaper ones.
#[test]
fn where_one_plan_needs_less_with_a_limit_others_are_predicted_anew() {
    let least = |total_bytes: u64, ending: &dyn Fn(&Made) -> Option<Ended>| {
        let wanted = Wanted {
            total_bytes,
            variants: false,
            ..wanted()
        };
        found(wanted, ending)
    };
    let misses = |made: &Made| made.verifies().then(|| through(made, Some(budget() * 2)));
    // As little as there may be without a proof that nothing fits.
    let (proof, _) = least(outside() / 2, &misses);
    let (nothing, _) = least(proof.fit.floor.unwrap().bytes, &misses);
    let predicted = nothing.fit.least.unwrap().predicted;
    let total = predicted.used_bytes - predicted.reserved_bytes / 50;
    let (_, made) = least(total, &|made| {
        let held = (total - outside()) / 2;
        let Ended::Through(mut run) = through(made, Some(outside() + held)) else {
            unreachable!("it goes through");
        };
        if made.limit.is_none() {
            run.summary.peak.used_bytes = total + 1;
            run.summary.peak.reserved_bytes = total + 1 - outside();
        }
        made.name.starts_with("plan-").then(|| Ended::Through(run))
    });
    let plans: Vec<&Made> = made.iter().filter(|made| made.verifies()).collect();
    let limited = plans.iter().position(|made| made.limit.is_some()).unwrap();
    let cheaper = plans.iter().skip(limited + 1);
    assert!(
        cheaper
            .clone()
            .any(|made| made.levers != plans[limited].levers),
        "{plans:?}"
    );
}

/// There the allocator need not give back what it gave back to leave the margin free.
#[test]
fn what_a_tight_plan_holds_on_the_whole_gpu_is_measured() {
    let margin = budget() / 50;
    for margin_bytes in [0, margin] {
        let wanted = Wanted {
            total_bytes: budget() + margin_bytes,
            margin_bytes,
            ..wanted()
        };
        let (found, made) = found(wanted, |made| {
            let used = match made.limit {
                Some(limit) if limit > budget() => limit - 1,
                Some(_) => budget(),
                None => return made.verifies().then(|| near_miss(made)),
            };
            let Ended::Through(mut run) = through(made, Some(used)) else {
                unreachable!("it goes through");
            };
            run.record.devices[0].retries = 1;
            made.verifies().then_some(Ended::Through(run))
        });
        let plan = chosen(&found);
        assert_eq!(plan.peak.used_bytes, budget());
        let on_whole_gpu = plan.on_whole_gpu.map(|peak| peak.used_bytes);
        assert_eq!(
            on_whole_gpu,
            (margin_bytes > 0).then_some(budget() + margin - 1)
        );
        let last = made
            .iter()
            .filter(|made| made.limit == Some(budget() + margin));
        assert_eq!(last.count(), usize::from(margin_bytes > 0));
    }
}

/// Two of them are tried with the limit side by side.
#[test]
fn plans_that_are_hardly_too_large_run_with_the_limit_side_by_side() {
    let mut played = Played {
        at_once: 2,
        ..Played::new(budget(), |made: &Made| {
            if made.name.ends_with("-limited") {
                return Some(out_of_memory());
            }
            made.verifies().then(|| near_miss(made))
        })
    };
    fit(&mut played, wanted()).unwrap();
    let limited = |made: &&Made| made.name.ends_with("-limited");
    let names: Vec<&str> = (played.made.iter().filter(limited))
        .map(|made| made.name.as_str())
        .collect();
    assert!(names.len() >= 2 && names[0] != names[1], "{names:?}");
    let first = names
        .iter()
        .position(|name| name.ends_with("-1-limited"))
        .unwrap();
    assert!(
        names[first + 1].ends_with("-2-limited"),
        "{:?}",
        played.beside
    );
}

/// A degree of a setting should be enough, and no plan with it holds.
#[test]
fn where_no_plan_with_a_degree_of_a_setting_holds_the_strongest_is_run() {
    let wanted = Wanted {
        allow: Some(vec!["activation_memory_budget".to_owned()]),
        ..wanted()
    };
    let percent = |made: &Made| {
        made.levers.iter().find_map(|lever| match lever {
            Lever::ActivationMemoryBudget(degree) => Some(degree.percent),
            _ => None,
        })
    };
    let (found, made) = found(wanted, |made| match percent(made) {
        None => {
            let mut run = PLAIN.clone();
            run.record.facts.compiled = true;
            Some(Ended::Through(Box::new(run)))
        }
        Some(percent) if made.name.starts_with("probe") => Some(through(
            made,
            Some(budget() / 100 * u64::from(percent + 10)),
        )),
        Some(70) => Some(through(made, Some(budget() / 10 * 11))),
        Some(_) => None,
    });
    let probed: Vec<Option<u32>> = (made.iter())
        .filter(|made| made.name.starts_with("probe"))
        .map(percent)
        .collect();
    assert_eq!(probed, [Some(70), Some(10)]);
    assert_eq!(found.fit.outcome, Outcome::Fits);
    assert!(
        chosen(&found).what.contains("0.1"),
        "{}",
        chosen(&found).what
    );
}

/// To empty the cache takes time, and to try that a run.
#[test]
fn a_plan_that_is_hardly_too_large_gives_way_to_one_that_needs_a_little_less() {
    let mut near = None;
    let (found, made) = found(wanted(), |made| {
        (made.name == "plan-1").then(|| {
            near = Some(made.levers.clone());
            near_miss(made)
        })
    });
    let near = near.unwrap();
    assert_eq!(found.fit.outcome, Outcome::Fits);
    assert_ne!(chosen(&found).levers, near);
    assert!(!made.iter().any(|made| made.name.ends_with("-limited")));
}

#[test]
fn where_nothing_holds_a_few_misses_end_the_search() {
    let (found, made) = found(wanted(), |made| {
        (!made.levers.is_empty()).then(|| through(made, Some(budget() / 10 * 11)))
    });
    assert_eq!(found.fit.outcome, Outcome::NothingFits);
    assert!(found.fit.plans.is_empty() && found.fit.chosen.is_none());
    // After the misses the plan of least memory is tried, and the one that is it by then: at last blocks that are checkpointed and
    // whose arguments wait on the host, with the state there, which runs twice.
    let tried = verifications(&made).len() as u32;
    assert!((1..=MOST_MISSES + 5).contains(&tried), "{tried}");
    let least = found.fit.least.as_ref().unwrap();
    assert!(least.verified);
    assert_eq!(least.peak.used_bytes, budget() / 10 * 11);
    assert!(!found.fit.gpus.is_empty());
    let floor = found.fit.floor.as_ref().unwrap();
    let parts = [
        floor.outside_bytes,
        floor.parameter_bytes,
        floor.operator_bytes,
    ];
    assert!(
        parts.iter().all(|&bytes| bytes > 0) && floor.bytes < budget() / 10 * 11,
        "{floor:?}"
    );
}

/// Weights that are trained and the context are more than there is: no run of any plan could say anything else.
#[test]
fn weights_that_no_lever_takes_from_the_gpu_end_the_search_at_once() {
    let context = &wanted().gpu.found.gpu.context;
    let context = outside().min(context.base_bytes + context.first_kernel_bytes);
    let within = |total_bytes| Wanted {
        total_bytes,
        ..wanted()
    };
    let (found, made) = found(within(context), |_| None);
    assert_eq!((found.fit.outcome, made.len()), (Outcome::NothingFits, 1));
    let floor = found.fit.floor.as_ref().unwrap();
    assert_eq!(
        (floor.bytes, floor.outside_bytes),
        (context + floor.parameter_bytes, context)
    );
    assert!(found.fit.least.is_none() && !found.fit.gpus.is_empty());
    // With as much as that there is no proof, so plans are tried.
    let (_, made) = search(within(floor.bytes), |_| None);
    assert!(made.len() > 1);
}

/// The plan of least memory is tried although it should not fit; where one of its levers refuses, the next one is.
#[test]
fn the_least_plan_is_tried_until_none_of_its_levers_refuses() {
    let wanted = Wanted {
        total_bytes: outside() + PLAIN.reserved_bytes() / 8,
        ..wanted()
    };
    let mut refused = None;
    let (found, made) = found(wanted, |made| {
        if refused.is_none() && made.verifies() {
            refused = made.levers.last().map(Lever::name);
        }
        let lever = refused?;
        made.has(lever).then(|| refusal(lever, "no"))
    });
    let verified = verifications(&made);
    assert!(verified[0].has(refused.unwrap()) && verified.len() > 1);
    assert_eq!(found.fit.outcome, Outcome::Fits);
    let mut held = verified[1..].iter().map(|made| &made.levers);
    assert!(held.any(|levers| *levers == chosen(&found).levers));
}

/// The most that a run's plan keeps of saved tensors on the host.
fn most(made: &Made) -> Option<u64> {
    made.levers.iter().find_map(|lever| match lever {
        Lever::SaveOnCpu(save) => save.most,
        _ => None,
    })
}

/// Nothing but the last resort fits, and of that a part is enough.
#[test]
fn only_as_much_goes_to_the_host_as_is_too_much() {
    let wanted = Wanted {
        allow: Some(["checkpoint", "save_on_cpu"].map(str::to_owned).into()),
        ..wanted()
    };
    let least = PLAIN.used_bytes() / 8;
    let (found, made) = found(wanted, |made| {
        if made.levers.is_empty() {
            return None;
        }
        if made.name.starts_with("probe") && made.has("save_on_cpu") {
            return Some(through(made, Some(least)));
        }
        let stays = PLAIN.used_bytes() - most(made).unwrap_or(0);
        Some(through(made, Some(stays)))
    });
    let plan = chosen(&found);
    assert!(plan.what.contains("up to "), "{}", plan.what);
    let missing = PLAIN.used_bytes() - budget();
    let went = made.iter().find_map(most).unwrap();
    assert!(
        (missing..2 * missing).contains(&went),
        "{went} of {missing}"
    );
}

/// Of what goes to the host less may count than was thought: the next part is as large as that run says.
#[test]
fn a_part_that_was_not_enough_says_how_much_is() {
    const COUNTS: f64 = 0.7;
    let wanted = Wanted {
        allow: Some(["save_on_cpu".to_owned()].into()),
        ..wanted()
    };
    let (found, made) = found(wanted, |made| {
        if made.levers.is_empty() {
            return None;
        }
        let went = most(made).map_or(PLAIN.used_bytes() / 8 * 7, |most| {
            (most as f64 * COUNTS) as u64
        });
        Some(through(made, Some(PLAIN.used_bytes() - went)))
    });
    assert!(chosen(&found).what.contains("up to "));
    let missing = (PLAIN.used_bytes() - budget()) as f64 / COUNTS;
    let mut went: Vec<u64> = made.iter().filter_map(most).collect();
    went.dedup();
    assert_eq!(went.len(), 2, "{went:?}");
    assert!(
        (1.0..1.1).contains(&(went[1] as f64 / missing)),
        "{went:?} of {missing}"
    );
}

/// What the model says of a lever that is made for any job may be far too much: a run of it tells, before nothing is
/// said to fit.
#[test]
fn nothing_fits_only_after_a_run_of_the_last_resort() {
    let wanted = Wanted {
        total_bytes: outside() + PLAIN.reserved_bytes() / 8,
        allow: Some(["checkpoint", "save_on_cpu"].map(str::to_owned).into()),
        ..wanted()
    };
    let capacity = wanted.total_bytes;
    let mut probed = false;
    let (found, made) = found(wanted, |made| {
        if made.name.starts_with("probe") && made.has("save_on_cpu") {
            probed = true;
            return Some(through(made, Some(capacity / 10 * 9)));
        }
        let fits = probed && made.has("save_on_cpu");
        (made.verifies() && !fits).then(|| through(made, Some(PLAIN.used_bytes())))
    });
    assert_eq!(found.fit.outcome, Outcome::Fits);
    assert!(
        chosen(&found)
            .levers
            .iter()
            .any(|lever| lever.name() == "save_on_cpu")
    );
    let tried_alone = made
        .iter()
        .filter(|made| made.name.starts_with("probe") && made.has("save_on_cpu"));
    assert!(
        tried_alone.count() == 1
            && made
                .iter()
                .any(|made| made.verifies() && !made.has("save_on_cpu"))
    );
}

/// What is found at once, but takes long, is compared with a part of the last resort.
#[test]
fn a_dear_plan_is_compared_with_the_last_resort() {
    let tries_it = |slower: u64| {
        let wanted = Wanted {
            total_bytes: outside() + PLAIN.reserved_bytes() / 2,
            allow: Some(["checkpoint", "save_on_cpu"].map(str::to_owned).into()),
            ..wanted()
        };
        let (found, made) = found(wanted, |made| {
            let checkpoints = made.has("checkpoint");
            let Ended::Through(mut run) = through(made, checkpoints.then(|| budget() / 2)) else {
                return None;
            };
            run.record.clock_calls = vec![0; run.record.clock.len()];
            for (_, ns, _) in &mut run.record.clock {
                *ns *= if checkpoints { slower } else { 1 };
            }
            Some(Ended::Through(run))
        });
        assert_eq!(found.fit.outcome, Outcome::Fits);
        made.iter().any(|made| made.has("save_on_cpu"))
    };
    assert!(!tries_it(1));
    assert!(tries_it(2));
}

/// Where the plan of least memory leaves a processor idle, the last resort runs there, and is a plan should nothing else be found in time.
#[test]
fn the_last_resort_runs_beside_the_least_plan() {
    let wanted = Wanted {
        total_bytes: outside() + PLAIN.reserved_bytes() / 8,
        allow: Some(["checkpoint", "save_on_cpu"].map(str::to_owned).into()),
        ..wanted()
    };
    let capacity = wanted.total_bytes;
    let interrupted = std::sync::Arc::clone(&wanted.stop.interrupted);
    let mut played = Played {
        at_once: 2,
        ..Played::new(capacity, |made: &Made| {
            if made.has("save_on_cpu") {
                interrupted.store(true, std::sync::atomic::Ordering::Relaxed);
                return Some(through(made, Some(capacity / 10 * 9)));
            }
            made.verifies()
                .then(|| through(made, Some(PLAIN.used_bytes())))
        })
    };
    let Ending::Found(found) = fit(&mut played, wanted).unwrap() else {
        panic!("the script runs");
    };
    assert_eq!(played.beside.last(), Some(&2));
    let [.., plan, beside] = &played.made[..] else {
        panic!("two runs at least");
    };
    assert!(plan.verifies() && beside.has("save_on_cpu"));
    assert_eq!(found.fit.outcome, Outcome::Fits);
    assert_eq!(chosen(&found).levers, beside.levers);
}

/// Where there are processors for it, a plan that should need less runs beside the best one, and holds when that misses.
#[test]
fn a_plan_that_needs_less_runs_beside_the_best() {
    let run = |at_once: usize| {
        let mut first: Option<Vec<Lever>> = None;
        let mut played = Played {
            at_once,
            ..Played::new(budget(), |made: &Made| {
                let misses = made.verifies()
                    && *first.get_or_insert_with(|| made.levers.clone()) == made.levers;
                misses.then(|| through(made, Some(budget() / 8 * 9)))
            })
        };
        let Ending::Found(found) = fit(&mut played, wanted()).unwrap() else {
            panic!("the script runs");
        };
        let levers: Vec<Vec<Lever>> = verifications(&played.made)
            .iter()
            .map(|made| made.levers.clone())
            .collect();
        assert_eq!(found.fit.outcome, Outcome::Fits);
        assert_ne!(chosen(&found).levers, levers[0]);
        (levers, played.beside)
    };
    let (one_by_one, rounds) = run(1);
    assert!(rounds.iter().all(|&runs| runs == 1), "{rounds:?}");
    let (levers, rounds) = run(2);
    // The job as it is runs alone, then two plans, of which the first is the one that would have been run alone.
    assert_eq!((rounds[0], rounds[1]), (1, 2));
    assert_eq!(levers[0], one_by_one[0]);
    assert_ne!(levers[0], levers[1]);
}

/// The next best plan runs for longer beside the best one, and is chosen at once where that does not hold.
#[test]
fn two_plans_run_longer_side_by_side() {
    let mut first = None;
    let mut played = Played {
        at_once: 2,
        ..Played::new(budget(), |made: &Made| {
            let first = made
                .name
                .ends_with("-longer")
                .then(|| first.get_or_insert_with(|| made.levers.clone()))?;
            (*first == made.levers).then(out_of_memory)
        })
    };
    let Ending::Found(found) = fit(&mut played, wanted()).unwrap() else {
        panic!("the script runs");
    };
    let longer: Vec<&Made> = (played.made.iter())
        .filter(|made| made.name.ends_with("-longer"))
        .collect();
    let both = [longer[0], longer[1]];
    let at = |made: &&Made| played.made.iter().position(|other| other == *made).unwrap();
    assert_eq!(at(&both[0]) + 1, at(&both[1]));
    let number = |made: &Made| made.name.split('-').nth(1).map(str::to_owned);
    assert_eq!(number(both[0]), number(both[1]));
    assert_ne!(chosen(&found).levers, longer[0].levers);
    assert_eq!(chosen(&found).steps, LONGER);
}

/// The time may be up while two plans run: one that is through by then is kept.
#[test]
fn what_is_through_when_the_time_is_up_is_kept() {
    let wanted = wanted();
    let interrupted = std::sync::Arc::clone(&wanted.stop.interrupted);
    let mut played = Played {
        at_once: 2,
        ..Played::new(budget(), |made: &Made| {
            if made.name == "plan-2" {
                interrupted.store(true, std::sync::atomic::Ordering::Relaxed);
                return Some(failed("it was killed"));
            }
            None
        })
    };
    let Ending::Found(found) = fit(&mut played, wanted).unwrap() else {
        panic!("the script runs");
    };
    assert_eq!(found.fit.outcome, Outcome::Fits);
    assert_eq!(found.fit.stopped, Some(Stopped::Interrupted));
    assert_eq!(chosen(&found).levers, verifications(&played.made)[0].levers);
    assert!(found.fit.rejected.is_empty(), "{:?}", found.fit.rejected);
}

#[test]
fn a_script_that_fails_ends_the_search() {
    let (ending, made) = search(wanted(), |_| Some(failed("NameError: x")));
    let Ending::ScriptFailed { why, is_rank, .. } = ending else {
        panic!("it was found to fit");
    };
    assert_eq!((why.as_str(), is_rank), ("NameError: x", false));
    assert_eq!(made.len(), 1);
}

#[test]
fn a_script_that_uses_several_gpus_by_itself_is_not_shared() {
    let wanted = Wanted {
        gpu: oomph_gpus::parse_spec("rtx-3060:2").unwrap(),
        ..wanted()
    };
    let (found, made) = found(wanted, |made| {
        (made.gpus == 1).then(|| failed("RuntimeError: invalid device ordinal"))
    });
    let plain: Vec<(u32, &[Lever])> = made
        .iter()
        .filter(|made| made.name == "plain")
        .map(|made| (made.gpus, &made.levers[..]))
        .collect();
    let one = [sharding::data_parallel(1)];
    assert_eq!(plain, [(1, &[][..]), (1, &one[..]), (2, &[][..])]);
    assert!(found.fit.rejected.iter().any(|row| row.lever == "shard"));
    assert!(
        made.iter()
            .all(|made| made.name == "plain" || !made.has("shard"))
    );
}

#[test]
fn a_rank_without_its_launcher_is_recognized() {
    let wanted = Wanted {
        gpu: oomph_gpus::parse_spec("rtx-3060:2").unwrap(),
        ..wanted()
    };
    let why = "ValueError: environment variable RANK expected, but not set";
    let (ending, made) = search(wanted, |_| Some(failed(why)));
    assert!(matches!(ending, Ending::ScriptFailed { is_rank: true, .. }));
    assert_eq!(made.len(), 1);
}

#[test]
fn ways_to_share_are_tried_as_one_rank_and_verified_by_all() {
    let wanted = Wanted {
        gpu: oomph_gpus::parse_spec("rtx-3060:2").unwrap(),
        ..wanted()
    };
    let (found, made) = found(wanted, |_| None);
    let of = |limited: bool| {
        let made = made.iter().filter(move |made| made.has("shard"));
        made.filter(move |made| made.limit.is_some() == limited)
    };
    assert!(of(false).all(|made| made.ranks == Ranks::First));
    assert!(of(true).count() > 0 && of(true).all(|made| made.ranks == Ranks::All));
    assert_eq!(sharding::gpus(&chosen(&found).levers), Some(2));
    assert!(found.fit.smallest.is_some());
}

/// Ctrl-C reaches the script too, which fails; each run of a search is interrupted in its turn.
#[test]
fn an_interrupted_search_keeps_what_it_found_and_blames_no_lever() {
    let (_, whole) = found(wanted(), |_| None);
    let mut with_plan = 0;
    for last in 1..whole.len() {
        let wanted = wanted();
        let interrupted = wanted.stop.interrupted.clone();
        let mut runs = 0;
        let (found, made) = found(wanted, |made| {
            runs += 1;
            (runs > last).then(|| {
                interrupted.store(true, std::sync::atomic::Ordering::Relaxed);
                failed(&format!("KeyboardInterrupt in {}", made.name))
            })
        });
        assert_eq!(made.len(), last + 1, "no run after Ctrl-C");
        assert_eq!(found.fit.stopped, Some(Stopped::Interrupted));
        let failures = found
            .fit
            .rejected
            .iter()
            .filter(|row| row.why.contains("failed"));
        assert_eq!(failures.count(), 0);
        let verified = verifications(&whole[..last]);
        assert_eq!(found.fit.chosen.is_some(), !verified.is_empty());
        if let Some(plan) = found.fit.chosen.map(|_| chosen(&found)) {
            assert_eq!(found.fit.outcome, Outcome::Fits);
            assert!(plan.verified && verified.iter().any(|made| made.levers == plan.levers));
            with_plan += 1;
        } else {
            assert_eq!(found.fit.outcome, Outcome::Open);
        }
    }
    assert!(
        with_plan > 0,
        "no search was interrupted after its first plan"
    );
}

#[test]
fn without_time_for_the_plain_run_nothing_is_known() {
    let wanted = Wanted {
        stop: Stop::after(Some(std::time::Duration::ZERO)),
        ..wanted()
    };
    let (ending, made) = search(wanted, |_| None);
    assert!(matches!(ending, Ending::Stopped(Stopped::MaxTime)));
    assert!(made.is_empty());
}

/// Has no more time from the second run of a plan on, unless that is told to take all there is.
struct OutOfTime<'a, F> {
    played: &'a mut Played<F>,
    told: Vec<Option<Instant>>,
    last: Option<Instant>,
    stopped: bool,
}

impl<F: FnMut(&Made) -> Option<Ended>> Attempts for OutOfTime<'_, F> {
    fn run(&mut self, request: &Request) -> anyhow::Result<Ended> {
        let kept_back = self.told.last().is_some_and(|told| *told < self.last);
        if kept_back && self.played.made.iter().any(Made::verifies) {
            self.stopped = true;
            return Err(Stopped::MaxTime.into());
        }
        self.played.run(request)
    }

    fn stop_by(&mut self, stop: &Stop) {
        self.told.push(stop.deadline);
    }
}

#[test]
fn time_is_kept_back_to_run_the_chosen_plan_for_longer() {
    let mut played = Played::new(budget(), |made: &Made| {
        let used = (!made.levers.is_empty()).then(|| budget() / 10 * 9);
        let Ended::Through(mut run) = through(made, used) else {
            return None;
        };
        // Steps of ten seconds each: those of a longer run would take too long for each plan.
        run.record.step_ends = (1..=3).map(|end| end * 10_000_000).collect();
        run.record.clock_calls = vec![0; run.record.clock.len()];
        if made.verifies() {
            // It turns out slow, so that another is tried.
            for (_, busy, _) in &mut run.record.clock {
                *busy *= 3;
            }
        }
        Some(Ended::Through(run))
    });
    let wanted = Wanted {
        stop: Stop::after(Some(Duration::from_hours(1))),
        ..wanted()
    };
    let last = wanted.stop.deadline;
    let mut attempts = OutOfTime {
        played: &mut played,
        told: Vec::new(),
        last,
        stopped: false,
    };
    let Ending::Found(found) = fit(&mut attempts, wanted).unwrap() else {
        panic!("nothing was found");
    };
    assert!(attempts.stopped);
    let search = attempts.told.iter().flatten().min().unwrap();
    assert!(last.unwrap() - *search >= Duration::from_secs(160));
    let plan = chosen(&found);
    let longer = played.made.last().unwrap();
    assert!(longer.name.ends_with("-longer") && longer.levers == plan.levers);
    assert_eq!((plan.steps, longer.limit), (LONGER, Some(budget())));
    assert!(!plan.notes.iter().any(|note| note.contains("measured for")));
}

/// Notes the best plan that each run is told.
struct Told<'a, F>(&'a mut Played<F>, &'a mut Vec<Option<String>>);

impl<F: FnMut(&Made) -> Option<Ended>> Attempts for Told<'_, F> {
    fn run(&mut self, request: &Request) -> anyhow::Result<Ended> {
        self.1.push(request.best.clone());
        self.0.run(request)
    }
}

#[test]
fn runs_are_told_the_best_plan_so_far() {
    let mut best = Vec::new();
    let mut played = Played {
        made: Vec::new(),
        beside: Vec::new(),
        at_once: 1,
        capacity: budget(),
        ending: |_: &Made| None,
    };
    fit(&mut Told(&mut played, &mut best), wanted()).unwrap();
    assert_eq!(best[0], None);
    let last = best.last().unwrap().as_ref().unwrap();
    let plan = played.made.last().unwrap();
    assert!(last.contains(plan.levers[0].to_string().as_str()), "{last}");
}

/// What follows for a GPU with so much free memory, and the attempts that were made for it.
fn rehearsed(
    free_bytes: u64,
    kept: &mut Kept,
    ending: impl FnMut(&Made) -> Option<Ended>,
) -> (Decision, Vec<Made>) {
    let place = Place {
        machine: "a".to_owned(),
        free_bytes,
    };
    let room = rehearsal::room(&place, kept, |_| Ok(0), None).unwrap();
    if let Some(known) = rehearsal::known(&place, kept, &room) {
        return (Decision::Known(Box::new(known)), Vec::new());
    }
    let mut played = Played::new(room.memory_bytes - room.margin_bytes, ending);
    let scene = Scene {
        job: oomph_plan::PlanJob::default(),
        place: &place,
        kept,
        room,
    };
    let decision = rehearsal::search(&mut played, wanted(), scene).unwrap();
    (decision, played.made)
}

fn known(decision: Decision) -> Chosen {
    match decision {
        Decision::Known(chosen) => *chosen,
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_job_that_fits_runs_as_it_is_and_so_wherever_as_much_is_free() {
    let mut kept = Kept::default();
    let free = PLAIN.used_bytes() * 2;
    let (first, made) = rehearsed(free, &mut kept, |_| None);
    assert_eq!(made.len(), 1);
    let first = known(first);
    assert_eq!(first.entry.answer, Answer::AsItIs);
    assert!(first.plan().is_none() && !first.known);
    assert!(first.to_string().starts_with("fits as it is: "), "{first}");
    assert!(!first.to_string().contains("grows"), "{first}");
    // What the search saw grow is kept with its answer.
    let entry = kept.entries.last_mut().unwrap();
    entry.growth = Some(Growth {
        bytes_per_step: 1 << 20,
        place: Some("train.py:7".to_owned()),
        full_at_step: 70,
    });
    kept = Kept::parse(&kept.text()).unwrap();
    for (more, step) in [(0, 70), (1 << 30, 70 + 1024)] {
        let again = known(rehearsed(free + more, &mut kept, |_| None).0);
        let said = format!("; it grows by 1.0 MiB a step (train.py:7): full near step {step}");
        assert!(again.to_string().contains(&said), "{again}");
    }
    kept.entries.last_mut().unwrap().growth = None;
    for free in [free * 4, free, PLAIN.used_bytes() * 33 / 32] {
        let (again, made) = rehearsed(free, &mut kept, |_| None);
        assert!(made.is_empty() && known(again).known);
    }
    assert!(!rehearsed(budget(), &mut kept, |_| None).1.is_empty());
}

/// A real run that used so much more than was planned, and ended as it should.
fn ran(chosen: &Chosen, more: u64) -> RealRun {
    let planned = chosen.entry.peak;
    RealRun {
        machine: "a".to_owned(),
        allocated_bytes: planned.allocated_bytes,
        reserved_bytes: planned.reserved_bytes,
        outside_bytes: None,
        used_bytes: planned.used_bytes + more,
        out_of_memory: false,
        step_seconds: None,
        planned,
    }
}

#[test]
fn a_plan_is_made_anew_once_a_real_run_needed_more_than_there_is() {
    let mut kept = Kept::default();
    let (first, made) = rehearsed(budget(), &mut kept, |_| None);
    let first = known(first);
    let memory = first.entry.memory_bytes;
    assert!(first.plan().is_some() && memory <= budget());
    assert_eq!(made.last().unwrap().limit, Some(memory));
    assert!(first.to_string().contains(" times the step"), "{first}");
    // Of what was free, a tenth was not used: so much more still fits, and the plan stays.
    let spare = memory - first.entry.peak.used_bytes;
    kept.ended(Path::new("run"), Some(ran(&first, spare / 2)));
    let (second, made) = rehearsed(budget(), &mut kept, |_| None);
    assert!(made.is_empty());
    let said = known(second).to_string();
    assert!(
        said.contains("last real run used") && said.contains("known"),
        "{said}"
    );
    // Here it does not.
    kept.ended(Path::new("run"), Some(ran(&first, spare + 1)));
    let (third, made) = rehearsed(budget(), &mut kept, |_| None);
    let corrected = memory - spare - 1;
    assert_eq!(made.last().unwrap().limit, Some(corrected));
    let third = known(third);
    assert!(third.entry.peak.used_bytes <= corrected && !third.known);
    // Another machine has other drivers.
    kept.runs[1].machine = "b".to_owned();
    let (other, made) = rehearsed(budget(), &mut kept, |_| None);
    assert!(made.is_empty() && known(other).known);
}

#[test]
fn nothing_is_kept_of_a_search_that_was_interrupted() {
    let mut kept = Kept::default();
    let place = Place {
        machine: "a".to_owned(),
        free_bytes: budget(),
    };
    let room = rehearsal::room(&place, &kept, |_| Ok(0), None).unwrap();
    let wanted = wanted();
    let interrupted = wanted.stop.interrupted.clone();
    let mut played = Played {
        made: Vec::new(),
        beside: Vec::new(),
        at_once: 1,
        capacity: budget(),
        ending: |made: &Made| {
            interrupted.store(made.verifies(), std::sync::atomic::Ordering::Relaxed);
            None
        },
    };
    let scene = Scene {
        job: oomph_plan::PlanJob::default(),
        place: &place,
        kept: &mut kept,
        room,
    };
    let decision = rehearsal::search(&mut played, wanted, scene).unwrap();
    assert!(matches!(decision, Decision::Open(Stopped::Interrupted)));
    assert_eq!(kept, Kept::default());
}

#[test]
fn where_nothing_fits_the_floor_is_said_and_known() {
    let mut kept = Kept::default();
    let (found, made) = rehearsed(budget(), &mut kept, |made| {
        made.verifies()
            .then(|| through(made, Some(PLAIN.used_bytes())))
    });
    assert!(made.len() > 1);
    let found = known(found);
    assert_eq!(found.entry.answer, Answer::Nothing);
    let said = found.to_string();
    assert!(
        said.starts_with("nothing found that fits: floor "),
        "{said}"
    );
    assert!(rehearsed(budget() / 2, &mut kept, |_| None).1.is_empty());
    assert!(
        !rehearsed(budget() * 5 / 4, &mut kept, |_| None)
            .1
            .is_empty()
    );
}

#[test]
fn a_machine_whose_runs_needed_all_of_it_has_nothing_left() {
    let mut kept = Kept::default();
    let (first, _) = rehearsed(budget(), &mut kept, |_| None);
    let first = known(first);
    kept.ended(Path::new("run"), Some(ran(&first, budget())));
    let place = Place {
        machine: "a".to_owned(),
        free_bytes: budget(),
    };
    let error = rehearsal::room(&place, &kept, |_| Ok(0), None).unwrap_err();
    assert!(error.to_string().contains("--no-cache"), "{error}");
}

#[test]
fn a_patch_is_one_that_fits() {
    let (mut found, _) = found(wanted(), |_| None);
    let steps = found.steps();
    assert!(steps < chosen(&found).steps);
    let mut told = |ending: fn(&Made) -> Ended| {
        let mut attempts = Played {
            made: Vec::new(),
            beside: Vec::new(),
            at_once: 1,
            capacity: budget(),
            ending: |made: &Made| Some(ending(made)),
        };
        let runs = found.fit.runs;
        let texts = [("by-hand", "a = 1")];
        let mut why = changed::misses(&mut attempts, &mut found, &texts, 3);
        let why = why.remove(0).unwrap();
        let made = &attempts.made[0];
        // It runs as long as the plan did at first, in its memory, and without the levers.
        assert_eq!((made.steps, made.limit), (steps.max(3), Some(budget())));
        assert!(made.levers.is_empty() && found.fit.runs == runs + 1);
        why.unwrap_or_default()
    };
    assert_eq!(told(|made| through(made, Some(budget()))), "");
    assert!(told(|made| through(made, Some(budget() + 1))).contains("the script needs"));
    assert!(told(|_| out_of_memory()).contains("runs out of"));
    assert!(told(|_| failed("NameError: x")).ends_with("the script fails: NameError: x"));
}

/// All that the levers know, and the net.
fn with_the_net() -> Wanted {
    let levers = LEVERS.into_iter().chain(["net"]);
    Wanted {
        allow: Some(levers.map(str::to_owned).collect()),
        ..wanted()
    }
}

/// What runs of plans use where none of them fits by itself.
fn only_the_net_fits(made: &Made) -> Option<Ended> {
    if !made.verifies() || made.has("net") {
        return None;
    }
    Some(through(made, Some(budget() / 10 * 11)))
}

#[test]
fn where_no_plan_fits_the_net_holds_what_is_too_much() {
    let (found, made) = found(with_the_net(), |made| {
        let ended = only_the_net_fits(made);
        if !made.has("net") {
            return ended;
        }
        // The allocator counts what lies on the host as its own.
        let Ended::Through(mut run) = through(made, Some(budget())) else {
            return None;
        };
        run.summary.peak.reserved_bytes += 64 << 20;
        run.record.net_bytes = 64 << 20;
        Some(Ended::Through(run))
    });
    assert_eq!(found.fit.outcome, Outcome::Fits);
    let chosen = chosen(&found);
    assert!(chosen.verified && chosen.same_results == Results::Exact);
    assert!(chosen.peak.reserved_bytes <= budget() - outside());
    let last = made.iter().rfind(|made| made.has("net")).unwrap();
    assert_eq!(last.limit, Some(budget()));
    let Some(Lever::Net(net)) = chosen.levers.last() else {
        panic!("{:?}", chosen.levers);
    };
    assert_eq!(net.host_bytes, 64 << 20);
    assert_eq!(made.iter().filter(|made| made.has("net")).count(), 1);
}

#[test]
fn the_net_is_left_where_another_plan_fits_or_it_is_not_wanted() {
    let (_, made) = found(with_the_net(), |_| None);
    assert!(made.iter().all(|made| !made.has("net")));
    let (none, made) = found(wanted(), only_the_net_fits);
    assert_eq!(none.fit.outcome, Outcome::NothingFits);
    assert!(made.iter().all(|made| !made.has("net")));
    let (none, _) = found(with_the_net(), |made| {
        made.has("net")
            .then(out_of_memory)
            .or_else(|| only_the_net_fits(made))
    });
    assert_eq!(none.fit.outcome, Outcome::NothingFits);
    assert!(none.fit.rejected.iter().any(|left| left.lever == "net"));
}

/// A search whose time goes by without a plan has time left for the net, and says that it was stopped.
#[test]
fn a_search_without_a_plan_ends_with_the_net_in_its_time() {
    let stop = Stop::after(Some(Duration::from_secs(2)));
    let wanted = Wanted {
        stop: stop.clone(),
        ..with_the_net()
    };
    let (found, made) = found(wanted, |made| {
        std::thread::sleep(Duration::from_millis(300));
        only_the_net_fits(made)
    });
    assert!(made.last().unwrap().has("net"), "{made:?}");
    assert_eq!(found.fit.outcome, Outcome::Fits);
    assert!(chosen(&found).verified);
}
