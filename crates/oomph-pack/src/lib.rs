//! Packs samples of different lengths into batches under a memory budget.
//!
//! It shuffles samples, splits them into windows, and sorts each window by length: neighbours are
//! similar, so there is little padding, and with windows much larger than a batch the order stays random.
//! Runs of neighbours become batches as large as the budget allows. Batches are distributed to ranks in
//! groups of similar cost, one batch per rank, and the groups are shuffled: all ranks have the same
//! number of batches and wait little for each other.
//!
//! The same arguments give the same batches on every machine.

use rayon::prelude::*;

/// What a batch may hold.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Budget {
    /// Cost of one unit of length of one (padded) sample, such as bytes a token.
    pub linear: f64,
    /// Cost of the square of a sample's padded length.
    pub quadratic: f64,
    /// The most that the samples of a batch may cost.
    pub limit: f64,
    /// The most samples in a batch.
    pub max_samples: usize,
}

impl Budget {
    /// Cost of `count` samples padded to `length`.
    pub fn cost(&self, count: usize, length: u32) -> f64 {
        let length = f64::from(length);
        count as f64 * (self.linear * length + self.quadratic * length * length)
    }

    fn fits(&self, count: usize, length: u32) -> bool {
        count <= self.max_samples && self.cost(count, length) <= self.limit
    }
}

/// In which order samples and batches come.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Order {
    /// Whether to shuffle; otherwise samples are sorted by length in windows as they come.
    pub shuffle: bool,
    /// Samples to a window; 0 for one window over all.
    pub window: usize,
    /// Whether the costliest batches come first: memory runs out in the first step or never.
    pub largest_first: bool,
    /// For how many ranks the batches are.
    pub ranks: usize,
    /// What the shuffling follows.
    pub seed: u64,
}

/// Batches as columns: batch `i` of all is `samples[ends[i - 1]..ends[i]]`. Batch `step * ranks +
/// rank` is the one of `rank` in `step`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Batches {
    /// Positions in the given lengths.
    pub samples: Vec<u32>,
    /// Where each batch ends.
    pub ends: Vec<u32>,
}

/// Why lengths cannot be packed.
#[derive(Debug, Clone, Copy, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A sample that is too large by itself.
    #[error(
        "sample {index} of length {length} costs {cost} by itself, above the budget of {limit}"
    )]
    TooLong {
        /// Its position.
        index: usize,
        /// Its length.
        length: u32,
        /// What it would cost.
        cost: f64,
        /// The budget.
        limit: f64,
    },
    /// More samples than positions can number.
    #[error("{0} samples exceed the limit of {max}", max = u32::MAX)]
    TooMany(usize),
    /// A rank would go without.
    #[error("{samples} samples are too few for {ranks} ranks")]
    TooFew {
        /// How many there are.
        samples: usize,
        /// How many are needed.
        ranks: usize,
    },
    /// A number that makes no sense.
    #[error("{0} must be positive")]
    NotPositive(&'static str),
}

/// Packs samples of `lengths` into batches, the same number for each rank; every sample is in
/// exactly one.
pub fn pack(lengths: &[u32], budget: Budget, order: Order) -> Result<Batches, Error> {
    check(lengths, budget, order)?;
    let mut samples: Vec<u32> = (0..lengths.len() as u32).collect();
    let mut random = Random(order.seed);
    if order.shuffle {
        shuffle(&mut samples, &mut random);
    }
    let window = if order.window == 0 {
        samples.len().max(1)
    } else {
        order.window
    };
    samples.par_chunks_mut(window).for_each(|window| {
        // Keys beside the positions: sorting must not look lengths up all over memory.
        let mut keyed: Vec<u64> = window
            .iter()
            .map(|&sample| u64::from(lengths[sample as usize]) << 32 | u64::from(sample))
            .collect();
        keyed.sort_unstable();
        for (slot, key) in window.iter_mut().zip(keyed) {
            *slot = key as u32;
        }
    });
    let mut runs = cut(&samples, lengths, budget, window);
    split_to_multiple(&mut runs, order.ranks);
    if runs.is_empty() {
        return Ok(Batches {
            samples: Vec::new(),
            ends: Vec::new(),
        });
    }
    Ok(deal(&samples, lengths, budget, runs, order, &mut random))
}

fn check(lengths: &[u32], budget: Budget, order: Order) -> Result<(), Error> {
    if lengths.len() > u32::MAX as usize {
        return Err(Error::TooMany(lengths.len()));
    }
    if order.ranks == 0 {
        return Err(Error::NotPositive("the number of ranks"));
    }
    if budget.max_samples == 0 {
        return Err(Error::NotPositive("the largest number of samples"));
    }
    if budget.limit.is_nan() || budget.limit <= 0.0 {
        return Err(Error::NotPositive("the budget"));
    }
    if !(budget.linear >= 0.0 && budget.quadratic >= 0.0 && budget.linear + budget.quadratic > 0.0)
    {
        return Err(Error::NotPositive("the cost of a sample"));
    }
    if !lengths.is_empty() && lengths.len() < order.ranks {
        return Err(Error::TooFew {
            samples: lengths.len(),
            ranks: order.ranks,
        });
    }
    let longest = lengths.iter().copied().enumerate().max_by_key(|&(_, l)| l);
    if let Some((index, length)) = longest
        && !budget.fits(1, length)
    {
        return Err(Error::TooLong {
            index,
            length,
            cost: budget.cost(1, length),
            limit: budget.limit,
        });
    }
    Ok(())
}

/// Cuts each sorted window into runs that fit: (start, end) in `samples`.
fn cut(samples: &[u32], lengths: &[u32], budget: Budget, window: usize) -> Vec<(u32, u32)> {
    samples
        .par_chunks(window)
        .enumerate()
        .flat_map_iter(|(number, window_samples)| {
            let base = number * window;
            let mut runs = Vec::new();
            let mut start = 0;
            for (at, &sample) in window_samples.iter().enumerate() {
                // Ascending, so this sample's length is what the run would be padded to.
                if at > start && !budget.fits(at + 1 - start, lengths[sample as usize]) {
                    runs.push(((base + start) as u32, (base + at) as u32));
                    start = at;
                }
            }
            if start < window_samples.len() {
                runs.push(((base + start) as u32, (base + window_samples.len()) as u32));
            }
            runs
        })
        .collect()
}

/// Halves the runs with most samples until there is a batch for every rank in every step: no sample
/// is dropped or repeated. There are at least as many samples as ranks.
fn split_to_multiple(runs: &mut Vec<(u32, u32)>, ranks: usize) {
    let mut missing = runs.len().next_multiple_of(ranks) - runs.len();
    if missing == 0 {
        return;
    }
    let mut by_count: std::collections::BinaryHeap<(u32, usize)> = runs
        .iter()
        .enumerate()
        .map(|(index, &(start, end))| (end - start, index))
        .collect();
    while missing > 0 {
        let Some((count, index)) = by_count.pop() else {
            return;
        };
        if count < 2 {
            // Only single samples are left: more than a multiple is not to be had, so join none
            // and leave whole steps only. Unreachable with at least `ranks` samples and runs.
            break;
        }
        let (start, end) = runs[index];
        let middle = start + count / 2;
        runs[index] = (start, middle);
        runs.push((middle, end));
        by_count.push((middle - start, index));
        by_count.push((end - middle, runs.len() - 1));
        missing -= 1;
    }
    runs.truncate(runs.len() / ranks * ranks);
}

/// Groups runs of like cost, one for each rank, and puts the groups in their order.
fn deal(
    samples: &[u32],
    lengths: &[u32],
    budget: Budget,
    runs: Vec<(u32, u32)>,
    order: Order,
    random: &mut Random,
) -> Batches {
    let mut priced: Vec<(f64, u32, u32)> = runs
        .into_par_iter()
        .map(|(start, end)| {
            let longest = lengths[samples[end as usize - 1] as usize];
            (budget.cost((end - start) as usize, longest), start, end)
        })
        .collect();
    if order.ranks > 1 || order.largest_first {
        priced.par_sort_unstable_by(|a, b| b.0.total_cmp(&a.0).then(a.1.cmp(&b.1)));
    }
    let mut groups: Vec<u32> = (0..(priced.len() / order.ranks) as u32).collect();
    if order.shuffle {
        let first = usize::from(order.largest_first).min(groups.len());
        shuffle(&mut groups[first..], random);
    }
    let mut batches = Batches {
        samples: Vec::with_capacity(samples.len()),
        ends: Vec::with_capacity(priced.len()),
    };
    for group in groups {
        let first = group as usize * order.ranks;
        for &(_, start, end) in &priced[first..first + order.ranks] {
            batches
                .samples
                .extend_from_slice(&samples[start as usize..end as usize]);
            batches.ends.push(batches.samples.len() as u32);
        }
    }
    batches
}

/// Steele, Lea and Flood's SplitMix64: small, and good enough to shuffle with.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ (z >> 31)
    }

    /// A number below `bound`, by Lemire's multiplication; its bias is below 2^-32.
    fn below(&mut self, bound: usize) -> usize {
        ((u128::from(self.next()) * bound as u128) >> 64) as usize
    }
}

fn shuffle(items: &mut [u32], random: &mut Random) {
    for at in (1..items.len()).rev() {
        items.swap(at, random.below(at + 1));
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const TOKENS: Budget = Budget {
        linear: 1.0,
        quadratic: 0.0,
        limit: 1000.0,
        max_samples: usize::MAX,
    };
    const ORDER: Order = Order {
        shuffle: true,
        window: 64,
        largest_first: false,
        ranks: 1,
        seed: 3,
    };

    fn batches(packed: &Batches) -> Vec<&[u32]> {
        let mut start = 0;
        packed
            .ends
            .iter()
            .map(|&end| {
                let batch = &packed.samples[start..end as usize];
                start = end as usize;
                batch
            })
            .collect()
    }

    proptest! {
        #[test]
        fn every_sample_once_within_budget_and_the_same_number_a_rank(
            lengths in prop::collection::vec(1_u32..900, 8..400), ranks in 1_usize..5, seed: u64,
            shuffle: bool, largest_first: bool, window in 0_usize..100, max_samples in 1_usize..40,
            quadratic in 0.0..0.001_f64,
        ) {
            let budget = Budget { limit: 2000.0, quadratic, max_samples, ..TOKENS };
            let order = Order { shuffle, window, largest_first, ranks, seed };
            let packed = pack(&lengths, budget, order).unwrap();
            prop_assert_eq!(&packed, &pack(&lengths, budget, order).unwrap());
            let all = batches(&packed);
            prop_assert_eq!(all.len() % ranks, 0);
            for batch in &all {
                let longest = batch.iter().map(|&s| lengths[s as usize]).max().unwrap();
                prop_assert!(budget.fits(batch.len(), longest));
            }
            let mut seen = packed.samples.clone();
            seen.sort_unstable();
            let dropped = lengths.len() - seen.len();
            seen.dedup();
            prop_assert_eq!(seen.len() + dropped, lengths.len());
            // Only batches of one sample each leave nothing to split.
            if dropped > 0 {
                prop_assert!(dropped < ranks && all.iter().all(|b| b.len() == 1));
            }
        }
    }

    #[test]
    fn largest_first_is_the_costliest() {
        let lengths: Vec<u32> = (1..500).collect();
        let order = Order {
            largest_first: true,
            ..ORDER
        };
        let packed = pack(&lengths, TOKENS, order).unwrap();
        let cost = |b: &[u32]| {
            TOKENS.cost(
                b.len(),
                b.iter().map(|&s| lengths[s as usize]).max().unwrap(),
            )
        };
        let all = batches(&packed);
        assert!(all.iter().all(|batch| cost(batch) <= cost(all[0])));
    }

    #[test]
    fn windows_pad_little() {
        let mut random = Random(1);
        let lengths: Vec<u32> = (0..20_000).map(|_| 1 + random.below(500) as u32).collect();
        let waste = |window| {
            let order = Order { window, ..ORDER };
            let packed = pack(&lengths, TOKENS, order).unwrap();
            let padded: usize = batches(&packed)
                .iter()
                .map(|b| b.len() * b.iter().map(|&s| lengths[s as usize]).max().unwrap() as usize)
                .sum();
            let real: usize = lengths.iter().map(|&l| l as usize).sum();
            1.0 - real as f64 / padded as f64
        };
        assert!(
            waste(1) < 1e-9 && waste(4096) < 0.03,
            "{} {}",
            waste(1),
            waste(4096)
        );
    }

    #[test]
    fn what_cannot_be_packed() {
        let long = pack(&[5, 1001], TOKENS, ORDER).unwrap_err();
        assert!(long.to_string().contains("sample 1 of length 1001"));
        let order = Order { ranks: 3, ..ORDER };
        assert_eq!(
            pack(&[5, 5], TOKENS, order).unwrap_err(),
            Error::TooFew {
                samples: 2,
                ranks: 3
            }
        );
        let free = Budget {
            linear: 0.0,
            ..TOKENS
        };
        assert!(pack(&[5], free, ORDER).is_err());
        assert!(
            pack(
                &[5],
                Budget {
                    limit: f64::NAN,
                    ..TOKENS
                },
                ORDER
            )
            .is_err()
        );
        assert!(pack(&[], TOKENS, ORDER).unwrap().ends.is_empty());
    }
}
