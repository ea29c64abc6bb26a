//! A distributed job: each rank's figures, which rank differs from the others, and which made them fail.

use std::collections::BTreeMap;

use serde::Serialize;

use crate::record::{Blame, Record};
use crate::summary::{Peak, Summary, Verdict};

/// The result of one rank.
#[derive(Debug, Clone, Serialize, schemars::JsonSchema)]
pub struct RankSummary {
    /// Its rank in the whole job.
    pub rank: u32,
    /// How it ended.
    pub verdict: Verdict,
    /// Whether its launcher ended it because another rank failed.
    pub terminated: bool,
    /// The GPU that it used most.
    pub device: Option<u32>,
    /// The peak amounts.
    pub peak: Peak,
    /// Bytes at the peak by what they hold.
    pub by_category: BTreeMap<&'static str, u64>,
    /// Steps that it made.
    pub step_count: u32,
    /// How it failed, if it did.
    pub failure: Option<String>,
    /// The lever that it ended by, if it knows.
    #[serde(skip)]
    pub blame: Option<Blame>,
    /// Its directory inside the run's, empty if it left none.
    pub directory: String,
}

/// A rank that differs from the others.
#[derive(Debug, Clone, Serialize, schemars::JsonSchema)]
pub struct Outlier {
    /// Its rank.
    pub rank: u32,
    /// Its peak minus the median peak of all ranks.
    pub difference_bytes: i64,
    /// By what it holds, the largest difference first.
    pub by_category: Vec<Difference>,
}

/// A part of a difference.
#[derive(Debug, Clone, Serialize, schemars::JsonSchema)]
pub struct Difference {
    /// What is held.
    pub name: &'static str,
    /// The difference from the median rank.
    pub bytes: i64,
}

/// The rank that made the others fail.
#[derive(Debug, Clone, Serialize, schemars::JsonSchema)]
pub struct Culprit {
    /// Its rank.
    pub rank: u32,
    /// `out_of_memory`, `failed`, `ended`, `stuck`, `circle` or `mismatch`.
    pub kind: String,
    /// What happened.
    #[serde(rename = "failure")]
    pub what: String,
}

impl Culprit {
    /// What happened, with the rank's name.
    pub fn sentence(&self) -> String {
        if self.kind == "out_of_memory" {
            format!("rank {} ran out of memory", self.rank)
        } else if self.what.starts_with("rank ") {
            self.what.clone()
        } else {
            format!("rank {}: {}", self.rank, self.what)
        }
    }
}

impl RankSummary {
    /// What `summary` says of `record`'s rank, whose directory has this name.
    pub fn new(rank: u32, record: &Record, summary: &Summary, directory: String) -> Self {
        Self {
            rank,
            verdict: summary.verdict,
            terminated: record.outcome.kind == "terminated",
            device: record.busiest().map(|device| device.index),
            peak: summary.peak,
            by_category: summary.by_category.clone(),
            step_count: summary.step_count,
            failure: summary.failure.clone(),
            blame: record.outcome.blame.clone(),
            directory,
        }
    }
}

/// The rank whose peak is furthest from the median, if the difference matters.
pub fn outlier(ranks: &[RankSummary]) -> Option<Outlier> {
    /// Differences below this share or this number of bytes do not matter.
    const PART: f64 = 0.01;
    const LEAST: u64 = 16 << 20;
    let mut whole: Vec<&RankSummary> = ranks.iter().filter(|rank| !rank.terminated).collect();
    if whole.len() < 2 {
        return None;
    }
    whole.sort_by_key(|rank| (rank.peak.used_bytes, rank.rank));
    // Of two, the larger one stands out.
    let middle = whole[(whole.len() - 1) / 2];
    let far = |rank: &RankSummary| rank.peak.used_bytes.abs_diff(middle.peak.used_bytes);
    let found = *whole
        .iter()
        .max_by_key(|rank| (far(rank), rank.peak.used_bytes))?;
    let threshold = (middle.peak.used_bytes as f64 * PART) as u64;
    if far(found) <= threshold.max(LEAST) {
        return None;
    }
    let difference = |a: u64, b: u64| a as i64 - b as i64;
    let mut by_category: Vec<Difference> = found
        .by_category
        .iter()
        .map(|(&name, &bytes)| Difference {
            name,
            bytes: difference(bytes, middle.by_category.get(name).copied().unwrap_or(0)),
        })
        .filter(|part| part.bytes.unsigned_abs() > LEAST)
        .collect();
    by_category.sort_by_key(|part| std::cmp::Reverse(part.bytes.unsigned_abs()));
    Some(Outlier {
        rank: found.rank,
        difference_bytes: difference(found.peak.used_bytes, middle.peak.used_bytes),
        by_category,
    })
}

/// Who failed the others. `noted` is what the ranks found when they met.
pub fn culprit(ranks: &[RankSummary], noted: Option<Culprit>) -> Option<Culprit> {
    // Out of memory first: it also leads to all the other kinds.
    let by_memory = ranks
        .iter()
        .find(|rank| rank.verdict == Verdict::OutOfMemory)
        .map(|rank| Culprit {
            rank: rank.rank,
            kind: "out_of_memory".to_owned(),
            what: rank.failure.clone().unwrap_or_default(),
        });
    let by_failure = ranks
        .iter()
        .find(|rank| rank.verdict == Verdict::ScriptFailed && !rank.terminated)
        .map(|rank| Culprit {
            rank: rank.rank,
            kind: "failed".to_owned(),
            what: rank.failure.clone().unwrap_or_default(),
        });
    // Of a rank that died without a report, its launcher knows how; the others only that it is gone.
    let noted = noted.map(|noted| {
        let of = |rank: &&RankSummary| rank.rank == noted.rank && rank.directory.is_empty();
        let how = ranks.iter().find(of).and_then(|rank| rank.failure.clone());
        match how.filter(|_| noted.kind == "ended") {
            Some(what) => Culprit { what, ..noted },
            None => noted,
        }
    });
    by_memory.or(noted).or(by_failure)
}

/// The rank that represents the job: the one that ran out of memory, or the one that needs most.
pub fn spokesman(ranks: &[RankSummary]) -> Option<usize> {
    let short = ranks
        .iter()
        .position(|rank| rank.verdict == Verdict::OutOfMemory);
    short.or_else(|| {
        let most = ranks.iter().map(|rank| rank.peak.used_bytes).max()?;
        ranks.iter().position(|rank| rank.peak.used_bytes == most)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const GIB: u64 = 1 << 30;

    fn rank(rank: u32, gib: u64, verdict: Verdict) -> RankSummary {
        RankSummary {
            rank,
            verdict,
            terminated: false,
            device: Some(rank),
            peak: Peak {
                used_bytes: gib * GIB,
                ..Peak::default()
            },
            by_category: BTreeMap::from([("activations", (gib - 1) * GIB), ("parameters", GIB)]),
            step_count: 1,
            failure: None,
            blame: None,
            directory: String::new(),
        }
    }

    #[test]
    fn one_rank_stands_out_by_what_it_holds() {
        let ranks = [3, 3, 5, 3];
        let ranks: Vec<_> = (0..)
            .zip(ranks)
            .map(|(at, gib)| rank(at, gib, Verdict::Fits))
            .collect();
        let found = outlier(&ranks);
        assert_eq!(found.as_ref().map(|found| found.rank), Some(2));
        let parts = found.map(|found| found.by_category).unwrap_or_default();
        assert_eq!(parts.len(), 1);
        assert_eq!((parts[0].name, parts[0].bytes), ("activations", 2 << 30));
        assert!(outlier(&ranks[..2]).is_none());
        assert_eq!(spokesman(&ranks), Some(2));
    }

    #[test]
    fn memory_is_blamed_before_what_follows_from_it() {
        let mut ranks = vec![
            rank(0, 3, Verdict::ScriptFailed),
            rank(1, 4, Verdict::OutOfMemory),
        ];
        let noted = Some(Culprit {
            rank: 0,
            kind: "ended".to_owned(),
            what: "gone".to_owned(),
        });
        let found = culprit(&ranks, noted.clone());
        assert_eq!(
            found.map(|found| (found.rank, found.kind)),
            Some((1, "out_of_memory".to_owned()))
        );
        assert_eq!(spokesman(&ranks), Some(1));
        ranks.pop();
        assert_eq!(
            culprit(&ranks, noted).map(|found| found.kind),
            Some("ended".to_owned())
        );
        assert_eq!(
            culprit(&ranks, None).map(|found| found.kind),
            Some("failed".to_owned())
        );
    }

    #[test]
    fn a_rank_without_a_report_is_described_by_its_launcher() {
        let killed = "it was killed by SIGSEGV and left no record";
        let mut ranks = vec![
            rank(0, 3, Verdict::ScriptFailed),
            rank(1, 4, Verdict::ScriptFailed),
        ];
        ranks[1].failure = Some(killed.to_owned());
        let noted = Some(Culprit {
            rank: 1,
            kind: "ended".to_owned(),
            what: "rank 1 is gone".to_owned(),
        });
        let sentence =
            |ranks: &[RankSummary]| culprit(ranks, noted.clone()).map(|found| found.sentence());
        assert_eq!(sentence(&ranks), Some(format!("rank 1: {killed}")));
        // One that left a record has told the others how it ended.
        ranks[1].directory = "rank-1".to_owned();
        assert_eq!(sentence(&ranks).as_deref(), Some("rank 1 is gone"));
    }
}
