//! What becomes of the activations of each part of a job's recorded sequence: kept, computed again, or moved to the host.
//!
//! Places are the modules that were called, in the order of their first calls, each followed by those inside of it. At a place what
//! the module makes itself is kept, and it goes on with what is inside; or a lever's `Segment` is taken, which goes on behind the
//! module where it covers all that is inside. A choice has a price in time, leaves bytes behind for the backward pass, and needs
//! some at once besides what those before it have left: what comes later in the forward pass is gone when its backward pass comes.
//! `cheapest` finds the choices that take the least time and stay below a limit at each moment, by dynamic programming. The
//! search plays what it finds like any other plan.

use std::collections::BTreeMap;

use rustc_hash::{FxHashMap as HashMap, FxHashSet as HashSet};

use oomph_trace::{Category, Phase};

use crate::blocks::{self, Block, is_cast_of_weight};
use crate::draft::{Draft, Load};
use crate::levers::{KINDS, Kind, Lever};
use crate::model::{Event, Model};
use crate::units::{HOST_SHARE, ancestors};

/// Less is not worth a change.
const LEAST_BYTES: Bytes = 1 << 20;
/// Limits for which the cheapest choices are looked for, from all that is kept to as little as can be.
const LIMITS: Bytes = 24;
/// Ways that are followed at a time. Of those that leave about as much the quickest is.
const WAYS: usize = 128;
/// What the link's time counts for: next to nothing, as where passes hide it. Without it nothing is moved.
const LINK: [Option<f64>; 2] = [Some(0.05), None];

/// Bytes; of those that wait at a place fewer may be there than were taken from it.
type Bytes = i64;

/// What a lever does for a module, or for some that only help together.
#[derive(Debug, Clone, Default)]
pub(crate) struct Segment {
    /// The modules, the first of them the one whose place it takes.
    pub(crate) modules: Vec<String>,
    /// Whether it covers all that is inside of the first one.
    pub(crate) is_whole: bool,
    /// Tensors that no longer wait for the backward pass.
    pub(crate) dropped: Vec<u32>,
    /// The most bytes of them that are there at once in the module's own backward pass; `None` for all.
    pub(crate) at_once: Option<u64>,
    /// Work that it adds.
    pub(crate) load: Load,
    /// Nanoseconds of the link to the host.
    pub(crate) link: f64,
}

/// The called modules by how many others are around their first calls: those of a list lie beside each other.
pub(crate) fn levels(model: &Model) -> Vec<Vec<String>> {
    let mut seen = HashSet::default();
    let mut depths = vec![0_usize; model.calls.len()];
    let mut levels: BTreeMap<usize, Vec<String>> = BTreeMap::new();
    for (number, call) in model.calls.iter().enumerate().skip(1) {
        depths[number] = depths
            .get(call.parent as usize)
            .map_or(1, |above| above + 1);
        if !call.module.is_empty() && seen.insert(&call.module) {
            let level = levels.entry(depths[number]).or_default();
            level.push(call.module.clone());
        }
    }
    levels.into_values().collect()
}

/// A segment for each module whose calls are among `blocks`, in which all goes that they save inside of themselves.
pub(crate) fn whole(
    draft: &Draft<'_>,
    blocks: &[Block],
    load: impl Fn(&Block) -> Load,
) -> Vec<Segment> {
    let mut found: Vec<Segment> = Vec::new();
    let mut places: HashMap<&str, usize> = HashMap::default();
    for block in blocks {
        let Some(call) = draft.model.calls.get(block.call as usize) else {
            continue;
        };
        let place = *places.entry(&call.module).or_insert_with(|| {
            found.push(Segment {
                modules: vec![call.module.clone()],
                is_whole: true,
                ..Segment::default()
            });
            found.len() - 1
        });
        let goes = |number: &u32| !call.outputs.contains(number) && !block.casts.contains(number);
        let saved = block.saved.iter().copied();
        found[place].dropped.extend(saved.filter(goes));
        found[place].load.add(load(block));
    }
    found
}

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

/// Choices that lead to a place.
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
/// those with the fewest changes, as early as possible. With more than `ways` to a place, ways are dropped: then others may be
/// quicker, but none at a limit that is lower by a `ways`th of what is kept, times the places.
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
                if way.kept + choice.needs > limit {
                    continue;
                }
                steps.push(Step {
                    place,
                    choice: number,
                    before: way.last,
                });
                at[choice.next].push(Way {
                    kept: way.kept + choice.kept,
                    time: way.time + choice.time,
                    changes: way.changes + u32::from(number > 0),
                    last: steps.len() - 1,
                });
            }
        }
    }
    let by_time = |a: &Way, b: &Way| a.time.total_cmp(&b.time).then(a.changes.cmp(&b.changes));
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
/// about as much, and the one that leaves least.
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
        let group = |way: &Way| (way.kept - least) / width;
        // The last of a group is its quickest.
        let last_of_each = ways
            .chunk_by(|a, b| group(a) == group(b))
            .map(<[Way]>::last);
        let last_of_each: Vec<Way> = last_of_each.flatten().copied().collect();
        ways.truncate(1);
        ways.extend(last_of_each);
    }
    ways
}

/// The bytes that each place of a list has, with quick sums of the first ones (a Fenwick tree).
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
            sum += self.0[at - 1];
            at &= at - 1;
        }
        sum
    }
}

/// Bytes by the backward pass that they wait for: a module may be called for several.
type Waiting = HashMap<usize, Bytes>;

fn most(waiting: &Waiting) -> Bytes {
    waiting.values().copied().max().unwrap_or(0)
}

/// A module that was called.
#[derive(Default)]
struct Place {
    /// The places of the modules around its first call, and its own.
    around: Vec<usize>,
    /// The first place behind all that is inside of it.
    next: usize,
    /// What it makes itself and what all inside of it does.
    own: Waiting,
    all: Waiting,
    /// What it is given and nobody else keeps, or a module beside it, whose result may be computed again.
    taken: Waiting,
    /// The most that is there while its backward pass runs, without what places before it have kept; and without its own, too.
    most: Bytes,
    bare: Bytes,
    /// The most that is there besides all that waits for a backward pass, while it is the last place that something waits of.
    besides: Bytes,
    segments: Vec<(&'static Kind, Segment)>,
}

/// A tensor that waits for a backward pass: the place that it is of, its bytes, and the pass.
#[derive(Clone, Copy)]
struct Saved {
    place: usize,
    bytes: Bytes,
    pass: usize,
}

/// The recorded sequence of a draft.
struct Recorded {
    places: Vec<Place>,
    saved: HashMap<u32, Saved>,
    /// The most bytes at all.
    peak: Bytes,
}

impl Recorded {
    /// The sequence, with the segments that `permits` lets a lever have, both by name.
    fn new(draft: &Draft<'_>, permits: &dyn Fn(&str, &str) -> bool) -> Self {
        let model = draft.model;
        let mut places: Vec<Place> = Vec::new();
        let mut names: HashMap<&str, usize> = HashMap::default();
        let mut of_call: Vec<Option<usize>> = vec![None; model.calls.len()];
        for (number, call) in model.calls.iter().enumerate().skip(1) {
            if call.module.is_empty() {
                continue;
            }
            let above = of_call.get(call.parent as usize).copied().flatten();
            let place = *names.entry(&call.module).or_insert_with(|| {
                let place = places.len();
                let mut around = above.map_or_else(Vec::new, |at| places[at].around.clone());
                around.push(place);
                places.push(Place {
                    around,
                    ..Place::default()
                });
                place
            });
            of_call[number] = Some(place);
        }
        for place in 0..places.len() {
            let behind = |other: &Place| !other.around.contains(&place);
            let next = places.iter().skip(place).position(behind);
            places[place].next = next.map_or(places.len(), |count| place + count);
        }
        // What is computed again on its way to others is its module's.
        let mut owners: HashMap<u32, usize> = HashMap::default();
        for kind in KINDS {
            for segment in (kind.segments)(draft) {
                let first = segment.modules.first();
                let Some(&place) = first.and_then(|name| names.get(name.as_str())) else {
                    continue;
                };
                if !segment.is_whole {
                    owners.extend(segment.dropped.iter().map(|&number| (number, place)));
                }
                if segment
                    .modules
                    .iter()
                    .all(|module| permits(kind.name, module))
                {
                    places[place].segments.push((kind, segment));
                }
            }
        }
        let mut recorded = Self {
            places,
            saved: HashMap::default(),
            peak: 0,
        };
        recorded.wait(draft, &of_call, &owners);
        recorded.moments(draft, &of_call);
        recorded
    }

    /// Finds what waits for backward passes, and for whom.
    fn wait(&mut self, draft: &Draft<'_>, of_call: &[Option<usize>], owners: &HashMap<u32, usize>) {
        let (model, template) = (draft.model, &draft.template);
        let (_, positions) = blocks::find(draft, &[]);
        let mut made: HashMap<u32, (usize, Bytes)> = HashMap::default();
        for (at, event) in template.body.iter().enumerate() {
            let Event::Alloc(number) = *event else {
                continue;
            };
            let tensor = template.tensors.get(number as usize);
            let Some(tensor) = tensor.filter(|tensor| {
                tensor.phase == Phase::Forward
                    && matches!(
                        tensor.category,
                        Category::Activation | Category::Temporary | Category::Unknown
                    )
            }) else {
                continue;
            };
            let (pass, bytes) = (positions.backward_after(at), tensor.bytes as Bytes);
            made.insert(number, (pass, bytes));
            let own = of_call.get(tensor.call as usize).copied().flatten();
            let Some(place) = owners.get(&number).copied().or(own) else {
                continue;
            };
            if !positions.waits(number, at) || is_cast_of_weight(model, tensor) {
                continue;
            }
            self.saved.insert(number, Saved { place, bytes, pass });
            *self.places[place].own.entry(pass).or_default() += bytes;
            for above in self.places[place].around.clone() {
                *self.places[above].all.entry(pass).or_default() += bytes;
            }
        }
        for (call, &place) in model.calls.iter().zip(of_call) {
            let Some(place) = place else { continue };
            let inputs: HashSet<u32> = call.inputs.iter().copied().collect();
            for input in inputs {
                let Some(&(pass, bytes)) = made.get(&input) else {
                    continue;
                };
                let beside = |owner: usize| {
                    let above = |at: usize| self.places[at].around.iter().nth_back(1);
                    above(owner) == above(place)
                };
                let is_kept = (self.saved.get(&input))
                    .is_some_and(|saved| !owners.contains_key(&input) || !beside(saved.place));
                if !is_kept {
                    *self.places[place].taken.entry(pass).or_default() += bytes;
                }
            }
        }
    }

    /// Finds what is there at each moment of a step besides what waits. What is there before it begins is left out.
    fn moments(&mut self, draft: &Draft<'_>, of_call: &[Option<usize>]) {
        let template = &draft.template;
        let count = self.places.len();
        let mut there = Sums(vec![0; count]);
        let mut waiting: BTreeMap<usize, Bytes> = BTreeMap::new();
        // The places around what the backward pass is at.
        let mut at: Vec<usize> = Vec::new();
        let mut live = 0;
        for event in &template.body {
            let (number, sign) = match *event {
                Event::Alloc(number) => (number, 1),
                Event::Free(number) | Event::FreePrevious(number) => (number, -1),
                Event::EmptyCache => continue,
            };
            let Some(tensor) = template.tensors.get(number as usize) else {
                continue;
            };
            live += sign * tensor.bytes as Bytes;
            self.peak = self.peak.max(live);
            if let Some(saved) = self.saved.get(&number) {
                there.add(saved.place, sign * saved.bytes);
                let left = waiting.entry(saved.place).or_default();
                *left += sign * saved.bytes;
                if *left <= 0 {
                    waiting.remove(&saved.place);
                }
            }
            if sign > 0 {
                match (tensor.phase, of_call.get(tensor.call as usize)) {
                    (Phase::Backward, Some(&Some(place))) => {
                        at.clone_from(&self.places[place].around);
                    }
                    (Phase::Backward, _) => {}
                    _ => at.clear(),
                }
            }
            if let Some((&last, _)) = waiting.last_key_value() {
                let besides = &mut self.places[last].besides;
                *besides = (*besides).max(live - there.before(count));
            }
            for &place in &at {
                let next = self.places[place].next;
                let (before, with) = (there.before(place), there.before(next));
                let place = &mut self.places[place];
                place.most = place.most.max(live - before);
                place.bare = place.bare.max(live - with);
            }
        }
    }

    /// What may be done at a place: keep what it makes, or a segment.
    fn choices(
        &self,
        draft: &Draft<'_>,
        place: usize,
        price: Option<f64>,
    ) -> Vec<(Choice, Option<(&'static Kind, &Segment)>)> {
        let at = &self.places[place];
        let own = most(&at.own);
        let keep = Choice {
            next: place + 1,
            kept: own,
            needs: at.besides + own,
            time: 0.0,
        };
        let mut found = vec![(keep, None)];
        for (kind, segment) in &at.segments {
            let next = if segment.is_whole { at.next } else { place + 1 };
            let mut left = if segment.is_whole {
                at.all.clone()
            } else {
                at.own.clone()
            };
            let mut goes = Waiting::default();
            let dropped = segment
                .dropped
                .iter()
                .filter_map(|number| self.saved.get(number));
            for saved in dropped.filter(|saved| (place..next).contains(&saved.place)) {
                *left.entry(saved.pass).or_default() -= saved.bytes;
                *goes.entry(saved.pass).or_default() += saved.bytes;
            }
            if segment.is_whole {
                for (&pass, bytes) in &at.taken {
                    *left.entry(pass).or_default() += bytes;
                }
            }
            let (kept, goes) = (most(&left), most(&goes));
            // One operator that keeps little beside its result is not worth a lever.
            let least = if segment.is_whole && at.next == place + 1 {
                kept
            } else {
                0
            };
            let is_outermost = segment.is_whole && at.around.len() == 1;
            if is_outermost || goes < least.max(LEAST_BYTES) {
                continue;
            }
            let link = match price {
                Some(price) => price * segment.link,
                None if segment.link > 0.0 => continue,
                None => 0.0,
            };
            let inside = self.places[place..next].iter().map(|one| one.besides);
            let besides = inside.max().unwrap_or(0);
            let at_once = segment
                .at_once
                .map_or(at.most, |bytes| at.bare + bytes as Bytes);
            let load = segment.load;
            let choice = Choice {
                next,
                kept,
                needs: at.most.min(at_once).max(besides + kept),
                time: load.busy + HOST_SHARE * load.host(draft.pace()) + link,
            };
            found.push((choice, Some((*kind, segment))));
        }
        found
    }

    /// What is chosen within each of the limits.
    fn front(&self, draft: &Draft<'_>, price: Option<f64>) -> Vec<Vec<Lever>> {
        let (choices, segments): (Vec<Vec<Choice>>, Vec<Vec<_>>) = (0..self.places.len())
            .map(|place| self.choices(draft, place, price).into_iter().unzip())
            .unzip();
        let needs = self
            .places
            .iter()
            .map(|place| place.most.max(place.besides));
        let whole = needs.max().unwrap_or(0).max(self.peak);
        // Whether there is a way at all is known with one to each place: the one that leaves least.
        let (mut least, mut enough) = (0, whole);
        while enough - least > whole / 1000 + 1 {
            let limit = Bytes::midpoint(least, enough);
            match cheapest(&choices, limit, 1) {
                Some(_) => enough = limit,
                None => least = limit,
            }
        }
        let mut front: Vec<Vec<Lever>> = Vec::new();
        for step in (0..LIMITS).rev() {
            let limit = enough + (whole - enough) * step / LIMITS;
            let Some(taken) = cheapest(&choices, limit, WAYS) else {
                continue;
            };
            let taken = taken
                .iter()
                .filter_map(|&(place, choice)| segments[place][choice]);
            let chosen = levers(taken);
            if !chosen.is_empty() && front.last() != Some(&chosen) {
                front.push(chosen);
            }
        }
        front
    }
}

/// The levers of segments, without modules that lie inside of others that are whole.
fn levers<'s>(segments: impl Iterator<Item = (&'static Kind, &'s Segment)>) -> Vec<Lever> {
    let mut by_kind: Vec<(&Kind, Vec<String>)> = Vec::new();
    let mut wholes: HashSet<&str> = HashSet::default();
    for (kind, segment) in segments {
        if segment.is_whole {
            wholes.extend(segment.modules.iter().map(String::as_str));
        }
        let modules = segment.modules.iter().cloned();
        match by_kind.iter_mut().find(|one| one.0.name == kind.name) {
            Some((_, known)) => known.extend(modules),
            None => by_kind.push((kind, modules.collect())),
        }
    }
    let mut seen = HashSet::default();
    let lever = |(kind, mut modules): (&Kind, Vec<String>)| {
        modules.retain(|module| {
            !ancestors(module).any(|above| wholes.contains(above)) && seen.insert(module.clone())
        });
        if modules.is_empty() {
            None
        } else {
            (kind.of_modules)(modules)
        }
    };
    by_kind.into_iter().filter_map(lever).collect()
}

/// Levers for modules, by how much they leave: each list leaves less than the one before. Those of the first list take copies to
/// the host to be next to free, those of the second do without. `permits` says whether a lever may be used for a module, both by
/// name.
pub fn fronts(draft: &Draft<'_>, permits: &dyn Fn(&str, &str) -> bool) -> Vec<Vec<Vec<Lever>>> {
    if !draft.model.trains || draft.model.facts.compiled {
        return Vec::new();
    }
    let recorded = Recorded::new(draft, permits);
    let mut fronts: Vec<Vec<Vec<Lever>>> = Vec::new();
    for price in LINK {
        let front = recorded.front(draft, price);
        if !front.is_empty() && !fronts.contains(&front) {
            fronts.push(front);
        }
    }
    fronts
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Sequences of some places, each with choices that go one to three places on; bytes in units of `unit`.
    fn sequences(
        places: std::ops::Range<usize>,
        unit: Bytes,
    ) -> impl Strategy<Value = Vec<Vec<Choice>>> {
        let choice = (1..4_usize, -3 * unit..20 * unit, 0..20 * unit, 0..50_u32);
        let choices = prop::collection::vec(choice, 1..4);
        prop::collection::vec(choices, places).prop_map(|sequence| {
            let end = sequence.len();
            let of = |(place, choices): (usize, Vec<(usize, Bytes, Bytes, u32)>)| {
                // The first choice goes to the next place and costs nothing, as keeping does.
                let of =
                    |(number, (next, kept, needs, time)): (usize, (_, Bytes, Bytes, u32))| Choice {
                        next: (place + if number == 0 { 1 } else { next }).min(end),
                        kept,
                        needs: kept.max(needs),
                        time: if number == 0 { 0.0 } else { f64::from(time) },
                    };
                choices.into_iter().enumerate().map(of).collect()
            };
            sequence.into_iter().enumerate().map(of).collect()
        })
    }

    /// The least time of all ways that there are.
    fn by_brute_force(
        sequence: &[Vec<Choice>],
        limit: Bytes,
        place: usize,
        kept: Bytes,
    ) -> Option<f64> {
        let Some(choices) = sequence.get(place) else {
            return Some(0.0);
        };
        let possible = choices.iter().filter(|choice| kept + choice.needs <= limit);
        possible
            .filter_map(|choice| {
                let rest = by_brute_force(sequence, limit, choice.next, kept + choice.kept)?;
                Some(choice.time + rest)
            })
            .min_by(f64::total_cmp)
    }

    /// The time of what was taken; `None` if it leaves out a place or exceeds the limit.
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
        fn what_is_chosen_is_within_the_limit_and_nothing_that_is_takes_less_time(
            sequence in sequences(1..9, 1),
            limit in 0..90_i64,
        ) {
            let found = cheapest(&sequence, limit, WAYS);
            let known = by_brute_force(&sequence, limit, 0, 0);
            prop_assert_eq!(found.is_some(), known.is_some());
            if let (Some(found), Some(known)) = (found, known) {
                let found = time(&sequence, limit, &found);
                prop_assert!(found.is_some_and(|found| (found - known).abs() < 1e-9), "{found:?} {known}");
            }
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: 8, ..ProptestConfig::default() })]

        #[test]
        fn with_few_ways_nothing_is_quicker_at_a_somewhat_lower_limit(
            sequence in sequences(40..80, 1000),
            part in 2..9_i64,
        ) {
            const FEW: usize = 500;
            let sum = |of: fn(Bytes) -> Bytes| -> Bytes {
                let widest = |choices: &Vec<Choice>| choices.iter().map(|choice| of(choice.kept).abs()).max();
                sequence.iter().filter_map(widest).sum()
            };
            let limit = 20_000 + sum(|kept| kept.max(0)) * part / 20;
            let span = sum(|kept| kept.max(0)) + sum(|kept| kept.min(0));
            let lower = limit - (span / FEW as Bytes + 1) * sequence.len() as Bytes;
            let few = cheapest(&sequence, limit, FEW);
            // Whether there is a way at all is known with one to each place.
            prop_assert_eq!(few.is_some(), cheapest(&sequence, limit, 1).is_some());
            let all = cheapest(&sequence, lower, usize::MAX);
            if let Some(all) = all.and_then(|taken| time(&sequence, lower, &taken)) {
                let few = few.and_then(|taken| time(&sequence, limit, &taken));
                prop_assert!(few.is_some_and(|few| few <= all + 1e-9), "{few:?} {all}");
            }
        }
    }

    /// Of blocks that are alike those that come first, whose bytes are there for longest.
    #[test]
    fn of_equal_choices_the_one_that_changes_early_is_taken() {
        let block = |place: usize| {
            let choice = |kept, time| Choice {
                next: place + 1,
                kept,
                needs: 10,
                time,
            };
            vec![choice(10, 0.0), choice(1, 5.0)]
        };
        let sequence: Vec<_> = (0..4).map(block).collect();
        let taken = cheapest(&sequence, 31, WAYS);
        assert_eq!(taken, Some(vec![(0, 1), (1, 0), (2, 0), (3, 0)]));
        assert!(cheapest(&sequence, 9, WAYS).is_none());
    }
}
