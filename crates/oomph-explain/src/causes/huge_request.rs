//! `huge_request`: one request is larger than the whole GPU; an unintended shape is the best
//! explanation.

use oomph_trace::Bytes;

use super::{Basis, Cause, Evidence, Fix, user_line};
use crate::facts::{CONTEXT, Facts};

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
