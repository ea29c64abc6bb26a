//! What JAX held when its profile of memory was saved.

use oomph_trace::pprof::Profile;
use oomph_trace::{Bytes, Problem, ProblemKind, StackId, Trace, is_users_own};

use crate::messages::{advice, step};
use crate::stacks::frame_text;
use crate::{
    CategoryBytes, Explanation, FORMAT, Groups, HOLDERS, Options, PeakReport, ProblemReport,
};

/// The user's own lines of a stack that are shown.
const LINES: usize = 2;

/// Explains a profile of JAX's memory; `None` if it has nothing of the device that the caller asks for.
pub fn explain_profile(profile: &Profile, options: &Options) -> Option<Explanation> {
    let text = |id| profile.names.strings.get(id);
    let mut by_device = Groups::default();
    let mut by_line = Groups::default();
    for held in &profile.held {
        let device = Some(text(held.device).to_owned()).filter(|device| !device.is_empty());
        // What is no single device's counts for each.
        let is_elsewhere =
            |wanted| (device.as_deref()).is_some_and(|device| number(device) != wanted);
        if options.device.is_some_and(is_elsewhere) {
            continue;
        }
        let kind = match text(held.kind) {
            "buffer" => "buffers",
            "executable" => "executables",
            _ => "other",
        };
        let count = usize::try_from(held.count).unwrap_or(usize::MAX);
        by_device.add((Vec::new(), kind, device), held.bytes, count);
        let place = place(&profile.names, held.stack);
        by_line.add((place, kind, None), held.bytes, count);
    }
    let categories: Vec<CategoryBytes> = (by_device.holders().into_iter())
        .map(|row| CategoryBytes {
            category: row.category,
            name: row.category,
            bytes: row.bytes,
            device: row.module,
            blocks: Some(row.blocks),
        })
        .collect();
    let devices: Vec<&str> = (categories.iter())
        .filter(|row| row.category == "buffers")
        .filter_map(|row| row.device.as_deref())
        .collect();
    if options.device.is_some() && devices.is_empty() {
        return None;
    }
    let live = (categories.iter()).fold(0_u64, |sum, row| sum.saturating_add(row.bytes));
    let place = match devices.as_slice() {
        [] => String::new(),
        [one] => format!(" on {one}"),
        several => format!(" on {} devices", several.len()),
    };
    let is_host = |device: &&str| device.starts_with("cpu") || device.starts_with("TFRT_CPU");
    let host = if devices.iter().any(is_host) {
        ", which is the host's memory and not a GPU's,"
    } else {
        ""
    };
    let total =
        (options.device_total).map_or_else(String::new, |total| format!(" of {}", Bytes(total)));
    let mut holders = by_line.holders();
    holders.retain(|holder| holder.bytes > 0);
    holders.truncate(HOLDERS);
    Some(Explanation {
        format: FORMAT,
        verdict: format!(
            "JAX held {}{total}{place}{host} when this profile was saved; whether memory ran out, it does not say",
            Bytes(live)
        ),
        unclear: true,
        peak: PeakReport {
            device: (options.device)
                .or_else(|| devices.first().map(|device| number(device)))
                .unwrap_or(0),
            live_bytes: live,
            device_total_bytes: options.device_total,
            categories,
            ..PeakReport::default()
        },
        holders,
        next: vec![
            step(
                "jax.local_devices()[0].memory_stats()",
                "in the script: the most that was in use, the pool and its limit",
            ),
            step(
                "oomph run YOUR_SCRIPT.py",
                "the peak, and the line at which memory runs out (without a GPU: --gpu NAME)",
            ),
            advice(
                "save another profile some steps later, and explain both: a line that holds more then keeps what it makes. `del` it, or let the \
                 next step's result take its place (donate_argnums)",
            ),
        ],
        problems: vec![ProblemReport::from(&Problem::new(
            ProblemKind::NoHistory,
            "a profile of JAX has what is alive at one moment: not the peak, not what a program takes while it runs, and not what \
             JAX's pool holds free. An array in the host's memory (pinned_host) counts as its device's, and of an executable of 0 B \
             JAX does not say how large it is",
        ))],
        ..Explanation::default()
    })
}

/// The number at the end of a device's name; 0 if it has none.
fn number(device: &str) -> u32 {
    let digits = device.trim_end_matches(|character: char| character.is_ascii_digit());
    device[digits.len()..].parse().unwrap_or(0)
}

/// The user's own lines, the innermost first; without one, the line that asked for the memory.
fn place(names: &Trace, stack: StackId) -> Vec<String> {
    let own = |frame: &oomph_trace::Frame| is_users_own(names.strings.get(frame.file));
    let mut place: Vec<String> = (names.stacks.frames(stack).filter(own))
        .take(LINES)
        .map(|frame| frame_text(names, frame))
        .collect();
    if place.is_empty() {
        let innermost = names.stacks.frames(stack).next();
        place.extend(innermost.map(|frame| frame_text(names, frame)));
    }
    place
}
