//! From launches to orders: which units leave the device and which come back, and when.
//!
//! While something lies on the host, launches are logged until a step is known; until then what they touch comes
//! to the device by [`crate::demand`]. The step is then followed, and at the border of two windows units change places as
//! [`crate::placement`] says: at once by a guess of what a byte costs where it lies (kernels read some more than once), which
//! launches that are timed then correct. A few placements are tried, and the fastest step decides. All of this decides about
//! speed only.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use crate::arena::Arena;
use crate::demand::Demand;
use crate::gpu::{Gpu, Place};
use crate::known::{Kernels, Known, Launch};
use crate::placement::Placement;
use crate::rhythm::{self, Follower, Log};

/// The step that a log shows touches so much of all memory, in percent: less is a part of a step.
const WHOLE: u64 = 50;
/// After so many launches without a rhythm there is none.
const NO_RHYTHM: usize = 100_000;
/// What is tried, by windows of a step. With one window all rests. Units that never lay on the host go there in turns before the
/// last ones: by then the job is fast already.
const TRIED: [usize; 4] = [48, 48, 1, 48];
/// So many are tried before.
const TRIED_FIRST: usize = 1;
/// So many times at most, units that never lay on the host go there, so that it is measured what they cost.
const EXPLORED: usize = 4;
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
    /// How many of [`TRIED`] have begun.
    which: usize,
    /// Explorations so far; `None` when they are over.
    explored: Option<usize>,
    is_exploring: bool,
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
    /// The step is followed, with units where a guess places them.
    fn new(known: Known) -> Self {
        let step = known.launches.iter().map(|launch| launch.signature);
        let mut course = Self {
            follower: Follower::new(step.collect()),
            known,
            begins: vec![0],
            places: HashMap::new(),
            window: None,
            launch: 0,
            steps: 0,
            trial: None,
            is_settled: false,
            look: None,
        };
        course.place(TRIED[0]);
        course
    }

    /// Tensors lie as still as they will.
    fn settle(&mut self, is_settled: bool, now: Instant) {
        self.is_settled = is_settled;
        self.trial = Some(Trial {
            which: 1,
            explored: Some(0),
            is_exploring: false,
            phase: Phase::Settling,
            began: now,
            fastest: None,
        });
    }

    fn place(&mut self, windows: usize) {
        let (begins, placement) = self.known.place(windows);
        self.set(begins, placement);
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
            Phase::Settling if trial.is_exploring => trial.phase = Phase::Probing,
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
                trial.is_exploring = false;
                if let Some(explored) = trial.explored.filter(|_| trial.which == TRIED_FIRST) {
                    let step = trial
                        .fastest
                        .as_ref()
                        .map_or(0.0, |(took, ..)| took.as_secs_f64());
                    let placement = self.known.explore(step).filter(|_| explored < EXPLORED);
                    if let Some(placement) = placement {
                        crate::log!("turn {explored}");
                        (trial.explored, trial.is_exploring) = (Some(explored + 1), true);
                        self.set(vec![0], placement);
                        return;
                    }
                    trial.explored = None;
                    self.known.write_down();
                }
                let windows = TRIED[trial.which];
                trial.which += 1;
                self.place(windows);
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
    /// What kernels are known to do with what lies on the host.
    kernels: Kernels,
    /// The length of the step that was lost last.
    lost: Option<usize>,
    demand: Demand,
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
            kernels: Kernels::new(),
            lost: None,
            demand: Demand::default(),
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
                if self.learn(arena, now) {
                    // It has just ended the step, and begins it anew.
                    return None;
                }
            }
        }
        if let (None, Some(log)) = (&self.course, &self.log) {
            return self.demand.launched(log, arena, &self.kernels);
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
                let length = course.follower.len();
                crate::log!("lost the rhythm of {length} launches");
                // What was taken for a step was a part of one, unless the job did something else for once.
                let again = self.lost.replace(length) == Some(length);
                self.least = if course.steps < PROVEN && again {
                    length + 1
                } else {
                    LEAST
                };
                self.keep_kernels();
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

    /// Looks for a step in the log, and whether there is one.
    fn learn<G: Gpu>(&mut self, arena: &Arena<G>, now: Instant) -> bool {
        self.keep_kernels();
        let Some(log) = &mut self.log else {
            return false;
        };
        let capacity = arena.device_capacity();
        let count = log.len();
        let found = rhythm::periods(&log.signatures, self.least)
            .into_iter()
            .find(|&length| covers(log, count - length, arena));
        let Some(length) = found else {
            if count >= NO_RHYTHM {
                log.forget(count / 2);
                self.look = NO_RHYTHM;
            }
            return false;
        };
        let first = count - length;
        let known = Known::of(log, first..count, arena, capacity);
        let is_settled = first >= length
            && Known::of(log, first - length..first, arena, capacity).alike(&known) >= SETTLED;
        crate::log!(
            "a step of {length} launches, of {count} seen{}; {} MiB in segments, room for {} MiB",
            if is_settled { "" } else { ", not settled" },
            arena.size() >> 20,
            capacity >> 20
        );
        let mut course = Course::new(known.with(&self.kernels));
        if is_settled || self.unsettled >= PATIENCE {
            course.settle(is_settled, now);
            self.log = None;
        } else if first < length {
            self.look = 2 * length;
        } else {
            self.unsettled += 1;
            self.look = count + length;
        }
        self.course = Some(course);
        true
    }

    /// What was measured of kernels outlives the step.
    fn keep_kernels(&mut self) {
        if let Some(course) = &self.course {
            self.kernels.clone_from(&course.known.kernels);
        }
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
    use std::collections::BTreeMap;

    use super::*;
    use crate::arena::Limits;
    use crate::gpu::{Refused, Way};
    use crate::known::{LINK, UNFORESEEN};

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

    /// Two halves of a step that each need all of the device, and their order: known when the step begins for the second time.
    #[test]
    fn a_step_is_placed_when_it_begins_anew() {
        let mut job = Job::new(&[4; 8], 16);
        let half = |first: u64| {
            (0..400).map(move |index| (first + index, (first / 400 * 4 + index % 4) as usize, 20))
        };
        let launches: Vec<(u64, usize, u64)> = half(0).chain(half(400)).collect();
        let blind: f64 = 400.0 * (20.0 * 4.0 * MIB as f64) / LINK;
        let took: Vec<f64> = (0..16).map(|_| job.step(&launches)).collect();
        // Later steps are slow in turns, in which it is measured what units cost.
        assert!(
            took[..4].iter().all(|step| *step < blind / 3.0),
            "{blind} {took:?}"
        );
    }

    /// A job whose launches never repeat: what it reads again and again is on the device after a while.
    #[test]
    fn without_a_rhythm_units_come_when_they_are_needed() {
        let mut job = Job::new(&[4; 12], 32);
        let step = |job: &mut Job, number: u64, first: usize| {
            let launches: Vec<(u64, usize, u64)> = (0..320)
                .map(|index| (1000 * number + index, (first + index as usize % 6) % 12, 10))
                .collect();
            job.step(&launches)
        };
        for (round, first) in [6, 0, 3].into_iter().enumerate() {
            let numbers = round as u64 * 4..round as u64 * 4 + 4;
            let took: Vec<f64> = numbers
                .map(|number| step(&mut job, number, first))
                .collect();
            assert!(took[3] < 320.0 * 21e-6, "{took:?}");
        }
    }

    /// A job that goes round in more than fits, and reads less than it was thought to: it does not move all of it in each round.
    #[test]
    fn without_a_rhythm_nothing_goes_round_for_ever() {
        let mut job = Job::new(&[4; 48], 128);
        let moved: Vec<u64> = (0..4)
            .map(|lap| {
                let before = job.moved;
                for number in 0..10 * 144 {
                    job.launch(lap * 1440 + number, number as usize % 144 / 3, 0);
                }
                job.moved - before
            })
            .collect();
        assert!(moved[3] < moved[0] / 2, "{moved:?}");
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
