//! The rhythm of a job: its kernels repeat, step by step. Learned from what is launched.

use std::collections::{BTreeMap, HashMap};

/// What was launched since the net watches, and which addresses each launch was given.
#[derive(Debug, Default)]
pub struct Log {
    /// What each launch was.
    pub signatures: Vec<u64>,
    /// Whether each launch reads its input more than once.
    pub rereads: Vec<bool>,
    /// Where each launch's addresses begin in `addresses`.
    starts: Vec<usize>,
    addresses: Vec<u64>,
}

impl Log {
    /// A launch, before its addresses.
    pub fn launch(&mut self, signature: u64, rereads: bool) {
        self.signatures.push(signature);
        self.rereads.push(rereads);
        self.starts.push(self.addresses.len());
    }

    /// An address that the last launch was given.
    pub fn address(&mut self, at: u64) {
        if !self.starts.is_empty() {
            self.addresses.push(at);
        }
    }

    pub fn len(&self) -> usize {
        self.signatures.len()
    }

    /// The addresses of launch `index`.
    pub fn addresses(&self, index: usize) -> &[u64] {
        let end = self
            .starts
            .get(index + 1)
            .copied()
            .unwrap_or(self.addresses.len());
        &self.addresses[self.starts[index]..end]
    }

    /// Forgets the first `count` launches.
    pub fn forget(&mut self, count: usize) {
        let first = self
            .starts
            .get(count)
            .copied()
            .unwrap_or(self.addresses.len());
        self.signatures.drain(..count);
        self.rereads.drain(..count);
        self.starts.drain(..count);
        self.addresses.drain(..first);
        for start in &mut self.starts {
            *start -= first;
        }
    }
}

/// So many launches at least must repeat what came a step before, if all that was seen does.
const ENOUGH: usize = 256;

/// The lengths of at least `least` after which the end of `signatures` repeats what came before, shortest
/// first: the last that many launches are those before them, or all that were seen are, they are [`ENOUGH`] and no layers.
pub fn periods(signatures: &[u64], least: usize) -> Vec<usize> {
    // How far the text agrees with itself from each place (the Z function), read from its end.
    let count = signatures.len();
    let at = |index: usize| signatures[count - 1 - index];
    let mut agrees = vec![0; count];
    let (mut left, mut right) = (0, 0);
    for index in 1..count {
        let mut length = if index < right {
            (right - index).min(agrees[index - left])
        } else {
            0
        };
        while index + length < count && at(length) == at(index + length) {
            length += 1;
        }
        agrees[index] = length;
        if index + length > right {
            (left, right) = (index, index + length);
        }
    }
    // Of layers alike, lengths that are off by a layer repeat what was seen, too: it must be more than these.
    let all = |length: usize| {
        let seen = count - length;
        agrees[length] == seen
            && seen >= ENOUGH.max(length / 8)
            && (1..=seen / 2).all(|layer| agrees[layer] < seen - layer)
    };
    (least.max(1)..count)
        .filter(|&length| agrees[length] >= length || all(length))
        .collect()
}

/// Where a job is in its step.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Place {
    /// At this launch of the step.
    At(usize),
    /// This launch is not of the step.
    Elsewhere,
    /// The job does something else now.
    Lost,
}

/// How many launches in a row decide where a job is.
const GRAM: usize = 4;

/// Follows a job through the step that it repeats.
#[derive(Debug)]
pub struct Follower {
    step: Vec<u64>,
    /// Which launches each row of [`GRAM`] ends with.
    grams: HashMap<[u64; GRAM], Vec<usize>>,
    recent: [u64; GRAM],
    next: usize,
    /// Launches in a row that are not of the step.
    astray: usize,
    /// Four for each launch lately that was not the next one, less one for each that was.
    leaps: usize,
}

impl Follower {
    /// The job has just ended `step`, and begins it anew.
    pub fn new(step: Vec<u64>) -> Self {
        let mut grams: HashMap<_, Vec<usize>> = HashMap::new();
        let count = step.len();
        for last in 0..count {
            let gram =
                std::array::from_fn(|at| step[(last + count * GRAM + at + 1 - GRAM) % count]);
            grams.entry(gram).or_default().push(last);
        }
        Self {
            step,
            grams,
            recent: [0; GRAM],
            next: 0,
            astray: 0,
            leaps: 0,
        }
    }

    pub fn len(&self) -> usize {
        self.step.len()
    }

    /// The next launch.
    pub fn launch(&mut self, signature: u64) -> Place {
        self.recent.rotate_left(1);
        self.recent[GRAM - 1] = signature;
        let expected = self.step[self.next] == signature;
        if expected && self.astray == 0 {
            self.leaps = self.leaps.saturating_sub(1);
            return self.found(self.next);
        }
        let count = self.step.len();
        let ahead = |&at: &usize| (at + count - self.next) % count;
        let candidates = self.grams.get(&self.recent);
        let nearest = candidates.and_then(|all| all.iter().copied().min_by_key(ahead));
        self.astray += 1;
        self.leaps += 4;
        // A job may do something else now and then. What looked like a step may be one of its layers.
        if self.astray > 32 + count / 8 || self.leaps > 256 + count / 2 {
            return Place::Lost;
        }
        nearest.map_or(Place::Elsewhere, |at| self.found(at))
    }

    fn found(&mut self, at: usize) -> Place {
        self.astray = 0;
        self.next = (at + 1) % self.step.len();
        Place::At(at)
    }
}

/// Cuts a step into `count` windows in which about as many bytes are touched; where each begins.
pub fn windows(touched: &[u64], count: usize) -> Vec<usize> {
    let total: u64 = touched.iter().sum::<u64>().max(1);
    let mut begins = vec![0];
    let mut sum = 0;
    for (launch, &bytes) in touched.iter().enumerate() {
        let due = u128::from(total) * begins.len() as u128 / count.max(1) as u128;
        if begins.len() < count && u128::from(sum) >= due && launch > *begins.last().unwrap_or(&0) {
            begins.push(launch);
        }
        sum += bytes;
    }
    begins
}

/// The pointers that launches were given, and when.
#[derive(Debug, Default)]
pub struct Pointers(BTreeMap<u64, Vec<usize>>);

impl Pointers {
    /// Launch `launch` was given `at`. Launches come in order.
    pub fn note(&mut self, at: u64, launch: usize) {
        self.0.entry(at).or_default().push(launch);
    }

    /// Where ends what a pointer stands for, which nobody says: where something else begins about then, at
    /// least `near` bytes further on, or at `end`, the end of its segment. What begins there at another time
    /// has its place then, and not now.
    pub fn end(&self, at: u64, launch: usize, near: u64, end: u64) -> u64 {
        const THEN: usize = 24;
        let (from, to) = (launch.saturating_sub(THEN), launch + THEN);
        self.0
            .range(at.saturating_add(near)..end.max(at.saturating_add(near)))
            .find(|(_, launches)| {
                let first = launches.partition_point(|&other| other < from);
                launches.get(first).is_some_and(|&other| other <= to)
            })
            .map_or(end, |(&other, _)| other)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_step_is_found_among_its_layers() {
        // A step of one launch, four equal layers of three, and two.
        let step: Vec<u64> = [9]
            .into_iter()
            .chain([1, 2, 3].repeat(4))
            .chain([7, 8])
            .collect();
        let log: Vec<u64> = [5, 5, 6].into_iter().chain(step.repeat(3)).collect();
        assert_eq!(periods(&log, 1), [step.len()]);
        // In the middle of a step the layers repeat too.
        let inside = &log[..log.len() - 2];
        assert_eq!(periods(inside, 1), [3, 6, step.len()]);
        assert_eq!(periods(inside, 7), [step.len()]);
    }

    /// Layers alike make lengths that are a layer shorter or longer look right, as long as little is seen.
    #[test]
    fn a_step_is_found_soon_after_it_begins_anew() {
        let layers = (10..30).collect::<Vec<u64>>().repeat(40);
        let step: Vec<u64> = [1, 2].into_iter().chain(layers).chain(3..400).collect();
        let twice = step.repeat(2);
        for (first, known_after) in [(0, ENOUGH), (200, 603), (400, 403), (900, ENOUGH)] {
            let found: Vec<usize> = (step.len()..twice.len() - first)
                .filter(|&count| {
                    let found = periods(&twice[first..first + count], 850);
                    assert!(
                        found.iter().all(|&length| length == step.len()),
                        "{first} {count} {found:?}"
                    );
                    !found.is_empty()
                })
                .collect();
            assert_eq!(found.first(), Some(&(step.len() + known_after)), "{first}");
        }
    }

    #[test]
    fn a_launch_more_or_less_is_no_loss() {
        let step: Vec<u64> = (0..40).collect();
        let mut follower = Follower::new(step.clone());
        for &signature in &step {
            assert_eq!(follower.launch(signature), Place::At(signature as usize));
        }
        // One that is not of the step, one that is missing.
        assert_eq!(follower.launch(77), Place::Elsewhere);
        for signature in (0..40).filter(|&signature| signature != 20) {
            let place = follower.launch(signature);
            let near_a_gap = signature < 3 || (21..24).contains(&signature);
            assert!(
                place == Place::At(signature as usize) || near_a_gap && place == Place::Elsewhere
            );
        }
        for _ in 0..37 {
            assert_ne!(follower.launch(99), Place::Lost);
        }
        assert_eq!(follower.launch(99), Place::Lost);
    }

    #[test]
    fn a_layer_that_was_taken_for_the_step_is_given_up() {
        // Layers alike, and others like them that lead elsewhere: each launch is known, but not in this order.
        let layer: Vec<u64> = (0..40).collect();
        let backward: Vec<u64> = layer.chunks(5).rev().flatten().copied().collect();
        let mut follower = Follower::new(layer.clone());
        let mut lost = false;
        for &signature in layer.repeat(4).iter().chain(&backward.repeat(8)) {
            lost |= follower.launch(signature) == Place::Lost;
        }
        assert!(lost);
    }

    #[test]
    fn a_pointer_ends_where_something_else_begins_at_that_time() {
        let mut pointers = Pointers::default();
        for (at, launch) in [
            (1000, 0),
            (1000, 100),
            (1010, 100),
            (1500, 101),
            (1700, 0),
            (3000, 100),
        ] {
            pointers.note(at, launch);
        }
        // Of what begins inside, 1500 comes later, 1010 is too near, and 3000 is of another segment.
        assert_eq!(pointers.end(1000, 0, 100, 2000), 1700);
        assert_eq!(pointers.end(1000, 100, 100, 2000), 1500);
        assert_eq!(pointers.end(1500, 101, 100, 2000), 2000);
        assert_eq!(pointers.end(1700, 0, 500, 2000), 2000);
    }

    proptest! {
        #[test]
        fn periods_are_those_that_a_search_finds(log in proptest::collection::vec(0..3_u64, 0..60)) {
            let count = log.len();
            let slow: Vec<usize> = (1..=count / 2)
                .filter(|&length| log[count - length..] == log[count - 2 * length..count - length])
                .collect();
            prop_assert_eq!(periods(&log, 1), slow);
        }

        #[test]
        fn windows_begin_in_order(touched in proptest::collection::vec(0..100_u64, 1..200), count in 1..40_usize) {
            let begins = windows(&touched, count);
            prop_assert_eq!(begins[0], 0);
            prop_assert!(begins.len() <= count && begins.windows(2).all(|pair| pair[0] < pair[1]));
            prop_assert!(*begins.last().unwrap_or_else(|| panic!("one at least")) < touched.len());
        }
    }
}
