//! From launches to orders: which units leave the device and which come back, and when.
//!
//! While something lies on the host, launches are logged until a step is known. The step is then followed,
//! and at the border of two windows units change places as [`crate::placement`] says. What a byte costs
//! where it lies (kernels read some more than once) is not known, so a few placements are tried, and the
//! fastest step decides. A job without rhythm gets the one placement that would have been best so far.
//! All of this decides about speed only.

use std::collections::{BTreeMap, HashMap};
use std::ops::Range;
use std::sync::Once;
use std::time::{Duration, Instant};

use crate::arena::Arena;
use crate::gpu::{Gpu, Place};
use crate::placement::{Placement, Step, Unit};
use crate::rhythm::{self, Follower, Log, Pointers};

/// A pointer stands for at least so much of its segment, in bytes.
const NEAR: u64 = 1 << 20;
/// The step that a log shows touches so much of all memory, in percent: less is a part of a step.
const WHOLE: u64 = 50;
/// After so many launches without a rhythm there is none.
const NO_RHYTHM: usize = 100_000;
/// How often products and convolutions read their input, as long as it is not measured.
const REREADS: f64 = 16.0;
/// Bytes a second over the link: kernels of an H200 read 51 GB/s.
const LINK: f64 = 51e9;
/// What it costs to move a byte, in bytes read where they lie: 24 GB/s each way, both ways at a time.
const MOVE_COST: f64 = 1.1;
/// What is tried with what was measured, by windows of a step. With one window all rests.
const TRIED: [usize; 3] = [48, 1, 48];
/// So many times at most, units that never lay on the host go there, so that it is measured what they cost.
const EXPLORED: usize = 6;
/// How likely it is, before it is measured, that a launch touches what is not near a pointer that it is given.
const FAR: f64 = 0.05;
/// What is measured is explained by turns, so often.
const FITTINGS: usize = 12;
/// A launch is this much faster or slower each time, in seconds.
const JITTER: f64 = 5e-6;
/// With a larger share of time on the link that was not foreseen, tensors lie elsewhere in each step.
const UNFORESEEN: f64 = 0.05;
/// Less is not measured, in bytes.
const LITTLE: u64 = 64 << 10;
/// The shortest step to believe in, in launches.
const LEAST: usize = 8;
/// A step that was lost sooner, in steps, was a part of one.
const PROVEN: u64 = 64;
/// Tensors lie where they lay a step before if launches touch so many of their bytes in the same units, in percent.
const SETTLED: u64 = 95;
/// They have moved if launches touch fewer of their bytes in the units in which they did, in percent.
const STAYED: u64 = 80;
/// So often, in steps, it is looked whether tensors lie where they lay when the step was learned: an evaluation or a
/// checkpoint may leave other gaps in PyTorch's cache.
const LOOK_AGAIN: u64 = 64;
/// So many steps at most, tensors are waited for to settle: gaps in PyTorch's cache change in the first steps.
const PATIENCE: usize = 6;

/// Units to move, by where they begin.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Orders {
    pub out: Vec<u64>,
    pub back: Vec<u64>,
}

/// What a step touches.
#[derive(Debug)]
struct Known {
    /// Where units begin, and their sizes.
    units: Vec<(u64, u64)>,
    launches: Vec<Launch>,
    /// Of each kernel: bytes that went over the link, and bytes of units on the host that it was given.
    kernels: HashMap<u64, (f64, f64)>,
    capacity: u64,
}

/// A launch of a step.
#[derive(Debug)]
struct Launch {
    signature: u64,
    touched: Vec<Touched>,
    /// Whether it is thought to read them more than once.
    rereads: bool,
    /// How long it took, with what on the host.
    seen: Vec<Seen>,
}

/// A unit that a launch may touch.
#[derive(Debug)]
struct Touched {
    /// Its number.
    unit: usize,
    bytes: u64,
    /// Whether it begins before anything else does that was given to launches about then. What lies behind in the
    /// segment may be of the same tensor, of which other launches are given parts.
    near: bool,
    /// Bytes over the link while it lies on the host, as measured.
    crossed: Option<f64>,
}

/// A launch that was timed.
#[derive(Debug)]
struct Seen {
    seconds: f64,
    /// What of `touched` lay on the host.
    on_host: Vec<usize>,
}

impl Launch {
    fn near(&self) -> impl Iterator<Item = &Touched> {
        self.touched.iter().filter(|touched| touched.near)
    }

    /// The least time it took, in seconds.
    fn fastest(&self) -> f64 {
        let seconds = self.seen.iter().map(|seen| seen.seconds);
        seconds.fold(f64::INFINITY, f64::min)
    }

    /// Tells from all that was seen what each unit costs on the host: guesses are scaled until they explain each
    /// time (iterative proportional fitting). A unit that lay there while the launch was fast costs nothing.
    fn fit(&mut self, guess: impl Fn(&Touched) -> f64) {
        let fastest = self.fastest();
        let mut costs: Vec<f64> = self
            .touched
            .iter()
            .map(|touched| guess(touched).max(1.0))
            .collect();
        for _ in 0..FITTINGS {
            for seen in &self.seen {
                let sum: f64 = seen.on_host.iter().map(|&at| costs[at]).sum();
                let crossed = (seen.seconds - fastest - JITTER).max(0.0) * LINK;
                for &at in &seen.on_host {
                    costs[at] *= (crossed / sum).max(1e-3);
                }
            }
        }
        for &at in self.seen.iter().flat_map(|seen| &seen.on_host) {
            self.touched[at].crossed = Some(costs[at]);
        }
    }
}

impl Known {
    /// What launches of `log` touch of `arena`.
    fn of<G: Gpu>(log: &Log, launches: Range<usize>, arena: &Arena<G>, capacity: u64) -> Self {
        let segments: BTreeMap<u64, u64> = arena.segments().collect();
        let inside = |at: u64| {
            let (&base, &size) = segments.range(..=at).next_back()?;
            (at < base + size).then_some(base + size)
        };
        let mut pointers = Pointers::default();
        for launch in launches.clone() {
            for &at in log.addresses(launch) {
                pointers.note(at, launch);
            }
        }
        let units: Vec<(u64, u64)> = arena.units().map(|(at, size, _)| (at, size)).collect();
        let launches = launches
            .map(|launch| {
                let mut touched: BTreeMap<usize, Touched> = BTreeMap::new();
                for at in log.addresses(launch) {
                    let Some(end) = inside(*at) else { continue };
                    let near = pointers.end(*at, launch, NEAR, end);
                    let first = units
                        .partition_point(|&(base, _)| base <= *at)
                        .saturating_sub(1);
                    let behind = units.iter().enumerate().skip(first);
                    for (unit, &(base, size)) in behind.take_while(|(_, unit)| unit.0 < end) {
                        let is_near = base < near;
                        let end = if is_near { near } else { end };
                        let bytes = (base + size).min(end).saturating_sub(base.max(*at));
                        let known = touched.entry(unit).or_insert(Touched {
                            unit,
                            bytes: 0,
                            near: is_near,
                            crossed: None,
                        });
                        if is_near && !known.near {
                            (known.near, known.bytes) = (true, 0);
                        }
                        if is_near == known.near {
                            known.bytes = (known.bytes + bytes).min(size);
                        }
                    }
                }
                Launch {
                    signature: log.signatures[launch],
                    touched: touched.into_values().collect(),
                    rereads: log.rereads[launch],
                    seen: Vec::new(),
                }
            })
            .collect();
        Self {
            units,
            launches,
            kernels: HashMap::new(),
            capacity,
        }
    }

    /// How many of the bytes that launches touch in `other` lie in the units that they touch here, in percent. Of launches that
    /// `other` does not know, none count.
    fn alike(&self, other: &Self) -> u64 {
        let (mut same, mut all) = (0, 0);
        for (launch, other) in self.launches.iter().zip(&other.launches) {
            let here: HashMap<usize, u64> = launch
                .near()
                .map(|touched| (touched.unit, touched.bytes))
                .collect();
            for touched in other.near() {
                all += touched.bytes;
                same += here
                    .get(&touched.unit)
                    .map_or(0, |&bytes| bytes.min(touched.bytes));
            }
        }
        (same * 100).checked_div(all).unwrap_or(100)
    }

    /// Where windows begin, and where units lie in them.
    fn place(&self, windows: usize) -> (Vec<usize>, Placement) {
        let sum = |launch: &Launch| launch.near().map(|touched| touched.bytes).sum();
        let bytes: Vec<u64> = self.launches.iter().map(sum).collect();
        let begins = rhythm::windows(&bytes, windows);
        let mut units: Vec<Unit> = self
            .units
            .iter()
            .map(|&(_, size)| Unit {
                size,
                traffic: vec![0; begins.len()],
            })
            .collect();
        for (index, launch) in self.launches.iter().enumerate() {
            let window = begins.partition_point(|&begin| begin <= index) - 1;
            for touched in &launch.touched {
                units[touched.unit].traffic[window] += self.crossed(launch, touched) as u64;
            }
        }
        let step = Step {
            units,
            windows: begins.len(),
            capacity: self.capacity,
            move_cost: MOVE_COST,
        };
        let placement = step.place();
        let on_host = |place: &Vec<bool>| place.iter().any(|&device| !device);
        crate::log!(
            "{} windows: {:.1} ms on the link expected, if nothing lay on the device {:.1}; up to {} MiB of {} on the host",
            begins.len(),
            step.cost(&placement) / LINK * 1e3,
            step.cost(&vec![vec![false; begins.len()]; placement.len()]) / LINK * 1e3,
            step.units
                .iter()
                .zip(&placement)
                .filter(|(_, place)| on_host(place))
                .map(|(unit, _)| unit.size >> 20)
                .sum::<u64>(),
            step.units.iter().map(|unit| unit.size).sum::<u64>() >> 20,
        );
        (begins, placement)
    }

    /// The share of the time spent on the link in launches that should have touched nothing on the host: they were
    /// given other addresses than in the step that is known.
    fn unforeseen(&self) -> f64 {
        let (mut lost, mut all) = (0.0, 0.0);
        for launch in &self.launches {
            let fastest = launch.fastest();
            for seen in &launch.seen {
                all += seen.seconds - fastest;
                if seen.on_host.is_empty() {
                    lost += seen.seconds - fastest;
                }
            }
        }
        if all > 0.0 { lost / all } else { 0.0 }
    }

    /// Says so, once, if little can be foreseen.
    fn tell(&self) {
        static TOLD: Once = Once::new();
        if self.unforeseen() > UNFORESEEN {
            TOLD.call_once(|| {
                crate::say(
                    "tensors lie elsewhere in each step, and so it foresees little; a script that frees its gradients \
                     before the forward pass (`optimizer.zero_grad()` first) often keeps them in place",
                );
            });
        }
    }

    /// Writes what is known to the log, for simulations: sizes in bytes, times in µs.
    fn write_down(&self) {
        crate::log!(
            "trace {{\"capacity\": {}, \"units\": {:?}}}",
            self.capacity,
            self.units
                .iter()
                .map(|unit| [unit.0, unit.1])
                .collect::<Vec<_>>()
        );
        for launch in &self.launches {
            let touched: Vec<_> = launch
                .touched
                .iter()
                .map(|touched| {
                    (
                        touched.unit,
                        touched.bytes,
                        i32::from(touched.near),
                        self.crossed(launch, touched) as u64,
                    )
                })
                .collect();
            let seen: Vec<_> = launch
                .seen
                .iter()
                .map(|seen| (seen.seconds * 1e6, &seen.on_host))
                .collect();
            crate::log!(
                "launch ({}, {}, {touched:?}, {seen:.1?})",
                launch.signature,
                i32::from(launch.rereads)
            );
        }
        crate::log!("trace end, {:.1} % unforeseen", self.unforeseen() * 100.0);
    }

    /// A placement at rest with units on the host that never were there, or `None` if all have been, or if there
    /// are as many as before.
    fn explore(&self) -> Option<Placement> {
        let mut unknown = vec![0_u64; self.units.len()];
        let mut traffic = vec![0.0; self.units.len()];
        for launch in &self.launches {
            for touched in &launch.touched {
                if touched.crossed.is_none() && touched.bytes >= LITTLE {
                    unknown[touched.unit] += touched.bytes;
                }
                traffic[touched.unit] += self.crossed(launch, touched);
            }
        }
        if unknown.iter().all(|&bytes| bytes == 0) {
            return None;
        }
        let a_byte = |unit: usize| traffic[unit] / self.units[unit].1.max(1) as f64;
        let mut order: Vec<usize> = (0..self.units.len()).collect();
        order.sort_by(|&a, &b| {
            (unknown[a] == 0)
                .cmp(&(unknown[b] == 0))
                .then(a_byte(a).total_cmp(&a_byte(b)))
        });
        let total: u64 = self.units.iter().map(|&(_, size)| size).sum();
        let mut excess = total.saturating_sub(self.capacity);
        let mut placement = vec![vec![true]; self.units.len()];
        for unit in order {
            if excess == 0 {
                break;
            }
            placement[unit][0] = false;
            excess = excess.saturating_sub(self.units[unit].1);
        }
        Some(placement)
    }

    /// Bytes over the link of a unit that a launch may touch, if it lies on the host.
    fn crossed(&self, launch: &Launch, touched: &Touched) -> f64 {
        touched
            .crossed
            .unwrap_or_else(|| guess(&self.kernels, launch.signature, launch.rereads, touched))
    }

    /// A launch took so many seconds, with some units on the host.
    fn took(&mut self, index: usize, seconds: f64, is_on_host: impl Fn(u64) -> bool) {
        if let Some(launch) = self.launches.get_mut(index) {
            let on_host = |&at: &usize| is_on_host(self.units[launch.touched[at].unit].0);
            let on_host = (0..launch.touched.len()).filter(on_host).collect();
            launch.seen.push(Seen { seconds, on_host });
        }
    }

    /// All launches have been timed once more.
    fn fit(&mut self) {
        let kernels = std::mem::take(&mut self.kernels);
        for launch in &mut self.launches {
            let (signature, rereads) = (launch.signature, launch.rereads);
            launch.fit(|touched| guess(&kernels, signature, rereads, touched));
            for touched in &launch.touched {
                if let (true, Some(crossed)) =
                    (touched.near && touched.bytes >= LITTLE, touched.crossed)
                {
                    let kernel = self.kernels.entry(signature).or_default();
                    *kernel = (kernel.0 + crossed, kernel.1 + touched.bytes as f64);
                }
            }
        }
    }
}

/// Bytes over the link of a unit that never lay on the host, by what its kernel did with others.
fn guess(
    kernels: &HashMap<u64, (f64, f64)>,
    signature: u64,
    rereads: bool,
    touched: &Touched,
) -> f64 {
    let times = kernels
        .get(&signature)
        .map_or(if rereads { REREADS } else { 1.0 }, |&(crossed, given)| {
            crossed / given
        });
    let likely = if touched.near { 1.0 } else { FAR };
    touched.bytes as f64 * times.clamp(0.2, 500.0) * likely
}

/// Where each unit lies in each window.
type Places = HashMap<u64, Vec<bool>>;

/// The placement that is followed.
#[derive(Debug)]
struct Course {
    known: Known,
    follower: Follower,
    /// Where windows begin.
    begins: Vec<usize>,
    places: Places,
    /// Where the job is: the window, if units are where they belong in it, and the launch.
    window: Option<usize>,
    launch: usize,
    /// Steps that were followed.
    steps: u64,
    trial: Option<Trial>,
    /// Whether tensors lay still when the step was learned.
    is_settled: bool,
    /// While it is looked whether tensors have moved: what launches were given.
    look: Option<Log>,
}

/// Placements being tried.
#[derive(Debug)]
struct Trial {
    which: usize,
    /// Explorations so far; `None` when they are over.
    explored: Option<usize>,
    phase: Phase,
    began: Instant,
    fastest: Option<(Duration, Vec<usize>, Places)>,
}

/// The steps of one try.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Phase {
    /// Units go to their places.
    Settling,
    /// The step is timed.
    Timing,
    /// Each launch is timed, and so the step is slow.
    Probing,
}

impl Course {
    fn new(known: Known, is_settled: bool, now: Instant) -> Self {
        let step = known.launches.iter().map(|launch| launch.signature);
        Self {
            follower: Follower::new(step.collect()),
            known,
            begins: vec![0],
            places: HashMap::new(),
            window: None,
            launch: 0,
            steps: 0,
            trial: Some(Trial {
                which: 0,
                explored: Some(0),
                phase: Phase::Settling,
                began: now,
                fastest: None,
            }),
            is_settled,
            look: None,
        }
    }

    /// A launch of the step was given `addresses`.
    fn note(&mut self, launch: usize, addresses: &[u64]) {
        if let Some(log) = &mut self.look {
            while log.len() <= launch {
                log.launch(0, false);
            }
            for &at in addresses {
                log.address(at);
            }
        }
    }

    /// Whether tensors lie elsewhere than when the step was learned, at the end of a step in which it was looked.
    fn has_moved<G: Gpu>(&mut self, arena: &Arena<G>) -> bool {
        self.look
            .take()
            .is_some_and(|log| self.known.alike(&Known::of(&log, 0..log.len(), arena, 0)) < STAYED)
    }

    fn set(&mut self, begins: Vec<usize>, placement: Placement) {
        self.begins = begins;
        self.window = None;
        self.places = self
            .known
            .units
            .iter()
            .map(|&(at, _)| at)
            .zip(placement)
            .collect();
    }

    /// A step begins: on with the trial.
    fn step(&mut self, now: Instant) {
        self.steps += 1;
        if self.steps == PROVEN {
            self.known.tell();
        }
        let Some(trial) = &mut self.trial else {
            let is_due = self.is_settled && self.steps.is_multiple_of(LOOK_AGAIN);
            self.look = is_due.then(Log::default);
            return;
        };
        match trial.phase {
            Phase::Settling if trial.explored.is_some_and(|explored| explored > 0) => {
                trial.phase = Phase::Probing;
            }
            Phase::Settling => (trial.phase, trial.began) = (Phase::Timing, now),
            Phase::Timing => {
                let took = now - trial.began;
                crate::log!("try {}: {:.1} ms", trial.which, took.as_secs_f64() * 1e3);
                if trial
                    .fastest
                    .as_ref()
                    .is_none_or(|(least, ..)| took < *least)
                {
                    trial.fastest = Some((took, self.begins.clone(), self.places.clone()));
                }
                trial.phase = Phase::Probing;
                if trial.which == TRIED.len()
                    && let Some(Trial {
                        fastest: Some((_, begins, places)),
                        ..
                    }) = self.trial.take()
                {
                    (self.begins, self.places, self.window) = (begins, places, None);
                }
            }
            Phase::Probing => {
                trial.phase = Phase::Settling;
                self.known.fit();
                if let Some(explored) = trial.explored.filter(|&explored| explored < EXPLORED)
                    && let Some(placement) = self.known.explore()
                {
                    trial.explored = Some(explored + 1);
                    self.set(vec![0], placement);
                    return;
                }
                let explored = trial.explored.take().is_some();
                let windows = TRIED[trial.which];
                trial.which += 1;
                if explored {
                    self.known.write_down();
                }
                let (begins, placement) = self.known.place(windows);
                self.set(begins, placement);
            }
        }
    }

    /// The units that lie elsewhere than in this window.
    fn orders<G: Gpu>(&self, arena: &Arena<G>, window: usize) -> Orders {
        let mut orders = Orders::default();
        for (at, _, place) in arena.units() {
            match (self.places.get(&at).map(|place| place[window]), place) {
                (Some(true), Place::Host) => orders.back.push(at),
                (Some(false), Place::Device) => orders.out.push(at),
                _ => {}
            }
        }
        orders
    }
}

/// Watches launches, from the first time that something lies on the host.
#[derive(Debug)]
pub struct Watch {
    log: Option<Log>,
    /// How long the log is when it is looked at next.
    look: usize,
    /// The shortest step to believe in.
    least: usize,
    /// Steps in which tensors had not settled.
    unsettled: usize,
    course: Option<Course>,
    /// Addresses that captured launches were given: a graph may touch all of them.
    captured: Vec<u64>,
}

impl Default for Watch {
    fn default() -> Self {
        Self {
            log: Some(Log::default()),
            look: 128,
            least: LEAST,
            unsettled: 0,
            course: None,
            captured: Vec::new(),
        }
    }
}

impl Watch {
    /// Whether the addresses of launches are wanted.
    pub fn is_learning(&self) -> bool {
        self.log.is_some()
            || self
                .course
                .as_ref()
                .is_some_and(|course| course.look.is_some())
    }

    /// Segments came or went: what is known of the step is not all of it.
    pub fn learn_again(&mut self) {
        self.log = Some(Log::default());
        self.look = 128;
    }

    /// Keeps addresses that are given to a graph.
    pub fn captured(&mut self, addresses: &[u64]) {
        self.captured.extend(addresses);
        self.captured.sort_unstable();
        self.captured.dedup();
    }

    /// A copy or the like, which is no part of the rhythm.
    pub fn touched(&mut self, addresses: &[u64]) {
        let look = self.course.as_mut().and_then(|course| course.look.as_mut());
        for log in self.log.iter_mut().chain(look) {
            for &at in addresses {
                log.address(at);
            }
        }
    }

    /// A launch that is about to begin; what to move before it.
    pub fn launched<G: Gpu>(
        &mut self,
        arena: &Arena<G>,
        signature: u64,
        addresses: &[u64],
        rereads: bool,
        is_graph: bool,
        now: Instant,
    ) -> Option<Orders> {
        // A graph is given what launches were that it captured.
        let addresses = if is_graph && self.is_learning() {
            &self.captured.clone()
        } else {
            addresses
        };
        if let Some(log) = &mut self.log {
            log.launch(signature, rereads);
            for &at in addresses {
                log.address(at);
            }
            if log.len() >= self.look {
                self.look = log.len() + (log.len() / 6).max(64);
                if let Some(orders) = self.learn(arena, now) {
                    return Some(orders);
                }
            }
        }
        let course = self.course.as_mut()?;
        match course.follower.launch(signature) {
            rhythm::Place::At(launch) => {
                let moved = if launch <= course.launch {
                    let moved = course.has_moved(arena);
                    course.step(now);
                    moved
                } else {
                    course.note(launch, addresses);
                    false
                };
                course.launch = launch;
                if moved {
                    crate::log!("tensors lie elsewhere now");
                    self.unsettled = 0;
                    self.learn_again();
                    return None;
                }
                let window = course.begins.partition_point(|&begin| begin <= launch) - 1;
                if course.window == Some(window) {
                    return None;
                }
                course.window = Some(window);
                Some(course.orders(arena, window))
            }
            rhythm::Place::Elsewhere => None,
            rhythm::Place::Lost => {
                // What was taken for a step was a part of one.
                self.least = if course.steps < PROVEN {
                    course.follower.len() + 1
                } else {
                    LEAST
                };
                crate::log!("lost the rhythm of {} launches", course.follower.len());
                self.course = None;
                self.learn_again();
                None
            }
        }
    }

    /// The launch that is about to begin, if it is to be timed.
    pub fn probed(&self) -> Option<usize> {
        let course = self.course.as_ref()?;
        (course.trial.as_ref()?.phase == Phase::Probing).then_some(course.launch)
    }

    /// How long a launch took.
    pub fn took<G: Gpu>(&mut self, launch: usize, took: Duration, arena: &Arena<G>) {
        if let Some(course) = &mut self.course {
            course
                .known
                .took(launch, took.as_secs_f64(), |at| arena.is_on_host(at));
        }
    }

    /// Looks for a step in the log.
    fn learn<G: Gpu>(&mut self, arena: &Arena<G>, now: Instant) -> Option<Orders> {
        let log = self.log.as_ref()?;
        let capacity = arena.device_capacity();
        let count = log.len();
        let found = rhythm::periods(&log.signatures, self.least)
            .into_iter()
            .find(|&length| covers(log, count - length, arena));
        if let Some(length) = found {
            let first = count - length;
            let known = Known::of(log, first..count, arena, capacity);
            let before = Known::of(log, first - length..first, arena, capacity);
            let is_settled = before.alike(&known) >= SETTLED;
            if !is_settled && self.unsettled < PATIENCE {
                self.unsettled += 1;
                self.look = count + length;
                return None;
            }
            crate::log!(
                "a step of {length} launches, of {count} seen; {} MiB in segments, room for {} MiB",
                arena.size() >> 20,
                capacity >> 20
            );
            self.course = Some(Course::new(known, is_settled, now));
            self.log = None;
            return None;
        }
        if count < NO_RHYTHM || log.addresses_since(0).is_empty() {
            return None;
        }
        // No rhythm: what was touched most lies on the device from now on.
        let known = Known::of(log, 0..count, arena, capacity);
        let (_, placement) = known.place(1);
        let places: HashMap<u64, bool> = known
            .units
            .iter()
            .map(|&(at, _)| at)
            .zip(placement.iter().map(|place| place[0]))
            .collect();
        if let Some(log) = &mut self.log {
            log.forget(count / 2);
            self.look = NO_RHYTHM;
        }
        let mut orders = Orders::default();
        for (at, _, place) in arena.units() {
            match (places.get(&at), place) {
                (Some(true), Place::Host) => orders.back.push(at),
                (Some(false), Place::Device) => orders.out.push(at),
                _ => {}
            }
        }
        Some(orders)
    }
}

/// Whether the launches from `first` on touch most of `arena`.
fn covers<G: Gpu>(log: &Log, first: usize, arena: &Arena<G>) -> bool {
    let known = Known::of(log, first..log.len(), arena, 0);
    let mut is_touched = vec![false; known.units.len()];
    for touched in known.launches.iter().flat_map(Launch::near) {
        is_touched[touched.unit] = true;
    }
    let touched: u64 = known
        .units
        .iter()
        .zip(is_touched)
        .filter(|(_, touched)| *touched)
        .map(|(&(_, size), _)| size)
        .sum();
    touched * 100 >= arena.size() * WHOLE
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::*;
    use crate::arena::Limits;
    use crate::gpu::{Refused, Way};

    const MIB: u64 = 1 << 20;

    /// A GPU that says yes.
    #[derive(Debug, Default)]
    struct Willing(Cell<u64>);

    impl Willing {
        fn number(&self) -> u64 {
            self.0.set(self.0.get() + 1);
            self.0.get()
        }
    }

    impl Gpu for Willing {
        fn create(&self, _: Place, _: u64) -> Result<u64, Refused> {
            Ok(self.number())
        }
        fn release(&self, _: u64) {}
        fn reserve(&self, _: u64) -> Result<u64, Refused> {
            Ok(self.number() << 40)
        }
        fn unreserve(&self, _: u64, _: u64) {}
        fn map(&self, _: u64, _: u64, _: u64) -> Result<(), Refused> {
            Ok(())
        }
        fn unmap(&self, _: u64, _: u64) -> Result<(), Refused> {
            Ok(())
        }
        fn copy(&self, _: u64, _: u64, _: u64, _: Way) -> Result<(), Refused> {
            Ok(())
        }
        fn mark(&self, _: Way) -> Result<u64, Refused> {
            Ok(self.number())
        }
        fn wait(&self, _: u64) -> Result<(), Refused> {
            Ok(())
        }
        fn free(&self) -> u64 {
            u64::MAX / 2
        }
    }

    /// A job: launches of a kernel with segments, each of which it reads so many times.
    struct Job {
        arena: Arena<Willing>,
        segments: Vec<u64>,
        watch: Watch,
        now: Instant,
        moved: u64,
    }

    impl Job {
        fn new(sizes: &[u64], device: u64) -> Self {
            let limits = Limits {
                granule: MIB,
                unit: 4 * MIB,
                device: device * MIB,
                host: 1 << 40,
                spare: 0,
                ahead: 2,
            };
            let mut arena = Arena::new(Willing::default(), limits);
            let segments = sizes
                .iter()
                .map(|size| arena.allocate(size * MIB, true).unwrap())
                .collect();
            Self {
                arena,
                segments,
                watch: Watch::default(),
                now: Instant::now(),
                moved: 0,
            }
        }

        fn launch(&mut self, signature: u64, segment: usize, times: u64) {
            self.launch_with(signature, &[(segment, times)]);
        }

        /// Launches a kernel that reads segments so many times.
        fn launch_with(&mut self, signature: u64, given: &[(usize, u64)]) {
            let sizes: BTreeMap<u64, u64> = self.arena.segments().collect();
            let read: Vec<(u64, u64, u64)> = given
                .iter()
                .map(|&(segment, times)| {
                    (
                        self.segments[segment],
                        sizes[&self.segments[segment]],
                        times,
                    )
                })
                .collect();
            self.launch_reading(signature, &read);
        }

        /// Launches a kernel that reads so many bytes from these addresses on, so many times: it takes 20 µs, and
        /// longer for what lies on the host.
        fn launch_reading(&mut self, signature: u64, read: &[(u64, u64, u64)]) {
            let addresses: Vec<u64> = read.iter().map(|&(at, ..)| at).collect();
            let orders =
                self.watch
                    .launched(&self.arena, signature, &addresses, false, false, self.now);
            if let Some(orders) = orders {
                let moved = self.arena.exchange(&orders.out, &orders.back);
                self.moved += moved.out + moved.back;
                self.now += Duration::from_secs_f64((moved.out + moved.back) as f64 / 24e9);
            }
            let crossed: u64 = read
                .iter()
                .map(|&(at, size, times)| {
                    let on_host = self.arena.units().filter(|&(unit, _, place)| {
                        unit >= at && unit < at + size && place == Place::Host
                    });
                    times * on_host.map(|(_, size, _)| size).sum::<u64>()
                })
                .sum();
            let took = Duration::from_secs_f64(20e-6 + crossed as f64 / LINK);
            self.now += took;
            if let Some(launch) = self.watch.probed() {
                self.watch.took(launch, took, &self.arena);
            }
        }

        /// Seconds of a step in which kernel `k` reads segment `s` so many times, for `(k, s, times)`.
        fn step(&mut self, launches: &[(u64, usize, u64)]) -> f64 {
            let began = self.now;
            for &(kernel, segment, times) in launches {
                self.launch(kernel, segment, times);
            }
            (self.now - began).as_secs_f64()
        }
    }

    /// Kernels look alike, but some read all of it again and again. What came last, and so to the host first, is
    /// what they read.
    #[test]
    fn what_is_read_least_comes_to_rest_on_the_host() {
        let mut job = Job::new(&[4; 12], 32);
        let launches: Vec<(u64, usize, u64)> = (0..96)
            .map(|index| {
                (
                    index,
                    index as usize % 12,
                    if index % 12 < 4 { 1 } else { 30 },
                )
            })
            .collect();
        let blind = job.step(&launches);
        let mut last = 0.0;
        for _ in 0..24 {
            last = job.step(&launches);
        }
        let on_host: Vec<usize> = (0..12)
            .filter(|&segment| job.arena.is_on_host(job.segments[segment]))
            .collect();
        assert_eq!(on_host, [0, 1, 2, 3]);
        assert!(last < blind / 5.0, "{last} of {blind}");
        let moved = job.moved;
        job.step(&launches);
        assert_eq!(job.moved, moved, "what rests stays");
    }

    /// Two halves of a step that each need all of the device.
    #[test]
    fn what_is_read_often_but_at_different_times_takes_turns() {
        let mut job = Job::new(&[4; 8], 16);
        let half = |first: u64| {
            (0..60).map(move |index| (first + index, (first / 60 * 4 + index % 4) as usize, 20))
        };
        let launches: Vec<(u64, usize, u64)> = half(0).chain(half(60)).collect();
        let blind = job.step(&launches);
        let mut last = 0.0;
        for _ in 0..24 {
            last = job.step(&launches);
        }
        assert!(last < blind / 5.0, "{last} of {blind}");
    }

    /// Another rhythm later: it is learned too.
    #[test]
    fn a_job_may_change() {
        let mut job = Job::new(&[4; 12], 32);
        let of = |cold: u64| -> Vec<(u64, usize, u64)> {
            let times = |index: u64| {
                if (cold..cold + 4).contains(&(index % 12)) {
                    1
                } else {
                    30
                }
            };
            let launch = |index| (100 * cold + times(index), index as usize % 12, times(index));
            (0..96).map(launch).collect()
        };
        for cold in [0, 6] {
            let launches = of(cold);
            for _ in 0..30 {
                job.step(&launches);
            }
            let on_host: Vec<u64> = (0..12)
                .filter(|&segment| job.arena.is_on_host(job.segments[segment as usize]))
                .collect();
            assert_eq!(on_host, (cold..cold + 4).collect::<Vec<_>>());
        }
    }

    /// Kernels that read one argument again and again and write the other once: which is which shows only when
    /// each has lain on the host by itself. What came last, and so to the host first, is read often.
    #[test]
    fn what_is_read_often_is_told_from_what_is_written_once_by_the_same_kernel() {
        let mut job = Job::new(&[4; 16], 32);
        let launches: Vec<(u64, usize, usize)> = (0..64)
            .map(|index| (7, 8 + index as usize % 8, index as usize % 8))
            .collect();
        let step = |job: &mut Job| {
            let began = job.now;
            for &(kernel, read, written) in &launches {
                job.launch_with(kernel, &[(read, 20), (written, 1)]);
            }
            (job.now - began).as_secs_f64()
        };
        let blind = step(&mut job);
        let mut last = 0.0;
        for _ in 0..30 {
            last = step(&mut job);
        }
        let on_host: Vec<usize> = (0..16)
            .filter(|&segment| job.arena.is_on_host(job.segments[segment]))
            .collect();
        assert_eq!(on_host, (0..8).collect::<Vec<_>>());
        assert!(last < blind / 5.0, "{last} of {blind}");
    }

    /// A kernel is given a tensor whose parts others are given at about that time: where the tensor ends does not
    /// show. It reads all of it again and again, they read their part once.
    #[test]
    fn what_lies_behind_a_part_is_found_by_what_it_costs() {
        let mut job = Job::new(&[4, 4, 4, 4, 4, 4, 12], 24);
        let tensor = job.segments[6];
        let step = |job: &mut Job| {
            let began = job.now;
            for round in 0..4 {
                job.launch_reading(100 + round, &[(tensor, 12 * MIB, 20)]);
                for part in 0..3 {
                    job.launch_reading(200 + part, &[(tensor + part * 4 * MIB, 4 * MIB, 1)]);
                }
                for segment in 0..6 {
                    job.launch(300, segment, 3);
                }
            }
            (job.now - began).as_secs_f64()
        };
        let blind = step(&mut job);
        let mut last = 0.0;
        for _ in 0..30 {
            last = step(&mut job);
        }
        let parts = [0, 4, 8].map(|part| job.arena.is_on_host(tensor + part * MIB));
        assert_eq!(parts, [false; 3]);
        assert!(last < blind / 5.0, "{last} of {blind}");
    }

    /// Tensors change places in the first steps, as gaps in PyTorch's cache do, and then stay.
    #[test]
    fn a_step_is_learned_when_tensors_have_settled() {
        let mut job = Job::new(&[4; 12], 32);
        for step in 0..20 {
            for launch in 0..48 {
                job.launch(launch, (launch as usize + step.min(6)) % 12, 3);
            }
        }
        let unforeseen = job.watch.course.as_ref().unwrap().known.unforeseen();
        assert!(unforeseen < 1e-9, "{unforeseen}");
    }

    /// Launches are given parts of tensors, and copies go on in between.
    #[test]
    fn a_step_whose_tensors_stay_is_learned_once() {
        let mut job = Job::new(&[12; 12], 100);
        for _ in 0..300 {
            for launch in 0..48 {
                let part = job.segments[launch as usize % 12] + launch % 5 * 2 * MIB;
                job.launch_reading(launch, &[(part, 2 * MIB, 3)]);
                job.watch.touched(&[part + MIB]);
            }
        }
        assert!(job.watch.course.is_some_and(|course| course.steps > 280));
    }

    /// Small tensors may lie anywhere: what counts is bytes.
    #[test]
    fn small_tensors_that_never_settle_delay_nothing() {
        let mut sizes = vec![40; 8];
        sizes.extend([1; 8]);
        let mut job = Job::new(&sizes, 200);
        for step in 0..4 {
            for launch in 0..32 {
                let small = 8 + (launch as usize + step) % 8;
                job.launch_with(launch, &[(launch as usize % 8, 1), (small, 1)]);
            }
        }
        let course = job.watch.course.as_ref();
        assert!(course.is_some_and(|course| course.is_settled));
    }

    /// An evaluation leaves other gaps in PyTorch's cache: tensors lie elsewhere from then on.
    #[test]
    fn a_step_whose_tensors_moved_is_learned_again() {
        let mut job = Job::new(&[4; 12], 32);
        let step = |job: &mut Job, shift: usize| {
            let began = job.now;
            for launch in 0..48 {
                let times = if launch % 12 < 4 { 1 } else { 30 };
                job.launch(launch, (launch as usize + shift) % 12, times);
            }
            (job.now - began).as_secs_f64()
        };
        let took: Vec<f64> = (0..200)
            .map(|number| step(&mut job, if number < 50 { 0 } else { 5 }))
            .collect();
        assert!(took[49] < took[55] / 5.0, "{took:?}");
        assert!(took[199] < took[55] / 5.0, "{took:?}");
    }

    /// Tensors change places in each step, or stay where they are.
    #[test]
    fn tensors_that_lie_elsewhere_in_each_step_are_noticed() {
        for wanders in [false, true] {
            let mut job = Job::new(&[4; 12], 32);
            for step in 0..20 {
                let shift = if wanders { step } else { 0 };
                for launch in 0..48 {
                    job.launch(launch, (launch as usize + shift) % 12, 3);
                }
            }
            let unforeseen = job.watch.course.as_ref().unwrap().known.unforeseen();
            assert_eq!(unforeseen > UNFORESEEN, wanders, "{unforeseen}");
        }
    }
}
