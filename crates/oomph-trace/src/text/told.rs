//! What people tell around a message: what they tried in vain, how many processes they start, that use grows.

use super::words::integer;

/// What a text tells.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Told {
    /// Sentences that say what was tried or set in vain, in small letters, with `_` for `-`.
    vain: Vec<String>,
    /// Processes that the text starts for one service, with the line and its words.
    pub processes: Option<(usize, u64, String)>,
    /// Tokens of a cache of keys and values for one sequence and for all, where all is a whole number of times that.
    pub slots: Option<(u64, u64)>,
    each: Option<u64>,
    /// Whole numbers of lines that have several, with the line.
    pub numbers: Vec<(usize, Vec<u64>)>,
    /// That no size of a batch helps, as people tell.
    pub no_batch_helps: bool,
}

/// Sentences that are kept.
const MOST: usize = 32;
/// A longer line is no prose.
const LONGEST: usize = 4 << 10;

/// In a longer text people's words are not what there is to read.
const LINES: usize = 100_000;

/// What begins a sentence of somebody who tried.
const TRIES: &[&str] = &[
    "tried",
    "played with",
    "experimented with",
    "already ",
    "i raised",
    "i lowered",
    "i reduced",
    "i decreased",
    "i increased",
    "i changed",
    "i set ",
    "i put ",
    "i added",
    "i use ",
    "i am using",
    "i'm using",
    "i also",
    "reducing ",
    "lowering ",
    "setting ",
    "with ",
    "when i ",
];

/// What says that it did not help.
const VAIN: &[&str] = &[
    "still",
    "keeps happening",
    "no luck",
    "none of ",
    "no effect",
    "no difference",
    "not help",
    "n't help",
    "not work",
    "n't work",
    "not fix",
    "n't fix",
    "not solve",
    "n't solve",
    "nothing helps",
    "nothing helped",
    "not enough",
    "in vain",
    "without success",
    "unsuccessful",
    "to no avail",
    "same error",
    "same problem",
    "same issue",
    "same result",
    "error stays",
    "error remains",
    "error persists",
    "problem persists",
    " too.",
    " too,",
    " as well.",
];

/// What says both at once.
const BOTH: &[&str] = &[
    "no matter",
    "even with",
    "even if",
    "even when",
    "even after",
    "regardless of",
    "tried everything",
];

fn has(text: &str, words: &[&str]) -> bool {
    words.iter().any(|word| text.contains(word))
}

/// The sentences of a line.
pub(super) fn sentences(line: &str) -> impl Iterator<Item = &str> {
    line.split_inclusive(['.', '!', '?', ';'])
        .scan((line, 0, 0), |(line, from, at), part| {
            *at += part.len();
            // A stop within a number or a name ends nothing.
            let ends = line
                .get(*at..)
                .is_none_or(|rest| rest.is_empty() || rest.starts_with(char::is_whitespace));
            let found = ends.then(|| {
                let sentence = line.get(*from..*at).unwrap_or_default();
                *from = *at;
                sentence
            });
            Some(found)
        })
        .flatten()
}

/// Whether a line is prose: several words, most of them of letters.
fn is_prose(line: &str) -> bool {
    const LEAST: usize = 5;
    let (mut words, mut plain) = (0, 0);
    for word in line.split_whitespace() {
        words += 1;
        let word = word.trim_matches(|c: char| c.is_ascii_punctuation());
        plain +=
            usize::from(!word.is_empty() && word.chars().all(|c| c.is_alphabetic() || c == '\''));
    }
    words >= LEAST && plain * 2 > words
}

/// Whether a line is somebody's own sentence, of what "I", "we" or "my" have or do.
pub(super) fn is_somebodys(line: &str) -> bool {
    const WHO: &[&str] = &["i", "i'm", "i've", "im", "we", "we're", "my", "our"];
    let plain = |word: &str| word.chars().all(|c| c.is_alphabetic() || "',.".contains(c));
    let words: Vec<String> = line.split_whitespace().map(str::to_lowercase).collect();
    is_prose(line)
        && (words.windows(2)).any(|pair| WHO.contains(&pair[0].as_str()) && plain(&pair[1]))
}

/// The processes that a line starts for one service: `gunicorn -w 13`, "gunicorn with 13 workers".
fn processes(line: &str) -> Option<u64> {
    const SERVES: &[&str] = &[
        "gunicorn",
        "uvicorn",
        "celery",
        "uwsgi",
        "hypercorn",
        "worker processes",
    ];
    /// No service has more on one machine.
    const MOST: u64 = 512;
    let lower = line.to_ascii_lowercase();
    if !has(&lower, SERVES) {
        return None;
    }
    let marks = |c: char| c.is_whitespace() || ",;()[]\"'`=:".contains(c);
    let words: Vec<&str> = lower.split(marks).filter(|word| !word.is_empty()).collect();
    let mut pairs = words.windows(2);
    let found = pairs.find_map(|pair| {
        let number = if matches!(pair[0], "-w" | "--workers" | "--concurrency") {
            pair[1]
        } else if pair[1].starts_with("worker") {
            pair[0]
        } else {
            return None;
        };
        number.trim_end_matches('.').parse::<u64>().ok()
    })?;
    (2..=MOST).contains(&found).then_some(found)
}

/// Whole numbers of a line that may be sides of an array; none of a long line.
fn numbers(line: &str) -> Vec<u64> {
    const LINE: usize = 300;
    const COUNT: usize = 8;
    /// Smaller ones are versions and counts, larger ones sizes in bytes.
    const SIDES: std::ops::RangeInclusive<u64> = 16..=10_000_000;
    if line.len() > LINE {
        return Vec::new();
    }
    let ends = |c: char| c.is_whitespace() || "x×*,;()[]{}=".contains(c);
    line.split(ends)
        .filter_map(|word| word.parse().ok())
        .filter(|number| SIDES.contains(number))
        .take(COUNT)
        .collect()
}

impl Told {
    /// Reads a line of the text.
    pub(super) fn read(&mut self, line: &str, number: usize) {
        if line.len() > LONGEST || number > LINES {
            return;
        }
        if self.processes.is_none() {
            self.processes = processes(line).map(|count| (number, count, line.trim().to_owned()));
        }
        self.read_slots(line);
        if self.numbers.len() < MOST {
            let several = numbers(line);
            if several.len() > 1 {
                self.numbers.push((number, several));
            }
        }
        if !is_prose(line) {
            return;
        }
        let lower = line.to_lowercase();
        // What is tried in a sentence may fail in the next.
        let mut before: Option<&str> = None;
        for sentence in sentences(&lower) {
            let fails = has(sentence, VAIN);
            let tries = has(sentence, TRIES);
            let works = has(sentence, &["works", "worked", "solved it", "fixed it"]) && !fails;
            let mut keep = |sentence: &str| {
                // A number that is not the smallest may still be too large.
                let smallest = !sentence.contains(|c: char| c.is_ascii_digit())
                    || sentence.contains("batch size 1")
                    || sentence.contains("batch size of 1");
                self.no_batch_helps |= smallest && sentence.contains("batch");
                if self.vain.len() < MOST {
                    self.vain.push(sentence.replace('-', "_"));
                }
            };
            if has(sentence, BOTH) || (tries && fails) {
                keep(sentence);
            } else if fails && let Some(before) = before {
                keep(before);
            }
            before = (tries && !works).then_some(sentence);
        }
    }

    /// `n_ctx_per_seq (32768)` and `kv_size = 655360` of llama.cpp.
    fn read_slots(&mut self, line: &str) {
        let number = |name: &str| {
            let (_, rest) = line.split_once(name)?;
            integer(rest.trim_start_matches([' ', '=', '(', ':']))
        };
        self.each = self.each.or_else(|| number("n_ctx_per_seq"));
        let all = number("kv_size").or_else(|| number("n_ctx "));
        if let Some((each, all)) = self.each.zip(all).filter(|(each, _)| *each > 0)
            && all > each
            && all % each == 0
        {
            self.slots = Some((each, all));
        }
    }

    /// Whether one of these words stands in what was tried in vain.
    pub fn in_vain(&self, words: &[&str]) -> bool {
        self.vain.iter().any(|sentence| has(sentence, words))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn told(text: &str) -> Told {
        let mut told = Told::default();
        for (number, line) in text.lines().enumerate() {
            told.read(line, number + 1);
        }
        told
    }

    #[test]
    fn what_was_tried_in_vain() {
        for text in [
            "I have lowered many things. I tried a smaller batch and it fails all the same, no luck.",
            "It happens no matter how small the batch is.",
            "I set the batch to 2 and the lengths to 512. Still the same message.",
            "Even with batch 1 the job is ended after a minute or so.",
        ] {
            assert!(told(text).in_vain(&["batch"]), "{text}");
        }
        for text in [
            "I tried a batch of 4 and that works, but it is slow.",
            "batch=4 still",
            "What batch should one have for a card like this one?",
        ] {
            assert!(!told(text).in_vain(&["batch"]), "{text}");
        }
    }

    #[test]
    fn processes_of_one_service() {
        for (line, count) in [
            (
                "gunicorn -w 8 -k uvicorn.workers.UvicornWorker app:app",
                Some(8),
            ),
            (
                "we run it behind gunicorn with 6 workers on one card",
                Some(6),
            ),
            ("DataLoader(num_workers=8)", None),
            ("uvicorn app:app --workers 1", None),
        ] {
            assert_eq!(processes(line), count, "{line}");
        }
    }
}
