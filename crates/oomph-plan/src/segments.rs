//! What becomes of the activations of each part of a job's recorded sequence: kept, computed again, or moved to the host.
//!
//! The parts are the modules that were called, in the order of their first calls, each followed by those inside of it. Each has
//! choices: keep what it makes itself and go on with what is inside of it; compute its cheap result again; or checkpoint or offload
//! all of it and go on behind it. A choice has a price in time, leaves bytes behind for the backward pass, and needs some at once
//! besides what was left by those before it: what comes later in the forward pass is gone when its backward pass comes.
//! [`cheapest`] finds the way through the sequence that takes the least time and stays below a limit at each moment. The simulated
//! allocator judges what it finds.

use std::collections::BTreeMap;

use rustc_hash::{FxHashMap as HashMap, FxHashSet as HashSet};

use oomph_trace::{Category, Phase};

use crate::blocks::{self, is_cast_of_weight};
use crate::draft::{Draft, Load};
use crate::host_copies::IN_FLIGHT;
use crate::levers::Lever;
use crate::levers::checkpoint::{self, Checkpoint};
use crate::levers::offload_activations::OffloadActivations;
use crate::levers::recompute::{self, Recompute};
use crate::model::Event;
use crate::play;
use crate::units;

/// Less is not worth a change.
const LEAST_BYTES: u64 = 1 << 20;
/// Limits for which the cheapest way is looked for, from all that is kept to as little as can be.
const LIMITS: Bytes = 32;
/// Ways that are followed at a time. Of those that leave about as much the quickest is.
const WAYS: usize = 400;
/// The same where only the limit matters.
const FEW_WAYS: usize = 16;
/// What the link's time counts for: next to nothing, as where the passes hide it, all of it, and more than there is.
const LINK: [f64; 3] = [0.05, 1.0, f64::INFINITY];
/// Nanoseconds for a byte, where bytes decide and time only among equals.
const KEEPS_LEAST: f64 = 1e6;
/// The part of the host's time that counts: it mostly hides behind the GPU's.
const HIDDEN: f64 = 0.25;

/// Bytes, of which there may be less than were thought to be.
type Bytes = i64;

/// One thing to do at a place of a sequence.
#[derive(Debug, Clone)]
struct Choice {
    /// Where it goes on.
    next: usize,
    /// Bytes that it leaves for the backward pass.
    kept: Bytes,
    /// Bytes that are needed at the same time as what those before it have left.
    needs: Bytes,
    /// Nanoseconds.
    time: f64,
}

/// A way to a place.
#[derive(Debug, Clone, Copy)]
struct Way {
    kept: Bytes,
    time: f64,
    /// How many choices were not the first ones.
    changes: u32,
    /// The step that came here last: an index of all.
    last: usize,
}

/// A choice that some way took.
struct Step {
    place: usize,
    choice: usize,
    before: usize,
}

/// The choices, by place, that take the least time and at no place need more than `limit`; `None` if there are none. Of equal ones
/// the one with the fewest changes, as early as possible. With more than `ways` to a place, ways are dropped, and it may be missed.
fn cheapest(sequence: &[Vec<Choice>], limit: Bytes, ways: usize) -> Option<Vec<(usize, usize)>> {
    let mut steps: Vec<Step> = Vec::new();
    let mut at: Vec<Vec<Way>> = vec![Vec::new(); sequence.len() + 1];
    at[0].push(Way {
        kept: 0,
        time: 0.0,
        changes: 0,
        last: usize::MAX,
    });
    for (place, choices) in sequence.iter().enumerate() {
        for way in best(std::mem::take(&mut at[place]), ways) {
            for (number, choice) in choices.iter().enumerate() {
                let Some(arrived) = at.get_mut(choice.next) else {
                    continue;
                };
                if way.kept + choice.needs > limit {
                    continue;
                }
                steps.push(Step {
                    place,
                    choice: number,
                    before: way.last,
                });
                arrived.push(Way {
                    kept: way.kept + choice.kept,
                    time: way.time + choice.time,
                    changes: way.changes + u32::from(number > 0),
                    last: steps.len() - 1,
                });
            }
        }
    }
    let by_time = |a: &Way, b: &Way| (a.time.total_cmp(&b.time)).then(a.changes.cmp(&b.changes));
    let mut last = at.pop()?.into_iter().min_by(by_time)?.last;
    let mut taken = Vec::new();
    while let Some(step) = steps.get(last) {
        taken.push((step.place, step.choice));
        last = step.before;
    }
    taken.reverse();
    Some(taken)
}

/// Those of the ways to a place that no other beats in both bytes and time; of more than `most` the quickest of those that leave
/// about as much.
fn best(mut ways: Vec<Way>, most: usize) -> Vec<Way> {
    ways.sort_by(|a, b| {
        // Of equal ones the first, which has changed something earlier.
        (a.kept.cmp(&b.kept))
            .then(a.time.total_cmp(&b.time))
            .then(a.changes.cmp(&b.changes))
    });
    let mut quickest = f64::INFINITY;
    ways.retain(|way| {
        let better = way.time < quickest;
        quickest = quickest.min(way.time);
        better
    });
    if ways.len() > most {
        let least = ways.first().map_or(0, |way| way.kept);
        let width = ways.last().map_or(0, |way| way.kept - least) / most as Bytes + 1;
        // The last of each is the quickest; the one that leaves least stays.
        let mut index = 0;
        let numbers: Vec<Bytes> = ways.iter().map(|way| (way.kept - least) / width).collect();
        ways.retain(|_| {
            index += 1;
            index == 1 || numbers.get(index) != numbers.get(index - 1)
        });
    }
    ways
}

/// The bytes that each place of a list has, with quick sums of the first ones.
struct Sums(Vec<Bytes>);

impl Sums {
    fn add(&mut self, place: usize, bytes: Bytes) {
        let mut at = place + 1;
        while let Some(sum) = self.0.get_mut(at - 1) {
            *sum += bytes;
            at += at & at.wrapping_neg();
        }
    }

    /// The sum of the places before this one.
    fn before(&self, place: usize) -> Bytes {
        let mut at = place.min(self.0.len());
        let mut sum = 0;
        while at > 0 {
            sum += self.0.get(at - 1).copied().unwrap_or(0);
            at &= at - 1;
        }
        sum
    }
}

/// A module that was called.
#[derive(Default)]
struct Part<'a> {
    module: &'a str,
    /// The place of the module around its first call.
    around: Option<usize>,
    /// The first place behind all that is inside of it.
    next: usize,
    /// By backward pass, as a module may be called for several: bytes that wait for it.
    waiting: HashMap<usize, Waiting>,
    /// The most that is there while its backward pass runs, without what parts before it have kept; without its own, too.
    most: Bytes,
    most_moved: Bytes,
    /// The most that is there besides all that waits for a backward pass, while it is the last part that something waits of.
    besides: Bytes,
    /// What computing all of it again takes.
    again: Load,
    /// Recomputing what it makes: the modules, and the bytes by pass.
    unit: Option<(Vec<String>, HashMap<usize, Bytes>, Load)>,
}

#[derive(Default, Clone, Copy)]
struct Waiting {
    /// Made by itself, not by what is inside of it.
    own: Bytes,
    /// All of it.
    all: Bytes,
    /// Its results.
    results: Bytes,
    /// What it is given, and nobody else keeps; or a module beside it, whose result may be computed again.
    taken: Bytes,
}

impl Part<'_> {
    fn waiting(&self, of: impl Fn(&Waiting) -> Bytes) -> Bytes {
        self.waiting.values().map(of).max().unwrap_or(0)
    }
}

/// The parts of a draft's sequence.
fn parts<'a>(draft: &Draft<'a>) -> Vec<Part<'a>> {
    let (model, template) = (draft.model, &draft.template);
    let (mut parts, mut places): (Vec<Part<'_>>, HashMap<&str, usize>) = Default::default();
    let mut place_of = vec![usize::MAX; model.calls.len()];
    for (number, call) in model.calls.iter().enumerate().skip(1) {
        if call.module.is_empty() {
            continue;
        }
        let place = *places.entry(&call.module).or_insert_with(|| {
            parts.push(Part {
                module: &call.module,
                around: place_of
                    .get(call.parent as usize)
                    .copied()
                    .filter(|&at| at < parts.len()),
                ..Part::default()
            });
            parts.len() - 1
        });
        place_of[number] = place;
    }
    let around = |parts: &[Part<'_>], place: usize| {
        let above = |&place: &usize| parts.get(place).and_then(|part| part.around);
        std::iter::successors(Some(place), above).collect::<Vec<_>>()
    };
    for place in 0..parts.len() {
        let mut next = place + 1;
        while next < parts.len() && around(&parts, next).contains(&place) {
            next += 1;
        }
        parts[place].next = next;
    }
    let (_, positions) = blocks::find(draft, &[]);
    let mut owners: HashMap<u32, u32> = HashMap::default();
    for unit in recompute::units(draft) {
        let Some(&place) = unit
            .modules
            .first()
            .and_then(|name| places.get(name.as_str()))
        else {
            continue;
        };
        owners.extend(unit.tensors.iter().copied());
        parts[place].unit = Some((unit.modules, HashMap::default(), unit.load));
    }
    // What waits, and whose it is.
    let mut waits: HashMap<u32, (usize, Bytes)> = HashMap::default();
    let mut made: HashMap<u32, (usize, Bytes)> = HashMap::default();
    for (at, event) in template.body.iter().enumerate() {
        let Event::Alloc(number) = *event else {
            continue;
        };
        let Some(tensor) = template.tensors.get(number as usize) else {
            continue;
        };
        let kept = matches!(
            tensor.category,
            Category::Activation | Category::Temporary | Category::Unknown
        );
        if tensor.phase == Phase::Forward && kept {
            made.insert(number, (at, tensor.bytes as Bytes));
        }
        if tensor.phase != Phase::Forward
            || !kept
            || !positions.waits(number, at)
            || is_cast_of_weight(model, tensor)
        {
            continue;
        }
        let (pass, bytes) = (positions.backward_after(at), tensor.bytes as Bytes);
        let unit = owners.get(&number).copied();
        let mut call = unit.unwrap_or(tensor.call);
        let Some(&owner) = place_of
            .get(call as usize)
            .filter(|&&place| place < parts.len())
        else {
            continue;
        };
        waits.insert(number, (owner, bytes));
        if let (Some(_), Some((_, dropped, _))) = (unit, &mut parts[owner].unit) {
            *dropped.entry(pass).or_default() += bytes;
        }
        parts[owner].waiting.entry(pass).or_default().own += bytes;
        while let Some(around) = model.calls.get(call as usize).filter(|_| call != 0) {
            if let Some(part) = parts.get_mut(place_of[call as usize]) {
                let waiting = part.waiting.entry(pass).or_default();
                waiting.all += bytes;
                if around.outputs.contains(&number) {
                    waiting.results += bytes;
                }
            }
            call = around.parent;
        }
    }
    // What a call is given stays for it until it is computed again, although nobody else may have kept it.
    for (number, call) in model.calls.iter().enumerate().skip(1) {
        let Some(&place) = place_of.get(number).filter(|&&place| place < parts.len()) else {
            continue;
        };
        let inputs: HashSet<u32> = call.inputs.iter().copied().collect();
        for input in inputs {
            let Some(&(at, bytes)) = made.get(&input) else {
                continue;
            };
            let is_kept = waits.get(&input).is_some_and(|(owner, _)| {
                !owners.contains_key(&input) || parts[*owner].around != parts[place].around
            });
            if !is_kept {
                let pass = positions.backward_after(at);
                parts[place].waiting.entry(pass).or_default().taken += bytes;
            }
        }
    }
    moments(draft, &mut parts, &waits, &place_of, &around);
    // Those that are as deep as each other lie beside each other.
    let mut levels: BTreeMap<usize, Vec<String>> = BTreeMap::new();
    for place in 0..parts.len() {
        let level = levels.entry(around(&parts, place).len()).or_default();
        level.push(parts[place].module.to_owned());
    }
    for modules in levels.values() {
        for (call, load) in checkpoint::loads(draft, modules) {
            if let Some(part) = parts.get_mut(place_of[call as usize]) {
                part.again.add(load);
            }
        }
    }
    parts
}

/// What is there at each moment of a step besides what waits.
fn moments<'a>(
    draft: &Draft<'a>,
    parts: &mut [Part<'a>],
    waits: &HashMap<u32, (usize, Bytes)>,
    place_of: &[usize],
    around: &impl Fn(&[Part<'_>], usize) -> Vec<usize>,
) {
    let template = &draft.template;
    let mut there = Sums(vec![0; parts.len()]);
    let mut last: BTreeMap<usize, Bytes> = BTreeMap::new();
    // The parts around what the backward pass is at.
    let mut at = Vec::new();
    let curve = play::curve(template);
    for (event, live) in template.body.iter().zip(curve) {
        let (number, sign) = match *event {
            Event::Alloc(number) => (number, 1),
            Event::Free(number) => (number, -1),
            _ => continue,
        };
        if let Some(&(place, bytes)) = waits.get(&number) {
            there.add(place, sign * bytes);
            let left = last.entry(place).or_default();
            *left += sign * bytes;
            if *left <= 0 {
                last.remove(&place);
            }
        }
        if let (1, Some(tensor)) = (sign, template.tensors.get(number as usize)) {
            match (tensor.phase, place_of.get(tensor.call as usize)) {
                (Phase::Backward, Some(&place)) if place < parts.len() => at = around(parts, place),
                (Phase::Backward, _) => {}
                _ => at.clear(),
            }
        }
        let live = live as Bytes;
        let all = there.before(parts.len());
        if let Some(part) = last
            .last_key_value()
            .and_then(|(&place, _)| parts.get_mut(place))
        {
            part.besides = part.besides.max(live - all);
        }
        for &place in &at {
            let part = &mut parts[place];
            let own = there.before(part.next) - there.before(place);
            let most = live - there.before(place);
            part.most = part.most.max(most);
            part.most_moved = part
                .most_moved
                .max(most - own + own.min(2 * IN_FLIGHT as Bytes));
        }
    }
}

/// Levers for some modules, by how much they leave: each list saves more than the one before. Those of the first list of lists take
/// copies to the host to be next to free, those of the second to take the link's time, those of the third do without. `permits` says
/// whether a lever may be used for a module, both by name.
pub fn fronts(draft: &Draft<'_>, permits: &dyn Fn(&str, &str) -> bool) -> Vec<Vec<Vec<Lever>>> {
    if !draft.model.trains || draft.model.facts.compiled {
        return Vec::new();
    }
    let parts = parts(draft);
    let mut fronts: Vec<Vec<Vec<Lever>>> = Vec::new();
    for price in LINK {
        let front = front(draft, &parts, price, permits);
        if !front.is_empty() && !fronts.contains(&front) {
            fronts.push(front);
        }
    }
    fronts
}

/// What a choice does, and to which modules.
enum Deed {
    Keep,
    Recompute(Vec<String>),
    Checkpoint(String),
    Offload(String),
}

fn front(
    draft: &Draft<'_>,
    parts: &[Part<'_>],
    price: f64,
    permits: &dyn Fn(&str, &str) -> bool,
) -> Vec<Vec<Lever>> {
    let (mut choices, deeds): (Vec<_>, Vec<_>) = (0..parts.len())
        .map(|place| choices(draft, parts, place, price, permits))
        .map(|found| found.into_iter().unzip::<_, _, Vec<Choice>, Vec<Deed>>())
        .unzip();
    let needs = |part: &Part<'_>| part.most.max(part.besides);
    let whole = play::curve(&draft.template).into_iter().max().unwrap_or(0) as Bytes;
    let whole = whole.max(parts.iter().map(needs).max().unwrap_or(0));
    let (mut least, mut enough) = (0, whole);
    while enough - least > whole / 1000 + 1 {
        let limit = Bytes::midpoint(least, enough);
        match cheapest(&choices, limit, FEW_WAYS) {
            Some(_) => enough = limit,
            None => least = limit,
        }
    }
    let levers = |taken: Vec<(usize, usize)>| {
        levers(
            taken
                .iter()
                .filter_map(|&(place, choice)| deeds.get(place)?.get(choice)),
        )
    };
    let mut front: Vec<Vec<Lever>> = Vec::new();
    for step in (0..LIMITS).rev() {
        let limit = enough + (whole - enough) * step / LIMITS;
        let Some(taken) = cheapest(&choices, limit, WAYS) else {
            continue;
        };
        let levers = levers(taken);
        if !levers.is_empty() && front.last() != Some(&levers) {
            front.push(levers);
        }
    }
    // Beyond, what keeps least at all, in case more is there at some moment than was thought.
    for choice in choices.iter_mut().flatten() {
        choice.time += choice.kept as f64 * KEEPS_LEAST;
    }
    for step in [LIMITS / 4, LIMITS / 8, 0] {
        let limit = enough + (whole - enough) * step / LIMITS;
        let least = cheapest(&choices, limit, WAYS).map(&levers);
        front.extend(least.filter(|least| front.last() != Some(least)));
    }
    front
}

/// What may be done at a place.
fn choices(
    draft: &Draft<'_>,
    parts: &[Part<'_>],
    place: usize,
    price: f64,
    permits: &dyn Fn(&str, &str) -> bool,
) -> Vec<(Choice, Deed)> {
    let part = &parts[place];
    let time = |load: Load| load.busy + HIDDEN * load.host(draft.pace());
    let own = part.waiting(|waiting| waiting.own);
    let keep = Choice {
        next: place + 1,
        kept: own,
        needs: part.besides + own,
        time: 0.0,
    };
    let mut found = vec![(keep, Deed::Keep)];
    let whole = |name: &str| permits(name, part.module);
    if let Some((modules, dropped, load)) = &part.unit {
        let bytes = dropped.values().copied().max().unwrap_or(0);
        if bytes > 0 && modules.iter().all(|module| permits("recompute", module)) {
            let choice = Choice {
                next: place + 1,
                kept: own - bytes,
                needs: part.most.max(part.besides + own - bytes),
                time: time(*load),
            };
            found.push((choice, Deed::Recompute(modules.clone())));
        }
    }
    let results = part.waiting(|waiting| waiting.results + waiting.taken);
    let gained = part.waiting(|waiting| waiting.all - waiting.results - waiting.taken);
    // One operator that keeps little beside its result is not worth a lever.
    let least = if part.next == place + 1 { results } else { 0 };
    if part.around.is_none() || gained < least.max(LEAST_BYTES as Bytes) {
        return found;
    }
    let besides = parts[place..part.next]
        .iter()
        .map(|part| part.besides)
        .max()
        .unwrap_or(0);
    let mut add = |needs: Bytes, time: f64, deed: Deed| {
        let choice = Choice {
            next: part.next,
            kept: results,
            needs: needs.max(besides + results),
            time,
        };
        found.push((choice, deed));
    };
    if whole("checkpoint") {
        let time = time(part.again);
        add(part.most, time, Deed::Checkpoint(part.module.to_owned()));
    }
    if price.is_finite() && whole("offload_activations") {
        let moved: Bytes = part
            .waiting
            .values()
            .map(|waiting| waiting.all - waiting.results)
            .sum();
        let link = 2.0 * moved as f64 / draft.pace().link_bytes_per_s * 1e9;
        add(
            part.most_moved,
            price * link,
            Deed::Offload(part.module.to_owned()),
        );
    }
    found
}

/// The levers that do all that, without what lies inside of other modules of theirs.
fn levers<'d>(deeds: impl Iterator<Item = &'d Deed>) -> Vec<Lever> {
    let (mut again, mut inside, mut moved) = (Vec::new(), Vec::new(), Vec::new());
    for deed in deeds {
        match deed {
            Deed::Keep => {}
            Deed::Recompute(modules) => again.extend(modules.iter().cloned()),
            Deed::Checkpoint(module) => inside.push(module.clone()),
            Deed::Offload(module) => moved.push(module.clone()),
        }
    }
    let blocks: HashSet<String> = inside.iter().chain(&moved).cloned().collect();
    let mut seen = HashSet::default();
    for modules in [&mut again, &mut inside, &mut moved] {
        modules.retain(|module| {
            !units::ancestors(module).any(|above| blocks.contains(above))
                && seen.insert(module.clone())
        });
    }
    let levers: [Lever; 3] = [
        Recompute { modules: again }.into(),
        Checkpoint { modules: inside }.into(),
        OffloadActivations { modules: moved }.into(),
    ];
    let names_any = |lever: &mut Lever| {
        lever
            .modules_mut()
            .is_some_and(|modules| !modules.is_empty())
    };
    let mut levers = levers.to_vec();
    levers.retain_mut(names_any);
    levers
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Sequences of some places, each with choices that go one to three places on.
    fn sequences(places: std::ops::Range<usize>) -> impl Strategy<Value = Vec<Vec<Choice>>> {
        let choice = (1..4_usize, -3..20_i64, 0..20_i64, 0..50_u32);
        let choices = prop::collection::vec(choice, 1..4);
        prop::collection::vec(choices, places).prop_map(|sequence| {
            let end = sequence.len();
            let of = |(place, choices): (usize, Vec<(usize, i64, i64, u32)>)| {
                let of =
                    |(number, (next, kept, needs, time)): (usize, (usize, Bytes, Bytes, u32))| {
                        // The first choice goes to the next place and costs nothing, as keeping does.
                        let first = number == 0;
                        Choice {
                            next: (place + if first { 1 } else { next }).min(end),
                            kept,
                            needs: kept.max(needs),
                            time: if first { 0.0 } else { f64::from(time) },
                        }
                    };
                choices.into_iter().enumerate().map(of).collect()
            };
            sequence.into_iter().enumerate().map(of).collect()
        })
    }

    /// The time of the way that takes the least, of all there are.
    fn by_trying_all(
        sequence: &[Vec<Choice>],
        limit: Bytes,
        place: usize,
        kept: Bytes,
    ) -> Option<f64> {
        let Some(choices) = sequence.get(place) else {
            return Some(0.0);
        };
        let goes = choices.iter().filter(|choice| kept + choice.needs <= limit);
        goes.filter_map(|choice| {
            let rest = by_trying_all(sequence, limit, choice.next, kept + choice.kept)?;
            Some(choice.time + rest)
        })
        .min_by(f64::total_cmp)
    }

    /// The time of a way, if it stays below a limit.
    fn time(sequence: &[Vec<Choice>], limit: Bytes, taken: &[(usize, usize)]) -> Option<f64> {
        let (mut at, mut kept, mut time) = (0, 0, 0.0);
        for &(place, choice) in taken {
            let choice = sequence.get(place)?.get(choice)?;
            if place != at || kept + choice.needs > limit {
                return None;
            }
            (at, kept, time) = (choice.next, kept + choice.kept, time + choice.time);
        }
        (at == sequence.len()).then_some(time)
    }

    proptest! {
        #[test]
        fn no_other_way_takes_less_time(sequence in sequences(1..9), limit in 0..90_i64) {
            let found = cheapest(&sequence, limit, WAYS);
            let known = by_trying_all(&sequence, limit, 0, 0);
            prop_assert_eq!(found.is_some(), known.is_some());
            if let (Some(found), Some(known)) = (found, known) {
                prop_assert!((time(&sequence, limit, &found).unwrap() - known).abs() < 1e-9);
            }
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: 8, ..ProptestConfig::default() })]

        /// What is lost where ways are dropped: no way through, and a percent of the time.
        #[test]
        fn few_ways_are_as_good_as_all_to_a_percent(sequence in sequences(60..120), part in 2..9_i64) {
            let most: Bytes = sequence.iter().filter_map(|choices| choices.first()).map(|choice| choice.kept.max(0)).sum();
            let limit = 20 + most * part / 10;
            let few = cheapest(&sequence, limit, 100).and_then(|taken| time(&sequence, limit, &taken));
            let all = cheapest(&sequence, limit, usize::MAX).and_then(|taken| time(&sequence, limit, &taken));
            prop_assert_eq!(few.is_some(), all.is_some());
            if let (Some(few), Some(all)) = (few, all) {
                prop_assert!(few <= all * 1.01 + 1.0, "{few} {all}");
            }
        }
    }

    /// Of blocks that are alike those that come first, whose bytes are there for longest.
    #[test]
    fn of_equal_ways_the_one_that_changes_early_is_taken() {
        let block = |place: usize| {
            let choice = |kept, needs, time| Choice {
                next: place + 1,
                kept,
                needs,
                time,
            };
            vec![choice(10, 10, 0.0), choice(1, 10, 5.0)]
        };
        let sequence: Vec<_> = (0..4).map(block).collect();
        let taken = cheapest(&sequence, 31, WAYS).unwrap();
        assert_eq!(taken, [(0, 1), (1, 0), (2, 0), (3, 0)]);
        assert!(cheapest(&sequence, 9, WAYS).is_none());
    }
}
