//! `huge_request`: one request is larger than the whole GPU, and an unintended shape is the best
//! explanation; or a column of shape `(n, 1)` met a row of shape `(n,)`.

use oomph_trace::Bytes;

use super::{Basis, Cause, Evidence, Fix, fits_without, stack_evidence, user_line};
use crate::facts::{CONTEXT, Facts, Live};
use crate::repeats;

/// From this multiple of the GPU on, nothing but a wrong shape is likely.
const ABSURD: u64 = 4;

pub(super) fn check(facts: &Facts) -> Option<Cause> {
    let failure = facts.failure?;
    let room = facts.room?;
    let known = facts.options.device_total.or(facts
        .trace
        .context
        .device_total
        .map(|bytes| bytes.0));
    // Without the device's size: what the job had and what was left is all that it could use.
    let usable = facts
        .reserved
        .saturating_add(room.device_free)
        .saturating_add(CONTEXT);
    let whole = known.unwrap_or(usable);
    if facts.request <= whole {
        return None;
    }
    let place = user_line(facts, failure.stack);
    Some(cause(
        facts.request,
        whole,
        known.is_some(),
        place.as_deref(),
        Evidence::of(facts.request, "asked for at once").at(facts, failure.stack),
    ))
}

/// Bytes of an element.
const ELEMENTS: [u64; 4] = [1, 2, 4, 8];

/// What the recorder saw: a column met a row of as many elements, and without their product there would have been enough.
pub(super) fn column_and_row(cut: &Facts, whole: &Facts) -> Option<Cause> {
    let (n, line) = whole.options.seen.broadcasts.iter().max()?;
    let sizes = ELEMENTS.map(|bytes| whole.config.round_size(n.saturating_mul(*n) * bytes));
    let is_square = |block: &Live| sizes.contains(&block.bytes);
    let asked = if sizes.contains(&cut.request) {
        cut.request
    } else {
        0
    };
    // What failed is among what a run without a limit holds.
    let squares = repeats::bytes(whole, is_square).max(repeats::bytes(cut, is_square) + asked);
    if squares == 0 || fits_without(cut, whole, squares) == Some(false) {
        return None;
    }
    let file = line.rsplit(['/', '\\']).next().unwrap_or(line);
    let mut evidence = vec![Evidence::of(
        squares,
        format!("in tensors of the shape ({n}, {n})"),
    )];
    evidence.extend(stack_evidence(whole, is_square));
    Some(Cause {
        id: "huge_request",
        confidence: 0.96,
        verdict: format!(
            "an unintended shape: at {file} a tensor of ({n}, 1) meets one of ({n},), which gives ({n}, {n}): {} where {} would do",
            Bytes(squares),
            Bytes(n * 4)
        ),
        evidence,
        fixes: vec![
            Fix::advice(
                "shape",
                "give both the same shape: squeeze the last dimension of the one, or add it to the other",
                squares,
                Basis::Counted,
                "other results, which are those that were meant",
            )
            .apply("prediction.squeeze(-1)"),
        ],
    })
}

/// The cause, from a history or from a message.
pub(crate) fn cause(
    request: u64,
    whole: u64,
    known: bool,
    place: Option<&str>,
    asked: Evidence,
) -> Cause {
    let at = place.map_or_else(String::new, |line| format!(" at {line}"));
    Cause {
        id: "huge_request",
        confidence: if request / ABSURD >= whole { 0.9 } else { 0.6 },
        verdict: format!(
            "one request{at} asks for {}, more than {}: probably an unintended shape",
            Bytes(request),
            if known {
                format!("the whole GPU's {}", Bytes(whole))
            } else {
                format!("the {} that the job could use", Bytes(whole))
            }
        ),
        evidence: vec![asked],
        fixes: vec![Fix::advice(
            "shape",
            "check the shapes there (n×1 with n broadcasts to n×n); if they are intended, \
             compute in pieces",
            request,
            Basis::Counted,
            "exact",
        )],
    }
}
