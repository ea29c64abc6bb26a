//! What a message alone reveals, what in it is misleading, and what to do next.

mod evidence;
mod faults;
mod figures;
mod next;
mod other;
mod settings;
mod shapes;
mod sharing;
mod told;
mod ways;
mod weights;

use oomph_trace::Bytes;
use oomph_trace::text::{Fault, Hardware, Memory, MessageKind, OomMessage, Phase, Program, Sign};

pub(crate) use figures::listed;
pub use next::NextStep;
pub(crate) use next::{advice, step, steps};
pub(crate) use ways::of_cause;

use crate::MessageReport;
use crate::causes::{Basis, Cause, Evidence, Fix, huge_request};
use oomph_trace::is_users_own;

use crate::lever;

/// From this share of the reserved memory on, free pieces are more than ordinary loss.
const FRAGMENTED: f64 = 0.2;
/// Below this share they are next to nothing, whatever was asked for.
const SOME: f64 = 0.08;
/// A request from this size on is for one large tensor, not for one more of many.
const ONE_TENSOR: Bytes = Bytes(4 << 30);
/// Memory that CUDA's context, kernels and the libraries of one job take at most.
const LIBRARIES: u64 = 8 << 30;
/// If others hold this share of the device, that is the cause.
const FOREIGN: f64 = 0.2;

/// Whether the driver counts less as this process's than its allocator holds (0 bytes under WSL, in containers): it does not
/// know the process.
fn is_not_counted(message: &OomMessage) -> bool {
    message
        .this_process
        .zip(message.reserved)
        .is_some_and(|(all, reserved)| all.0 < reserved.0 / 64 * 63)
}

/// What this process holds outside of PyTorch's allocator, if the message says.
pub(crate) fn process_outside(message: &OomMessage) -> Option<u64> {
    let (all, reserved) = message.this_process.zip(message.reserved)?;
    if is_not_counted(message) {
        return None;
    }
    let outside = all.saturating_sub(reserved);
    // Inside a container the driver may count another process as this one; more than any library
    // takes belongs to another process.
    (outside.0 <= 2 * LIBRARIES).then_some(outside.0)
}

/// Whether an error has no name, so that it may have been one of memory or not.
pub(crate) fn is_open(message: &OomMessage) -> bool {
    message.kind == MessageKind::Fault(Fault::Unnamed)
}

/// Whether it is a message of memory that ran out.
pub(crate) fn is_of_memory(message: &OomMessage) -> bool {
    message.memory != Memory::None && !is_open(message)
}

pub(crate) fn report(message: &OomMessage) -> MessageReport {
    let mut corrections = Vec::new();
    if let (Some(printed), Some(private)) = (message.printed_allocated, message.private_pools)
        && private > Bytes::ZERO
    {
        corrections.push(format!(
            "{private} \"allocated in private pools\" are free blocks of those pools: {} are in \
             use, not {printed}",
            printed - private
        ));
    }
    if message.kind == MessageKind::Native
        && let Some(requested) = message.requested
    {
        if requested == Bytes::mib(20) {
            corrections.push(
                "\"Tried to allocate 20.00 MiB\" is the segment for any request from 1 to 10 MiB"
                    .to_owned(),
            );
        } else if requested == Bytes::mib(2) {
            corrections.push(
                "\"Tried to allocate 2.00 MiB\" is the segment for any request up to 1 MiB"
                    .to_owned(),
            );
        }
    }
    let cap = Limit::of(message).own_cap();
    if let Some(allowed) = cap.filter(|_| is_pytorchs(message) && !is_on_mac(message)) {
        corrections.push(format!(
            "the process limited itself to {allowed} (set_per_process_memory_fraction); the \
             device's free memory does not matter"
        ));
    }
    if let Some(used) = message
        .used()
        .filter(|used| other::is_more_than_a_gpu(message, *used))
    {
        corrections.push(format!(
            "no GPU has {used}: the program counts wrongly what is in use, and the figure says nothing"
        ));
    }
    if let Some((used, total)) = message.allocated.zip(message.total)
        && used > total
        && message.memory == Memory::Device
    {
        corrections.push(format!(
            "PyTorch holds {used}, more than the GPU's {total}: the driver keeps the rest in host memory, as on Windows"
        ));
    }
    corrections.extend(figures::of_the_machine(message).map(|(line, size)| {
        format!(
            "the {size} of line {line} are hardly this GPU's, which has {}: most likely the machine's RAM, of which the message is not",
            message.total.unwrap_or_default()
        )
    }));
    if message.text.contains("17179869184.00 GiB") {
        corrections.push(
            "17179869184.00 GiB is no figure but a negative number that wrapped, or what the driver gives where it does not know \
             (WSL, Windows)"
                .to_owned(),
        );
    }
    let full_of_others = is_full_of_others(message);
    let in_pieces = in_pieces(message);
    if message.text.contains("try setting")
        && !is_fragmented(message)
        && !(full_of_others && in_pieces.is_some())
    {
        corrections.push(match in_pieces {
            _ if next::of_a_phase(message) => {
                "every such message has the hint about fragmentation; here it is not what decides".to_owned()
            }
            Some(cached) if message.total.is_some_and(|total| cached.0 < total.0 / 32) => format!(
                "every such message has the hint about fragmentation; only {cached} are reserved and unused, so the GPU would be \
                 full at the next request all the same"
            ),
            Some(cached) => format!(
                "every such message has the hint about fragmentation; here the {cached} that are reserved and \
                 unused would have been enough together with what was free, so it {}",
                if ways::is_out(message, ways::Change::Pieces) {
                    "would help if it took effect: by the text it is followed already"
                } else {
                    "may help"
                }
            ),
            None => "every such message has the hint about fragmentation; it does not apply here"
                .to_owned(),
        });
    }
    let bytes = |bytes: Option<Bytes>| bytes.map(|bytes| bytes.0);
    MessageReport {
        program: message.program.id(),
        program_name: next::program_name(message),
        inside: message.inside.map(Program::id),
        inside_name: message.inside.map(Program::name),
        memory: message.memory.id(),
        memory_name: next::memory_name(message),
        kind: message.kind.id(),
        handled: message.handled,
        versions: message.versions,
        line: message.line,
        text: message.text.clone(),
        ranks: message.ranks.clone(),
        device: message.device,
        host: message.host.clone(),
        pid: message.pid,
        process: message.process.clone(),
        job: message.job.clone(),
        allocator: message.allocator.clone(),
        asked_bytes: bytes(message.requested),
        total_bytes: bytes(message.total),
        free_bytes: bytes(message.free),
        in_use_bytes: bytes(message.used()),
        figures: Vec::new(),
        unsaid: other::unsaid(message),
        corrections,
    }
}

/// Whether the message is one of PyTorch's allocator for the GPU, whose figures tell more.
fn is_pytorchs(message: &OomMessage) -> bool {
    message.program == Program::Pytorch && message.memory == Memory::Device
}

/// The message that says the most, of several ranks the one with the least free memory.
pub(crate) fn primary(messages: &[OomMessage]) -> Option<&OomMessage> {
    let weight = |message: &OomMessage| match (message.kind, message.program) {
        _ if message.handled || is_open(message) => 0,
        // It comes before what it may have caused, and after memory that ran out in another file.
        (MessageKind::Fault(_), _) if messages.iter().all(OomMessage::is_vague) => 8,
        (MessageKind::Fault(_), _) => 0,
        (MessageKind::Native, _) => 7,
        (MessageKind::Async | MessageKind::Rejected, _) => 6,
        (MessageKind::Budget, _) => 5,
        (MessageKind::Allocation | MessageKind::OnChip | MessageKind::Host, _) => 4,
        (
            MessageKind::Killed,
            Program::Kernel
            | Program::Slurm
            | Program::Kubernetes
            | Program::Docker
            | Program::Ray
            | Program::Systemd,
        ) => 3,
        (MessageKind::Killed, Program::Unknown | Program::Named(_))
            if other::says_memory(message) =>
        {
            3
        }
        (MessageKind::Unknown | MessageKind::Warning | MessageKind::Killed, _) => 1,
        _ => 2,
    };
    messages.iter().max_by_key(|message| {
        let free = message.free.map_or(u64::MAX, |free| free.0);
        let said = [message.requested, message.total, message.used()]
            .into_iter()
            .flatten()
            .count();
        // Of warnings the largest.
        let size = message
            .requested
            .filter(|_| message.handled || (said == 1 && is_pytorchs(message)));
        (weight(message), std::cmp::Reverse(free), said, size)
    })
}

/// `rank 3`, or `ranks 0, 1, 2`; of many, how many more there are.
fn named(what: &str, numbers: &[u32]) -> String {
    const SHOWN: usize = 8;
    let names: Vec<String> = numbers
        .iter()
        .take(SHOWN)
        .map(ToString::to_string)
        .collect();
    let names = names.join(", ");
    match numbers.len() {
        1 => format!("{what} {names}"),
        count if count <= SHOWN => format!("{what}s {names}"),
        count => format!("{what}s {names} and {} more", count - SHOWN),
    }
}

/// The ranks that ran out of the same memory as the message that says the most.
pub(crate) fn ranks(messages: &[OomMessage]) -> Vec<u32> {
    let Some(primary) = primary(messages) else {
        return Vec::new();
    };
    let mut ranks: Vec<u32> = messages
        .iter()
        .filter(|message| message.memory == primary.memory && message.handled == primary.handled)
        .flat_map(|message| message.ranks.iter().copied())
        .collect();
    ranks.sort_unstable();
    ranks.dedup();
    ranks
}

/// What stands around a verdict: who else said the same, on which devices, and what the program was doing.
pub(crate) fn around(messages: &[OomMessage], ranks: &[u32], cause: &Cause) -> String {
    let Some(primary) = primary(messages) else {
        return String::new();
    };
    let mut devices: Vec<u32> = messages
        .iter()
        .filter(|message| message.memory == primary.memory && message.handled == primary.handled)
        .filter_map(|message| message.device)
        .collect();
    devices.sort_unstable();
    devices.dedup();
    let mut jobs: Vec<&str> = messages
        .iter()
        .filter(|message| message.program == primary.program && message.kind == MessageKind::Killed)
        .filter_map(|message| message.job.as_deref())
        .collect();
    jobs.sort_unstable();
    jobs.dedup();
    let mut said = Vec::new();
    match jobs.as_slice() {
        [] => {}
        [one] => said.push(format!("step {one}")),
        _ => said.push(format!("steps {}", jobs.join(", "))),
    }
    if ranks.len() > 1 {
        said.push(named("rank", ranks));
    }
    match (devices.as_slice(), ranks.len()) {
        ([one], 2..) => said.push(format!("all on GPU {one}")),
        ([_, _, ..], _) => said.push(named("GPU", &devices)),
        _ => {}
    }
    let said_already = cause
        .verdict
        .contains(primary.during.map_or("?", Phase::clause))
        || primary.during == Some(Phase::Pinning)
        || other::is_context(primary);
    let budget = primary.kind == MessageKind::Budget;
    let during = primary.during.filter(|_| !said_already && !budget);
    said.extend(during.map(|phase| format!("while {}", phase.clause())));
    let goes_on = primary.setting != Some("cache flushes");
    if primary.handled && is_pytorchs(primary) && goes_on {
        said.push("the program says that it tries to go on after it".to_owned());
    }
    let moved = primary.memory == Memory::Host
        && messages.iter().any(|other| {
            other.handled && other.memory == Memory::Device && other.line < primary.line
        });
    if moved {
        said.push("before, the GPU was short, and the program went on".to_owned());
    }
    said.extend(others_ended(messages, primary));
    if said.is_empty() {
        String::new()
    } else {
        format!(" ({})", said.join(", "))
    }
}

/// The further processes that the same program ended.
fn others_ended(messages: &[OomMessage], primary: &OomMessage) -> Option<String> {
    const SHOWN: usize = 8;
    // Ray's driver relays the end of one task once for each that waited for it.
    if primary.kind != MessageKind::Killed || primary.program == Program::Ray {
        return None;
    }
    let mut pids: Vec<u64> = messages
        .iter()
        .filter(|message| message.kind == MessageKind::Killed && message.program == primary.program)
        .filter_map(|message| message.pid)
        .filter(|pid| Some(*pid) != primary.pid)
        .collect();
    pids.sort_unstable();
    pids.dedup();
    let names: Vec<String> = pids.iter().take(SHOWN).map(ToString::to_string).collect();
    (!pids.is_empty()).then(|| {
        format!(
            "{} more {} ended as well: {}{}{}",
            pids.len(),
            if pids.len() == 1 {
                "process was"
            } else {
                "processes were"
            },
            names.join(", "),
            if pids.len() > SHOWN { ", …" } else { "" },
            if primary.tables.shows(Sign::ManySmall) {
                "; each held so little that it is their number which fills the limit: a pool or a loop that starts very many"
            } else {
                ""
            }
        )
    })
}

/// What the allocator has reserved and not given out.
fn cached(message: &OomMessage) -> Option<Bytes> {
    let rest = || Some(message.reserved?.saturating_sub(message.allocated?));
    message.unallocated.or_else(rest)
}

/// What is reserved and unused, where it would have been enough together with what the device had free.
fn in_pieces(message: &OomMessage) -> Option<Bytes> {
    let (cached, free, requested) = (cached(message)?, message.free?, message.requested?);
    let some = cached.0.saturating_mul(20) >= requested.0;
    (some && free <= requested && free + cached >= requested && message.allowed.is_none())
        .then_some(cached)
}

/// The setting that keeps the allocator's memory in one piece, by the words of the version.
fn against_pieces(message: &OomMessage) -> Option<(&'static str, &'static str)> {
    if before_settings(message).is_some() {
        return None;
    }
    Some(if message.hardware == Hardware::Amd {
        (
            "keep large pieces whole (expandable_segments:True does more, where the build for ROCm has it)",
            "PYTORCH_HIP_ALLOC_CONF=max_split_size_mb:128",
        )
    } else if message.text.contains("already allocated") {
        (
            "keep large pieces whole (PyTorch 1.10 or newer; from 2.1 on expandable_segments:True does more)",
            "PYTORCH_CUDA_ALLOC_CONF=max_split_size_mb:128",
        )
    } else {
        (
            "let segments grow in place; verify it with `oomph replay` on a snapshot",
            "PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True",
        )
    })
}

/// The versions of PyTorch that word it so, where they have no setting for the allocator: it came with 1.10, and every
/// message since names one.
fn before_settings(message: &OomMessage) -> Option<&'static str> {
    let has = |words: &str| message.text.contains(words);
    if has("cached)") || has("cached;") {
        Some("before 1.5")
    } else if has("reserved in total by PyTorch)") && !has("max_split_size_mb") {
        Some("1.5 to 1.9")
    } else {
        None
    }
}

fn is_fragmented(message: &OomMessage) -> bool {
    let (Some(cached), Some(reserved)) = (cached(message), message.reserved) else {
        return false;
    };
    let share = cached.0 as f64 / reserved.0.max(1) as f64;
    // Next to what was asked for it may be much all the same.
    let much = message
        .requested
        .zip(message.total)
        .is_some_and(|(requested, total)| {
            requested.0 >= total.0 / 32 && cached.0 >= requested.0 / 4 * 3
        });
    if share < SOME && !much {
        return false;
    }
    // Together with what the device had, it would have been enough. Figures that look alike are rounded.
    if let (Some(requested), Some(free), None) = (message.requested, message.free, message.allowed)
        && free + cached >= requested
        && free <= requested
        && cached.0.saturating_mul(10) >= requested.0
    {
        return true;
    }
    let large_enough = message
        .requested
        .is_none_or(|requested| cached.0.saturating_mul(10) >= requested.0.saturating_mul(9));
    share >= FRAGMENTED && large_enough
}

/// The places of a traceback, the user's own innermost line first.
fn places(message: &OomMessage) -> Vec<String> {
    let text = |frame: &oomph_trace::text::TextFrame| {
        let file = frame.file.rsplit(['/', '\\']).next().unwrap_or(&frame.file);
        // Notebooks do not number the line of every frame.
        match frame.line {
            0 => format!("{file} in {}", frame.function),
            line => format!("{file}:{line} in {}", frame.function),
        }
    };
    let mut places = Vec::new();
    if let Some(user) = message
        .traceback
        .iter()
        .rev()
        .find(|frame| is_users_own(&frame.file))
    {
        places.push(text(user));
    }
    if let Some(inner) = message.traceback.last() {
        let inner = text(inner);
        if !places.contains(&inner) {
            places.push(inner);
        }
    }
    places
}

fn request_evidence(message: &OomMessage) -> Vec<Evidence> {
    message
        .requested
        .map(|requested| {
            let mut evidence = Evidence::of(requested.0, "asked for at the failure");
            evidence.stack = places(message);
            evidence
        })
        .into_iter()
        .collect()
}

/// The causes that a message decides by itself.
pub(crate) fn causes(message: &OomMessage) -> Vec<Cause> {
    if let Some(verdict) = other::absurd(message) {
        return vec![simple(message, verdict)];
    }
    if let Some(weights) = weights::never_fit(message) {
        let sentence = format!("the model can never fit so: {}", weights.sentence());
        return vec![simple(message, ("model_too_large", 0.9, sentence))];
    }
    if !is_pytorchs(message) {
        return vec![simple(message, other::verdict(message))];
    }
    if message.handled && message.setting.is_none() && message.kind != MessageKind::Warning {
        let sentence = if message.tables.shows(Sign::LeavesOut) {
            "the GPU was full at this line, and the program went on without this batch: it learns nothing from what is left out"
                .to_owned()
                + &message.tables.failures.map_or_else(String::new, |times| {
                    format!(" ({times} times so far, by the allocator's summary)")
                })
        } else {
            "a shortage that the program got over, not a failure: the GPU was full at this line, and the program went on with less \
             or elsewhere"
                .to_owned()
        };
        return vec![simple(message, ("device_memory", 0.8, sentence))];
    }
    if message.setting == Some("device_map") {
        let sentence = "the weights do not fit into the GPUs' free memory, so a part of them would go to the CPU or the disk, \
                        which their quantisation does not allow";
        return vec![simple(message, ("device_memory", 0.9, sentence.to_owned()))];
    }
    if message.setting == Some("cache flushes") {
        let sentence = "a warning, not a failure: the GPU is nearly full, so PyTorch had to give back what it keeps for \
                        reuse, which costs time";
        return vec![simple(message, ("device_memory", 0.8, sentence.to_owned()))];
    }
    if let Limit::Misreported { line, size } = Limit::of(message)
        && let Some((asked, total)) = message.requested.zip(message.total)
        && asked > message.free.unwrap_or(total)
    {
        let mut evidence = request_evidence(message);
        evidence.push(Evidence::of(
            total.0,
            "all there is, as the runtime reports it",
        ));
        evidence.extend(
            message
                .free
                .map(|free| Evidence::of(free.0, "free of that")),
        );
        evidence.push(Evidence::of(
            size.0,
            format!("all there is, as line {line} says"),
        ));
        return vec![Cause {
            id: "not_enough_evidence",
            confidence: 1.0,
            verdict: format!(
                "one request of {asked} is more than is free of the {total} that the runtime reports as all there is, while \
                 line {line} says {size}: why the program sees so little of it is the question, not what it holds"
            ),
            evidence,
            fixes: Vec::new(),
        }];
    }
    let mut causes = match message.kind {
        MessageKind::Native | MessageKind::Async | MessageKind::Warning => native(message),
        MessageKind::Workspace => vec![simple(
            message,
            (
                "workspace",
                0.8,
                "no memory was left for a convolution's workspace".to_owned(),
            ),
        )],
        _ => Vec::from_iter(
            Limit::of(message)
                .own_cap()
                .map(|allowed| own_limit(message, allowed)),
        ),
    };
    let training = weights::training(message)
        .filter(|_| causes.iter().all(|cause| cause.id != "other_process"));
    causes.extend(training.map(|training| {
        let confidence = if training.never_fits() { 0.9 } else { 0.6 };
        simple(
            message,
            ("model_too_large", confidence, training.sentence()),
        )
    }));
    causes.sort_by(|a, b| b.confidence.total_cmp(&a.confidence));
    causes
}

fn simple(message: &OomMessage, (id, confidence, verdict): (&'static str, f64, String)) -> Cause {
    let figure = |(bytes, what): (Bytes, String)| Evidence::of(bytes.0, what);
    let broke = message.setting == Some("before a fault");
    let consequence = broke.then(|| {
        "a later line reports a fault of a kernel or of an access: that follows from it, as a program that goes on without the memory \
         that it asked for reaches for a wrong address"
            .to_owned()
    });
    let told = (of_a_batch(message).into_iter())
        .chain(consequence)
        .chain(of_buffers(message))
        .chain(crate::pool::pieces(message))
        .chain(shapes::of_a_line(message).map(|shape| format!("that is {shape}")));
    let mut evidence: Vec<Evidence> = other::figures(message)
        .into_iter()
        .map(figure)
        .chain(told.map(Evidence::new))
        .chain(other::around(message).into_iter().map(figure))
        .collect();
    let mut quote = Evidence::new(format!(
        "line {}: {}",
        message.line,
        message.quote(figures::QUOTED)
    ));
    quote.stack = places(message);
    evidence.push(quote);
    let library = matches!(
        message.kind,
        MessageKind::NoAlgorithm | MessageKind::Cudnn | MessageKind::Cublas | MessageKind::Cuda
    );
    evidence.extend(
        weights::small(message)
            .filter(|_| library)
            .map(Evidence::new),
    );
    Cause {
        id,
        confidence,
        verdict,
        evidence,
        fixes: Vec::new(),
    }
}

/// The shape of a tensor that TensorFlow names: its first side is the batch, if it has the sides of a batch of samples.
fn of_a_batch(message: &OomMessage) -> Option<String> {
    let (_, rest) = message.text.split_once("with shape[")?;
    let (sides, _) = rest.split_once(']')?;
    let batch: u64 = sides.split(',').next()?.parse().ok()?;
    (batch > 1 && sides.split(',').count() > 2).then(|| {
        format!(
            "that is a tensor of {} elements; its first side, {batch}, is most likely the number of samples at once (what a generator or a tf.data pipeline yields), unless it holds weights",
            sides.replace(',', " × ")
        )
    })
}

/// The shape of the largest buffers that XLA lists.
fn of_buffers(message: &OomMessage) -> Option<String> {
    let (shape, count) = message.tables.shapes.first()?;
    let several = if *count > 1 {
        format!(" ({count} of them)")
    } else {
        String::new()
    };
    let rounds = if message.tables.shows(Sign::KeepsRounds) {
        ": by its name what all rounds of a loop (layers) made, kept for the backward pass, so the first side may be their number"
    } else {
        ""
    };
    let is_xla = message.program == Program::Jax || message.hardware == Hardware::Tpu;
    is_xla.then(|| {
        format!("the first buffers whose shape the text lists (XLA lists the largest first) have {shape}{several}{rounds}")
    })
}

/// How use went over several failures of one GPU that a text shows.
pub(crate) fn over_failures(messages: &[OomMessage], primary: &OomMessage) -> Option<Evidence> {
    let alike: Vec<&OomMessage> = messages
        .iter()
        .filter(|message| {
            is_pytorchs(message)
                && message.device == primary.device
                && message.ranks == primary.ranks
                && message.pid == primary.pid
        })
        .collect();
    if asks_for_most(primary) && alike.len() > 1 {
        let asked: Vec<String> = alike
            .iter()
            .filter_map(|message| Some(message.requested?.to_string()))
            .collect();
        return Some(Evidence::new(format!(
            "the failures in the text asked for {}: the request follows what was changed between them, and has to go on shrinking",
            asked.join(", ")
        )));
    }
    let held: Vec<Bytes> = alike
        .iter()
        .filter_map(|message| message.allocated)
        .collect();
    let (first, last) = (held.first()?, held.last()?);
    let grows = held.is_sorted() && last.0 > (first.0 / 50).saturating_mul(51);
    (grows && is_pytorchs(primary)).then(|| {
        Evidence::new(format!(
            "{} failures in the text, with {first} in use at the first and {last} at the last: it grows, so something is kept in between, or samples differ in size",
            held.len()
        ))
    })
}

/// The causes that the figures and the traceback of PyTorch's own message show.
fn native(message: &OomMessage) -> Vec<Cause> {
    let requested = message.requested.unwrap_or_default();
    let unintended = unintended(message, requested);
    let is_unintended = unintended.is_some();
    let mut causes = Vec::from_iter(unintended);
    causes.extend(held_outside(message, requested));
    if let Some(allowed) = Limit::of(message)
        .own_cap()
        .filter(|&allowed| requested <= allowed)
    {
        causes.push(own_limit(message, allowed));
    }
    let others = causes.iter().any(|cause| cause.id == "other_process");
    if let Some(cause) = of_phase(message).filter(|_| !others) {
        causes.push(cause);
    } else {
        causes.extend(fragmentation(message, requested, others));
    }
    causes.extend(optimizer_state(message));
    causes.extend(logits(message, requested));
    causes.extend(more_than_exists(message, requested).filter(|_| !is_unintended));
    causes
}

/// A request of several times the GPU, which is hardly meant.
fn unintended(message: &OomMessage, requested: Bytes) -> Option<Cause> {
    let total = message.total.filter(|total| requested.0 / 4 >= total.0)?;
    let asked = request_evidence(message).pop()?;
    let place = asked.stack.first().cloned();
    let mut cause = huge_request::cause(requested.0, total.0, true, place.as_deref(), asked);
    if other::is_nonsense(message) {
        // What is asked for is no size of anything, so no smaller one helps.
        cause.verdict = format!(
            "{requested} were asked for by compiled code, {} times the whole GPU: no shape that is meant is so far off, so a count was computed \
             wrongly (an extension built for another GPU, PyTorch or CUDA, an index that overflowed, values that are not finite)",
            requested.0 / total.0.max(1)
        );
        cause.fixes.clear();
        return Some(cause);
    }
    cause
        .verdict
        .push_str(", or scores of all pairs (attention over n tokens or pixels keeps n×n of them)");
    cause.evidence.extend(times_smaller(message));
    Some(cause)
}

/// Who holds what lies outside PyTorch's allocator, as far as a message says.
struct Outside {
    held: Bytes,
    /// The largest part of it that is this process's own.
    mine: Bytes,
    /// That of which the message lists the processes.
    others: Bytes,
    /// What the ranks of the job hold alike.
    alike: Option<String>,
    /// Whether the message or the driver's count tells whose it is.
    counted: bool,
}

impl Outside {
    fn of(message: &OomMessage) -> Self {
        let others: Bytes = message.others.iter().map(|other| other.used).sum();
        // What the process holds beside PyTorch is its own, if the message says what it holds in all.
        let own = process_outside(message).filter(|own| *own <= LIBRARIES / 4);
        let held = message.outside_pytorch().unwrap_or_default();
        let held = held.saturating_sub(Bytes(own.unwrap_or(0)));
        let mine = message
            .this_process
            .zip(message.reserved)
            .map(|(used, reserved)| used.saturating_sub(reserved))
            .unwrap_or_default();
        Self {
            held,
            mine,
            others,
            alike: evidence::of_ranks(message, held),
            counted: others.0 > held.0 / 2 || (own.is_some() && message.others.is_empty()),
        }
    }

    fn is_large(&self) -> bool {
        self.held.0 > 2 << 30
    }

    fn is_sure(&self, message: &OomMessage) -> bool {
        self.counted || (self.is_large() && !is_not_counted(message) && !may_be_libraries(message))
    }

    /// Whether the driver counts far more as this process's than a context and libraries take.
    fn is_attributed(&self) -> bool {
        self.mine > self.others && self.mine.0 > LIBRARIES
    }

    /// Whether it is this process's own, for all that the message lists.
    fn is_own(&self) -> bool {
        self.is_attributed() && self.others == Bytes::ZERO
    }

    /// What completes `are held …`.
    fn holders(&self, message: &OomMessage) -> &str {
        if let Some(ranks) = &self.alike {
            ranks
        } else if self.is_own() {
            "outside it, which the driver counts as this process's own: another engine or framework \
             inside it, or (in a container) another process"
        } else if self.counted {
            "by other processes"
        } else if self.others > Bytes::ZERO {
            "outside it, of which the processes that the message names hold little: the desktop, the driver, or processes that it does not see"
        } else if self.is_sure(message) {
            "outside it, most likely by other processes (a little by this one's context and libraries)"
        } else if self.is_large() {
            "outside it: by other processes, or by this one's context and libraries; the message does not say which"
        } else {
            "outside it: by this process's context and libraries, by the desktop, or by other processes"
        }
    }

    /// How to free it.
    fn fix(&self, message: &OomMessage) -> Fix {
        let sure = self.is_sure(message);
        Fix::advice(
            "free_the_gpu",
            if self.alike.is_some() {
                "one GPU for each rank: what all of them hold there adds up"
            } else if self.is_own() {
                "what else runs in this process: a server's own engine, JAX or TensorFlow takes a share by a \
                 setting of its own; in a container also end other processes"
            } else if sure {
                "find the process that holds it and end it (a notebook, a zombie, ranks that all use GPU 0)"
            } else {
                "at most so much: end other programs that use the GPU; the context and libraries of this \
                 one stay, and on a small GPU they are much"
            },
            self.held.0,
            if sure {
                Basis::Counted
            } else {
                Basis::Estimated
            },
            "same results",
        )
        .apply(
            evidence::holder(message)
                .or_else(|| self.alike.is_some().then(next::own_gpu_for_each_rank))
                .or_else(|| next::who_holds_most(message))
                .unwrap_or_else(|| next::others_on_the_gpu(message))
                .command
                .unwrap_or_default(),
        )
    }

    /// What shows it.
    fn evidence(&self, message: &OomMessage) -> Vec<Evidence> {
        let mut evidence = vec![
            Evidence::of(self.held.0, "held outside of PyTorch on this device"),
            Evidence::of(
                message.reserved.unwrap_or_default().0,
                "held by PyTorch's allocator in this process",
            ),
            Evidence::of(message.free.unwrap_or_default().0, "free on the device"),
        ];
        evidence.extend(of_others(message));
        // Where the message lists them, it is known who holds it.
        if message.others.is_empty() {
            let shown = other::around(message).into_iter();
            evidence.extend(shown.map(|(bytes, what)| Evidence::of(bytes.0, what)));
        }
        if self.is_attributed() {
            evidence.push(Evidence::of(
                self.mine.0,
                "of that the driver counts as this process's own, far more than a context \
                 and libraries need: another framework inside it, or (in a container) a \
                 process that looks like it",
            ));
        }
        evidence
    }
}

/// Memory that PyTorch's allocator does not hold, where that filled the GPU.
fn held_outside(message: &OomMessage, requested: Bytes) -> Vec<Cause> {
    let (Some(total), Some(free), Some(reserved)) = (message.total, message.free, message.reserved)
    else {
        return Vec::new();
    };
    let outside = Outside::of(message);
    let share = outside.held.0 as f64 / total.0.max(1) as f64;
    let decisive = outside.held.0 > LIBRARIES || (share > FOREIGN && !is_only_context(message));
    // The driver keeps the last few pieces, and gives them in pieces of its own.
    let full = free < requested || free.0 < total.0 / 64;
    // On a small GPU a context and a desktop are much, and all the same not what filled it.
    let mostly_own = may_be_libraries(message)
        && message
            .allocated
            .is_some_and(|held| held.0 / 3 >= outside.held.0);
    // Where an empty GPU would not do either, others are not the cause.
    let by_itself = ways::is_too_much_by_itself(message);
    if !decisive || mostly_own || !full || by_itself || message.allowed.is_some() {
        return Vec::new();
    }
    let evidence = outside.evidence(message);
    let mut causes = vec![Cause {
        id: "other_process",
        confidence: if outside.is_sure(message) { 0.85 } else { 0.6 },
        verdict: format!(
            "the GPU is full{} {reserved}: {} of {total} are held {}",
            if outside.is_own() && reserved.0 > total.0 / 2 {
                ", and PyTorch holds"
            } else {
                " although PyTorch holds only"
            },
            outside.held,
            outside.holders(message)
        ),
        evidence: evidence.clone(),
        fixes: vec![outside.fix(message)],
    }];
    if outside.mine.0 > LIBRARIES / 4 {
        causes.push(Cause {
            id: "outside_allocator",
            confidence: 0.5,
            verdict: format!(
                "this process holds {} outside PyTorch's allocator",
                outside.mine
            ),
            evidence,
            fixes: vec![Fix::advice(
                "fewer_communicators",
                "keep other frameworks and communicators of this process from taking the GPU",
                outside.mine.0,
                Basis::Counted,
                "same results",
            )],
        });
    }
    causes
}

/// Free pieces that would have been enough in one piece.
fn fragmentation(message: &OomMessage, requested: Bytes, others: bool) -> Option<Cause> {
    let unallocated = cached(message).unwrap_or_default();
    let reserved = message.reserved.unwrap_or_default();
    let small = unallocated.0 < message.total.unwrap_or_default().0 / 64;
    let is_much = unallocated.0 as f64 >= FRAGMENTED * reserved.0 as f64;
    // Where use grows, a few free pieces are not what filled it.
    let grows = message.tables.shows(Sign::Grows) && !is_much;
    if !is_fragmented(message) || (others && small) || grows {
        return None;
    }
    let free = message.free.unwrap_or_default();
    let mut evidence = vec![Evidence::of(
        unallocated.0,
        "reserved by PyTorch and free, but fragmented",
    )];
    let together = unallocated < requested;
    if together {
        evidence.push(Evidence::of(
            free.0,
            "free on the device: with it there was enough, but not in one piece",
        ));
    }
    evidence.extend(request_evidence(message));
    evidence.extend(of_others(message));
    let outside = message.outside_pytorch().filter(|outside| {
        let total = message.total.unwrap_or_default();
        !others && message.others.is_empty() && outside.0 as f64 > FOREIGN * total.0 as f64
    });
    evidence.extend(outside.map(|outside| {
        Evidence::of(
            outside.0,
            "held outside PyTorch's allocator: its context and libraries, the desktop or other processes, which may be ended",
        )
    }));
    evidence.extend(before_settings(message).map(|versions| {
        Evidence::new(format!(
            "by its words this is PyTorch {versions}, which has no setting against that (1.10 has): a job that needs less, and \
             samples of a few sizes only (padded, grouped by length), leave larger pieces"
        ))
    }));
    let and_free = if together {
        format!(", and {free} on the device")
    } else {
        String::new()
    };
    let so = if ways::grows_in_place(message) {
        ", although segments grow in place already (expandable_segments:True): what is alive between them keeps them \
         apart, so less at once helps more surely"
    } else if together {
        ": in one piece it would just have been enough, so the job is at the edge of the GPU, too"
    } else if requested >= ONE_TENSOR {
        ": a request that large (attention scores, logits, a whole batch) hardly finds one piece, so one that \
         is smaller helps more surely"
    } else if !is_much {
        ": that is not much, so a job that needs less helps as well"
    } else {
        ""
    };
    let setting = against_pieces(message).map(|(what, setting)| {
        Fix::lever(
            lever::ALLOCATOR,
            what,
            unallocated.0,
            Basis::Estimated,
            "same results",
        )
        .apply(setting)
    });
    Some(Cause {
        id: "fragmentation",
        confidence: if together || !is_much || requested >= ONE_TENSOR {
            0.6
        } else {
            0.8
        },
        verdict: format!(
            "{unallocated} of {reserved} reserved by PyTorch are free{and_free}, but in pieces too small for the \
             request of {requested}{so}"
        ),
        evidence,
        fixes: Vec::from_iter(setting),
    })
}

/// The step of an optimizer, whoever wrote it: by its file, or the names of its state.
fn optimizer_state(message: &OomMessage) -> Option<Cause> {
    let steps = message.traceback.iter().any(|frame| {
        (frame.file.contains("/optim/")
            && (frame.function == "step" || frame.function.starts_with("_init_group")))
            || ["'exp_avg", "'momentum_buffer'", "\"exp_avg"]
                .iter()
                .any(|name| frame.code.contains(name))
    });
    steps.then(|| Cause {
        id: "optimizer_state",
        confidence: 0.7,
        verdict: format!(
            "memory ran out inside optimizer.step, which allocates the optimizer's state{}",
            if message.tables.shows(Sign::MultiTensor) {
                ", and here works on all parameters at once, with temporaries as large"
            } else {
                ""
            }
        ),
        evidence: request_evidence(message),
        fixes: vec![Fix::lever(
            lever::OPTIMIZER_8BIT,
            "8-bit or offloaded optimizer state, a fused step",
            message.allocated.unwrap_or_default().0 / 3,
            Basis::Estimated,
            "close",
        )],
    })
}

/// One more copy of the logits, in the loss.
fn logits(message: &OomMessage, requested: Bytes) -> Option<Cause> {
    let in_loss = message.traceback.iter().any(|frame| {
        frame.file.ends_with("loss_utils.py")
            || frame.function.contains("cross_entropy")
            || frame.function == "ForCausalLMLoss"
    }) || message
        .traceback
        .last()
        .is_some_and(|frame| frame.code.contains("logits"));
    let shape = shapes::of_logits(message).map_or_else(String::new, |shape| format!(": {shape}"));
    (in_loss && requested >= Bytes::mib(512)).then(|| Cause {
        id: "logits",
        confidence: 0.7,
        verdict: format!(
            "the loss over the vocabulary requested {requested} for one more copy of the logits{shape}"
        ),
        evidence: request_evidence(message),
        fixes: vec![Fix::lever(
            lever::CHUNKED_CROSS_ENTROPY,
            "a fused or chunked cross-entropy, which never holds all logits",
            requested.0,
            Basis::Estimated,
            "same results, to rounding",
        )],
    })
}

/// One request for more than there is.
fn more_than_exists(message: &OomMessage, requested: Bytes) -> Option<Cause> {
    let limit = message.allowed.or(message.total)?;
    // A pool is as large as it is set to be, whatever the batch.
    let of_cache = message.during == Some(Phase::Cache);
    (requested > limit).then(|| {
        let mut evidence = request_evidence(message);
        evidence.extend(times_smaller(message).filter(|_| !of_cache));
        Cause {
            id: if of_cache {
                "kv_cache"
            } else {
                "batch_too_large"
            },
            confidence: 0.9,
            verdict: format!(
                "a single request asked for {requested}, more than the {limit} that exist"
            ),
            evidence,
            fixes: Vec::from_iter((!of_cache).then(|| {
                Fix::lever(
                    lever::MICRO_BATCH,
                    "a smaller batch or shorter sequences; check the shapes that were asked for",
                    requested.saturating_sub(message.free.unwrap_or(limit)).0,
                    Basis::Estimated,
                    "exact",
                )
            })),
        }
    })
}

fn is_on_mac(message: &OomMessage) -> bool {
    message.text.contains("MPS backend")
}

/// Whose limit a request met.
enum Limit {
    /// The device's, for all that the text says.
    Device,
    /// One that the process set itself.
    OwnCap(Bytes),
    /// The runtime's, which reports much less than a line of the text says that there is.
    Misreported {
        /// The line.
        line: usize,
        /// The device's memory by that line.
        size: Bytes,
    },
}

impl Limit {
    fn of(message: &OomMessage) -> Self {
        let total = message.total;
        if let Some(total) = total.filter(|_| message.memory == Memory::Device)
            && let Some((line, size)) = figures::device_memory(message)
            && size.0 / 3 * 2 > total.0
        {
            return Self::Misreported { line, size };
        }
        // Some versions print a limit that is all of the device.
        let is_less = |allowed: &Bytes| total.is_none_or(|total| allowed.0 < total.0 / 64 * 63);
        let cap = message.allowed.filter(is_less);
        cap.map_or(Self::Device, Self::OwnCap)
    }

    /// What the process may use, if it set that itself.
    fn own_cap(self) -> Option<Bytes> {
        match self {
            Self::OwnCap(allowed) => Some(allowed),
            Self::Device | Self::Misreported { .. } => None,
        }
    }
}

/// The other processes on the device that a message names, the largest first.
fn of_others(message: &OomMessage) -> Vec<Evidence> {
    const SHOWN: usize = 4;
    let mut largest = message.others.clone();
    largest.sort_by_key(|other| std::cmp::Reverse(other.used));
    let rest: Bytes = largest.iter().skip(SHOWN).map(|other| other.used).sum();
    let more = largest.len().saturating_sub(SHOWN);
    let shown = largest.iter().take(SHOWN);
    shown
        .map(|other| Evidence::of(other.used.0, format!("held by process {}", other.pid)))
        .chain((more > 0).then(|| Evidence::of(rest.0, format!("held by {more} more processes"))))
        .collect()
}

/// The process may use only a part of the device, and that is used up.
fn own_limit(message: &OomMessage, allowed: Bytes) -> Cause {
    let mut evidence = request_evidence(message);
    evidence.push(Evidence::of(allowed.0, "what this process may use"));
    if let Some(allocated) = message.allocated {
        evidence.push(Evidence::of(allocated.0, "in use by PyTorch"));
    }
    if let Some(free) = message.free {
        evidence.push(Evidence::of(
            free.0,
            "free on the device, which does not matter",
        ));
    }
    if let Some((all, own)) = message.this_process.zip(message.allocated)
        && is_on_mac(message)
    {
        evidence.push(Evidence::of(
            all.saturating_sub(own).0,
            "in other allocations, which count",
        ));
    }
    let (verdict, setting) = if is_on_mac(message) {
        let held = message.this_process.zip(message.allocated);
        let parts = held.map_or_else(String::new, |(all, own)| {
            format!(
                ": {own} in tensors, and {} in other allocations on the GPU (Metal's own buffers), which count as well",
                all.saturating_sub(own)
            )
        });
        let over = held
            .zip(message.requested)
            .map(|((all, _), asked)| (all, asked, (all + asked).saturating_sub(allowed)));
        let used_up = match over {
            Some((all, asked, over)) if all < allowed && over > Bytes::ZERO => {
                evidence.push(Evidence::of(
                    over.0,
                    "too much, together with what was asked for",
                ));
                format!(
                    "{all} are in use, and one request of {asked} makes that {}, {over} too much",
                    all + asked
                )
            }
            _ => "that is used up".to_owned(),
        };
        (
            format!("PyTorch may hold {allowed} of this Mac's memory, and {used_up}{parts}"),
            "PYTORCH_MPS_HIGH_WATERMARK_RATIO is that limit: without it the Mac itself may run out",
        )
    } else {
        (
            format!(
                "the process reached the {allowed} that it allows itself, not the end of the GPU"
            ),
            "raise the limit that the program sets (set_per_process_memory_fraction)",
        )
    };
    Cause {
        id: "memory_budget",
        confidence: 0.6,
        verdict,
        evidence,
        fixes: vec![Fix::advice(
            "raise_limit",
            setting,
            0,
            Basis::Estimated,
            "same results",
        )],
    }
}

/// That memory ran out in a phase which tells by itself what took it, by the figures of the message.
fn of_phase(message: &OomMessage) -> Option<Cause> {
    let (id, why) = match message.during? {
        Phase::Loading | Phase::Moving => (
            "model_too_large",
            "a model is read or moved whole, whatever the batch: its weights and what was there before do not fit",
        ),
        Phase::Wrapping if message.tables.shows(Sign::Fsdp) => (
            "model_too_large",
            "FSDP joins the weights of each unit into one tensor before it shards them, beside the weights that are on the GPU already",
        ),
        Phase::Wrapping => (
            "model_too_large",
            "the weights are copied to all ranks, before the first batch: the model and what was there before fill the GPU",
        ),
        Phase::Gathering => (
            "model_too_large",
            "each GPU holds its shard, and gathers the weights of one whole layer (or unit) at a time beside it: that did not fit",
        ),
        Phase::SettingUp => (
            "optimizer_state",
            "a sharded optimizer makes its copies of the weights and its state there, before the first batch",
        ),
        Phase::Saving => (
            "checkpoint_on_gpu",
            "to be saved, the state is gathered or copied on the GPU, beside all that training holds; what was written may be \
             incomplete",
        ),
        Phase::Collecting => (
            "tensors_kept",
            "the predictions of all batches so far are kept on the GPU and joined, so a smaller batch hardly helps",
        ),
        _ => return None,
    };
    let clause = message.during?.clause();
    let mut evidence = request_evidence(message);
    if let Some(allocated) = message.allocated {
        evidence.push(Evidence::of(allocated.0, "in use by PyTorch"));
    }
    evidence.extend(
        message
            .free
            .map(|free| Evidence::of(free.0, "free on the device")),
    );
    evidence.extend(too_few(message));
    evidence.extend(of_others(message));
    let loads = message.during.is_some_and(Phase::is_of_weights);
    let weights = weights::of(message).filter(|_| loads);
    evidence.extend(
        weights.map(|weights| Evidence::new(format!("by its size: {}", weights.sentence()))),
    );
    let figures = message
        .allocated
        .zip(message.total)
        .map(|(used, total)| format!(" beside {used} in use, of {total}"))
        .unwrap_or_default();
    let asked = message
        .requested
        .map_or_else(|| "memory".to_owned(), |asked| asked.to_string());
    Some(Cause {
        id,
        confidence: 0.8,
        verdict: format!(
            "{asked} could not be had while {clause}{figures}: {why}{}",
            if is_second_copy(message) {
                "; the request is as large as all that is in use, so it is a second whole copy of it"
            } else {
                ""
            }
        ),
        evidence,
        fixes: Vec::new(),
    })
}

/// Whether one request is as large as all that tensors hold: a second whole copy of them, which no batch makes.
fn is_second_copy(message: &OomMessage) -> bool {
    let sizes = message.requested.zip(message.allocated);
    is_pytorchs(message)
        && sizes.is_some_and(|(asked, held)| {
            held >= Bytes::gib(1) && asked.0.abs_diff(held.0) <= held.0 / 200
        })
}

/// Whether one request, of more than half of the device, does not fit beside the tensors in use even on an empty one.
fn asks_for_most(message: &OomMessage) -> bool {
    let sizes = message.requested.zip(message.total);
    sizes.is_some_and(|(asked, total)| asked.0 > total.0 / 2)
        && ways::is_too_much_by_itself(message)
}

/// What a tensor as large as the request mostly is, by where it was asked for.
fn of_its_size(message: &OomMessage) -> &'static str {
    let vocabulary = ["log_softmax", "logits"];
    let mut frames = message.traceback.iter().rev();
    let own = frames.find(|frame| is_users_own(&frame.file));
    // A forward pass on one batch joins nothing.
    let mut frames = message.traceback.iter();
    let steps_forward = frames.any(|frame| {
        matches!(
            frame.function.as_str(),
            "prediction_step" | "forward" | "_call_impl"
        )
    });
    if own.is_some_and(|frame| vocabulary.iter().any(|word| frame.code.contains(word)))
        || is_transducers(message)
    {
        "scores over a vocabulary: batch times length times vocabulary (of a transducer, time times labels times vocabulary), once more \
         for each operation on them, so the longest samples of a batch decide; shorter ones, groups of like length, or a loss in \
         pieces make it smaller"
    } else if message.during == Some(Phase::Evaluating) && !steps_forward {
        "in an evaluation a request of that size is mostly the outputs of all batches so far, joined on the GPU, which no smaller batch \
         changes; otherwise attention scores or logits"
    } else {
        "tensors of that size are mostly attention scores, logits, or activations of a whole batch: shorter sequences, a smaller \
         resolution or batch, or attention in blocks (scaled_dot_product_attention) make it smaller"
    }
}

/// Whether a transducer's joint network asks, whose scores have a side for time, one for labels and one for the vocabulary.
fn is_transducers(message: &OomMessage) -> bool {
    let mut frames = message.traceback.iter();
    frames.any(|frame| {
        let file = frame.file.rsplit(['/', '\\']).next().unwrap_or_default();
        ["rnnt", "transducer"]
            .iter()
            .any(|name| file.contains(name) || frame.function.contains(name))
            && frame.function.contains("joint")
    })
}

/// How many times smaller a request has to be, where half of it does not fit either.
fn times_smaller(message: &OomMessage) -> Option<Evidence> {
    let asked = message.requested?;
    let kept = message.reserved.zip(message.allocated);
    let kept = kept.map_or(Bytes::ZERO, |(reserved, used)| {
        reserved.saturating_sub(used)
    });
    let room = message.free? + message.unallocated.unwrap_or(kept);
    // Where next to nothing is left, what is held may shrink as well.
    let some = message.total.is_some_and(|total| room.0 >= total.0 / 8);
    // At best all that is in use is half as large with half a batch.
    let held = message.allocated.unwrap_or_default();
    let (half, most) = (Bytes((held + asked).0 / 2), held + room);
    (some && asked.0 / 2 > room.0 && asked >= ONE_TENSOR).then(|| {
        Evidence::of(
            room.0,
            format!(
                "room for it (free, and kept by PyTorch without use): it has to be {} times smaller{}",
                asked.0.div_ceil(room.0),
                if half.0 > most.0 {
                    ", so half a batch is not enough"
                } else {
                    ", unless what tensors hold shrinks with it"
                }
            ),
        )
    })
}

/// How much was too few on the device.
fn too_few(message: &OomMessage) -> Option<Evidence> {
    let (asked, free) = (message.requested?, message.free?);
    (asked > free).then(|| Evidence::of((asked - free).0, "too few on the device for that"))
}

/// Whether others hold a good part of a GPU that is full.
fn is_full_of_others(message: &OomMessage) -> bool {
    message
        .outside_pytorch()
        .zip(message.total)
        .is_some_and(|(outside, total)| outside.0 as f64 > FOREIGN * total.0 as f64)
        && !is_only_context(message)
}

/// Whether what is held outside PyTorch may be libraries of this process, and its tensors hold more.
fn may_be_libraries(message: &OomMessage) -> bool {
    let outside = message.outside_pytorch().unwrap_or_default();
    message.others.is_empty()
        && outside.0 <= LIBRARIES
        && message.allocated.is_some_and(|held| held > outside)
}

/// Whether others hold nearly all of a full GPU, and PyTorch next to nothing.
fn holds_next_to_nothing(message: &OomMessage) -> bool {
    // What the driver counts as this process's own may be another engine inside it.
    let own = message
        .this_process
        .zip(message.reserved)
        .is_some_and(|(all, held)| all.saturating_sub(held).0 > LIBRARIES);
    is_full_of_others(message)
        && !own
        && message
            .reserved
            .zip(message.total)
            .is_some_and(|(held, total)| held.0 < total.0 / 10)
}

/// Whether what lies outside PyTorch's allocator is no more than a context, libraries and a desktop take, and less than
/// half of what its tensors do: on a small GPU that is a good part, and all the same not what filled it.
fn is_only_context(message: &OomMessage) -> bool {
    const CONTEXT: Bytes = Bytes::mib(1536);
    let outside = message.outside_pytorch().unwrap_or_default();
    message.others.is_empty()
        && outside <= CONTEXT
        && message.allocated.is_some_and(|held| outside.0 < held.0 / 2)
}

/// How much was free, where more was than asked for, and no limit is named; and whether it was far more.
fn free_all_the_same(message: &OomMessage) -> Option<(Bytes, bool)> {
    if !is_pytorchs(message) {
        return None;
    }
    let (requested, free) = (message.requested?, message.free?);
    // The driver keeps the last pieces, of which a large request takes more.
    let more = free.0 > requested.0 + requested.0 / 32 && free.0 > message.total?.0 / 16;
    (more && message.allowed.is_none()).then_some((free, free.0 / 4 > requested.0))
}

/// What other processes hold, where that and what is free would have been enough.
fn others_are_enough(message: &OomMessage) -> Option<Bytes> {
    let others: Bytes = message.others.iter().map(|other| other.used).sum();
    let (asked, free) = (message.requested?, message.free?);
    // In a container one of them may be this process itself.
    let known = message.reserved.unwrap_or_default() + others + free;
    let fits = message
        .total
        .is_some_and(|total| known.0 <= (total.0 / 50).saturating_mul(51));
    (fits && others > Bytes::ZERO && free < asked && free + others >= asked).then_some(others)
}

/// Whether what PyTorch held and what was asked for together are well below what there is, and nothing says where the rest is.
fn held_little(message: &OomMessage) -> bool {
    let (Some(held), Some(asked), Some(total)) =
        (message.reserved, message.requested, message.total)
    else {
        return false;
    };
    message.free.is_none() && (held + asked).0 <= total.0 / 4 * 3
}

/// What the steps that were done before tell of a job that trains.
fn by_progress(message: &OomMessage) -> Option<String> {
    /// So many are alike, unless something grows or samples differ.
    const SOME: u64 = 5;
    if let Some(said) = by_summary(message) {
        return Some(said);
    }
    if message.tables.shows(Sign::Grows) {
        return Some(
            "by the text use grows as it runs, which no batch size cures: something is kept from step to step (losses or \
             outputs with their graph, lists of predictions), or samples differ in size"
                .to_owned(),
        );
    }
    let shows = |sign| message.tables.shows(sign);
    let own = message
        .traceback
        .iter()
        .any(|frame| is_users_own(&frame.file));
    if shows(Sign::Infers) && !shows(Sign::Trains) && !shows(Sign::NoGraph) && own {
        return Some(
            "by the text it infers: without torch.no_grad() around the forward pass, autograd keeps every activation of it, which is \
             the first thing to rule out"
                .to_owned(),
        );
    }
    if shows(Sign::RanEpochs) {
        return Some(
            "by the text some epochs had gone well, so one step fits: either something grows (losses or outputs that are kept with \
             their graph, logged without .detach(), lists of results), or the job is at the edge of the GPU and one batch was larger"
                .to_owned(),
        );
    }
    let (done, all) = message.progress?;
    match done {
        _ if !ways::trains(message) => None,
        // Before the first of them, for all that the traceback shows.
        0 if !(message.traceback.is_empty() || ran_a_step(message)) => None,
        0 => Some(format!(
            "it failed in the first of {all} steps: what one step needs does not fit, and nothing has grown yet"
        )),
        SOME.. => Some(format!(
            "{done} of {all} steps had gone well: a sample that is longer or larger than those before (limit its length, group by \
             length), memory that grows (losses or outputs kept with their graph), or an evaluation in between, and not the model \
             by itself"
        )),
        _ => None,
    }
}

/// Whether a traceback shows that a step ran: a pass through the model, or the optimizer's.
fn ran_a_step(message: &OomMessage) -> bool {
    const CALLS: [&str; 6] = [
        "forward(",
        "backward(",
        "step(",
        "call_impl(",
        "__call__(",
        "model(",
    ];
    let mut frames = message.traceback.iter();
    !message.during.is_some_and(Phase::is_of_weights)
        && frames.any(|frame| {
            let called = format!("{} {}(", frame.code, frame.function);
            CALLS.iter().any(|name| called.contains(name))
        })
}

/// What fills a GPU by design where a server runs.
fn of_a_server(message: &OomMessage) -> Option<String> {
    let server = message.inside.filter(|inside| inside.serves())?;
    match message.during {
        Some(phase) if phase.is_of_weights() => None,
        Some(Phase::Profiling) => Some(format!(
            "{} runs its largest batch once, before its cache of keys and values has a size: the weights and that batch{} did not fit",
            server.name(),
            if message.tables.shows(Sign::Multimodal) {
                " (with as many images and films as a request may have)"
            } else {
                ""
            }
        )),
        _ => Some(format!(
            "the weights and the pool of keys and values, which {} takes at its start, hold most of that by design: what a \
             request or a graph needs beside them found no room",
            server.name()
        )),
    }
}

/// What PyTorch's own summary in the text tells of the steps before.
fn by_summary(message: &OomMessage) -> Option<String> {
    let [now, most, all] = message.tables.given?;
    // A step gives out several times what stays alive.
    (now > Bytes::ZERO && all.0 / 3 < now.0).then(|| {
        format!(
            "by the allocator's summary it gave out {all} in all since the start ({now} alive, {most} at the most): that is hardly \
             more than one step, so nothing has grown from step to step"
        )
    })
}

/// What people tell that decides, as the end of a verdict.
pub(crate) fn tale(message: &OomMessage) -> String {
    told::of(message).map_or_else(String::new, |tale| tale.says)
}

/// What to say if the message is not enough to decide.
pub(crate) fn not_enough_evidence(message: &OomMessage) -> Cause {
    let mut evidence = request_evidence(message);
    if let Some((free, far)) = free_all_the_same(message) {
        if let Some(reserved) = message.reserved {
            evidence.push(Evidence::of(reserved.0, "held by PyTorch's allocator"));
        }
        return Cause {
            id: "not_enough_evidence",
            confidence: 1.0,
            verdict: format!(
                "the driver refused {} although {free} are free: {}",
                message.requested.unwrap_or_default(),
                if far && message.tables.shows(Sign::Windows) {
                    "by these figures the GPU's memory is not what ran out. Most likely it was what Windows lets programs \
                     commit (RAM and page file), or a fault of the driver or the build; the message does not say which"
                } else if far {
                    "by these figures the GPU's memory is not what ran out, but something that the message does not name \
                     (mappings, a limit of the system, a fault of the driver or the device)"
                } else {
                    "it was not to be had in one piece, another process held it at that moment, or a limit of the system \
                     (Windows gives a process less than the card has); the message does not say which"
                }
            ),
            evidence,
            fixes: Vec::new(),
        };
    }
    let some_free = message
        .free
        .zip(message.total)
        .is_some_and(|(free, total)| free.0 > total.0 / 16);
    if let (Some(allocated), Some(reserved)) = (message.allocated, message.reserved) {
        evidence.push(Evidence::of(
            allocated.0,
            format!(
                "in use by PyTorch, of {reserved} reserved{}",
                if some_free || held_little(message) {
                    ""
                } else {
                    ": memory was full"
                }
            ),
        ));
    }
    if let Some((idle, asked)) = cached(message).zip(message.requested)
        && idle >= asked
        && message.allocated.is_some()
    {
        evidence.push(Evidence::of(
            idle.0,
            "reserved by PyTorch and not in use, in pieces that are too small for that",
        ));
    }
    if let Some(free) = message.free {
        evidence.push(Evidence::of(free.0, "free on the device"));
        evidence.extend(too_few(message));
        evidence.extend(times_smaller(message));
    }
    evidence.extend(of_a_server(message).map(Evidence::new));
    // Where the text does not say what is reserved, the allocator's own free blocks are a part of it.
    let outside = message.outside_pytorch().unwrap_or_default();
    let beside = if message.reserved.is_some() {
        "lie outside PyTorch's allocator"
    } else {
        "are neither free nor in use by tensors (blocks that PyTorch keeps, its context, or other processes)"
    };
    let share = sharing::beside_share(message);
    if let Some(others) = others_are_enough(message).filter(|_| share.is_none()) {
        let pids: Vec<String> = message
            .others
            .iter()
            .map(|other| other.pid.to_string())
            .collect();
        evidence.push(Evidence::of(
            others.0,
            format!(
                "held by {} on this GPU ({}): with what is free that would have been enough",
                if pids.len() == 1 {
                    "another process".to_owned()
                } else {
                    format!("{} other processes", pids.len())
                },
                pids.join(", ")
            ),
        ));
    } else if outside >= Bytes::gib(1) {
        evidence.push(Evidence::of(
            outside.0,
            if message.reserved.is_some() {
                "held outside PyTorch's allocator: the context, libraries, CUDA graphs, or other processes (in a \
                 container the numbers of processes do not tell which)"
            } else {
                "neither free nor in use by tensors: blocks that PyTorch keeps, its context, libraries, or other processes"
            },
        ));
        evidence.extend(of_others(message));
    } else {
        evidence.extend(of_others(message));
    }
    evidence.extend(
        other::around(message)
            .into_iter()
            .map(|(bytes, what)| Evidence::of(bytes.0, what)),
    );
    let known = next::of_a_phase(message)
        || matches!(
            message.during,
            Some(Phase::Optimizing | Phase::Capturing | Phase::Decoding)
        );
    let buckets = message.tables.shows(Sign::DataParallel);
    if buckets {
        evidence.push(Evidence::new(
            "DistributedDataParallel was set up: it makes buckets as large as the gradients of all parameters that are \
             trained, beside the weights",
        ));
    } else if message.requested.is_some_and(|asked| asked >= ONE_TENSOR)
        && !is_second_copy(message)
        && !message.inside.is_some_and(Program::serves)
        && !held_little(message)
        && !known
    {
        evidence.push(Evidence::new(of_its_size(message)));
    }
    if ways::is_too_much_by_itself(message)
        && let Some((held, asked)) = message.allocated.zip(message.requested)
    {
        evidence.push(Evidence::of(
            (held + asked).0,
            "in use and asked for together: more than the whole GPU has, so what else is on it does not decide",
        ));
    }
    let steps = !matches!(
        message.during,
        Some(Phase::Evaluating | Phase::Generating | Phase::Decoding)
    );
    let one_request = asks_for_most(message);
    let unknown = steps
        && !buckets
        && !one_request
        && message.inside.is_none()
        && message.reserved != Some(Bytes::ZERO);
    evidence.extend(
        weights::small(message)
            .filter(|_| unknown)
            .map(Evidence::new),
    );
    let progress = by_progress(message).filter(|_| unknown);
    evidence.extend((unknown && progress.is_none()).then(|| {
        Evidence::new(
            "if it fails in the first steps, the model, the batch and the size of its inputs are too large together; if later, \
         something is kept from step to step. Both look alike in a message. Record the job: torch.cuda.memory._record_memory_history(\
         max_entries=sys.maxsize, stacks=\"python\"), and dump a snapshot when it fails \
         (`oomph run` does both)",
        )
    }));
    let in_pieces = in_pieces(message);
    let mut verdict = match (
        message.allocated,
        message.total,
        message.requested,
        message.free,
    ) {
        (Some(used), Some(total), Some(asked), _) if let Some(share) = &share => format!(
            "memory was full when {asked} were asked for, with {used} of {total} in tensors: {share}"
        ),
        (Some(used), Some(total), Some(asked), _) if one_request && asked <= total => format!(
            "one request of {asked} beside {used} that tensors held is more than the {total} that the GPU has, whatever else is \
             on it: the request is what has to be smaller{}",
            if is_second_copy(message) {
                ". It is as large as all that is in use: most likely a second whole copy of the weights, made as they are joined, cast, \
                 moved or sharded"
            } else {
                ""
            }
        ),
        (Some(used), Some(total), Some(asked), Some(free)) if buckets => format!(
            "DistributedDataParallel asked for {asked} for its buckets of gradients and found {free} free beside the {used} \
             that tensors (the weights first) held, of {total}"
        ),
        (Some(used), Some(total), Some(asked), Some(free)) if some_free => format!(
            "one request of {asked} found {free} free beside the {used} that tensors held, of {total}"
        ),
        (Some(used), Some(total), Some(asked), _)
            if let Some(others) = others_are_enough(message) =>
        {
            format!(
                "memory was full: tensors hold {used} of {total}, and {} on this GPU {others}, without which the \
                 {asked} would have fitted",
                match message.others.len() {
                    1 => "another process".to_owned(),
                    count => format!("{count} other processes"),
                }
            )
        }
        (Some(used), Some(total), ..) if used > total => format!(
            "tensors hold {used}, more than the GPU's {total}: the driver keeps the rest in host memory, and that \
             is used up as well; the message does not say why"
        ),
        (Some(used), Some(total), Some(asked), None)
            if used + asked > total && used.0 < total.0 / 2 =>
        {
            format!(
                "one request of {asked} beside the {used} that tensors held is more than the {total} that there are"
            )
        }
        (Some(_), Some(total), Some(asked), free)
            if held_little(message) && free.is_none_or(|free| free < asked) =>
        {
            let held = message.reserved.filter(|held| held.0 > 0);
            format!(
                "PyTorch held {} when it could not get {asked}, of {total}: other processes hold the memory, or the \
                 driver allows no single piece of that size; the message does not say which",
                held.map_or_else(|| "nothing yet".to_owned(), |held| format!("only {held}"))
            )
        }
        (Some(used), Some(total), ..) if outside.0 >= total.0 / 8 => format!(
            "memory was full: this job's tensors hold {used} of {total}, and {outside} {beside}"
        ),
        (Some(used), Some(total), Some(asked), _)
            if let Some(cached) =
                in_pieces.filter(|cached| {
                    *cached >= asked && cached.0 >= total.0 / 32 && message.inside.is_none()
                }) =>
        {
            format!(
                "memory was full of tensors in use, {used} of {total}, and of pieces: the {cached} that PyTorch kept free beside them are in \
                 pieces too small for {asked}, so at this edge of the card the pieces decide"
            )
        }
        (Some(used), Some(total), ..) => format!(
            "memory was full of tensors in use, {used} of {total}{}: what it holds at once is more than the card has room \
             for{}",
            if message.reserved.is_none() && outside >= Bytes::gib(1) { "" } else { ", all of this job" },
            if unknown && progress.is_none() {
                " (whether it was so from the first step on, the message does not say)"
            } else {
                ""
            }
        ),
        (Some(_), ..) => "memory was full of tensors in use".to_owned(),
        (None, ..) if message.setting == Some("no report") => {
            "the GPU's memory ran out: PyTorch asks NVML who holds the GPU only to report that, and this system has no NVML (as on \
             Jetson), so that the report failed and not the request alone"
                .to_owned()
        }
        (None, _, Some(asked), _) if message.setting == Some("one allocation") => format!(
            "Metal, through which this Mac's GPU is used, allows no single buffer of {asked}: one tensor is that \
             large"
        ),
        (None, _, Some(asked), _) if asked >= ONE_TENSOR => format!(
            "one request alone asked for {asked}, so one tensor is that large"
        ),
        (None, ..) => format!("{} ran out", next::memory_name(message)),
    };
    if let Some(progress) = progress {
        verdict = format!("{verdict}; {progress}");
    }
    Cause {
        id: if share.is_some() {
            "memory_budget"
        } else {
            "not_enough_evidence"
        },
        confidence: if share.is_some() { 0.8 } else { 1.0 },
        verdict,
        evidence,
        fixes: Vec::new(),
    }
}
