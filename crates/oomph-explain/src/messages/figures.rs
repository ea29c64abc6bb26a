//! The figures that a text has beside those of its message, in the text's own words: nothing of them is lost, and nothing
//! that stands there is called unsaid.

use std::collections::HashMap;

use oomph_gpus::Gpu;
use oomph_trace::Bytes;
use oomph_trace::text::{Figure, Memory, MessageKind, OomMessage, Program, Setting};

use crate::{Evidence, FigureReport};

/// Figures that are listed.
const LISTED: usize = 8;
/// So little decides nothing.
const TINY: u64 = 1 << 20;
/// Letters of a message's line that are quoted beside it.
pub(super) const QUOTED: usize = 160;
/// Words for all there is.
const TOTAL: [&str; 14] = [
    "total",
    "limit",
    "capacity",
    "vram",
    "max",
    "memory is",
    "memory of",
    "of memory",
    "gpu memory",
    " ram",
    "mem=",
    "memory=",
    "allowed",
    "with ",
];
/// Words for what is held, or left.
const USE: [&str; 19] = [
    "use",
    "usage",
    "rss",
    "took",
    "taken",
    "takes",
    "held",
    "hold",
    "allocated",
    "cache",
    "weights",
    "reserved",
    "occupied",
    "free",
    "avail",
    "buffer size",
    "chunks",
    "mapped",
    "mib /",
];
/// What the kernel's account has for each zone of the memory: its sums say more.
const BY_ZONE: [&str; 8] = [
    "free_pcp:",
    "isolated(",
    "bounce:",
    "highatomic",
    "_anon:",
    "_file:",
    "shmem",
    " free:",
];

/// Whether two figures are one, as printed.
fn alike(one: Bytes, other: Bytes) -> bool {
    one.0.abs_diff(other.0) <= one.0 / 1000
}

fn has(figure: &Figure, words: &[&str]) -> bool {
    let lower = figure.text.to_ascii_lowercase();
    words.iter().any(|word| lower.contains(word))
}

/// Whether it says more than what was asked for.
fn says_more(message: &OomMessage, figure: &Figure) -> bool {
    let asked = |size: &Bytes| message.requested.is_some_and(|asked| alike(asked, *size));
    !figure.sizes.is_empty() && !figure.sizes.iter().all(asked)
}

/// Whether the text has a figure beside what was asked for.
pub(super) fn says_any(message: &OomMessage) -> bool {
    let mut figures = message.tables.figures.iter();
    figures.any(|figure| says_more(message, figure))
}

/// The card that a text names, where it names one kind and all of that name have the same memory.
pub(super) fn card(message: &OomMessage) -> Option<(usize, &'static Gpu)> {
    if !matches!(message.memory, Memory::Device | Memory::Unknown) {
        return None;
    }
    let mut found: Option<(usize, &'static Gpu)> = None;
    for (line, name) in &message.tables.gpus {
        let named = oomph_gpus::resolve(name).ok()?;
        let size = named.gpu.memory.nominal_gib;
        let other = found.is_some_and(|(_, known)| known.memory.nominal_gib != size);
        if other
            || named
                .others
                .iter()
                .any(|other| other.memory.nominal_gib != size)
        {
            return None;
        }
        found = found.or(Some((*line, named.gpu)));
    }
    found
}

/// That the card which the text names has less in all than one request, or than all that a program needs.
pub(super) fn never_fits(message: &OomMessage) -> Option<String> {
    if message.memory != Memory::Device || message.total.is_some() {
        return None;
    }
    let whole = message
        .parts
        .iter()
        .find(|(name, _)| name == "total allocation");
    let need = message.requested.max(whole.map(|(_, bytes)| *bytes))?;
    let what = if Some(need) == message.requested {
        "that is"
    } else {
        "the program needs"
    };
    if let Some(total) = message.around.total {
        return (need > total).then(|| {
            format!("; {what} {need}, more than the {total} that there are by the text, so it can never fit there")
        });
    }
    if let Some((line, total)) = device_memory(message).filter(|(_, total)| need > *total) {
        return Some(format!(
            "; {what} {need}, more than the {total} that the card has by line {line}, so it can never fit there"
        ));
    }
    let (line, gpu) = card(message)?;
    let total = Bytes(gpu.memory.total_bytes);
    (need > total).then(|| {
        format!(
            "; {what} {need}, more than the {total} of the card that line {line} names ({}, by oomph's catalogue), so it can \
             never fit there",
            gpu.name
        )
    })
}

/// The largest size of the accelerator's memory that the text states, with its line.
pub(super) fn device_memory(message: &OomMessage) -> Option<(usize, Bytes)> {
    const WORDS: [&str; 6] = [
        "vram",
        "gpu has",
        "card has",
        "device has",
        "device just has",
        "gpu with",
    ];
    // What a program wants, or what is free, is not what there is.
    const NOT: [&str; 8] = [
        "want", "need", "requir", "too much", "free", "takes", "uses", "used",
    ];
    let figures = message.tables.figures.iter();
    let stated = figures.filter(|figure| has(figure, &WORDS) && !has(figure, &NOT));
    stated
        .filter_map(|figure| Some((figure.line, *figure.sizes.iter().max()?)))
        .min_by_key(|(_, size)| std::cmp::Reverse(*size))
}

/// Whether the text says what the weights take.
pub(super) fn lists_weights(message: &OomMessage) -> bool {
    message
        .parts
        .iter()
        .any(|(name, _)| name.contains("weights"))
}

/// What the text sets a name to, if it does.
pub(super) fn setting<'a>(message: &'a OomMessage, name: &str) -> Option<&'a Setting> {
    let mut settings = message.settings.iter();
    settings.find(|setting| setting.name == name)
}

/// The size that the text gives beside a name: `initial_memory_usage=68.01GiB`.
pub(super) fn stated(message: &OomMessage, name: &str) -> Option<Bytes> {
    let mut figures = message.tables.figures.iter();
    figures
        .find(|figure| figure.text.contains(name))?
        .sizes
        .first()
        .copied()
}

/// The tokens of context that llama.cpp's cache has, by its log: `6564.00 MiB ( 70016 cells, …`.
pub(super) fn context(message: &OomMessage) -> Option<u64> {
    let mut figures = message.tables.figures.iter();
    let figure = figures.find(|figure| figure.text.ends_with(" cells"))?;
    let number = figure.text.trim_end_matches(" cells").rsplit(' ').next()?;
    number.parse().ok()
}

/// A size that a writer names for a hosted notebook, where that is more than its GPU has, with its line.
pub(super) fn of_the_machine(message: &OomMessage) -> Option<(usize, Bytes)> {
    let total = message.total.filter(|_| message.memory == Memory::Device)?;
    let mut figures = message.tables.figures.iter();
    figures.find_map(|figure| {
        let text = figure.text.to_ascii_lowercase();
        let size = figure.sizes.iter().max().copied()?;
        let hosted = ["colab", "kaggle"].iter().any(|name| text.contains(name));
        (hosted && figure.line != message.line && size.0 / 6 * 5 > total.0)
            .then_some((figure.line, size))
    })
}

/// What ComfyUI's log says stayed on the GPU when it made room the last time.
pub(super) fn remains(message: &OomMessage) -> Option<Bytes> {
    let mut figures = message.tables.figures.iter();
    figures
        .rfind(|figure| figure.line < message.line && figure.text.contains("remains loaded"))?
        .sizes
        .first()
        .copied()
}

/// What TensorFlow's pool might still have taken of the GPU, where that is more than the request which it could not get: so it
/// was the driver that refused.
pub(super) fn room_to_grow(message: &OomMessage) -> Option<Bytes> {
    // None left is no room, whatever the sizes behind it.
    let mut figures = message.tables.figures.iter();
    if figures.any(|figure| figure.text.contains("available bytes: 0")) {
        return None;
    }
    let room = stated(message, "available bytes: ")?;
    let whole = message.program == Program::Tensorflow && !message.handled;
    (whole && message.requested.is_some_and(|asked| asked <= room)).then_some(room)
}

/// What XLA says of the memory of a program that it could not make smaller.
pub(super) struct Plan {
    /// What the program needs.
    need: Bytes,
    /// What it may use beside what it takes in and gives back; how much is lacking even for that.
    limit: Result<Bytes, Bytes>,
}

/// `Can't reduce memory use below -25.62GiB (…) by rematerialization; only reduced to 48.25GiB (…)`.
pub(super) fn plan(message: &OomMessage) -> Option<Plan> {
    let figures = &message.tables.figures;
    let at = figures
        .iter()
        .position(|figure| figure.text.contains("reduce memory use below"))?;
    let need = figures
        .get(at + 1)
        .filter(|figure| figure.text.contains("reduced to"))?;
    // In bytes beside, where the text has them.
    let exact = |figure: &Figure| Some(*figure.sizes.get(1).or(figure.sizes.first())?);
    let limit = exact(&figures[at])?;
    let negative = figures[at].text.contains("below -");
    Some(Plan {
        need: exact(need)?,
        limit: if negative { Err(limit) } else { Ok(limit) },
    })
}

impl Plan {
    /// Whether what the program takes in and gives back is already too much.
    pub(super) fn is_of_the_state(&self) -> bool {
        self.limit.is_err()
    }

    /// The end of a sentence.
    fn sentence(&self) -> String {
        match self.limit {
            Ok(limit) => format!(
                "; by XLA's warning the compiled program needs {}, and may use {limit}: {} too much, after all that it could compute again",
                self.need,
                self.need.saturating_sub(limit)
            ),
            Err(short) => format!(
                "; by XLA's warning the compiled program needs {}, and its limit is {short} below zero: what it takes in and gives back \
                 (weights, the optimizer's state) is alone more than the GPU may hold, and computing again cannot make that smaller",
                self.need
            ),
        }
    }
}

/// The end of a sentence about a program that XLA could not make smaller.
pub(super) fn of_the_plan(message: &OomMessage) -> Option<String> {
    plan(message)
        .filter(|_| message.program == Program::Jax)
        .map(|plan| plan.sentence())
}

/// What a program that XLA compiled needs in all, by the sums of its own list, as the end of a sentence.
pub(super) fn of_the_assignment(message: &OomMessage) -> Option<String> {
    let part = |name: &str| {
        let mut parts = message.parts.iter();
        parts.find_map(|(known, bytes)| known.starts_with(name).then_some(*bytes))
    };
    let whole = part("total allocation")?;
    let named = [
        ("parameter allocation", "for what it takes in"),
        ("maybe_live_out", "for what it gives back"),
        ("preallocated temp", "for what it computes between"),
    ];
    let parts: Vec<String> = named
        .into_iter()
        .filter_map(|(name, what)| {
            Some(format!(
                "{} {what}",
                part(name).filter(|bytes| bytes.0 > 0)?
            ))
        })
        .collect();
    Some(format!(
        "; by XLA's list the compiled program needs {whole}: {}",
        parts.join(", ")
    ))
}

/// The operator and the name of the node of ONNX Runtime that asked: `while running Softmax node. Name:'/attn1/Softmax'`.
pub(super) fn node(message: &OomMessage) -> Option<(&str, &str)> {
    let (_, rest) = message.text.split_once("while running ")?;
    let (operator, rest) = rest.split_once(" node. Name:")?;
    let name = rest
        .trim_start_matches(['\'', '"', '\\'])
        .split(['\'', '"', '\\'])
        .next()?;
    (operator.len() < 40 && !operator.contains(' ')).then_some((operator, name))
}

/// Whether a node makes the scores of attention, for each pair of tokens.
pub(super) fn makes_scores((operator, name): (&str, &str)) -> bool {
    let lower = name.to_ascii_lowercase();
    let products = [
        "Softmax",
        "MatMul",
        "FusedMatMul",
        "Mul",
        "Div",
        "Add",
        "Where",
    ];
    let named = ["attn", "attention", "att/"]
        .iter()
        .any(|word| lower.contains(word));
    operator == "Softmax"
        || name.contains("MatMulAndScale")
        || (named && products.contains(&operator))
}

/// The end of a sentence about the node that asked.
pub(super) fn of_the_node(message: &OomMessage) -> Option<String> {
    let node = node(message)?;
    let what = if makes_scores(node) {
        ": the scores of attention, for each pair of tokens in one buffer, so twice the tokens are four times as much"
    } else {
        ""
    };
    Some(format!(
        "; {} asked for it, the node {}{what}",
        node.0, node.1
    ))
}

/// The buffers that a log of llama.cpp has on the GPU of a message: `CUDA0 KV buffer size = 3280.00 MiB`.
fn buffers(message: &OomMessage) -> Vec<(&'static str, Bytes)> {
    const KINDS: [(&str, &str); 4] = [
        (" model buffer size", "weights"),
        // Before 2025.
        (" buffer size", "weights"),
        (" KV buffer size", "keys and values"),
        (" compute buffer size", "computing"),
    ];
    let Some(device) = message.device else {
        return Vec::new();
    };
    let held = |(words, name): (&str, &'static str)| {
        let mut figures = message.tables.figures.iter().filter(|figure| {
            let owner = figure
                .text
                .split_once(words)
                .and_then(|(head, _)| head.rsplit([' ', '`', ':']).next());
            let own = |owner: &str| {
                let name = owner.trim_end_matches(|c: char| c.is_ascii_digit());
                owner.len() > name.len()
                    && owner[name.len()..].parse() == Ok(device)
                    && !name.is_empty()
            };
            figure.line < message.line && owner.is_some_and(own)
        });
        let size = figures.next_back()?.sizes.iter().max()?;
        // A buffer for computing whose size is announced is the one that is asked for.
        (name != "computing" || Some(*size) != message.requested).then_some((name, *size))
    };
    KINDS.into_iter().filter_map(held).collect()
}

/// The memory of the GPU that a message is about, by the message, a table, a sentence or the name of the card.
pub(super) fn memory(message: &OomMessage) -> Option<Bytes> {
    let all = message.total.or(message.around.total);
    let stated = all.or_else(|| device_memory(message).map(|(_, size)| size));
    stated.or_else(|| Some(Bytes(card(message)?.1.memory.total_bytes)))
}

/// Whether the weights of llama.cpp fill most of a GPU.
pub(super) fn weights_fill(message: &OomMessage) -> bool {
    let held = buffers(message);
    let weights = held.iter().find(|(name, _)| *name == "weights");
    weights
        .zip(memory(message))
        .is_some_and(|((_, weights), all)| weights.0 >= all.0 / 5 * 4)
}

/// Whether a log of llama.cpp has what lies on the GPU.
pub(super) fn lists_buffers(message: &OomMessage) -> bool {
    !buffers(message).is_empty()
}

/// What a message's request makes together with what the text says is on that GPU already, and how that compares with
/// what there is, as the end of a sentence.
pub(super) fn sum(message: &OomMessage) -> Option<String> {
    let asked = message.requested.filter(|_| !message.handled)?;
    if message.memory != Memory::Device {
        return None;
    }
    let all = memory(message);
    let mut held = buffers(message);
    // An engine lies on the GPU when its context is made.
    let engine =
        stated(message, "Loaded engine size").filter(|_| message.program == Program::TensorRt);
    held.extend(engine.map(|size| ("the engine", size)));
    if held.is_empty() {
        let used = message.used().filter(|_| message.total.is_some())?;
        let over = (used + asked).saturating_sub(all?);
        return (over > Bytes::ZERO && used <= all? && asked <= all?)
            .then(|| format!(": with the request that is {over} too much"));
    }
    let whole: Bytes = held.iter().map(|(_, size)| *size).sum::<Bytes>() + asked;
    let parts: Vec<String> = held
        .iter()
        .map(|(name, size)| format!("{size} for {name}"))
        .collect();
    let compared = match all {
        Some(all) if whole > all => format!(", {} more than the {all} there", whole - all),
        Some(all) => format!(" of {all}"),
        None => String::new(),
    };
    Some(format!(
        "; with the buffers that it has on this GPU already ({}) that makes {whole}{compared}",
        parts.join(", ")
    ))
}

/// How a server's estimate of its layers was too small.
pub(super) struct Estimate {
    /// The layers that it put on the GPU.
    pub(super) layers: u64,
    /// As many as fit by the figures of the text.
    pub(super) fit: u64,
    /// The end of a sentence.
    sentence: String,
}

/// That a server put more layers on the GPU than fit.
pub(super) fn estimate(message: &OomMessage) -> Option<Estimate> {
    let plan = message.tables.offload?;
    let asked = message
        .requested
        .filter(|_| message.memory == Memory::Device)?;
    let (layers, free) = (plan.layers, plan.free);
    if layers == 0 {
        return None;
    }
    if asked > free {
        // A fifth is for the cache and for computing.
        let fit = free.0 / 5 * 4 / (asked.0 / layers).max(1);
        return Some(Estimate {
            layers,
            fit: fit.min(layers - 1),
            sentence: format!(
                "; the program put {layers} layers on a GPU with {free} free, by an estimate that was too small: by this \
                 request each takes about {}",
                Bytes(asked.0 / layers)
            ),
        });
    }
    let (planned, graph) = plan.planned.zip(plan.graph)?;
    let need = planned.saturating_sub(graph) + asked;
    let over = need.saturating_sub(free);
    let each = (planned.saturating_sub(graph).0 / layers).max(1);
    (asked > graph && over > Bytes::ZERO).then(|| Estimate {
        layers,
        fit: layers.saturating_sub(over.0 / each + 1),
        sentence: format!(
            "; the program planned {planned} in {layers} layers for the {free} that were free, with {graph} of that for \
             computing: this request alone, which is for that, makes it {need}, {over} too much, so its estimate was too small"
        ),
    })
}

/// That a server's estimate of its layers was too small, as the end of a sentence.
pub(super) fn of_the_estimate(message: &OomMessage) -> Option<String> {
    estimate(message).map(|estimate| estimate.sentence)
}

/// Whether a figure is of another run than the message: a server prints how large its cache is when it fits, and so not beside the
/// message that it does not.
pub(super) fn is_of_another_run(message: &OomMessage, words: &str, sizes: &[Bytes]) -> bool {
    let Some(left) = message.free.filter(|_| message.kind == MessageKind::Budget) else {
        return false;
    };
    // Ranks of one run differ by little.
    let other = |size: &Bytes| size.0.abs_diff(left.0) > left.0 / 10;
    message.program == Program::Vllm
        && (["GPU KV cache size", "Maximum concurrency"]
            .iter()
            .any(|name| words.contains(name))
            || (words.contains("Available KV cache memory") && sizes.iter().all(other)))
}

/// What of a text's figures is not `shown` beside them, the nearest to the message first chosen, then in their order.
pub(crate) fn listed(
    message: &OomMessage,
    evidence: &[Evidence],
    others: &[OomMessage],
) -> Vec<FigureReport> {
    if matches!(message.kind, MessageKind::Fault(_)) {
        return Vec::new();
    }
    // The first lines of an answer have these of PyTorch's.
    let own = [
        message.requested,
        message.allocated,
        message.reserved,
        message.total,
    ];
    let own = own
        .into_iter()
        .flatten()
        .filter(|_| message.allocated.is_some());
    let shown: Vec<Bytes> = evidence
        .iter()
        .filter_map(|item| item.bytes.map(Bytes))
        .chain(own)
        .collect();
    let known = |size: &Bytes| shown.iter().any(|other| alike(*other, *size));
    let quoted = |figure: &Figure| {
        figure.line == message.line && evidence.iter().any(|item| item.what.contains(&figure.text))
    };
    let anothers = |figure: &Figure| {
        figure.line != message.line && others.iter().any(|other| other.line == figure.line)
    };
    // Who holds a pool's chunks is listed.
    let of_pool = |figure: &Figure| {
        const CHUNKS: [&str; 7] = [
            "InUse at ",
            "Free at ",
            "Free  at ",
            "Chunk at ",
            "for chunks",
            "in use in bin",
            "Requested Size",
        ];
        message.pool.is_some() && CHUNKS.iter().any(|words| figure.text.contains(words))
    };
    let serves = message.program.serves() || message.inside.is_some_and(Program::serves);
    let small = message.kind == MessageKind::OnChip
        || message.requested.is_some_and(|asked| asked.0 < 16 * TINY);
    // Lines that differ in their numbers alone are one, with how many more there are.
    let mut alike: HashMap<String, usize> = HashMap::new();
    let mut kept: Vec<(usize, &Figure, String)> = Vec::new();
    for (at, figure) in message.tables.figures.iter().enumerate() {
        let counts = figure.sizes.is_empty();
        let tiny = !counts && !small && figure.sizes.iter().all(|size| size.0 < TINY);
        if quoted(figure)
            || (message.program == Program::Kernel && has(figure, &BY_ZONE))
            || anothers(figure)
            || (figure.line != message.line
                && is_of_another_run(message, &figure.text, &figure.sizes))
            || of_pool(figure)
            || tiny
            || (counts && !serves)
            || (!counts && figure.sizes.iter().all(known))
        {
            continue;
        }
        let skeleton: String = figure
            .text
            .chars()
            .filter(|c| !c.is_ascii_digit())
            .collect();
        let times = alike.entry(skeleton.clone()).or_default();
        *times += 1;
        // Of several moments the nearest to the message tells the most, and of one line the largest.
        let rank = |figure: &Figure| {
            let size = figure.sizes.iter().max().copied();
            (figure.line.abs_diff(message.line), std::cmp::Reverse(size))
        };
        match kept.iter_mut().find(|(_, _, known)| *known == skeleton) {
            Some(known) if rank(figure) < rank(known.1) => *known = (at, figure, skeleton),
            Some(_) => {}
            None => kept.push((at, figure, skeleton)),
        }
    }
    let tells = |figure: &Figure| has(figure, &TOTAL) || has(figure, &USE);
    kept.sort_by_key(|(_, figure, _)| (!tells(figure), figure.line.abs_diff(message.line)));
    kept.truncate(LISTED);
    kept.sort_by_key(|(at, ..)| *at);
    let mut found: Vec<FigureReport> = kept
        .into_iter()
        .map(|(_, figure, skeleton)| FigureReport {
            line: figure.line,
            text: figure.text.clone(),
            more: alike.get(&skeleton).map_or(0, |times| times - 1),
        })
        .collect();
    if let Some((line, gpu)) =
        card(message).filter(|_| message.total.or(message.around.total).is_none())
    {
        let text = format!(
            "{}: such a card has {} GB (by oomph's catalogue, not by the text)",
            gpu.name, gpu.memory.nominal_gib
        );
        found.push(FigureReport {
            line,
            text,
            more: 0,
        });
    }
    found
}
