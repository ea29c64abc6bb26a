//! What a step does, in order, for `oomph-clock`, which says how long that takes on any GPU.
//!
//! Each piece of work and each thing that keeps the host busy has a line in a table; a step is a list of numbers of lines.
//! The newest steps are kept, and equal ones that follow each other once. See [`Log::json`] for how it is written.

use std::collections::{HashMap, VecDeque};
use std::ffi::c_char;
use std::fmt::Write;

use crate::clock::{Path, Product, Way};
use crate::sync::Mutex;
use crate::{export, inner};

/// Steps that are kept.
const STEPS: usize = 24;
/// Lines of all steps together that are kept.
const LINES: usize = 2_000_000;

/// A piece of work.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Work {
    /// An operator of PyTorch begins: Python calls it, or autograd's engine.
    Operator { backward: bool },
    /// From here on the work is that of another phase or module, by its number.
    Place(u32),
    /// So many modules are called, nodes of autograd's made, and gradients used by optimizers.
    Modules([u64; 3]),
    /// The host waits for the GPU.
    Wait,
    /// A kernel with a name. `bytes` is what it moves, 0 if its arguments do not tell.
    Kernel {
        name: u32,
        blocks: u64,
        threads: u32,
        bytes: u64,
    },
    /// A matrix product.
    Product(Product),
    /// A convolution (0), or its gradient of the data (1) or of the filter (2), as a product; `outside` are the bytes of its
    /// tensors, `last` whether channels come last, and the product's batch the images.
    Convolution {
        direction: u8,
        product: Product,
        groups: u64,
        window: u64,
        outside: u64,
        last: bool,
    },
    /// Attention whose scores stay on the chip: heads of all sequences, their queries, keys and features, whether it is
    /// causal, the products for each pair of a query and a key (2, or 5 for the gradients), and the bytes of its tensors, or 0
    /// where only the kernel is known.
    Attention {
        heads: u64,
        queries: u64,
        keys: u64,
        features: u64,
        causal: bool,
        products: u8,
        kind: u8,
        bytes: u64,
    },
    /// Something of a library that moves so many bytes.
    Moving { bytes: u64, what: &'static str },
    /// A batch normalization of cuDNN's over a tensor of so many bytes, whose elements have so many.
    BatchNorm {
        bytes: u64,
        channels: u64,
        last: bool,
        backward: bool,
        element: u8,
    },
    /// A copy; the way that it goes `beside` kernels, in another stream than PyTorch's first.
    Copy {
        path: Path,
        bytes: u64,
        beside: Option<Way>,
    },
    /// What its arguments tell better than its bytes: `cycles` of steps that follow each other, or `work` cycles of all
    /// multiprocessors together, or bytes, whichever takes longest.
    Chain {
        cycles: u64,
        work: u64,
        bytes: u64,
        what: &'static str,
    },
    /// Blocks whose threads each walk so many cycles, and `tail` cycles of the last of them when the others are done; they read
    /// so many bytes.
    Walk {
        cycles: u64,
        tail: u64,
        blocks: u64,
        threads: u32,
        bytes: u64,
        what: &'static str,
    },
    /// What takes so long by the virtual clock, whose work is not known here: collectives, graphs.
    Fixed {
        nanoseconds: u64,
        what: &'static str,
    },
}

#[derive(Debug, Default)]
struct Log {
    table: Vec<Work>,
    lines: HashMap<Work, u32>,
    names: Vec<String>,
    now: Vec<u32>,
    steps: VecDeque<(u32, Vec<u32>)>,
    kept: usize,
    /// Modules, nodes and gradients so far.
    counted: [u64; 3],
    /// The newest place.
    place: Option<u32>,
    began: bool,
}

static LOG: std::sync::LazyLock<Mutex<Log>> =
    std::sync::LazyLock::new(|| Mutex::new(Log::default()));

impl Log {
    fn add(&mut self, work: Work) {
        if self.now.len() >= LINES {
            return;
        }
        let next = self.table.len() as u32;
        let line = *self.lines.entry(work).or_insert(next);
        if line == next {
            self.table.push(work);
        }
        self.now.push(line);
    }

    fn end_step(&mut self) {
        let step = std::mem::take(&mut self.now);
        // What came before the first step is not a step's.
        if !std::mem::replace(&mut self.began, true) {
            self.now.reserve(step.len());
        }
        if let Some(place) = self.place {
            self.add(Work::Place(place));
        }
        match self.steps.back_mut() {
            Some((count, last)) if *last == step => *count += 1,
            _ => {
                self.kept += step.len();
                self.steps.push_back((1, step));
            }
        }
        while self.steps.len() > STEPS || (self.kept > LINES && self.steps.len() > 1) {
            self.kept -= self.steps.pop_front().map_or(0, |(_, step)| step.len());
        }
    }

    /// `{"names": […], "table": [[kind, …], …], "steps": [[count, [line, …]], …]}`: the kinds are those of [`Work`].
    fn json(&self) -> String {
        let mut text = String::from("{\"names\":[");
        for (index, name) in self.names.iter().enumerate() {
            let comma = if index == 0 { "" } else { "," };
            let plain: String = name
                .chars()
                .filter(|c| !matches!(c, '"' | '\\') && !c.is_control())
                .collect();
            let _ = write!(text, "{comma}\"{plain}\"");
        }
        text.push_str("],\"table\":[");
        for (index, work) in self.table.iter().enumerate() {
            if index > 0 {
                text.push(',');
            }
            work.write(&mut text);
        }
        text.push_str("],\"steps\":[");
        for (index, (count, step)) in self.steps.iter().enumerate() {
            let comma = if index == 0 { "" } else { "," };
            let _ = write!(text, "{comma}[{count},[");
            for (index, line) in step.iter().enumerate() {
                let comma = if index == 0 { "" } else { "," };
                let _ = write!(text, "{comma}{line}");
            }
            text.push_str("]]");
        }
        text.push_str("]}");
        text
    }
}

impl Work {
    fn write(self, text: &mut String) {
        let product = |p: Product| {
            format!(
                "{},{},{},{},{},{}",
                p.m, p.n, p.k, p.batch, p.kind as u8, p.alignment
            )
        };
        let _ = match self {
            Self::Operator { backward } => write!(text, "[\"operator\",{}]", u8::from(backward)),
            Self::Place(number) => write!(text, "[\"place\",{number}]"),
            Self::Modules([count, nodes, gradients]) => {
                write!(text, "[\"modules\",{count},{nodes},{gradients}]")
            }
            Self::Wait => write!(text, "[\"wait\"]"),
            Self::Kernel {
                name,
                blocks,
                threads,
                bytes,
            } => write!(text, "[\"kernel\",{name},{blocks},{threads},{bytes}]"),
            Self::Product(p) => write!(text, "[\"product\",{}]", product(p)),
            Self::Convolution {
                direction,
                product: p,
                groups,
                window,
                outside,
                last,
            } => write!(
                text,
                "[\"convolution\",{direction},{},{groups},{window},{outside},{}]",
                product(p),
                u8::from(last)
            ),
            Self::Attention {
                heads,
                queries,
                keys,
                features,
                causal,
                products,
                kind,
                bytes,
            } => write!(
                text,
                "[\"attention\",{heads},{queries},{keys},{features},{},{products},{kind},{bytes}]",
                u8::from(causal)
            ),
            Self::Moving { bytes, what } => write!(text, "[\"moving\",{bytes},\"{what}\"]"),
            Self::BatchNorm {
                bytes,
                channels,
                last,
                backward,
                element,
            } => write!(
                text,
                "[\"batch norm\",{bytes},{channels},{},{},{element}]",
                u8::from(last),
                u8::from(backward)
            ),
            Self::Copy {
                path,
                bytes,
                beside,
            } => {
                let beside = beside.map_or(String::new(), |way| format!(",{}", way as u8));
                write!(text, "[\"copy\",{},{bytes}{beside}]", path as u8)
            }
            Self::Chain {
                cycles,
                work,
                bytes,
                what,
            } => write!(text, "[\"chain\",{cycles},{work},{bytes},\"{what}\"]"),
            Self::Walk {
                cycles,
                tail,
                blocks,
                threads,
                bytes,
                what,
            } => write!(
                text,
                "[\"walk\",{cycles},{tail},{blocks},{threads},{bytes},\"{what}\"]"
            ),
            Self::Fixed { nanoseconds, what } => {
                write!(text, "[\"fixed\",{nanoseconds},\"{what}\"]")
            }
        };
    }
}

/// Notes a piece of work of the program.
pub fn note(work: Work) {
    if !inner::is_inside() {
        LOG.lock().add(work);
    }
}

/// A number for the name of a kernel.
pub fn name(text: &str) -> u32 {
    let mut log = LOG.lock();
    let known = log.names.iter().position(|known| known == text);
    known.unwrap_or_else(|| {
        log.names.push(text.to_owned());
        log.names.len() - 1
    }) as u32
}

/// An operator begins, which autograd's engine calls itself if `backward`.
pub fn operator(backward: bool) {
    LOG.lock().add(Work::Operator { backward });
}

export! {
    /// From here on the work is that of the phase and module with this number.
    fn oomph_vgpu_place(number: u32) -> (), or (); {
        let mut log = LOG.lock();
        if log.place.replace(number) != Some(number) {
            log.add(Work::Place(number));
        }
    }
    /// A step, or a pass of a job that infers, is over; so many modules were called, nodes of autograd's made and gradients used so far.
    fn oomph_vgpu_step(modules: u64, nodes: u64, gradients: u64) -> (), or (); {
        let mut log = LOG.lock();
        let now = [modules, nodes, gradients];
        let before = std::mem::replace(&mut log.counted, now);
        log.add(Work::Modules(std::array::from_fn(|at| now[at].saturating_sub(before[at]))));
        log.end_step();
    }
    /// The steps until now were passes of a script that trains: they are none.
    fn oomph_vgpu_forget_steps() -> (), or (); {
        let mut log = LOG.lock();
        log.steps.clear();
        log.kept = 0;
    }
    /// What the newest steps did, as JSON. Returns the length; writes it if there is room for all of it.
    unsafe fn oomph_vgpu_work(out: *mut c_char, room: usize) -> usize, or 0; {
        let text = LOG.lock().json();
        if !out.is_null() && text.len() <= room {
            // SAFETY: the caller gives `room` bytes.
            unsafe { std::ptr::copy_nonoverlapping(text.as_ptr().cast(), out, text.len()) };
        }
        text.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn equal_steps_are_kept_once_and_what_is_written_is_json() {
        let mut log = Log::default();
        for bytes in [8, 8, 16] {
            log.add(Work::Operator { backward: false });
            log.add(Work::Copy {
                path: Path::Pinned,
                bytes,
                beside: (bytes > 8).then_some(Way::In),
            });
            log.end_step();
        }
        log.names.push("a\"b".to_owned());
        assert_eq!(
            log.json(),
            "{\"names\":[\"ab\"],\"table\":[[\"operator\",0],[\"copy\",2,8],[\"copy\",2,16,2]],\"steps\":[[2,[0,1]],[1,[0,2]]]}"
        );
    }

    #[test]
    fn only_the_newest_steps_are_kept() {
        let mut log = Log::default();
        for bytes in 0..100 {
            log.add(Work::Copy {
                path: Path::Within,
                bytes,
                beside: None,
            });
            log.end_step();
        }
        assert_eq!(log.steps.len(), STEPS);
        assert_eq!(log.kept, STEPS);
    }
}
