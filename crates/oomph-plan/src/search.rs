//! Combinations of levers, and the cheapest that fits.
//!
//! Which combinations are looked at depends on the job alone, never on the capacity, and a larger
//! capacity only ever adds to those that fit: more memory never gives a worse plan.

use std::sync::{Arc, Mutex, PoisonError};

use oomph_allocator::{Config, Device};
use oomph_run::record::is_function;
use rustc_hash::FxHashMap as HashMap;

use crate::draft::{Draft, Pace};
use crate::lever::{Dtype, Group, Results, Stage, StepChange};
use crate::levers::{KINDS, Kind, Lever};
use crate::model::Model;
use crate::play::{self, Played, play};
use crate::sharding::{self, Fabric, Passes, Volume};
use crate::stop::{Stop, Stopped};
use crate::units::{Sequence, is_inside};

/// Events that a whole search may play: a second's worth, or two.
const PLAYED_EVENTS: usize = 12_000_000;
/// Fewest and most combinations that are played.
const PLAYS: std::ops::RangeInclusive<usize> = 80..=1500;
/// Levers that take no more of a step than this are played together or not at all, beside others.
const CHEAP: f64 = 0.005;
/// What plans may do to the results, the strictest first.
const RESULTS: [Results; 3] = [Results::Exact, Results::Rounding, Results::Numerics];
/// What one more lever must save in time to be worth its mention.
const LEVER_COST: f64 = 0.003;
/// What results that are not exactly the same must save in time.
const INEXACT_COST: f64 = 0.01;

/// A run that plans start from.
#[derive(Debug, Clone)]
pub struct Base {
    /// The job as it ran.
    pub model: Model,
    /// The levers that it ran with.
    pub applied: Vec<Lever>,
    /// Reserved bytes as measured, over what playing the model gives.
    correction: f64,
    /// The same where segments grow, of which a run with others tells little: holes between tensors that nothing fits into are none
    /// there, so what counts is the tensors, if these came closer to their prediction.
    growing_correction: f64,
    /// What was played already: searches after the first differ in what runs have taught only.
    memory: Arc<Mutex<Memory>>,
}

/// What levers do to a job's time, before anything was learned.
#[derive(Debug, Clone)]
struct Timed {
    /// Nanoseconds of a step.
    time: f64,
    lever_time: f64,
    /// Nanoseconds of the time that wait for other GPUs.
    waits: f64,
    /// Memory outside the allocator.
    outside: u64,
    assumptions: Vec<String>,
}

#[derive(Debug, Default)]
struct Memory {
    config: Config,
    pace: Pace,
    timed: HashMap<Vec<Lever>, Timed>,
    played: HashMap<Vec<Lever>, Played>,
}

impl Base {
    /// A run, and its peaks in tensors and of the allocator in bytes.
    pub fn new(
        model: Model,
        applied: Vec<Lever>,
        allocated: u64,
        reserved: u64,
        config: &Config,
    ) -> Self {
        let played = play(&model.template, config, Device::UNLIMITED);
        let over = |measured: u64, played: u64| match (measured, played) {
            (0, _) | (_, 0) => 1.0,
            (measured, played) => measured as f64 / played as f64,
        };
        let correction = over(reserved, played.reserved);
        Self {
            model,
            applied,
            correction,
            growing_correction: if config.expandable_segments {
                correction
            } else {
                correction.min(over(allocated, played.allocated))
            },
            memory: Arc::default(),
        }
    }
}

impl Base {
    /// The job with batches of `size` where they were of `now`: whatever flows through the model
    /// follows.
    #[must_use]
    pub fn scaled(&self, size: u64, now: u64) -> Self {
        let mut scaled = self.clone();
        scaled.memory = Arc::default();
        let now = now.max(1);
        for tensor in &mut scaled.model.template.tensors {
            if tensor.batched {
                tensor.bytes = (u128::from(tensor.bytes) * u128::from(size))
                    .div_ceil(u128::from(now))
                    .try_into()
                    .unwrap_or(u64::MAX);
            }
        }
        let batch = u128::from(scaled.model.batch) * u128::from(size) / u128::from(now);
        scaled.model.batch = batch.try_into().unwrap_or(u64::MAX);
        scaled.model.template.batch = scaled.model.batch;
        let loading =
            u128::from(scaled.model.facts.loading_ns) * u128::from(size) / u128::from(now);
        scaled.model.facts.loading_ns = loading.try_into().unwrap_or(u64::MAX);
        scaled
    }
}

/// The permitted candidates of each kind of a stage.
fn candidates<'a>(
    stage: Stage,
    model: &'a Model,
    options: &'a Options,
) -> impl Iterator<Item = Vec<Lever>> + 'a {
    let kinds = KINDS.iter().filter(move |kind| (kind.stage)() == stage);
    kinds.map(|kind| {
        let mut found = (kind.candidates)(model, options);
        found.retain_mut(|lever| {
            let name = lever.name();
            lever.without(|module| options.leaves(name, module));
            let names_any = lever
                .modules_mut()
                .is_none_or(|modules| !modules.is_empty());
            names_any && options.permits(lever)
        });
        found
    })
}

/// The lower precision that could be tried on a job. Which types results then have is better measured
/// than told by rules.
pub fn precision(model: &Model, options: &Options) -> Option<Lever> {
    candidates(Stage::Combined(Group::Precision), model, options)
        .flatten()
        .next()
}

/// Whether a lower precision could be tried on a job, whatever is permitted.
pub fn offers_precision(model: &Model) -> bool {
    precision(model, &Options::default()).is_some()
}

/// What could help a job, keeps its results and costs no time; a run tells whether.
pub fn free(model: &Model, options: &Options) -> Vec<Lever> {
    candidates(Stage::Free, model, options).flatten().collect()
}

/// What could help a job that trains at a price; only a run tells what each does. Of one lever, degrees:
/// the later, the less memory and the more time.
pub fn settings(model: &Model, options: &Options) -> Vec<Vec<Lever>> {
    candidates(Stage::Measured, model, options)
        .filter(|degrees| !degrees.is_empty())
        .collect()
}

/// Levers to run a job that infers with, each step on top of the one before: first those that cost
/// nothing, then what changes numerics, the least first. A step has alternatives.
///
/// Such a job has few levers, and a run of it is quick: what they do is measured, not predicted. Parts
/// of a batch and streamed weights come in degrees; those are predicted on top of each run and
/// verified like any other plan.
pub fn ladder(model: &Model, options: &Options) -> Vec<Vec<Lever>> {
    candidates(Stage::Ladder, model, options)
        .filter(|step| !step.is_empty())
        .collect()
}

/// What is left where nothing fits: it knows nothing of the job's parts, and a run tells what it does.
pub fn last_resort(model: &Model, options: &Options) -> Option<Lever> {
    KINDS
        .iter()
        .flat_map(|kind| (kind.candidates)(model, options))
        .find(|lever| lever.facets().is_last_resort() && options.permits(lever))
}

/// Levers that the ways of a script rule out, and why.
pub fn excluded(model: &Model) -> Vec<(&'static str, String)> {
    KINDS
        .iter()
        .filter_map(|kind| Some((kind.name, (kind.excluded)(model)?.to_owned())))
        .collect()
}

/// What may be done, and within what.
#[derive(Debug, Clone, Default)]
pub struct Options {
    /// What the process may use: the GPU's memory less the margin.
    pub budget: u64,
    /// Levers that keep results only.
    pub keep_results: bool,
    /// Names of the only levers that may be used; `None` for all.
    pub allow: Option<Vec<String>>,
    /// Names of levers that may not be used.
    pub forbid: Vec<String>,
    /// The 16-bit type of the GPU.
    pub dtype: Dtype,
    /// Whether the GPU multiplies in TF32.
    pub tf32: bool,
    /// The allocator as the job has it.
    pub config: Config,
    /// The GPU's pace.
    pub pace: Pace,
    /// What runs have taught of plans: where `levers` were in it, it needed so many times more.
    pub lessons: Vec<Lesson>,
    /// What runs with these levers showed that passes without gradients before the first step need, in bytes of tensors.
    pub evaluations: Vec<(Vec<Lever>, u64)>,
    /// Plans that failed and are not to be made again.
    pub failed: Vec<Vec<Lever>>,
    /// Names of levers that do not work together.
    pub clashes: Vec<Vec<&'static str>>,
    /// Levers by name, and modules that they are not for.
    pub left: Vec<(String, String)>,
    /// The links between GPUs, and what a step of the plain job sends over them.
    pub cluster: Option<(Fabric, Volume)>,
    /// When to give up.
    pub stop: Stop,
}

impl Options {
    /// The same within a budget that is so many times smaller.
    #[must_use]
    pub fn within(&self, times: f64) -> Self {
        Self {
            budget: (self.budget as f64 / times) as u64,
            ..self.clone()
        }
    }

    /// What runs of plans with the same levers taught; else of the most alike, which may have had a lever more if several are common.
    pub fn lesson(&self, levers: &[Lever]) -> Factors {
        let names = taught(levers);
        let alike = |lesson: &&Lesson| {
            let common = lesson.levers.iter().filter(|name| names.contains(name));
            let common = common.count();
            // One that the plan lacks counts for two that it has.
            (3 * common).saturating_sub(2 * lesson.levers.len())
        };
        let lessons = self.lessons.iter().filter(|lesson| alike(lesson) > 0);
        // Of those that are as much alike the newest.
        lessons.max_by_key(alike).map_or(
            Factors {
                memory: 1.0,
                time: 1.0,
            },
            |lesson| lesson.factors,
        )
    }

    /// Learns from a run of a plan: the allocator held so many bytes, and a step took so many times the plain one. What is outside
    /// of the allocator is known before.
    pub fn learn(&mut self, plan: &Plan, reserved: u64, time_ratio: Option<f64>) {
        let time = time_ratio.map_or(1.0, |ratio| ratio / plan.time_ratio.max(1e-9));
        let factors = Factors {
            memory: plan.learned.memory * reserved as f64 / plan.reserved.max(1) as f64,
            time: plan.learned.time * time,
        };
        self.teach(&plan.levers, factors);
    }

    /// Learns that a plan needs of the allocator, and takes, so many times what was thought.
    pub fn correct(&mut self, levers: &[Lever], memory: f64, time: f64) {
        // What was thought had what was known before in it.
        let known = self.lesson(levers);
        let factors = Factors {
            memory: known.memory * memory,
            time: known.time * time,
        };
        self.teach(levers, factors);
    }

    fn teach(&mut self, levers: &[Lever], factors: Factors) {
        let levers = taught(levers);
        self.lessons.retain(|lesson| lesson.levers != levers);
        self.lessons.push(Lesson { levers, factors });
    }

    /// The names of levers that plans have worked with.
    pub fn proved(&self) -> Vec<&'static str> {
        let levers = self.lessons.iter().flat_map(|lesson| &lesson.levers);
        levers.copied().collect()
    }

    /// Learns what passes without gradients before the first step need with these levers.
    pub fn learn_evaluation(&mut self, levers: &[Lever], bytes: u64) {
        let levers = lessening(levers);
        self.evaluations.retain(|known| known.0 != levers);
        self.evaluations.push((levers, bytes));
    }

    /// Whether a lever is named among the only ones that may be used.
    pub(crate) fn names(&self, name: &str) -> bool {
        let mut allowed = self.allow.iter().flatten();
        allowed.any(|other| other == name)
    }

    /// Whether levers of this name are asked for, whatever they do to the results.
    pub fn wants(&self, name: &str) -> bool {
        self.allow
            .as_ref()
            .is_none_or(|allowed| allowed.iter().any(|other| other == name))
            && !self.forbid.iter().any(|other| other == name)
    }

    /// Whether a lever of this name is not for a module.
    fn leaves(&self, name: &str, module: &str) -> bool {
        let mut left = self.left.iter();
        left.any(|(lever, other)| lever == name && other == module)
    }

    /// Whether a lever may be used.
    pub fn permits(&self, lever: &Lever) -> bool {
        self.wants(lever.name()) && !(self.keep_results && lever.results() > Results::Rounding)
    }
}

/// What a run of a plan taught.
#[derive(Debug, Clone, PartialEq)]
pub struct Lesson {
    /// The names of its levers.
    pub levers: Vec<&'static str>,
    /// What was measured over what the model alone predicts.
    pub factors: Factors,
}

/// What runs of these levers teach of. Where a backward pass runs, and in how many kernels a step, changes nothing that a model
/// could get wrong, so a plan learns from another that differs in these alone.
fn taught(levers: &[Lever]) -> Vec<&'static str> {
    let names = |chosen: &dyn Fn(&&Lever) -> bool| -> Vec<&'static str> {
        levers.iter().filter(chosen).map(Lever::taught_as).collect()
    };
    let found = names(&|lever| {
        lever.stage() != Stage::Combined(Group::Backward)
            && lever.facets().step() != Some(StepChange::Fused)
    });
    if found.is_empty() {
        names(&|_| true)
    } else {
        found
    }
}

/// By how much a model is wrong.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Factors {
    /// In memory.
    pub memory: f64,
    /// In time.
    pub time: f64,
}

/// What a plan takes of the host in a step.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct HostTime {
    /// Nanoseconds of levers, beside the GPU's work.
    pub beside_ns: f64,
    /// Nanoseconds of loading a batch, while the GPU waits.
    pub alone_ns: f64,
}

impl HostTime {
    /// Of the job as it is.
    pub fn plain(model: &Model) -> Self {
        Self {
            alone_ns: model.facts.loading_ns as f64,
            ..Self::default()
        }
    }
}

/// A plan, as predicted.
#[derive(Debug, Clone, PartialEq)]
pub struct Plan {
    /// What is changed, in the order in which it is applied.
    pub levers: Vec<Lever>,
    /// Peak in tensors.
    pub allocated: u64,
    /// Peak held by the allocator.
    pub reserved: u64,
    /// Peak held by the process.
    pub used: u64,
    /// Time of a step against the plain job's.
    pub time_ratio: f64,
    /// Nanoseconds of it that wait for other GPUs.
    pub waits: f64,
    /// What a virtual clock knows nothing of.
    pub host: HostTime,
    /// What runs had taught of its levers, which is in the figures.
    pub learned: Factors,
    /// The weakest promise among the levers.
    pub results: Results,
    /// What the figures rest on.
    pub assumptions: Vec<String>,
}

impl Plan {
    /// What plans are ordered by.
    pub fn cost(&self) -> f64 {
        cost(self.time_ratio, &self.levers, self.results)
    }

    /// Its memory, and a little for its time: what takes twice the time must save 0.7 % of the memory. Else a
    /// batch would be cut into 64 parts for the last megabyte, which a run takes as many times as long to show.
    fn need(&self) -> f64 {
        /// The power of the time that a plan's memory is weighed with.
        const TIME: f64 = 0.01;
        self.used as f64 * self.time_ratio.max(1.0).powf(TIME)
    }
}

/// What a search found.
#[derive(Debug, Clone, Default)]
pub struct Found {
    /// Plans that fit, the cheapest first, none of them worse in everything than another: the
    /// least slowdown at all, with the same results, exactly, and the least memory.
    pub plans: Vec<Plan>,
    /// The plan that needs the least memory, whether it fits or not; not one that saves next to none of it for much more time.
    pub least: Option<Plan>,
}

/// What a plan does to the results, and what it costs.
type Promise = (Results, f64);

/// Levers that are chosen together, apart from which blocks are checkpointed or offloaded.
type Combination = Vec<Lever>;

/// Looks for plans. `bases` are runs of the same job; the first is the plain one.
pub fn search(bases: &[Base], options: &Options) -> Result<Found, Stopped> {
    bases.first().map_or_else(
        || Ok(Found::default()),
        |plain| search_among(plain, bases, options),
    )
}

/// Looks for plans that start from one of `bases`, whose times are told against those of `plain`.
pub fn search_among(plain: &Base, bases: &[Base], options: &Options) -> Result<Found, Stopped> {
    let mut searcher = Searcher::new(options, Draft::new(&plain.model, options.pace).time());
    // What a play goes through follows from a step, not from how many were recorded.
    let events = play::length(&plain.model.template).max(1);
    let plays = (PLAYED_EVENTS / events).clamp(*PLAYS.start(), *PLAYS.end());
    // Where a run in mixed precision is at hand, rules about it are not needed.
    let measured_precision = bases.iter().any(|base| has_precision(&base.applied));
    for (index, base) in bases.iter().enumerate() {
        // Runs with what costs nothing leave little to look for on the plain one.
        let share = if index == 0 { 1 } else { 2 };
        let plays = plays * share / (2 * bases.len() - 1);
        searcher.base(base, plays, !measured_precision);
    }
    // What was looked at in part would make a worse choice than none.
    options.stop.check()?;
    Ok(searcher.found())
}

/// One plan, predicted: `levers` on top of what the base ran with.
pub fn predict(base: &Base, plain: &Base, levers: &[Lever], options: &Options) -> Plan {
    let plain_time = Draft::new(&plain.model, options.pace).time();
    Searcher::new(options, plain_time).evaluate(base, levers)
}

struct Searcher<'a> {
    options: &'a Options,
    plain_time: f64,
    fitting: Vec<Plan>,
    least: Option<Plan>,
    /// The least cost of what fits, by what it may do to the results: as in `RESULTS`.
    quickest: [f64; RESULTS.len()],
}

/// A plan of which the memory is not known yet.
struct Price {
    levers: Vec<Lever>,
    results: Results,
    timed: Timed,
    learned: Factors,
    time_ratio: f64,
}

impl Price {
    fn cost(&self) -> f64 {
        cost(self.time_ratio, &self.levers, self.results)
    }
}

/// What plans are ordered by: time, a little for each lever, and a little for results that are not exact.
pub fn cost(time_ratio: f64, levers: &[Lever], results: Results) -> f64 {
    let inexact = if results > Results::Exact {
        INEXACT_COST
    } else {
        0.0
    };
    time_ratio + LEVER_COST * levers.len() as f64 + inexact
}

impl<'a> Searcher<'a> {
    fn new(options: &'a Options, plain_time: f64) -> Self {
        Self {
            options,
            plain_time,
            fitting: Vec::new(),
            least: None,
            quickest: [f64::INFINITY; RESULTS.len()],
        }
    }

    fn base(&mut self, base: &Base, plays: usize, precision: bool) {
        const LEAST_GRID: usize = 4;
        const MOST_THREADS: usize = 8;
        let draft = Draft::new(&base.model, self.options.pace);
        let offers = Offers::new(base, self.options, precision);
        let permitted =
            |lever: &Lever| self.options.permits(lever) && goes_with_applied(base, lever);
        let sequences: Vec<(&Kind, Sequence)> = KINDS
            .iter()
            .filter(|kind| (kind.of_modules)(Vec::new()).is_some_and(|lever| permitted(&lever)))
            .flat_map(|kind| [kind.sequence, kind.finer_sequence].map(|of| (kind, of(&draft))))
            .map(|(kind, mut sequence)| {
                sequence.without(|module| self.options.leaves(kind.name, module));
                (kind, sequence)
            })
            .filter(|(_, sequence)| !sequence.is_empty())
            .collect();
        let treatments = Treatment::of(&base.model, &sequences);
        // Those on a ground are played beside the rest.
        let each = 1 + sequences.len() * LEAST_GRID;
        let combinations = self.promising(base, &offers, &treatments, (plays / each).max(8));
        let grid =
            (plays / combinations.len().max(1) / sequences.len().max(1)).clamp(LEAST_GRID, 16);
        // Each combination is looked at by itself, so they can be shared out.
        let threads = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
        let threads = threads.min(MOST_THREADS).min(combinations.len());
        let (options, plain_time, quickest) = (self.options, self.plain_time, self.quickest);
        let (combinations, treatments) = (&combinations, &treatments);
        let found: Vec<Searcher<'_>> = std::thread::scope(|scope| {
            let running: Vec<_> = (0..threads)
                .map(|first| {
                    scope.spawn(move || {
                        let mut own = Searcher {
                            quickest,
                            ..Searcher::new(options, plain_time)
                        };
                        for combination in combinations.iter().skip(first).step_by(threads) {
                            if options.stop.check().is_err() {
                                break;
                            }
                            own.attempt(base, combination);
                            for treatment in treatments {
                                if treatment.goes_with(combination) {
                                    own.sequence(base, combination, treatment, grid);
                                }
                            }
                        }
                        own
                    })
                })
                .collect();
            let join = |thread: std::thread::ScopedJoinHandle<'_, _>| {
                thread
                    .join()
                    .unwrap_or_else(|panic| std::panic::resume_unwind(panic))
            };
            running.into_iter().map(join).collect()
        });
        for own in found {
            for plan in own.fitting {
                self.keep(plan);
            }
            if let Some(least) = own.least {
                self.lessen(least);
            }
        }
    }

    /// At most `most` of all combinations: those that promise the least time for some amount of
    /// memory, then the next best. A combination promises the product of what its levers do alone;
    /// only playing it tells.
    fn promising(
        &mut self,
        base: &Base,
        offers: &Offers,
        treatments: &[Treatment],
        most: usize,
    ) -> Vec<Combination> {
        let all = offers.combinations();
        if all.len() <= most {
            return all;
        }
        let plain = self.evaluate(base, &[]);
        let effect = |plan: &Plan| {
            (
                plan.used as f64 / plain.used.max(1) as f64,
                plan.time_ratio / plain.time_ratio.max(1e-9) + LEVER_COST,
            )
        };
        let alone: Vec<(&Combination, (f64, f64))> = offers
            .groups
            .iter()
            .flatten()
            .filter(|choice| !choice.is_empty())
            .map(|choice| (choice, effect(&self.evaluate(base, choice))))
            .collect();
        let mut treated = vec![(1.0, 1.0)];
        for treatment in treatments {
            let levers = treatment.levers(base, &Vec::new(), treatment.sequence.len());
            treated.push(effect(&self.evaluate(base, &levers)));
        }
        let cheap = |lever: &Lever| {
            alone.iter().any(|(choice, effect)| {
                matches!(&choice[..], [one] if one == lever) && effect.1 <= 1.0 + LEVER_COST + CHEAP
            })
        };
        let played = all_or_none(&all, cheap);
        let mut points: Vec<(f64, f64, usize)> = Vec::new();
        for &index in &played {
            let Some(combination) = all.get(index) else {
                continue;
            };
            let (mut memory, mut time) = (1.0, 1.0);
            let is_in =
                |choice: &Combination| choice.iter().all(|lever| combination.contains(lever));
            for (choice, effect) in &alone {
                // What a larger choice does has in it what its levers do.
                let larger = |other: &&(&Combination, (f64, f64))| {
                    other.0.len() > choice.len()
                        && choice.iter().all(|lever| other.0.contains(lever))
                        && is_in(other.0)
                };
                if is_in(choice) && !alone.iter().any(|other| larger(&other)) {
                    memory *= effect.0;
                    time *= effect.1;
                }
            }
            let treated = treated.iter().map(|(m, t)| (memory * m, time * t, index));
            points.extend(treated);
        }
        points.sort_by(|a, b| a.0.total_cmp(&b.0).then(a.1.total_cmp(&b.1)));
        // In turns: those that keep results, for whom others are no choice, and all.
        let keeps = |index: usize| {
            let levers = all.get(index).into_iter().flatten();
            levers
                .chain(&base.applied)
                .all(|lever| lever.results() <= Results::Rounding)
        };
        let mut keeping: Vec<_> = points
            .iter()
            .filter(|point| keeps(point.2))
            .copied()
            .collect();
        let mut chosen = vec![0];
        while chosen.len() < most && !(points.is_empty() && keeping.is_empty()) {
            for points in [&mut keeping, &mut points] {
                let mut quickest = f64::INFINITY;
                let mut front: Vec<(f64, usize)> = Vec::new();
                points.retain(|&(_, time, index)| {
                    let first = time < quickest;
                    if first {
                        quickest = time;
                        if !chosen.contains(&index) && !front.iter().any(|one| one.1 == index) {
                            front.push((time, index));
                        }
                    }
                    !first && !chosen.contains(&index)
                });
                chosen.extend(spread(&front, most - chosen.len()));
            }
        }
        chosen
            .into_iter()
            .filter_map(|index| all.get(index).cloned())
            .collect()
    }

    /// Tries points along a sequence, and from each that fits goes back as far as it fits.
    ///
    /// What is left out could not have been chosen: the time of a plan is known before its memory
    /// is played. So more memory adds plans and takes none away.
    fn sequence(
        &mut self,
        base: &Base,
        combination: &Combination,
        treatment: &Treatment,
        grid: usize,
    ) {
        let plans: Vec<Combination> = (1..=treatment.sequence.len())
            .map(|count| treatment.levers(base, combination, count))
            .collect();
        // The whole of it tells how far the memory goes down, at whatever cost.
        if let Some(whole) = plans.last() {
            self.attempt(base, whole);
        }
        let promises: Vec<[Option<Promise>; 2]> = plans
            .iter()
            .map(|levers| {
                let quicker = self.quicker(base, levers);
                [Some(self.price(base, levers)), quicker]
                    .map(|price| price.map(|price| (price.results, price.cost())))
            })
            .collect();
        let points = grid.min(plans.len());
        let mut begin = 0;
        for point in 1..=points {
            let end = (plans.len() * point).div_ceil(points);
            for count in (begin..end).rev() {
                let left = promises.get(begin..=count).into_iter().flatten();
                if !left
                    .flatten()
                    .flatten()
                    .any(|&promise| self.may_win(promise))
                {
                    break;
                }
                if !plans
                    .get(count)
                    .is_some_and(|levers| self.attempt(base, levers))
                {
                    break;
                }
            }
            begin = end;
        }
    }

    /// Whether a plan that fits at this cost would be among the quickest.
    fn may_win(&self, (results, cost): Promise) -> bool {
        let mut quickest = RESULTS.into_iter().zip(self.quickest);
        quickest.any(|(compared, quickest)| compared == results && cost <= quickest)
    }

    /// Keeps the plan of less memory.
    fn lessen(&mut self, plan: Plan) {
        let is_less = |known: &Plan| plan.need() < known.need();
        if self.least.as_ref().is_none_or(is_less) {
            self.least = Some(plan);
        }
    }

    /// Considers a plan, and whether it fits.
    fn attempt(&mut self, base: &Base, levers: &[Lever]) -> bool {
        let plan = self.evaluate(base, levers);
        if self.permits(&plan) {
            self.lessen(plan.clone());
        }
        // What buys time may, and needs no memory.
        if plan.used <= self.options.budget
            && let Some(price) = self.quicker(base, levers)
        {
            let quicker = self.plan(base, price, levers);
            if self.fits(&quicker) {
                self.keep(quicker);
            }
        }
        let fits = self.fits(&plan);
        if fits {
            self.keep(plan);
            self.lighten(base, levers);
        }
        fits
    }

    /// Of a plan that fits, the same where as little moves as is enough: what stays costs no time.
    fn lighten(&mut self, base: &Base, levers: &[Lever]) {
        /// Of what moves, in percent.
        const STEP: u8 = 10;
        for whole in levers {
            let lighter = |steps: u8| {
                let part = whole.facets().in_part(&base.model, steps * STEP)?;
                let others = levers
                    .iter()
                    .map(|lever| if lever == whole { &part } else { lever });
                Some(others.cloned().collect::<Vec<Lever>>())
            };
            let (mut too_few, mut enough) = (0, 100 / STEP);
            while enough - too_few > 1 {
                let steps = u8::midpoint(too_few, enough);
                let Some(levers) = lighter(steps) else {
                    break;
                };
                let price = self.price(base, &levers);
                if !self.may_win((price.results, price.cost())) {
                    // Less would be quicker, and may not fit.
                    enough = steps;
                    continue;
                }
                let plan = self.evaluate(base, &levers);
                if self.fits(&plan) {
                    self.keep(plan);
                    enough = steps;
                } else {
                    too_few = steps;
                }
            }
        }
    }

    fn keep(&mut self, plan: Plan) {
        let cost = plan.cost();
        for (results, quickest) in RESULTS.into_iter().zip(&mut self.quickest) {
            if plan.results <= results {
                *quickest = quickest.min(cost);
            }
        }
        self.fitting.push(plan);
    }

    /// The price of levers together with what buys time and costs no memory, if that goes with them.
    fn quicker(&self, base: &Base, levers: &[Lever]) -> Option<Price> {
        let others: Vec<Lever> = levers.iter().chain(&base.applied).cloned().collect();
        let bought: Vec<Lever> = candidates(Stage::Time, &base.model, self.options)
            .flatten()
            .filter(|lever| lever.facets().goes_with(&others))
            .collect();
        // First, since what others compute again is quicker with it.
        (!bought.is_empty()).then(|| {
            let levers: Vec<Lever> = bought.into_iter().chain(levers.iter().cloned()).collect();
            self.price(base, &levers)
        })
    }

    /// What a plan costs, which is known without playing it.
    fn price(&self, base: &Base, levers: &[Lever]) -> Price {
        let all: Vec<Lever> = order(base.applied.iter().chain(levers).cloned().collect());
        let timed = self.timed(base, levers);
        let learned = self.options.lesson(&all);
        Price {
            results: all
                .iter()
                .map(Lever::results)
                .max()
                .unwrap_or(Results::Exact),
            levers: all,
            time_ratio: learned.time * timed.time / self.plain_time.max(1.0),
            timed,
            learned,
        }
    }

    fn evaluate(&self, base: &Base, levers: &[Lever]) -> Plan {
        self.plan(base, self.price(base, levers), levers)
    }

    /// A plan by its price and the memory of `levers` on the base.
    fn plan(&self, base: &Base, price: Price, levers: &[Lever]) -> Plan {
        let mut peak = self.played(base, levers);
        let mut assumptions = price.timed.assumptions;
        let evaluation = self.evaluation(base, levers);
        if evaluation > peak.reserved {
            peak.allocated = peak.allocated.max(evaluation);
            peak.reserved = evaluation;
            assumptions.push(
                "an evaluation before the first step needs the most, which no lever of the step changes: smaller batches there do"
                    .to_owned(),
            );
        }
        let correction = if self.config(levers).expandable_segments {
            base.growing_correction
        } else {
            base.correction
        };
        let factor = correction * price.learned.memory;
        let scale = |bytes: u64| (bytes as f64 * factor) as u64;
        Plan {
            allocated: scale(peak.allocated),
            reserved: scale(peak.reserved),
            used: scale(peak.reserved) + price.timed.outside,
            levers: price.levers,
            time_ratio: price.time_ratio,
            waits: price.timed.waits,
            host: HostTime {
                beside_ns: price.timed.lever_time,
                alone_ns: base.model.facts.loading_ns as f64,
            },
            learned: price.learned,
            results: price.results,
            assumptions,
        }
    }

    /// What passes without gradients before the first step need with `levers`, in bytes of tensors. A lever that may lessen that is
    /// taken to do so until a run tells.
    fn evaluation(&self, base: &Base, levers: &[Lever]) -> u64 {
        let before = base.model.evaluation;
        if before == 0 || lessening(levers).is_empty() {
            return before;
        }
        let all: Vec<Lever> = base.applied.iter().chain(levers).cloned().collect();
        let all = lessening(&all);
        let mut known = self.options.evaluations.iter();
        known
            .find(|known| known.0 == all)
            .map_or(0, |known| known.1)
    }

    /// What was found before, if it was under the same settings; else it is found and kept.
    fn remembered<T: Clone>(
        &self,
        base: &Base,
        levers: &[Lever],
        of: impl Fn(&mut Memory) -> &mut HashMap<Vec<Lever>, T>,
        find: impl FnOnce() -> T,
    ) -> T {
        let mut memory = base.memory.lock().unwrap_or_else(PoisonError::into_inner);
        if memory.config != self.options.config || memory.pace != self.options.pace {
            *memory = Memory {
                config: self.options.config.clone(),
                pace: self.options.pace,
                ..Memory::default()
            };
        }
        if let Some(known) = of(&mut memory).get(levers) {
            return known.clone();
        }
        // Other threads go on meanwhile.
        drop(memory);
        let found = find();
        let mut memory = base.memory.lock().unwrap_or_else(PoisonError::into_inner);
        of(&mut memory).insert(levers.to_vec(), found.clone());
        found
    }

    fn draft<'b>(&self, base: &'b Base, levers: &[Lever]) -> Draft<'b> {
        let mut draft = Draft::new(&base.model, self.options.pace);
        let (last, first): (Vec<_>, Vec<_>) =
            (levers.iter()).partition(|lever| lever.facets().is_applied_last());
        for lever in first.into_iter().chain(last) {
            draft.apply(lever);
        }
        draft
    }

    /// What levers do to the time of a base.
    fn timed(&self, base: &Base, levers: &[Lever]) -> Timed {
        self.remembered(
            base,
            levers,
            |memory| &mut memory.timed,
            || {
                let mut draft = self.draft(base, levers);
                let waits = self.waits(base, &draft);
                draft.waits += waits;
                let of_all = base.applied.iter().chain(levers);
                draft.tail.lever += of_all.map(|one| one.facets().host_ns()).sum::<f64>();
                let unknown = base.applied.iter().filter_map(|one| one.facets().unknown());
                draft.assumptions.extend(unknown.map(str::to_owned));
                Timed {
                    time: draft.time(),
                    lever_time: draft.lever_time(),
                    waits,
                    outside: draft.outside,
                    assumptions: draft.assumptions,
                }
            },
        )
    }

    /// The allocator as levers set it.
    fn config(&self, levers: &[Lever]) -> Config {
        let mut config = self.options.config.clone();
        for lever in levers {
            lever.facets().configure(&mut config);
        }
        config
    }

    /// What levers do to the memory of a base.
    fn played(&self, base: &Base, levers: &[Lever]) -> Played {
        self.remembered(
            base,
            levers,
            |memory| &mut memory.played,
            || {
                let config = self.config(levers);
                play(
                    &self.draft(base, levers).template,
                    &config,
                    Device::UNLIMITED,
                )
            },
        )
    }

    /// Nanoseconds that a step waits for other GPUs.
    fn waits(&self, base: &Base, draft: &Draft<'_>) -> f64 {
        let Some((fabric, volume)) = &self.options.cluster else {
            return 0.0;
        };
        let passes = Passes::new(&base.model);
        let parts = f64::from(draft.template.parts.max(1));
        let levers = base.applied.iter().map(Lever::facets);
        levers
            .map(|lever| lever.waits(fabric, volume, passes, parts))
            .sum()
    }

    fn permits(&self, plan: &Plan) -> bool {
        let loses_results = self.options.keep_results && plan.results > Results::Rounding;
        let has = |name: &&str| plan.levers.iter().any(|lever| lever.name() == *name);
        let clashes = |names: &Vec<&str>| names.iter().all(has);
        !loses_results
            && !self.options.failed.contains(&plan.levers)
            && !self.options.clashes.iter().any(clashes)
    }

    fn fits(&self, plan: &Plan) -> bool {
        plan.used <= self.options.budget && self.permits(plan)
    }

    fn found(mut self) -> Found {
        self.fitting
            .sort_by(|a, b| a.cost().total_cmp(&b.cost()).then(a.used.cmp(&b.used)));
        let first = |up_to: Results| self.fitting.iter().find(|plan| plan.results <= up_to);
        let least = self.fitting.iter().min_by_key(|plan| plan.used);
        let mut plans: Vec<Plan> = Vec::new();
        let quickest = RESULTS.into_iter().rev().map(first);
        for plan in quickest.chain([least]).flatten() {
            if !plans.contains(plan) {
                plans.push(plan.clone());
            }
        }
        plans.sort_by(|a, b| a.cost().total_cmp(&b.cost()));
        Found {
            plans,
            least: self.least,
        }
    }
}

/// At most `most` of those that promise the least time for some amount of memory, by their times (the longest first): as many
/// quick ones as slow ones, by ratios. A job leaves room for few where its steps have many events, and any budget should have
/// one near it.
fn spread(front: &[(f64, usize)], most: usize) -> Vec<usize> {
    let mut left: Vec<(f64, usize)> = front
        .iter()
        .map(|&(time, index)| (time.ln(), index))
        .collect();
    let (Some(&(slowest, _)), Some(&(quickest, _))) = (left.first(), left.last()) else {
        return Vec::new();
    };
    let mut chosen = Vec::new();
    for place in 0..most.min(front.len()) {
        let at = place as f64 / (most.min(front.len()) - 1).max(1) as f64;
        let wanted = quickest + (slowest - quickest) * at;
        let nearest = (0..left.len()).min_by(|&a, &b| {
            let off = |at: usize| {
                left.get(at)
                    .map_or(f64::INFINITY, |one| (one.0 - wanted).abs())
            };
            off(a).total_cmp(&off(b))
        });
        chosen.extend(nearest.map(|nearest| left.remove(nearest).1));
    }
    chosen
}

/// The combinations, by their places, that are worth a play: beside a lever that takes time, those that take next to none come
/// all together or not at all. They differ little, and would crowd out what differs.
fn all_or_none(all: &[Combination], cheap: impl Fn(&Lever) -> bool) -> Vec<usize> {
    let apart: Vec<(Vec<&Lever>, usize)> = all
        .iter()
        .map(|combination| {
            let (cheap, dear): (Vec<&Lever>, Vec<&Lever>) =
                combination.iter().partition(|lever| cheap(lever));
            (dear, cheap.len())
        })
        .collect();
    let mut most: HashMap<&[&Lever], usize> = HashMap::default();
    for (dear, count) in &apart {
        let known = most.entry(dear).or_default();
        *known = (*known).max(*count);
    }
    let wanted = |(dear, count): &(Vec<&Lever>, usize)| {
        dear.is_empty() || *count == 0 || most.get(&dear[..]) == Some(count)
    };
    (0..)
        .zip(&apart)
        .filter(|(_, one)| wanted(one))
        .map(|(index, _)| index)
        .collect()
}

/// Whether levers compute in a lower precision.
fn has_precision(levers: &[Lever]) -> bool {
    let is = |lever: &Lever| lever.stage() == Stage::Combined(Group::Precision);
    levers.iter().any(is)
}

/// The levers that may make passes without gradients smaller, in one order.
fn lessening(levers: &[Lever]) -> Vec<Lever> {
    let may = |lever: &&Lever| lever.facets().lessens_evaluation();
    order(levers.iter().filter(may).cloned().collect())
}

/// Whether a lever can be added to what a base ran with.
fn goes_with_applied(base: &Base, lever: &Lever) -> bool {
    let applied = &base.applied;
    sharding::composes(applied, lever) && !applied.iter().any(|used| used.name() == lever.name())
}

/// A combination with the lever of `kind` for the first `count` decisions of a sequence.
fn with_blocks(
    base: &Base,
    combination: &Combination,
    kind: &Kind,
    sequence: &Sequence,
    count: usize,
) -> Combination {
    let mut blocks = sequence.prefix(&base.model, count);
    let chunked = combination
        .iter()
        .flat_map(|lever| lever.facets().chunked());
    blocks.retain(|block| !chunked.clone().any(|module| is_inside(block, module)));
    let mut levers = combination.clone();
    // What lies inside of those blocks is theirs.
    levers.retain_mut(|lever| lever.facets_mut().leave_to(&blocks));
    if !blocks.is_empty() {
        levers.extend((kind.of_modules)(blocks));
    }
    levers
}

/// A lever for more and more modules.
struct Treatment {
    /// What all of these modules have beforehand.
    ground: Option<(&'static Kind, Sequence)>,
    kind: &'static Kind,
    sequence: Sequence,
}

impl Treatment {
    /// Each by itself, and those that can have what checkpointed modules keep together with that: for these modules, and for those
    /// around them.
    fn of(model: &Model, sequences: &[(&'static Kind, Sequence)]) -> Vec<Self> {
        let alone = sequences.iter().map(|(kind, sequence)| Self {
            ground: None,
            kind,
            sequence: sequence.clone(),
        });
        let mut all: Vec<Self> = alone.collect();
        for (ground, whole) in sequences {
            let mut modules = whole.prefix(model, whole.len());
            modules.retain(|name| !is_function(name));
            let lever = (ground.of_modules)(modules.clone());
            if lever.is_none_or(|lever| lever.facets().checkpointed().is_empty()) {
                continue;
            }
            for (kind, around) in sequences
                .iter()
                .filter(|(kind, _)| (kind.takes_arguments)())
            {
                let on = |sequence: Sequence| Self {
                    ground: Some((ground, whole.clone())),
                    kind,
                    sequence,
                };
                let each = modules.iter().map(|module| vec![module.clone()]);
                all.push(on(Sequence::new(each.collect())));
                let blocks = around.prefix(model, around.len());
                let is_around = |block: &String| {
                    modules
                        .iter()
                        .any(|one| one != block && is_inside(one, block))
                };
                if blocks.iter().any(is_around) {
                    all.push(on(around.clone()));
                }
            }
        }
        all
    }

    /// Whether a combination has none of its levers.
    fn goes_with(&self, combination: &Combination) -> bool {
        let ground = self.ground.iter().map(|(kind, _)| *kind);
        let mut kinds = ground.chain([self.kind]);
        !kinds.any(|kind| combination.iter().any(|lever| lever.name() == kind.name))
    }

    /// A combination with it for the first `count` decisions.
    fn levers(&self, base: &Base, combination: &Combination, count: usize) -> Combination {
        let grounded = self
            .ground
            .as_ref()
            .map(|(kind, whole)| with_blocks(base, combination, kind, whole, whole.len()));
        let combination = grounded.as_ref().unwrap_or(combination);
        with_blocks(base, combination, self.kind, &self.sequence, count)
    }
}

/// Levers in the order in which they are listed.
fn order(mut levers: Vec<Lever>) -> Vec<Lever> {
    levers.sort_by_key(|lever| KINDS.iter().position(|kind| kind.name == lever.name()));
    levers
}

/// What could be combined: from each group one choice, of which the first is nothing.
struct Offers {
    groups: Vec<Vec<Combination>>,
}

impl Offers {
    fn new(base: &Base, options: &Options, precision: bool) -> Self {
        let mut groups: Vec<Vec<Combination>> = Vec::new();
        for group in Group::ALL {
            if group == Group::Precision && !precision {
                continue;
            }
            let mut choices: Vec<Combination> =
                candidates(Stage::Combined(group), &base.model, options)
                    .flatten()
                    .filter(|lever| goes_with_applied(base, lever))
                    .map(|lever| vec![lever])
                    .collect();
            // A gradient goes as soon as it is there, the state waits on the host, and no step has temporaries: any of these go
            // together.
            let step = |change| {
                let mut found = choices.iter().flatten();
                found
                    .find(|lever| lever.facets().step() == Some(change))
                    .cloned()
            };
            let changes = [
                StepChange::Fused,
                StepChange::InBackward,
                StepChange::GradientsOnHost,
                StepChange::OnHost,
            ];
            let steps: Vec<Lever> = changes.into_iter().filter_map(step).collect();
            for which in 0_u32..1 << steps.len() {
                if which.count_ones() > 1 {
                    let chosen = (0..).zip(&steps).filter(|(bit, _)| which >> bit & 1 == 1);
                    choices.push(chosen.map(|(_, lever)| lever.clone()).collect());
                }
            }
            if !choices.is_empty() {
                groups.push(std::iter::once(Vec::new()).chain(choices).collect());
            }
        }
        Self { groups }
    }

    /// All of them, those of few levers first.
    fn combinations(&self) -> Vec<Combination> {
        /// More than any search plays.
        const MOST: usize = 20_000;
        let mut all: Vec<Combination> = vec![Vec::new()];
        for group in &self.groups {
            let mut longer = Vec::new();
            for known in &all {
                for choice in group {
                    let mut combination = known.clone();
                    combination.extend(choice.iter().cloned());
                    longer.push(combination);
                }
            }
            longer.truncate(MOST);
            all = longer;
        }
        all.retain(|combination| is_possible(combination));
        all.sort_by_key(Vec::len);
        all
    }
}

/// Whether levers go together.
fn is_possible(levers: &[Lever]) -> bool {
    levers.iter().all(|lever| lever.facets().goes_with(levers))
}

#[cfg(test)]
mod tests {
    use super::*;
    use oomph_run::record::Module;

    /// A job that infers, with an embedding and a larger linear layer in fp32.
    fn infers() -> Model {
        let mut model = Model::default();
        for (kind, parameters) in [("Embedding", 100), ("Linear", 900)] {
            model.modules.push(Module {
                kind: kind.to_owned(),
                parameters,
                ..Module::default()
            });
        }
        model.parameter_sizes.insert("Net".to_owned(), vec![4000]);
        model
    }

    fn names<'a>(levers: impl IntoIterator<Item = &'a Lever>) -> Vec<&'static str> {
        levers.into_iter().map(Lever::name).collect()
    }

    #[test]
    fn numerics_change_the_least_first() {
        let mut model = infers();
        let options = Options::default();
        let steps =
            |model: &Model| names(ladder(model, &options).iter().flatten().collect::<Vec<_>>());
        let eight_bits = ["int8_linear", "int8_linear"];
        assert_eq!(steps(&model), [&["half_weights"], &eight_bits[..]].concat());
        model.facts.cache = true;
        model.parameter_sizes.insert("Net".to_owned(), vec![2000]);
        assert_eq!(steps(&model), [&eight_bits[..], &["kv_cache"]].concat());
        let exact = Options {
            keep_results: true,
            ..options.clone()
        };
        assert!(ladder(&model, &exact).is_empty());
    }

    #[test]
    fn a_plan_learns_from_one_that_differs_in_the_thread_or_the_fused_step_alone() {
        let lever = |text: &str| serde_json::from_str::<Lever>(text).unwrap();
        let both = [
            lever(r#"{"name": "set_to_none"}"#),
            lever(r#"{"name": "single_threaded_backward"}"#),
            lever(r#"{"name": "optimizer_step", "kind": "fused"}"#),
        ];
        let (other, thread) = both.split_at(1);
        let mut options = Options::default();
        options.correct(&both, 1.5, 1.0);
        let percent = |options: &Options, levers: &[Lever]| {
            (options.lesson(levers).memory * 100.0).round() as u32
        };
        assert_eq!(
            (percent(&options, other), percent(&options, thread)),
            (150, 100)
        );
        // Alone it teaches of itself.
        options.correct(thread, 1.1, 1.0);
        assert_eq!(
            (percent(&options, other), percent(&options, thread)),
            (150, 110)
        );
    }

    /// The plan of least memory has all levers; the next ones to try have fewer.
    #[test]
    fn a_plan_learns_from_one_with_a_lever_more_if_it_shares_several() {
        let levers = [
            r#"{"name": "set_to_none"}"#,
            r#"{"name": "micro_batch", "parts": 2}"#,
            r#"{"name": "step_in_backward"}"#,
            r#"{"name": "optimizer_on_cpu"}"#,
        ]
        .map(|text| serde_json::from_str::<Lever>(text).unwrap());
        let mut options = Options::default();
        options.correct(&levers, 0.5, 1.0);
        let learned = |options: &Options, count: usize| {
            let learned = options.lesson(&levers[..count]).memory;
            (learned * 100.0).round() as u32
        };
        assert_eq!(
            [2, 3, 4].map(|count| learned(&options, count)),
            [100, 50, 50]
        );
        // What has no lever more is more alike.
        options.correct(&levers[..2], 0.8, 1.0);
        assert_eq!(
            [2, 3, 4].map(|count| learned(&options, count)),
            [80, 80, 50]
        );
    }

    fn planned(used: u64, time_ratio: f64) -> Plan {
        Plan {
            levers: vec![serde_json::from_str(r#"{"name": "set_to_none"}"#).unwrap()],
            allocated: 900,
            reserved: 1000,
            used,
            time_ratio,
            waits: 0.0,
            host: HostTime::default(),
            learned: Factors {
                memory: 1.0,
                time: 1.0,
            },
            results: Results::Exact,
            assumptions: Vec::new(),
        }
    }

    /// Levers of the run that plans start from keep the host busy in these, too, where its record does not show it.
    #[test]
    fn the_host_is_busy_with_levers_that_the_base_has() {
        let text = r#"{"name": "fused_attention", "modules": ["Net.a", "Net.b"]}"#;
        let lever: Lever = serde_json::from_str(text).unwrap();
        let started = |applied| Base::new(Model::default(), applied, 0, 0, &Config::default());
        let plain = started(Vec::new());
        let busy = |base: &Base, levers: &[Lever]| {
            let predicted = predict(base, &plain, levers, &Options::default());
            predicted.host.beside_ns / 1e6
        };
        assert!(busy(&plain, &[]).abs() < 1e-9);
        let [alone, with] = [
            busy(&plain, std::slice::from_ref(&lever)),
            busy(&started(vec![lever]), &[]),
        ];
        assert!(
            (alone - 1.0).abs() < 1e-9 && (with - 1.0).abs() < 1e-9,
            "{alone} {with}"
        );
    }

    /// `drones_sac_pixels` was run in 16 parts for 2 MiB less than in 4.
    #[test]
    fn the_least_is_not_what_saves_next_to_nothing_for_twice_the_time() {
        let options = Options::default();
        let mut searcher = Searcher::new(&options, 1.0);
        let mut least = |plans: &[(u64, f64)]| {
            searcher.least = None;
            for &(used, time) in plans {
                searcher.lessen(planned(used, time));
            }
            searcher.least.as_ref().map(|plan| plan.used)
        };
        let (parts_4, parts_16) = ((2536, 2.32), (2534, 9.98));
        assert_eq!(least(&[parts_4, parts_16]), Some(2536));
        assert_eq!(least(&[parts_16, parts_4]), Some(2536));
        assert_eq!(least(&[parts_4, (2400, 9.98)]), Some(2400));
    }

    /// Two plans with the same levers that ran side by side were both predicted before either was known.
    #[test]
    fn what_a_run_teaches_is_what_the_allocator_needs_over_what_was_thought() {
        let mut plan = planned(1700, 1.0);
        let mut options = Options::default();
        for _ in 0..2 {
            options.learn(&plan, 1500, Some(2.0));
        }
        let learned = Factors {
            memory: 1.5,
            time: 2.0,
        };
        assert_eq!(options.lesson(&plan.levers), learned);
        // One that was predicted with that in it, and needs as much as predicted, teaches nothing new.
        plan.learned = learned;
        options.learn(&plan, 1000, Some(1.0));
        assert_eq!(options.lesson(&plan.levers), learned);
    }

    /// A run that held 150 MiB for one tensor of 100 had holes, which segments that grow do not have.
    #[test]
    fn what_a_run_lost_to_holes_is_no_part_of_plans_whose_segments_grow() {
        let mut model = Model::default();
        model.template.tensors = vec![crate::model::Tensor {
            bytes: 100 << 20,
            stream: 0,
            category: oomph_trace::Category::Activation,
            phase: oomph_trace::Phase::Forward,
            call: 0,
            op: 0,
            scope: 0,
            batched: true,
        }];
        model.template.body = vec![crate::model::Event::Alloc(0)];
        model.template.parts = 1;
        model.template.once = true;
        let base = Base::new(model, Vec::new(), 100 << 20, 150 << 20, &Config::default());
        let grows =
            serde_json::from_str(r#"{"name": "allocator", "conf": "expandable_segments:True"}"#);
        let mib =
            |levers: &[Lever]| predict(&base, &base, levers, &Options::default()).reserved >> 20;
        assert_eq!((mib(&[]), mib(&[grows.unwrap()])), (150, 100));
    }

    #[test]
    fn cheap_levers_come_together_or_not_at_all_beside_a_dear_one() {
        let lever = |text: &str| serde_json::from_str::<Lever>(text).unwrap();
        let parts = lever(r#"{"name": "micro_batch", "parts": 2}"#);
        let thread = lever(r#"{"name": "single_threaded_backward"}"#);
        let none = lever(r#"{"name": "set_to_none"}"#);
        let offers = Offers {
            groups: [&parts, &thread, &none]
                .map(|lever| vec![Vec::new(), vec![lever.clone()]])
                .to_vec(),
        };
        let all = offers.combinations();
        let played = all_or_none(&all, |lever| *lever != parts);
        let mut counts: Vec<(bool, usize)> = played
            .iter()
            .map(|&index| (all[index].contains(&parts), all[index].len()))
            .collect();
        counts.sort_unstable();
        let expected = [0, 1, 1, 2].map(|count| (false, count));
        assert_eq!(counts, [&expected[..], &[(true, 1), (true, 3)]].concat());
    }

    /// All that a search has room for would else be the least of memory, at any price.
    #[test]
    fn combinations_that_are_played_are_quick_ones_and_slow_ones() {
        let front: Vec<(f64, usize)> = [16.0, 15.0, 14.0, 13.0, 12.0, 4.0, 2.0, 1.1, 1.0]
            .into_iter()
            .zip(0..)
            .collect();
        assert_eq!(spread(&front, 5), [8, 6, 5, 4, 0]);
        assert_eq!(spread(&front, 1), [8]);
        let mut all = spread(&front, 20);
        all.sort_unstable();
        assert_eq!(all, (0..9).collect::<Vec<_>>());
        assert_eq!(spread(&[], 3), [0_usize; 0]);
    }

    /// A rollout or a validation before training: a run tells what a chunked loss does to it, and only what may lessen it differs.
    #[test]
    fn what_an_evaluation_needs_with_a_lever_is_known_by_a_run() {
        let model = Model {
            evaluation: 400 << 20,
            ..Model::default()
        };
        let base = Base::new(model, Vec::new(), 0, 0, &Config::default());
        let lever = |text: &str| serde_json::from_str::<Lever>(text).unwrap();
        let chunked = lever(r#"{"name": "chunked_cross_entropy", "chunks": 8}"#);
        let split = lever(r#"{"name": "split_forward", "parts": 2}"#);
        let state = lever(r#"{"name": "optimizer_on_cpu"}"#);
        let mib = |levers: &[&Lever], options: &Options| {
            let levers: Vec<Lever> = levers.iter().copied().cloned().collect();
            predict(&base, &base, &levers, options).reserved >> 20
        };
        let mut options = Options::default();
        assert_eq!(mib(&[&state], &options), 400);
        assert_eq!(mib(&[&chunked], &options), 0);
        options.learn_evaluation(&[state.clone(), chunked.clone()], 300 << 20);
        assert_eq!(mib(&[&chunked], &options), 300);
        assert_eq!(mib(&[&state, &chunked], &options), 300);
        // In parts of the batch, too, it may need less again.
        assert_eq!(mib(&[&split, &chunked], &options), 0);
        assert_eq!(mib(&[&state], &options), 400);
    }

    #[test]
    fn what_is_free_depends_on_whether_a_job_trains() {
        let mut model = infers();
        model.facts.graph = 3;
        model.facts.cast_on_gpu = "fp16".to_owned();
        model.facts.graph_in_evaluation = true;
        let options = Options::default();
        assert_eq!(
            names(&free(&model, &options)),
            ["load_on_cpu", "inference_mode"]
        );
        model.trains = true;
        assert_eq!(names(&free(&model, &options)), ["no_grad_eval"]);
        assert_eq!(excluded(&model)[0].0, "micro_batch");
    }
}
