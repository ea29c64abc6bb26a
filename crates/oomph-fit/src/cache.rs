//! Plans that were found before, and what real runs taught about them: one file for each job.
//!
//! A job is a script with its arguments, the packages, the GPU and what was asked of the search. The memory that
//! is free is no part of it: a plan is used where as much memory is free as it was made for, or a little more,
//! and also where less is free, as long as it needs no more.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

use oomph_plan::PlanFile;
use oomph_run::Record;
use oomph_run::rhythm::Growth;
use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};

use crate::corrections::{self, Free, Planned, RealRun};

/// The version of the file. Another one is planned anew.
pub const FORMAT: &str = "oomph.plans/1";

/// The most plans of a job that are kept, and the most runs that have not ended.
const MOST: usize = 16;
/// Free memory is rounded down to so many parts of the power of two below it.
const PARTS: u64 = 64;
/// A plan that was made for less is taken if it was made for all but so small a part of what there is.
const LITTLE: u64 = 32;

/// Rounds free memory down, by 1.6 % at most: it is never the same twice.
pub fn rounded(free: u64) -> u64 {
    let power = free.checked_ilog2().map_or(1, |power| 1 << power);
    free - free % (power / PARTS).max(1)
}

/// What a plan is made for, besides memory.
#[derive(Debug, Clone, Copy)]
pub struct Subject<'a> {
    /// Where it runs.
    pub directory: &'a Path,
    /// The script and its arguments.
    pub argv: &'a [String],
    /// The digest of the script; empty if it is not known.
    pub script_sha256: &'a str,
    /// The GPU, and how many of it.
    pub gpu: &'a str,
    /// Packages with their versions.
    pub packages: &'a BTreeMap<String, String>,
    /// What else decides about the plan: options, variables of the environment.
    pub options: &'a [(&'a str, String)],
}

impl Subject<'_> {
    /// The name of its file: a digest of all of it.
    pub fn key(&self) -> String {
        let mut hash = Sha256::new();
        // With the length before each text, no two lists of texts are the same bytes.
        let mut add = |text: &[u8]| {
            hash.update((text.len() as u64).to_le_bytes());
            hash.update(text);
        };
        add(FORMAT.as_bytes());
        add(env!("CARGO_PKG_VERSION").as_bytes());
        add(self.directory.as_os_str().as_encoded_bytes());
        add(&(self.argv.len() as u64).to_le_bytes());
        for word in self.argv {
            add(word.as_bytes());
        }
        add(self.script_sha256.as_bytes());
        add(self.gpu.as_bytes());
        add(&(self.packages.len() as u64).to_le_bytes());
        for (name, version) in self.packages {
            add(name.as_bytes());
            add(version.as_bytes());
        }
        for (name, value) in self.options {
            add(name.as_bytes());
            add(value.as_bytes());
        }
        hex(&hash.finalize())
    }
}

/// A digest in hexadecimal.
pub fn digest(bytes: &[u8]) -> String {
    hex(&Sha256::digest(bytes))
}

fn hex(bytes: &[u8]) -> String {
    let mut text = String::new();
    for byte in bytes {
        let _ = write!(text, "{byte:02x}");
    }
    text
}

/// What a search came to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, schemars::JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Answer {
    /// The job fits unchanged.
    AsItIs,
    /// It fits with a plan.
    Planned,
    /// Nothing was found that fits.
    Nothing,
}

/// What a search found.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, schemars::JsonSchema)]
pub struct Entry {
    /// What it came to.
    pub answer: Answer,
    /// The memory that it was made for.
    pub memory_bytes: u64,
    /// The peak of each GPU; where nothing fits, the lowest that was measured.
    pub peak: Planned,
    /// The plan, without levers if none is needed.
    pub plan: PlanFile,
    /// The plan in words.
    pub what: String,
    /// The user's own files that the script imported, and configuration that it read, with their digests.
    pub sources: BTreeMap<PathBuf, String>,
    /// The seconds of `--max-time` that ended the search, if it did.
    pub max_time_seconds: Option<f64>,
    /// What each step of a job that fits at first leaves behind.
    #[serde(default)]
    pub growth: Option<Growth>,
}

/// What there is for a job now.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Room {
    /// What is free, rounded and corrected.
    pub memory_bytes: u64,
    /// What of it is to stay free.
    pub margin_bytes: u64,
    /// The time that a search may take.
    pub max_time: Option<Duration>,
}

impl Room {
    /// What may be used.
    pub fn budget(&self) -> u64 {
        self.memory_bytes.saturating_sub(self.margin_bytes)
    }
}

impl Entry {
    /// Whether it is the answer for this room, too.
    pub fn holds(&self, room: &Room) -> bool {
        // A longer search may find more.
        let is_whole = self.max_time_seconds.is_none_or(|ended| {
            let most = room.max_time.map(|time| time.as_secs_f64());
            most.is_some_and(|most| most <= ended)
        });
        let fits = self.peak.used_bytes <= room.budget();
        let little = room.memory_bytes / LITTLE;
        match self.answer {
            Answer::AsItIs => fits,
            Answer::Planned => is_whole && fits && self.memory_bytes + little >= room.memory_bytes,
            Answer::Nothing => is_whole && !fits && self.memory_bytes >= room.memory_bytes,
        }
    }

    /// The first of its sources that is not as it was.
    fn stale(&self, digest_of: &dyn Fn(&Path) -> Option<String>) -> Option<&Path> {
        let mut sources = self.sources.iter();
        let stale = sources.find(|(path, was)| digest_of(path).as_ref() != Some(was));
        stale.map(|(path, _)| path.as_path())
    }
}

/// A real run that had not ended when this was written.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, schemars::JsonSchema)]
pub struct Started {
    /// The machine and its GPU.
    pub machine: String,
    /// Where its record will be.
    pub directory: PathBuf,
    /// What was free before it, in bytes.
    pub free_bytes: u64,
    /// What was planned for it.
    pub planned: Planned,
}

/// The file of a job.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, schemars::JsonSchema)]
pub struct Kept {
    /// [`FORMAT`].
    pub format: String,
    /// What was found, the newest last.
    pub entries: Vec<Entry>,
    /// Real runs, the newest last.
    pub runs: Vec<RealRun>,
    /// Real runs whose end nobody noted yet.
    pub started: Vec<Started>,
}

impl Default for Kept {
    fn default() -> Self {
        Self {
            format: FORMAT.to_owned(),
            entries: Vec::new(),
            runs: Vec::new(),
            started: Vec::new(),
        }
    }
}

impl Kept {
    /// Reads the text of a file; says in a few words why it cannot.
    pub fn parse(text: &[u8]) -> Result<Self, String> {
        #[derive(Deserialize)]
        struct Stated {
            format: String,
        }
        let wrong = |error: serde_json::Error| error.to_string().replace('\n', " ");
        let stated: Stated = serde_json::from_slice(text).map_err(wrong)?;
        if stated.format != FORMAT {
            return Err(format!("its format is {:?}, not {FORMAT}", stated.format));
        }
        serde_json::from_slice(text).map_err(wrong)
    }

    /// The text of a file.
    pub fn text(&self) -> Vec<u8> {
        // Serializing plain structs of strings and numbers has nothing to fail on.
        serde_json::to_vec_pretty(self).unwrap_or_default()
    }

    /// The answer for this room, if it is known: the job as it is, or the plan that was made for the least
    /// memory that is not less, or else for the most.
    pub fn find(&self, room: &Room, digest_of: &dyn Fn(&Path) -> Option<String>) -> Option<&Entry> {
        let far = |entry: &Entry| match entry.memory_bytes.checked_sub(room.memory_bytes) {
            Some(more) => (0, more),
            None => (1, room.memory_bytes - entry.memory_bytes),
        };
        self.entries
            .iter()
            .filter(|entry| entry.holds(room) && entry.stale(digest_of).is_none())
            .min_by_key(|entry| (entry.answer != Answer::AsItIs, far(entry)))
    }

    /// Adds what a search found, in place of what was known for the same memory and of what is stale.
    pub fn keep(&mut self, entry: Entry, digest_of: &dyn Fn(&Path) -> Option<String>) {
        self.entries.retain(|known| {
            known.memory_bytes != entry.memory_bytes && known.stale(digest_of).is_none()
        });
        self.entries.push(entry);
        let extra = self.entries.len().saturating_sub(MOST);
        self.entries.drain(..extra);
    }

    /// Notes that a real run begins.
    pub fn begins(&mut self, started: Started) {
        self.started
            .retain(|other| other.directory != started.directory);
        self.started.push(started);
        let extra = self.started.len().saturating_sub(MOST);
        self.started.drain(..extra);
    }

    /// Notes what a real run used, which is over.
    pub fn ended(&mut self, directory: &Path, run: Option<RealRun>) {
        self.started.retain(|other| other.directory != directory);
        if let Some(run) = run {
            corrections::add(&mut self.runs, run);
        }
    }

    /// Notes what runs used whose command did not live to note it; `record_of` reads what such a run left, which
    /// may be still going on. True if there was one.
    pub fn gather(&mut self, record_of: &dyn Fn(&Path) -> Option<Record>) -> bool {
        let (left, open): (Vec<_>, Vec<_>) = std::mem::take(&mut self.started)
            .into_iter()
            .map(|started| (record_of(&started.directory), started))
            .partition(|(record, _)| record.is_some());
        self.started = open.into_iter().map(|(_, started)| started).collect();
        let found = !left.is_empty();
        for (record, started) in left {
            let free = Free {
                before: started.free_bytes,
                after: None,
            };
            let run = record.and_then(|record| {
                let verdict = oomph_run::summary::summarize(&record, None, None).verdict;
                RealRun::of(&record, verdict, free, started.planned, &started.machine)
            });
            self.ended(&started.directory, run);
        }
        found
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const GIB: u64 = 1 << 30;

    fn entry(answer: Answer, memory_bytes: u64, used_bytes: u64) -> Entry {
        Entry {
            answer,
            memory_bytes,
            peak: Planned {
                used_bytes,
                ..Planned::default()
            },
            plan: PlanFile::parse("format = \"oomph.plan/1\"").unwrap(),
            what: String::new(),
            sources: BTreeMap::new(),
            max_time_seconds: None,
            growth: None,
        }
    }

    fn room(memory_bytes: u64) -> Room {
        Room {
            memory_bytes,
            margin_bytes: memory_bytes / 50,
            max_time: None,
        }
    }

    fn nothing_changed(_: &Path) -> Option<String> {
        None
    }

    fn kept(entries: Vec<Entry>) -> Kept {
        Kept {
            entries,
            ..Kept::default()
        }
    }

    fn any_answer() -> impl Strategy<Value = Answer> {
        prop_oneof![
            Just(Answer::AsItIs),
            Just(Answer::Planned),
            Just(Answer::Nothing)
        ]
    }

    proptest! {
        #[test]
        fn rounding_takes_little_and_never_adds(free in any::<u64>(), more in any::<u64>()) {
            let least = rounded(free);
            prop_assert!(least <= free);
            prop_assert!(free - least <= free / PARTS);
            prop_assert_eq!(rounded(least), least);
            prop_assert!(rounded(free.saturating_add(more)) >= least);
        }

        /// Whatever was planned for whatever memory: what is used fits into what is free.
        #[test]
        fn no_plan_is_used_where_less_is_free_than_it_needs(
            known in proptest::collection::vec((any_answer(), 0..200 * GIB, 0..200 * GIB), 0..12),
            free in 0..200 * GIB,
        ) {
            let entries = known.into_iter().map(|(answer, memory, used)| entry(answer, memory, used));
            let kept = kept(entries.collect());
            let room = room(rounded(free));
            if let Some(found) = kept.find(&room, &nothing_changed) {
                if found.answer == Answer::Nothing {
                    prop_assert!(found.peak.used_bytes > room.budget());
                } else {
                    prop_assert!(found.peak.used_bytes + room.margin_bytes <= free);
                }
            }
        }

        /// A plan is found again where free memory differs a little, as long as it fits.
        #[test]
        fn small_changes_do_not_miss(
            free in GIB..200 * GIB, change in -1.0 / 64.0..1.0 / 64.0, needs in 0.0..0.95,
        ) {
            let made = room(rounded(free));
            let used = (made.budget() as f64 * needs) as u64;
            let kept = kept(vec![entry(Answer::Planned, made.memory_bytes, used)]);
            let now = (free as f64 * (1.0 + change)) as u64;
            prop_assert!(kept.find(&room(rounded(now)), &nothing_changed).is_some());
        }

        #[test]
        fn another_job_has_another_key(
            a in proptest::collection::vec("[ab,]{0,3}", 1..4), b in proptest::collection::vec("[ab,]{0,3}", 1..4),
        ) {
            let packages = BTreeMap::new();
            let key = |argv: &[String]| Subject {
                directory: Path::new("/jobs"), argv, script_sha256: "1", gpu: "t4", packages: &packages,
                options: &[],
            }.key();
            prop_assert_eq!(key(&a) == key(&b), a == b);
        }
    }

    #[test]
    fn each_part_of_a_job_is_part_of_its_key() {
        let packages = |version: &str| BTreeMap::from([("torch".to_owned(), version.to_owned())]);
        let (old, new) = (packages("2.11"), packages("2.15"));
        let argv = ["train.py", "--lr", "1"].map(str::to_owned);
        let options = [("margin", "2%".to_owned())];
        let job = Subject {
            directory: Path::new("/jobs"),
            argv: &argv,
            script_sha256: "1",
            gpu: "t4:1",
            packages: &old,
            options: &options,
        };
        let keys = [
            job,
            Subject {
                directory: Path::new("/other"),
                ..job
            },
            Subject {
                argv: &argv[..2],
                ..job
            },
            Subject {
                script_sha256: "2",
                ..job
            },
            Subject { gpu: "t4:2", ..job },
            Subject {
                packages: &new,
                ..job
            },
            Subject {
                options: &[],
                ..job
            },
        ]
        .map(|job| job.key());
        let all: std::collections::BTreeSet<_> = keys.iter().collect();
        assert_eq!(all.len(), keys.len());
        assert_eq!(keys[0], job.key());
        assert_eq!(keys[0].len(), 64);
    }

    #[test]
    fn more_memory_asks_for_a_better_plan_and_as_it_is_is_the_best() {
        let made = entry(Answer::Planned, 10 * GIB, 9 * GIB);
        assert!(made.holds(&room(10 * GIB)));
        assert!(!made.holds(&room(12 * GIB)));
        let kept = kept(vec![
            made,
            entry(Answer::Planned, 12 * GIB, 9 * GIB),
            entry(Answer::Planned, 16 * GIB, 11 * GIB),
            entry(Answer::AsItIs, 24 * GIB, 20 * GIB),
        ]);
        let found = |memory| {
            let found = kept.find(&room(memory), &nothing_changed);
            found.map(|entry| entry.memory_bytes / GIB)
        };
        assert_eq!(found(8 * GIB), None);
        assert_eq!(found(10 * GIB), Some(10));
        assert_eq!(found(11 * GIB), Some(12));
        assert_eq!(found(15 * GIB), Some(16));
        assert_eq!(found(18 * GIB), None);
        for memory in [21, 24, 80] {
            assert_eq!(found(memory * GIB), Some(24));
        }
    }

    #[test]
    fn where_nothing_fits_nothing_fits_into_less() {
        let nothing = entry(Answer::Nothing, 8 * GIB, 10 * GIB);
        assert!(nothing.holds(&room(8 * GIB)) && nothing.holds(&room(6 * GIB)));
        assert!(!nothing.holds(&room(9 * GIB)));
    }

    #[test]
    fn a_search_that_was_cut_short_is_no_answer_for_a_longer_one() {
        let cut = Entry {
            max_time_seconds: Some(60.0),
            growth: None,
            ..entry(Answer::Planned, 8 * GIB, 7 * GIB)
        };
        let within = |seconds| Room {
            max_time: Some(Duration::from_secs(seconds)),
            ..room(8 * GIB)
        };
        assert!(!cut.holds(&room(8 * GIB)) && !cut.holds(&within(90)));
        assert!(cut.holds(&within(60)) && cut.holds(&within(30)));
    }

    #[test]
    fn a_changed_module_is_planned_anew() {
        let path = PathBuf::from("/jobs/model.py");
        let mut kept = kept(vec![Entry {
            sources: BTreeMap::from([(path.clone(), "1".to_owned())]),
            ..entry(Answer::AsItIs, 8 * GIB, GIB)
        }]);
        let is = |digest: &'static str| move |_: &Path| Some(digest.to_owned());
        assert!(kept.find(&room(8 * GIB), &is("1")).is_some());
        assert!(kept.find(&room(8 * GIB), &is("2")).is_none());
        assert!(kept.find(&room(8 * GIB), &nothing_changed).is_none());
        kept.keep(entry(Answer::Planned, 4 * GIB, GIB), &is("2"));
        assert_eq!(kept.entries.len(), 1);
        for memory in 0..40 {
            kept.keep(entry(Answer::Planned, memory, 0), &is("2"));
        }
        assert_eq!(kept.entries.len(), MOST);
    }

    #[test]
    fn a_file_comes_back_and_a_damaged_one_says_why_in_a_line() {
        let mut before = kept(vec![entry(Answer::Planned, 8 * GIB, GIB)]);
        before.begins(Started {
            machine: "a".to_owned(),
            directory: "/jobs/oomph-report/train-1".into(),
            free_bytes: 8 * GIB,
            planned: Planned::default(),
        });
        let text = before.text();
        assert_eq!(Kept::parse(&text).unwrap(), before);
        for (text, expected) in [
            (&text[..text.len() / 2], "EOF"),
            (b"\0\xff", "expected value"),
            (b"{\"format\": \"oomph.plans/9\"}", "oomph.plans/9"),
            (b"{\"format\": \"oomph.plans/1\"}", "missing field"),
        ] {
            let why = Kept::parse(text).unwrap_err();
            assert!(why.contains(expected) && !why.contains('\n'), "{why}");
        }
    }

    #[test]
    fn a_run_whose_command_died_is_noted_by_the_next() {
        let record = crate::tests::tiny_gpt().record().unwrap().unwrap();
        let mut kept = Kept::default();
        for name in ["left", "none"] {
            kept.begins(Started {
                machine: "a".to_owned(),
                directory: name.into(),
                free_bytes: 80 * GIB,
                planned: Planned::default(),
            });
        }
        let of = |path: &Path| (path == Path::new("left")).then(|| record.clone());
        assert!(kept.gather(&of));
        assert_eq!((kept.runs.len(), kept.started.len()), (1, 1));
        let reserved = record.busiest().unwrap().peak_reserved_bytes;
        assert_eq!(kept.runs[0].used_bytes, reserved);
        assert!(!kept.gather(&of));
        kept.ended(Path::new("none"), None);
        assert!(kept.started.is_empty());
    }
}
