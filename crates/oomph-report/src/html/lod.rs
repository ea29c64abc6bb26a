//! The level of detail: a history of millions of moments as a few thousand buckets per level.
//!
//! A bucket keeps what was alive at the moment of its highest total, by category, phase and group,
//! so that no peak is lost by zooming out and what is stacked always adds up; and the lowest total,
//! so that what stays between steps can be seen too.

/// What a change of memory belongs to, one index per way of stacking.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Keys {
    /// Index into the categories.
    pub category: u8,
    /// Index into the phases.
    pub phase: u8,
    /// Index into the groups.
    pub group: u8,
}

/// A change of memory. Moments never decrease from one change to the next.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Change {
    /// The moment from which on it holds.
    pub moment: u32,
    /// Bytes that came or went.
    pub bytes: i64,
    /// To what they belong.
    pub keys: Keys,
}

/// How many series each way of stacking has.
#[derive(Debug, Clone, Copy)]
pub struct Widths {
    /// Categories.
    pub categories: usize,
    /// Phases.
    pub phases: usize,
    /// Groups.
    pub groups: usize,
}

impl Widths {
    /// All series: categories first, then phases, then groups.
    pub const fn total(self) -> usize {
        self.categories + self.phases + self.groups
    }

    fn apply(self, series: &mut [i64], change: &Change) {
        let keys = change.keys;
        let places = [
            usize::from(keys.category),
            self.categories + usize::from(keys.phase),
            self.categories + self.phases + usize::from(keys.group),
        ];
        for place in places {
            if let Some(slot) = series.get_mut(place) {
                *slot += change.bytes;
            }
        }
    }
}

/// One level: buckets of `span` moments each.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Level {
    /// Moments per bucket.
    pub span: u32,
    /// The highest total of each bucket, in bytes.
    pub high: Vec<u64>,
    /// The lowest.
    pub low: Vec<u64>,
    /// The most that was reserved.
    pub reserved: Vec<u64>,
    /// What was alive at the highest, series by series: categories, phases, groups.
    pub series: Vec<Vec<u64>>,
}

/// Buckets of the finest level at most.
const FINEST: u32 = 1 << 15;
/// Finer than this, the page reads the blocks themselves.
const SMALLEST_SPAN: u32 = 8;
/// Buckets of one level that become one bucket of the next.
const FACTOR: usize = 4;
/// A level of no more buckets than this is the last.
const COARSEST: usize = 1024;

/// The levels of a history of `moments` moments (0 to `moments`), finest first.
///
/// `base` holds the series before the first change; `reserved` is (moment, bytes from then on) in
/// the order of moments.
pub fn levels(
    moments: u32,
    base: &[i64],
    changes: impl Iterator<Item = Change> + Clone,
    reserved: &[(u32, u64)],
    widths: Widths,
) -> Vec<Level> {
    let span = (moments.saturating_add(1).div_ceil(FINEST))
        .next_power_of_two()
        .max(SMALLEST_SPAN);
    let mut levels = vec![finest(span, moments, base, changes, reserved, widths)];
    while let Some(last) = levels.last()
        && last.high.len() > COARSEST
    {
        let next = coarser(last);
        levels.push(next);
    }
    levels
}

fn finest(
    span: u32,
    moments: u32,
    base: &[i64],
    changes: impl Iterator<Item = Change> + Clone,
    reserved: &[(u32, u64)],
    widths: Widths,
) -> Level {
    let buckets = (moments / span) as usize + 1;
    let start: i64 = base.iter().take(widths.categories).sum();
    let (mut high, mut low) = (vec![0_i64; buckets], vec![0_i64; buckets]);
    // How many changes were made when the bucket's highest total was reached.
    let mut at = vec![0_usize; buckets];
    let mut total = start;
    let mut entered = 0;
    let mut enter = |bucket: usize, total: i64, made: usize, high: &mut [i64], low: &mut [i64]| {
        for new in entered..=bucket.min(buckets - 1) {
            high[new] = total;
            low[new] = total;
            at[new] = made;
        }
        entered = entered.max(bucket + 1);
    };
    let mut reached: Vec<(usize, usize)> = Vec::new();
    let mut index = 0;
    let mut coming = changes.clone().peekable();
    while let Some(first) = coming.peek().copied() {
        let bucket = ((first.moment / span) as usize).min(buckets - 1);
        // What holds at a moment is known once all changes of the moment are made; a bucket's
        // first moment may itself bring a change.
        if first.moment % span != 0 {
            enter(bucket, total, index, &mut high, &mut low);
        } else if bucket > 0 {
            enter(bucket - 1, total, index, &mut high, &mut low);
        }
        while let Some(change) = coming.next_if(|change| change.moment == first.moment) {
            total += change.bytes;
            index += 1;
        }
        enter(bucket, total, index, &mut high, &mut low);
        if total > high[bucket] {
            high[bucket] = total;
            reached.push((bucket, index));
        }
        low[bucket] = low[bucket].min(total);
    }
    enter(buckets - 1, total, index, &mut high, &mut low);
    for (bucket, made) in reached {
        at[bucket] = made;
    }
    // Once more, to see what was alive at each bucket's highest.
    let mut series = vec![vec![0_u64; buckets]; widths.total()];
    let mut now = base.to_vec();
    now.resize(widths.total(), 0);
    let mut made = 0;
    let mut changes = changes;
    for (bucket, &until) in at.iter().enumerate() {
        for change in changes.by_ref().take(until.saturating_sub(made)) {
            widths.apply(&mut now, &change);
        }
        made = made.max(until);
        for (column, &bytes) in series.iter_mut().zip(&now) {
            column[bucket] = bytes.max(0) as u64;
        }
    }
    Level {
        span,
        reserved: reserved_by_bucket(span, buckets, reserved),
        high: high.into_iter().map(|bytes| bytes.max(0) as u64).collect(),
        low: low.into_iter().map(|bytes| bytes.max(0) as u64).collect(),
        series,
    }
}

fn reserved_by_bucket(span: u32, buckets: usize, reserved: &[(u32, u64)]) -> Vec<u64> {
    let mut most = vec![0; buckets];
    let (mut now, mut next) = (0, 0);
    for (bucket, slot) in most.iter_mut().enumerate() {
        let (begin, end) = (
            bucket as u32 * span,
            (bucket as u32 + 1).saturating_mul(span),
        );
        *slot = now;
        while let Some(&(moment, bytes)) = reserved.get(next)
            && moment < end
        {
            if moment == begin {
                *slot = bytes;
            }
            *slot = (*slot).max(bytes);
            now = bytes;
            next += 1;
        }
    }
    most
}

fn coarser(level: &Level) -> Level {
    let best: Vec<usize> = (0..level.high.len())
        .step_by(FACTOR)
        .map(|start| {
            let end = (start + FACTOR).min(level.high.len());
            // The first of equals.
            (start..end)
                .rev()
                .max_by_key(|&bucket| level.high[bucket])
                .unwrap_or(start)
        })
        .collect();
    let pick = |column: &[u64]| best.iter().map(|&bucket| column[bucket]).collect();
    Level {
        span: level.span.saturating_mul(FACTOR as u32),
        high: pick(&level.high),
        low: level
            .low
            .chunks(FACTOR)
            .map(|chunk| chunk.iter().copied().min().unwrap_or(0))
            .collect(),
        reserved: level
            .reserved
            .chunks(FACTOR)
            .map(|chunk| chunk.iter().copied().max().unwrap_or(0))
            .collect(),
        series: level.series.iter().map(|column| pick(column)).collect(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const WIDTHS: Widths = Widths {
        categories: 3,
        phases: 2,
        groups: 1,
    };

    /// Every moment's series, without any cleverness.
    fn every_moment(moments: u32, base: &[i64], changes: &[Change]) -> Vec<Vec<i64>> {
        let mut now = base.to_vec();
        (0..=moments)
            .map(|moment| {
                for change in changes.iter().filter(|change| change.moment == moment) {
                    WIDTHS.apply(&mut now, change);
                }
                now.clone()
            })
            .collect()
    }

    fn check(moments: u32, base: &[i64], changes: &[Change]) {
        let every = every_moment(moments, base, changes);
        let total = |series: &[i64]| series.iter().take(WIDTHS.categories).sum::<i64>();
        for level in levels(moments, base, changes.iter().copied(), &[], WIDTHS) {
            for (bucket, moments) in every.chunks(level.span as usize).enumerate() {
                let high = moments.iter().map(|series| total(series)).max().unwrap();
                let low = moments.iter().map(|series| total(series)).min().unwrap();
                assert_eq!(level.high[bucket] as i64, high, "bucket {bucket}");
                assert_eq!(level.low[bucket] as i64, low, "bucket {bucket}");
                let kept: Vec<i64> = level.series.iter().map(|s| s[bucket] as i64).collect();
                assert!(
                    moments
                        .iter()
                        .any(|series| total(series) == high && *series == kept),
                    "bucket {bucket}: {kept:?}"
                );
            }
        }
    }

    #[test]
    fn a_bucket_holds_what_was_alive_at_its_highest() {
        // A small generator of numbers is enough to reach every case.
        let mut state = 9_u64;
        let mut next = move |below: u64| {
            state = state
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1);
            (state >> 33) % below
        };
        for round in 0..40 {
            let base = [round * 3, 5, 0, round * 3 + 5, 0, round * 3 + 5];
            let mut moment = 0;
            let mut made: Vec<Change> = Vec::new();
            let mut changes = Vec::new();
            for _ in 0..200 + round * 40 {
                moment += [0, 1, 1, 1, 2, 30][next(6) as usize];
                let change = if next(2) == 0 && !made.is_empty() {
                    let gone = made.swap_remove(next(made.len() as u64) as usize);
                    Change {
                        bytes: -gone.bytes,
                        ..gone
                    }
                } else {
                    let change = Change {
                        moment,
                        bytes: 1 + next(1000) as i64,
                        keys: Keys {
                            category: next(3) as u8,
                            phase: next(2) as u8,
                            group: 0,
                        },
                    };
                    made.push(change);
                    change
                };
                changes.push(Change { moment, ..change });
            }
            check(moment + 3, &base, &changes);
        }
    }

    #[test]
    fn nothing_is_a_history_too() {
        check(0, &[0; 6], &[]);
        check(100, &[4, 0, 0, 4, 0, 4], &[]);
    }

    #[test]
    fn reserved_holds_until_it_changes() {
        let levels = levels(
            40,
            &[0; 6],
            std::iter::empty(),
            &[(3, 10), (8, 4), (30, 9)],
            WIDTHS,
        );
        assert_eq!(levels[0].reserved, [10, 4, 4, 9, 9, 9]);
    }

    #[test]
    fn long_histories_have_few_buckets() {
        let levels = levels(5_000_000, &[0; 6], std::iter::empty(), &[], WIDTHS);
        let counts: Vec<usize> = levels.iter().map(|level| level.high.len()).collect();
        assert!(counts[0] <= FINEST as usize, "{counts:?}");
        assert!(*counts.last().unwrap() <= COARSEST, "{counts:?}");
    }
}
