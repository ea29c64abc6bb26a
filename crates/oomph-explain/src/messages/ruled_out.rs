//! What the text itself rules out of an answer: each piece of advice names what it is about, and is left out, or said
//! without the part that is ruled out, where the text shows that this cannot help.

use oomph_trace::text::{Memory, OomMessage, Sign};

use super::evidence;
use super::next::{NextStep, advice};
use crate::causes::Cause;

/// Words of a piece of advice, and whether the text rules it out.
type Rule = (&'static [&'static str], fn(&OomMessage) -> bool);

const RULES: &[Rule] = &[
    (
        &["FLASH_ATTENTION", "KV_CACHE_TYPE", "--cache-type-k"],
        |message| message.tables.shows(Sign::NoFlashAttention),
    ),
    (&["attn_implementation", "attention in blocks"], |message| {
        message.tables.shows(Sign::AttendsInBlocks)
    }),
    (&["--gpu-memory-utilization"], |message| {
        message.tables.shows(Sign::FixedCache)
    }),
    (
        &["expandable_segments", "max_split_size_mb"],
        grows_in_place,
    ),
    (
        &[
            "which processes hold the GPU",
            "end what holds",
            "end the process",
        ],
        holds_all_by_itself,
    ),
    (
        &["the batch size", "a smaller batch only"],
        is_smallest_batch,
    ),
];

/// Whether segments grow in place already.
pub(super) fn grows_in_place(message: &OomMessage) -> bool {
    message.settings.iter().any(|setting| {
        setting.name.ends_with("ALLOC_CONF")
            && setting.value.as_deref().is_some_and(|value| {
                value
                    .to_ascii_lowercase()
                    .contains("expandable_segments:true")
            })
    })
}

/// Whether the figures of a message leave nothing of the GPU to other processes.
pub(super) fn holds_all_by_itself(message: &OomMessage) -> bool {
    message
        .total
        .zip(message.free)
        .zip(message.this_process)
        .is_some_and(|((total, free), own)| {
            // More beside PyTorch than libraries take may be another process's, as in a container.
            let libraries = super::process_outside(message)
                .is_some_and(|outside| outside <= super::LIBRARIES / 4);
            message.memory == Memory::Device
                && libraries
                && message.others.is_empty()
                && total.saturating_sub(free + own).0 < total.0 / 64
        })
}

/// Whether no batch is smaller.
pub(super) fn is_smallest_batch(message: &OomMessage) -> bool {
    message.tables.shows(Sign::SmallestBatch)
        || message.settings.iter().any(|setting| {
            setting.name == "train_batch_size" && setting.value.as_deref() == Some("1")
        })
}

/// How advice names a smaller batch beside other ways, and the same without it.
const WITHOUT_BATCH: &[(&str, &str)] = &[
    (
        "a smaller batch with accumulated gradients, image",
        "a smaller image",
    ),
    ("a smaller batch, image", "a smaller image"),
    ("a smaller batch (or fewer instances of a model), ", ""),
    ("a smaller batch, or ", ""),
    ("a smaller batch or ", ""),
    ("a smaller batch, ", ""),
    (", a smaller batch", ""),
    ("(a batch, ", "("),
    ("fewer images at once, ", ""),
];

/// Advice without a smaller batch; `None` if nothing is left of it.
fn without_batch(what: &str) -> Option<String> {
    let mut rest = what.to_owned();
    for (with, without) in WITHOUT_BATCH {
        rest = rest.replace(with, without);
    }
    (!rest.contains("a smaller batch")).then_some(rest)
}

/// A way to need less, without a smaller batch where there is none.
pub(super) fn beyond_batch(message: &OomMessage, what: &str) -> Option<String> {
    if is_smallest_batch(message) {
        without_batch(what)
    } else {
        Some(what.to_owned())
    }
}

/// Whether the text rules out a piece of advice, by its words and what is to be run or set.
fn is_out(message: &OomMessage, what: &str, command: Option<&str>) -> bool {
    RULES.iter().any(|(words, rules_out)| {
        let about = |word: &&str| {
            what.contains(*word) || command.is_some_and(|command| command.contains(*word))
        };
        words.iter().any(about) && rules_out(message)
    })
}

/// The steps that the text does not rule out, without the commands whose answer stands in it.
pub(super) fn kept(message: &OomMessage, steps: Vec<NextStep>) -> Vec<NextStep> {
    let mut left: Vec<NextStep> = unanswered(message, steps)
        .into_iter()
        .filter(|step| !is_out(message, &step.what, step.command.as_deref()))
        .filter_map(|step| {
            let what = beyond_batch(message, &step.what)?;
            Some(NextStep { what, ..step })
        })
        .collect();
    if left.is_empty() {
        left.push(advice(
            "the text rules out the usual steps: print what is alive just before that line, and its size",
        ));
    }
    left
}

/// The fixes of a cause that the text does not rule out.
pub(crate) fn of_cause(message: &OomMessage, cause: &mut Cause) {
    cause.fixes.retain_mut(|fix| {
        let left = beyond_batch(message, &fix.what)
            .filter(|what| !is_out(message, what, fix.apply.as_deref()));
        let stays = left.is_some();
        fix.what = left.unwrap_or_default();
        stays
    });
}

/// The steps without the commands whose answer stands in the text.
fn unanswered(message: &OomMessage, steps: Vec<NextStep>) -> Vec<NextStep> {
    let tables = &message.tables;
    let card = evidence::own_card(message);
    let seen = !tables.holders.is_empty() || card.is_some_and(|card| card.is_empty());
    let answered = |command: &str| {
        let begins = |words: &[&str]| words.iter().any(|word| command.starts_with(word));
        // A tool and what it does: `kubectl describe`, `sacct -j`.
        let call = |text: &str| {
            text.split_whitespace()
                .take(2)
                .map(str::to_owned)
                .collect::<Vec<_>>()
        };
        let shown = tables
            .commands
            .iter()
            .any(|done| call(done) == call(command));
        if shown
            && begins(&[
                "kubectl ",
                "sacct ",
                "df ",
                "free ",
                "dmesg ",
                "ulimit -a",
                "docker inspect ",
                "npu-smi ",
            ])
        {
            return true;
        }
        (seen
            && begins(&[
                "nvidia-smi --query-compute",
                "rocm-smi",
                "xpu-smi",
                "hl-smi",
                "npu-smi",
            ]))
            || (tables.host.total.is_some() && command == "free -h")
            || (tables.disk("/dev/shm").is_some() && command == "df -h /dev/shm")
    };
    let kept: Vec<NextStep> = steps
        .iter()
        .filter(|step| !step.command.as_deref().is_some_and(answered))
        .cloned()
        .collect();
    if kept.is_empty() { steps } else { kept }
}
