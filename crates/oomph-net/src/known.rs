//! What a step is known to touch, and what that costs on the host: as measured, or guessed.

use std::collections::{BTreeMap, HashMap};
use std::ops::Range;
use std::sync::Once;

use crate::arena::Arena;
use crate::gpu::Gpu;
use crate::placement::{Placement, Step, Unit};
use crate::rhythm::{self, Log, Pointers};

/// A pointer stands for at least so much of its segment, in bytes.
const NEAR: u64 = 1 << 20;
/// How often products and convolutions read their input, as long as it is not measured.
const REREADS: f64 = 16.0;
/// Bytes a second over the link: kernels of an H200 read 51 GB/s.
pub const LINK: f64 = 51e9;
/// What it costs to move a byte, in bytes read where they lie: 24 GB/s each way, both ways at a time.
pub const MOVE_COST: f64 = 1.1;
/// How likely it is, before it is measured, that a launch touches what is not near a pointer that it is given.
const FAR: f64 = 0.05;
/// What is measured is explained by turns, so often.
const FITTINGS: usize = 12;
/// A launch is this much faster or slower each time, in seconds.
const JITTER: f64 = 5e-6;
/// With a larger share of time on the link that was not foreseen, tensors lie elsewhere in each step.
pub const UNFORESEEN: f64 = 0.05;
/// Less is not measured, in bytes.
const LITTLE: u64 = 64 << 10;

/// Of each kernel: bytes that went over the link, and bytes of units on the host that it was given.
pub type Kernels = HashMap<u64, (f64, f64)>;

/// What a step touches.
#[derive(Debug)]
pub struct Known {
    /// Where units begin, and their sizes.
    pub units: Vec<(u64, u64)>,
    pub launches: Vec<Launch>,
    pub kernels: Kernels,
    capacity: u64,
}

/// A launch of a step.
#[derive(Debug)]
pub struct Launch {
    pub signature: u64,
    pub touched: Vec<Touched>,
    /// Whether it is thought to read them more than once.
    rereads: bool,
    /// How long it took, with what on the host.
    seen: Vec<Seen>,
}

/// A unit that a launch may touch.
#[derive(Debug)]
pub struct Touched {
    /// Its number.
    pub unit: usize,
    pub bytes: u64,
    /// Whether it begins before anything else does that was given to launches about then. What lies behind in the
    /// segment may be of the same tensor, of which other launches are given parts.
    near: bool,
    /// Bytes over the link while it lies on the host, as measured.
    crossed: Option<f64>,
}

/// A launch that was timed.
#[derive(Debug)]
pub struct Seen {
    seconds: f64,
    /// What of `touched` lay on the host.
    on_host: Vec<usize>,
}

impl Launch {
    pub fn near(&self) -> impl Iterator<Item = &Touched> {
        self.touched.iter().filter(|touched| touched.near)
    }

    /// Bytes over the link of a unit that never lay on the host, by what its kernel did with others.
    pub fn guess(&self, touched: &Touched, kernels: &Kernels) -> f64 {
        guess(kernels, self.signature, self.rereads, touched)
    }

    /// The least time it took, in seconds.
    fn fastest(&self) -> f64 {
        let seconds = self.seen.iter().map(|seen| seen.seconds);
        seconds.fold(f64::INFINITY, f64::min)
    }

    /// Tells from all that was seen what each unit costs on the host: guesses are scaled until they explain each
    /// time (iterative proportional fitting). A unit that lay there while the launch was fast costs nothing. False if one of them
    /// always did: then they are only known to cost no more than the launch took.
    fn fit(&mut self, guess: impl Fn(&Touched) -> f64) -> bool {
        let always = |at| self.seen.iter().all(|seen| seen.on_host.contains(&at));
        let is_told = !(0..self.touched.len()).any(always);
        let fastest = if is_told { self.fastest() } else { 0.0 };
        let mut costs: Vec<f64> = self
            .touched
            .iter()
            .map(|touched| guess(touched).max(1.0))
            .collect();
        for _ in 0..FITTINGS {
            for seen in &self.seen {
                let sum: f64 = seen.on_host.iter().map(|&at| costs[at]).sum();
                let crossed = (seen.seconds - fastest - JITTER).max(0.0) * LINK;
                let most = if is_told { f64::INFINITY } else { 1.0 };
                for &at in &seen.on_host {
                    costs[at] *= (crossed / sum).clamp(1e-3, most);
                }
            }
        }
        for &at in self.seen.iter().flat_map(|seen| &seen.on_host) {
            self.touched[at].crossed = Some(costs[at]);
        }
        is_told
    }
}

impl Known {
    /// What launches of `log` touch of `arena`.
    pub fn of<G: Gpu>(log: &Log, launches: Range<usize>, arena: &Arena<G>, capacity: u64) -> Self {
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
            kernels: Kernels::new(),
            capacity,
        }
    }

    /// With what kernels were found to do before.
    pub fn with(mut self, kernels: &Kernels) -> Self {
        self.kernels.clone_from(kernels);
        self
    }

    /// How many of the bytes that launches touch in `other` lie in the units that they touch here, in percent. Of launches that
    /// `other` does not know, none count.
    pub fn alike(&self, other: &Self) -> u64 {
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
    pub fn place(&self, windows: usize) -> (Vec<usize>, Placement) {
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
    pub fn unforeseen(&self) -> f64 {
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
    pub fn tell(&self) {
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
    pub fn write_down(&self) {
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

    /// A placement at rest with units on the host that never were there, those first that are thought to cost least, as many as cost no
    /// more than so many seconds. `None` if there are none: what costs more stays on the device anyway while it is needed.
    pub fn explore(&self, seconds: f64) -> Option<Placement> {
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
        let a_byte = |unit: usize| traffic[unit] / self.units[unit].1.max(1) as f64;
        let mut order: Vec<usize> = (0..self.units.len()).collect();
        order.sort_by(|&a, &b| a_byte(a).total_cmp(&a_byte(b)));
        let total: u64 = self.units.iter().map(|&(_, size)| size).sum();
        let mut excess = total.saturating_sub(self.capacity);
        let mut placement = vec![vec![true]; self.units.len()];
        let mut most = seconds * LINK;
        for &unit in order.iter().filter(|&&unit| unknown[unit] > 0) {
            most -= traffic[unit];
            if excess == 0 || most < 0.0 {
                break;
            }
            placement[unit][0] = false;
            excess = excess.saturating_sub(self.units[unit].1);
        }
        if placement.iter().all(|place| place[0]) {
            return None;
        }
        for unit in order {
            if placement[unit][0] && excess > 0 {
                placement[unit][0] = false;
                excess = excess.saturating_sub(self.units[unit].1);
            }
        }
        Some(placement)
    }

    /// Bytes over the link of a unit that a launch may touch, if it lies on the host.
    pub fn crossed(&self, launch: &Launch, touched: &Touched) -> f64 {
        touched
            .crossed
            .unwrap_or_else(|| launch.guess(touched, &self.kernels))
    }

    /// A launch took so many seconds, with some units on the host.
    pub fn took(&mut self, index: usize, seconds: f64, is_on_host: impl Fn(u64) -> bool) {
        if let Some(launch) = self.launches.get_mut(index) {
            let on_host = |&at: &usize| is_on_host(self.units[launch.touched[at].unit].0);
            let on_host = (0..launch.touched.len()).filter(on_host).collect();
            launch.seen.push(Seen { seconds, on_host });
        }
    }

    /// All launches have been timed once more.
    pub fn fit(&mut self) {
        let mut measured = Kernels::new();
        for launch in &mut self.launches {
            let (signature, rereads) = (launch.signature, launch.rereads);
            if !launch.fit(|touched| guess(&self.kernels, signature, rereads, touched)) {
                continue;
            }
            for touched in &launch.touched {
                if let (true, Some(crossed)) =
                    (touched.near && touched.bytes >= LITTLE, touched.crossed)
                {
                    let kernel = measured.entry(signature).or_default();
                    *kernel = (kernel.0 + crossed, kernel.1 + touched.bytes as f64);
                }
            }
        }
        self.kernels.extend(measured);
    }
}

/// Bytes over the link of a unit that never lay on the host, by what its kernel did with others.
fn guess(kernels: &Kernels, signature: u64, rereads: bool, touched: &Touched) -> f64 {
    let times = kernels
        .get(&signature)
        .map_or(if rereads { REREADS } else { 1.0 }, |&(crossed, given)| {
            crossed / given
        });
    let likely = if touched.near { 1.0 } else { FAR };
    touched.bytes as f64 * times.clamp(0.2, 500.0) * likely
}
