//! What a pool of XLA's or TensorFlow's held when it found no room.

use oomph_trace::Bytes;
use oomph_trace::bfc::Pool;
use oomph_trace::text::OomMessage;

use crate::messages::{advice, step};
use crate::{
    CategoryBytes, Explanation, FORMAT, Groups, HOLDERS, Holder, PeakReport, ProblemReport,
};
use oomph_trace::{Problem, ProblemKind};

/// What is in use, by who asked for it: a compiled program, an operator; otherwise by size.
pub(crate) fn holders(pool: &Pool) -> Vec<Holder> {
    let mut groups = Groups::default();
    for ((by, size), count) in &pool.held {
        let program = by
            .strip_prefix("xla.execute{executable=")
            .and_then(|rest| rest.strip_suffix('}'));
        let name = match program {
            Some(program) => format!("the program {program}"),
            None if by.is_empty() => format!("{} each", Bytes(*size)),
            None => by.clone(),
        };
        let count_here = usize::try_from(*count).unwrap_or(usize::MAX);
        let bytes = size.saturating_mul(*count);
        groups.add((vec![name], "chunks", None), bytes, count_here);
    }
    let mut holders = groups.holders();
    holders.truncate(HOLDERS);
    holders
}

/// What was asked for: to the byte where the message says so, since others are rounded.
fn asked(message: &OomMessage) -> Option<Bytes> {
    let exact = message.text.split_once("(rounded to ");
    let exact = exact.and_then(|(_, rest)| rest.split_once(')')?.0.parse().ok());
    exact.map(Bytes).or(message.requested)
}

/// Whether the pool's free pieces would have been enough together, if a message lists them.
pub(crate) fn is_in_pieces(message: &OomMessage) -> Option<bool> {
    let pool = message.pool.as_ref().filter(|pool| pool.free.0 > 0)?;
    Some(pool.is_in_pieces(asked(message)?))
}

/// What a pool had free by its map, and the most that the longest piece may have, where they are many small ones.
pub(crate) fn scattered(message: &OomMessage) -> Option<[Bytes; 2]> {
    const MUCH: u8 = 20;
    let [free, longest] = message.pool.as_ref()?.map?;
    let (total, used) = message.total.zip(message.in_use)?;
    let hundredth = total.0 / 100;
    // A cell is in use if any part of it is, so a piece may reach into its neighbours.
    let most = Bytes(hundredth.saturating_mul(u64::from(longest) + 2));
    let free_bytes = Bytes(hundredth.saturating_mul(u64::from(free)));
    // A pool that has not grown to its limit has a map of less.
    let sum = (used + free_bytes).0;
    let whole = sum > total.0 / 4 * 3 && sum <= total.0.saturating_add(hundredth);
    (whole && free >= MUCH && longest < free / 2).then_some([free_bytes, most])
}

/// How much of a pool is in use by its map, in hundredths, where that is nearly all of it.
pub(crate) fn full(message: &OomMessage) -> Option<u8> {
    const NEARLY: u8 = 95;
    let [free, _] = message.pool.as_ref()?.map?;
    Some(100 - free.min(100)).filter(|used| *used >= NEARLY)
}

/// What the free pieces of a message's pool say.
pub(crate) fn pieces(message: &OomMessage) -> Option<String> {
    if message.used().is_none()
        && let Some(used) = full(message)
    {
        return Some(format!(
            "by the map of the pool about {used} % of it are in use"
        ));
    }
    if is_in_pieces(message).is_none()
        && let (Some([free, most]), Some(asked)) = (scattered(message), asked(message))
        && most < asked
        && asked <= free
    {
        return Some(format!(
            "by the map of the pool about {free} of it are free, and the longest piece has at most {most}: together that is enough for what was \
             asked for, and no piece is: the pool is fragmented"
        ));
    }
    let (pool, asked) = (message.pool.as_ref()?, asked(message)?);
    let so = if is_in_pieces(message)? {
        "together that is enough for what was asked for, and no piece is: the pool is fragmented"
            .to_owned()
    } else if pool.free < asked {
        let short = asked - pool.free;
        format!(
            "even together that is {short} less than what was asked for, so it is not fragmentation"
        )
    } else {
        return None;
    };
    let (free, largest) = (pool.free, pool.largest_free);
    Some(format!(
        "the pool has {free} free, the largest piece {largest}: {so}"
    ))
}

/// Explains the file that an allocator wrote when it found no room.
pub fn explain_pool(pool: &Pool) -> Explanation {
    let (in_use, free) = (pool.in_use(), pool.free);
    let row = |name, bytes: Bytes, blocks| CategoryBytes {
        category: name,
        name,
        bytes: bytes.0,
        device: None,
        blocks,
    };
    let chunks = pool.held.values().sum::<u64>();
    Explanation {
        format: FORMAT,
        verdict: format!(
            "{} found no room for a request: {in_use} of its {} were in use, and the largest free piece had {}; how much was asked \
             for, and whether the program went on, this file does not say",
            pool.allocator,
            in_use + free,
            pool.largest_free
        ),
        unclear: true,
        peak: PeakReport {
            live_bytes: in_use.0,
            categories: vec![
                row("in use", in_use, usize::try_from(chunks).ok()),
                row("free", free, None),
            ],
            ..PeakReport::default()
        },
        holders: holders(pool),
        next: vec![
            step(
                "TF_CPP_MIN_LOG_LEVEL=0",
                "a log with the allocator's own lines, which say how much was asked for, and by which program: oomph explain reads it",
            ),
            step(
                "oomph run YOUR_SCRIPT.py",
                "the peak, and the line at which memory runs out (without a GPU: --gpu NAME)",
            ),
            advice(
                "the allocator writes such a file at each request that finds no room, also while XLA only tries what fits: the last one is of \
                 the failure, if there was one",
            ),
        ],
        problems: vec![ProblemReport::from(&Problem::new(
            ProblemKind::NoHistory,
            format!(
                "an allocator's chunks are of one moment, and have no lines of the script{}",
                if pool.peak > in_use {
                    format!("; at most {} were in use before", pool.peak)
                } else {
                    String::new()
                }
            ),
        ))],
        ..Explanation::default()
    }
}
