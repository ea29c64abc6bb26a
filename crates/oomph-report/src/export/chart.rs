//! The main charts as a picture: memory through time by category, and the peak as a flame graph.

use std::collections::HashMap;

use oomph_bytes::format_bytes;
use oomph_explain::stacks::is_plumbing;
use oomph_trace::{Category, FrameId};

use super::picture::{Anchor, Colour, Picture, fit, width_of};
use crate::html::Page;
use crate::html::history::Digest;
use crate::html::redact::Redactor;

const WIDTH: f64 = 1200.0;
const LEFT: f64 = 76.0;
const RIGHT: f64 = 18.0;
const PLOT_TOP: f64 = 96.0;
const PLOT_HEIGHT: f64 = 300.0;
const ROW: f64 = 18.0;
/// Levels of the flame graph; the `firefox` export has deeper ones.
const LEVELS: usize = 26;
/// The palette of the page, for the categories in their order.
const COLOURS: [Colour; 8] = [
    [0x4a, 0x90, 0xc8],
    [0x2c, 0xa7, 0x86],
    [0xcc, 0x79, 0xa7],
    [0xe6, 0x9f, 0x00],
    [0x6c, 0xc3, 0xee],
    [0xe8, 0xd9, 0x4a],
    [0xdd, 0x74, 0x40],
    [0xa3, 0xab, 0xb6],
];
const INK: Colour = [0x16, 0x19, 0x1d];
const QUIET: Colour = [0x62, 0x6b, 0x78];
const GRID: Colour = [0xec, 0xef, 0xf3];
const BAD: Colour = [0xc4, 0x28, 0x1c];
const RESERVED: Colour = [0x3b, 0x43, 0x50];

pub(super) fn draw(digest: &Digest, page: &Page, redact: &mut Redactor) -> Picture {
    let flame = Flame::new(digest, redact);
    let levels = flame.depth().min(LEVELS);
    let flame_top = PLOT_TOP + PLOT_HEIGHT + 78.0;
    let height = flame_top + levels as f64 * ROW + 20.0;
    let mut picture = Picture::new(WIDTH as usize, height as usize);
    let title = if page.redact {
        redact.file(&page.title)
    } else {
        page.title.clone()
    };
    picture.bold(LEFT, 30.0, INK, &fit(&title, 600.0));
    picture.text(LEFT, 50.0, Anchor::Start, QUIET, &headline(digest));
    timeline(&mut picture, digest);
    picture.bold(
        LEFT,
        flame_top - 12.0,
        INK,
        &format!("alive at the peak: {}", format_bytes(digest.peak.1)),
    );
    flame.draw(&mut picture, flame_top, levels);
    picture
}

fn headline(digest: &Digest) -> String {
    let mut parts = vec![
        format!("peak {} in use", format_bytes(digest.peak.1)),
        format!(
            "{} reserved",
            format_bytes(digest.facts.program.recorded_peak_reserved)
        ),
    ];
    if let Some(total) = digest.capacity() {
        parts.push(format!("capacity {}", format_bytes(total)));
    }
    if let Some(failure) = digest.failures.last() {
        parts.push(format!(
            "out of memory asking for {}",
            format_bytes(failure.bytes)
        ));
    }
    parts.join(" · ")
}

fn timeline(picture: &mut Picture, digest: &Digest) {
    let wide = WIDTH - LEFT - RIGHT;
    let most = digest
        .peak
        .1
        .max(digest.facts.program.recorded_peak_reserved)
        .max(1);
    // A capacity far above would flatten everything.
    let capacity = digest.capacity().filter(|&total| total < most * 5 / 2);
    let top = most.max(capacity.unwrap_or(0)) as f64 * 1.06;
    let y = |amount: f64| PLOT_TOP + PLOT_HEIGHT * (1.0 - amount / top);
    let step = (top as u64 / 6).next_power_of_two().max(1);
    let mut amount = 0;
    while amount as f64 <= top {
        picture.rect(LEFT, y(amount as f64), wide, 1.0, GRID);
        let label = if amount == 0 {
            "0".to_owned()
        } else {
            format_bytes(amount)
        };
        picture.text(
            LEFT - 8.0,
            y(amount as f64) + 4.0,
            Anchor::End,
            QUIET,
            &label,
        );
        amount += step;
    }
    let columns = wide as usize;
    for (x, parts) in by_column(digest, columns).into_iter().enumerate() {
        let mut level = 0.0;
        for (part, colour) in parts.iter().zip(COLOURS) {
            let part = *part as f64;
            picture.rect(
                LEFT + x as f64,
                y(level + part),
                1.0,
                y(level) - y(level + part),
                colour,
            );
            level += part;
        }
    }
    let last = f64::from(digest.moments.max(1));
    let x_of = |moment: u32| LEFT + wide * f64::from(moment) / last;
    for (index, &(moment, amount)) in digest.reserved.iter().enumerate() {
        let until = digest
            .reserved
            .get(index + 1)
            .map_or(digest.moments, |&(next, _)| next);
        let (from, to) = (x_of(moment), x_of(until));
        picture.rect(
            from,
            y(amount as f64) - 0.75,
            (to - from).max(0.5),
            1.5,
            RESERVED,
        );
    }
    if let Some(capacity) = capacity {
        let at = y(capacity as f64);
        let mut x = LEFT;
        while x < LEFT + wide {
            picture.rect(x, at - 0.75, 6.0, 1.5, BAD);
            x += 10.0;
        }
        picture.text(
            LEFT + wide,
            at - 5.0,
            Anchor::End,
            BAD,
            &format!("capacity {}", format_bytes(capacity)),
        );
    }
    for failure in digest.failures.iter().rev().take(1) {
        picture.rect(x_of(failure.moment) - 1.0, PLOT_TOP, 2.0, PLOT_HEIGHT, BAD);
    }
    let mut free_from = LEFT;
    for step in &digest.steps {
        let x = x_of(step.start);
        let label = format!("step {}", step.number);
        if x >= free_from {
            picture.rect(x, PLOT_TOP + PLOT_HEIGHT, 1.0, 5.0, QUIET);
            picture.text(
                x + 3.0,
                PLOT_TOP + PLOT_HEIGHT + 15.0,
                Anchor::Start,
                QUIET,
                &label,
            );
            free_from = x + width_of(&label) + 14.0;
        }
    }
    let mut x = LEFT;
    for (category, colour) in Category::ALL.iter().zip(COLOURS) {
        let y = PLOT_TOP + PLOT_HEIGHT + 26.0;
        picture.rect(x, y, 10.0, 10.0, colour);
        picture.text(x + 15.0, y + 9.0, Anchor::Start, INK, category.name());
        x += width_of(category.name()) + 34.0;
    }
}

/// What is alive in each column of pixels, at its highest total.
fn by_column(digest: &Digest, columns: usize) -> Vec<[u64; Category::ALL.len()]> {
    let mut best = vec![[0; Category::ALL.len()]; columns];
    let mut seen = vec![false; columns];
    for (moment, parts) in digest.curve() {
        let x = u64::from(moment) * columns as u64 / (u64::from(digest.moments) + 1);
        let x = (x as usize).min(columns - 1);
        let higher = parts.iter().sum::<u64>() > best[x].iter().sum();
        if !seen[x] || higher {
            best[x] = parts;
            seen[x] = true;
        }
    }
    // Columns without an event hold what was there before.
    for x in 1..columns {
        if !seen[x] {
            best[x] = best[x - 1];
        }
    }
    best
}

/// What is alive at the peak as a tree of frames, outermost first.
struct Flame {
    nodes: Vec<Node>,
}

struct Node {
    name: String,
    bytes: u64,
    by_category: [u64; Category::ALL.len()],
    children: Vec<usize>,
    depth: usize,
}

impl Node {
    fn new(name: String, depth: usize) -> Self {
        Self {
            name,
            bytes: 0,
            by_category: [0; Category::ALL.len()],
            children: Vec::new(),
            depth,
        }
    }
}

impl Flame {
    fn new(digest: &Digest, redact: &mut Redactor) -> Self {
        let trace = digest.history.trace;
        let mut by_kind: HashMap<u32, u64> = HashMap::new();
        let (peak, _) = digest.peak;
        for block in &digest.blocks {
            if block.start <= peak && peak < block.end {
                *by_kind.entry(block.kind).or_default() += block.bytes;
            }
        }
        let mut kinds: Vec<(u32, u64)> = by_kind.into_iter().collect();
        kinds.sort_unstable();
        let mut nodes = vec![Node::new("all".to_owned(), 0)];
        let mut known: HashMap<(usize, String), usize> = HashMap::new();
        for (kind, amount) in kinds {
            let category = digest.category(kind);
            let slot = Category::ALL
                .iter()
                .position(|&known| known == category)
                .unwrap_or(0);
            let mut at = 0;
            let mut path: Vec<String> = trace
                .stacks
                .stack(digest.stack(kind))
                .iter()
                .rev()
                .filter_map(|&id| frame_name(digest, id, redact))
                .collect();
            if path.is_empty() {
                let (module, operator) = digest.names(kind);
                path.push("no line of your own".to_owned());
                path.extend(
                    [redact.module(module), redact.operator(operator)]
                        .into_iter()
                        .filter(|name| !name.is_empty()),
                );
            }
            nodes[0].bytes += amount;
            nodes[0].by_category[slot] += amount;
            for name in path {
                let next = if let Some(&next) = known.get(&(at, name.clone())) {
                    next
                } else {
                    let next = nodes.len();
                    let depth = nodes[at].depth + 1;
                    nodes.push(Node::new(name.clone(), depth));
                    nodes[at].children.push(next);
                    known.insert((at, name), next);
                    next
                };
                at = next;
                nodes[at].bytes += amount;
                nodes[at].by_category[slot] += amount;
            }
        }
        Self { nodes }
    }

    fn depth(&self) -> usize {
        self.nodes.iter().map(|node| node.depth).max().unwrap_or(0) + 1
    }

    fn draw(&self, picture: &mut Picture, top: f64, levels: usize) {
        let mut open = vec![(0_usize, LEFT, WIDTH - LEFT - RIGHT)];
        while let Some((index, x, wide)) = open.pop() {
            let Some(node) = self.nodes.get(index) else {
                continue;
            };
            if node.depth >= levels || wide < 0.4 || node.bytes == 0 {
                continue;
            }
            let best = (0..node.by_category.len())
                .max_by_key(|&category| node.by_category[category])
                .unwrap_or(0);
            let colour = if index == 0 {
                [0xd3, 0xd9, 0xe1]
            } else {
                COLOURS[best]
            };
            let y = top + node.depth as f64 * ROW;
            picture.rect(x, y, (wide - 0.75).max(0.4), ROW - 1.0, colour);
            let text = fit(
                &format!("{}  {}", node.name, format_bytes(node.bytes)),
                wide - 10.0,
            );
            if !text.is_empty() {
                picture.text(x + 5.0, y + 12.5, Anchor::Start, INK, &text);
            }
            let mut children = node.children.clone();
            children.sort_by_key(|&child| std::cmp::Reverse(self.nodes[child].bytes));
            let mut at = x;
            for child in children {
                let share = self.nodes[child].bytes as f64 / node.bytes as f64;
                open.push((child, at, wide * share));
                at += wide * share;
            }
        }
    }
}

/// A Python frame's name, `None` for what lies below Python.
fn frame_name(digest: &Digest, id: FrameId, redact: &mut Redactor) -> Option<String> {
    let trace = digest.history.trace;
    let frame = trace.stacks.frame(id);
    let (file, function) = (trace.strings.get(frame.file), trace.strings.get(frame.name));
    if !frame.is_python(&trace.strings) || is_plumbing(file, function) {
        return None;
    }
    let (file, function) = redact.frame(file, function, true);
    let short = file.rsplit(['/', '\\']).next().unwrap_or(&file);
    Some(if function.is_empty() || function == "<module>" {
        format!("{short}:{}", frame.line)
    } else {
        format!("{function}  {short}:{}", frame.line)
    })
}
