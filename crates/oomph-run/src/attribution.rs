//! Labels each allocation of PyTorch's memory history with what the recorder saw: module, phase, step.

use std::collections::{HashMap, HashSet};

use oomph_trace::{
    Action, Category, Label, Labels, Phase, StackId, StringId, TimeUs, Trace, is_users_own,
};

use crate::record::{OutermostModel, Record, is_function};

/// Clocks of the history and of the recorder mostly differ by less than the first of these, and always
/// by less than the second, in µs. Steps of a millisecond use the same addresses again meanwhile.
const CLOCK_SLACK: [i64; 2] = [100, 2_000];

/// One allocation's life, in rows of the history.
#[derive(Debug, Clone, Copy)]
struct Life {
    alloc: usize,
    /// The row that freed it, or the number of rows.
    free: usize,
}

/// The kind of the recorder's marks of buffers that hold keys and values.
const CACHE: &str = "cache";
/// Keys and values of two layers at least.
const LAYERS: usize = 4;

/// Operators that allocate workspaces while they run.
const SCRATCH: [&str; 12] = [
    "convolution",
    "cudnn",
    "miopen",
    "mm",
    "linear",
    "attention",
    "fft",
    "linalg",
    "rnn",
    "lstm",
    "gru",
    "conv",
];

/// Sizes of the workspaces that PyTorch keeps per cuBLAS handle, by architecture.
const CUBLAS_WORKSPACES: [u64; 3] = [8_519_680, 33_554_432, 1 << 20];

/// Gives every allocation in `trace` a label, from the recorder's scopes and marks.
pub fn attribute(trace: &mut Trace, record: &Record, device: u32) {
    let rows = trace.rows_of(device);
    if !record.has_scopes {
        scopes_into_metadata(trace, rows.clone());
    }
    let lives = lives(trace, rows.clone());
    let mut categories = marked(trace, record, &lives);
    let scopes: Vec<Label> = record
        .scopes
        .iter()
        .map(|(phase, module, op, step)| Label {
            category: Category::Unknown,
            module: trace.strings.intern(module),
            op: trace.strings.intern(op),
            phase: phase_named(phase),
            step: step + 1,
        })
        .collect();
    let handles_have = handle_workspaces(trace, &scopes, &lives, record.cublas_workspace);
    let scope_of = |trace: &Trace, row: usize| {
        let id = scope_id(trace, row);
        id.and_then(|id| scopes.get(id))
            .copied()
            .unwrap_or_default()
    };
    spread(trace, &lives, &mut categories, scope_of);

    let differentiable: HashSet<usize> = record.differentiable.iter().copied().collect();
    // Where something else than an optimizer allocates.
    let outside_optimizers: Vec<usize> = (lives.iter().map(|life| life.alloc))
        .filter(|&row| scope_of(trace, row).phase != Phase::Optimizer)
        .collect();
    let mut labels = Labels::default();
    let mut handles: HashMap<Label, u32> = HashMap::new();
    for life in &lives {
        let scope = scope_of(trace, life.alloc);
        let mut label = scope;
        if let Some(&(category, owner)) = categories.get(&life.alloc) {
            label.category = category;
            if owner != StringId::EMPTY {
                label.module = owner;
            }
        } else {
            let in_graph =
                scope_id(trace, life.alloc).is_some_and(|id| differentiable.contains(&id));
            label.category = by_scope(trace, &handles_have, *life, scope, in_graph);
            if scope.phase == Phase::Optimizer
                && label.category == Category::Temporary
                && outside_optimizers.partition_point(|&row| row < life.alloc)
                    < outside_optimizers.partition_point(|&row| row < life.free)
            {
                // What an optimizer made and has after its step is state, also where it has a form of its own.
                label.category = Category::OptimizerState;
            }
        }
        let handle = *handles.entry(label).or_insert_with(|| labels.add(label));
        labels.set(life.alloc, handle);
        if life.free < rows.end {
            labels.set(life.free, handle);
        }
    }
    trace.labels = Some(labels);
}

/// What a record says about allocations beside their labels: their rows.
#[derive(Debug, Clone, Default)]
pub struct Needless {
    /// Made for a graph that no backward pass needs.
    pub unused_graphs: HashSet<u32>,
    /// Made in passes of models in evaluation mode that build a graph.
    pub evaluating: HashSet<u32>,
    /// Of models that another one of the same kind replaced.
    pub replaced: HashSet<u32>,
    /// Of keys and values of earlier tokens, allocated ahead: models' buffers, or what a model is given in each of several calls, two
    /// of a size for each of several layers.
    pub caches: HashSet<u32>,
    /// Written part by part, as many of a size as keys and values of several layers have.
    pub filled: HashSet<u32>,
    /// Of tensors that Python held when memory ran out; `None` if nobody looked.
    pub held: Option<HashSet<u32>>,
    /// Where each was last read: the row before which that was. One that is not there was never read; `None` if nobody looked.
    pub last_reads: Option<HashMap<u32, u32>>,
    /// Of those that one line made again and again, the ones that were read as later ones were made.
    pub read_on: HashSet<u32>,
}

/// Finds what an attributed `trace` holds without need. `ended` is whether the run came to its end: if
/// not, a backward pass may have been about to come.
pub fn needless(trace: &Trace, record: &Record, device: u32, ended: bool) -> Needless {
    let rows = trace.rows_of(device);
    let last_reads = last_reads(trace, record, rows.clone());
    Needless {
        unused_graphs: {
            let mut found = unused_graphs(trace, record, rows.clone(), ended, last_reads.as_ref());
            found.extend(unused_outside_modules(trace, record, rows.clone(), ended));
            found
        },
        evaluating: evaluating(trace, record, rows.clone()),
        replaced: replaced(trace, record, rows.clone(), last_reads.as_ref()),
        caches: caches(trace, record, rows.clone()),
        filled: filled(trace, record, rows.clone()),
        read_on: read_on(trace, record, rows.clone()),
        held: held(trace, record, rows),
        last_reads,
    }
}

/// Of allocations of one size that one line made again and again, those that were read over and over as later ones were made: a state
/// that is carried on, such as the keys and values of earlier tokens. What is collected for the end is not read meanwhile.
fn read_on(trace: &Trace, record: &Record, rows: std::ops::Range<usize>) -> HashSet<u32> {
    /// Of a line with less, nothing is said.
    const MANY: usize = 16;
    /// In so many times between two allocations.
    const OFTEN: usize = 3;
    let mut by_line: HashMap<(StackId, u64), Vec<Life>> = HashMap::new();
    for life in lives(trace, rows.clone()) {
        let key = (
            trace.events.stack(life.alloc),
            trace.events.size(life.alloc).0,
        );
        by_line.entry(key).or_default().push(life);
    }
    by_line.retain(|_, lives| lives.len() >= MANY);
    let spans: HashMap<u64, &[i64]> = record
        .reads
        .iter()
        .filter_map(|spans| spans.split_first())
        .map(|(&address, spans)| (address.cast_unsigned(), spans))
        .collect();
    let time = |row: usize| trace.events.time(row).0;
    let mut found = HashSet::new();
    for lives in by_line.values() {
        let made: Vec<i64> = lives.iter().map(|life| time(life.alloc)).collect();
        for (at, life) in lives.iter().enumerate() {
            let freed = if life.free < rows.end {
                time(life.free)
            } else {
                i64::MAX
            };
            let address = trace.events.addr(life.alloc).0;
            let reads = spans.get(&address).copied().unwrap_or_default();
            let mut meanwhile: HashSet<usize> = HashSet::new();
            for span in reads.chunks_exact(2) {
                let (from, to) = (span[0].max(made[at]), span[1].min(freed));
                if from <= to {
                    let first = made.partition_point(|&time| time <= from);
                    let last = made.partition_point(|&time| time <= to);
                    meanwhile.extend((first..=last).take(OFTEN + 1));
                }
            }
            meanwhile.remove(&(at + 1));
            if meanwhile.len() >= OFTEN {
                found.insert(life.alloc as u32);
            }
        }
    }
    found
}

/// When each allocation was last read, as the row before which that was.
fn last_reads(
    trace: &Trace,
    record: &Record,
    rows: std::ops::Range<usize>,
) -> Option<HashMap<u32, u32>> {
    if record.reads.is_empty() {
        return None;
    }
    let by_address = by_address(trace, &lives(trace, rows.clone()));
    let time = |row: usize| trace.events.time(row).0;
    let row_at = |at: i64| trace.events.first_after(rows.clone(), TimeUs(at)) as u32;
    let mut found = HashMap::new();
    for spans in &record.reads {
        let Some((&address, spans)) = spans.split_first() else {
            continue;
        };
        for life in by_address
            .get(&address.cast_unsigned())
            .into_iter()
            .flatten()
        {
            let freed = if life.free < rows.end {
                time(life.free)
            } else {
                i64::MAX
            };
            // What is read as it is freed counts; what is read as another one takes its place does not.
            let last = spans
                .chunks_exact(2)
                .filter(|span| span[0] < freed && span[1] > time(life.alloc))
                .map(|span| span[1].min(freed))
                .max();
            if let Some(last) = last {
                found.insert(life.alloc as u32, row_at(last).min(life.free as u32));
            }
        }
    }
    Some(found)
}

/// One part in as many of the gradients that a pass made are few.
const FEW: u64 = 10;

/// Calls of models that a backward pass went through for nothing: it made gradients of their parameters, and nothing read any of
/// them before they were freed.
fn unread_gradients(
    trace: &Trace,
    record: &Record,
    rows: std::ops::Range<usize>,
    call_of: impl Fn(usize) -> u32,
    last_reads: &HashMap<u32, u32>,
) -> HashSet<u32> {
    let Some(labels) = &trace.labels else {
        return HashSet::new();
    };
    let own: HashSet<u32> = record.own_graphs.iter().copied().collect();
    let mut sizes: HashSet<(StringId, u64)> = HashSet::new();
    for row in rows.clone() {
        let label = labels.get(row);
        if label.category == Category::Parameter && trace.events.action(row) == Action::Alloc {
            sizes.insert((label.module, trace.events.size(row).0));
        }
    }
    let read_after = |life: &Life, row: usize| {
        // What is alive at the end may yet be read.
        let last = last_reads.get(&(life.alloc as u32));
        life.free >= rows.end || last.is_some_and(|&last| last as usize > row)
    };
    // The gradients that are there, and of each call how many bytes of them it made, and how many were read.
    let mut there: HashMap<(StringId, u64), Vec<Life>> = HashMap::new();
    let mut made: HashMap<u32, (u64, u64)> = HashMap::new();
    for life in lives(trace, rows.clone()) {
        let label = labels.get(life.alloc);
        let key = (label.module, trace.events.size(life.alloc).0);
        let Some(scope) = scope_id(trace, life.alloc) else {
            continue;
        };
        if label.phase != Phase::Backward || !sizes.contains(&key) {
            continue;
        }
        let kept = there.entry(key).or_default();
        kept.retain(|older| older.free > life.alloc);
        let call = call_of(scope);
        if own.contains(&call) {
            // One that is added to an older one is read for that and gone; then the older one counts.
            let added = kept.iter().any(|older| older.free > life.free);
            let read = if added {
                kept.iter().any(|older| read_after(older, life.free))
            } else {
                read_after(&life, life.alloc)
            };
            let (bytes, bytes_read) = made.entry(call).or_default();
            *bytes += key.1;
            *bytes_read += if read { key.1 } else { 0 };
        }
        kept.push(life);
    }
    // Something else may have the size of a small parameter.
    made.retain(|_, (bytes, read)| *read * FEW <= *bytes);
    made.into_keys().collect()
}

fn held(trace: &Trace, record: &Record, rows: std::ops::Range<usize>) -> Option<HashSet<u32>> {
    let time = record.oom.as_ref()?.time;
    if record.held.is_empty() {
        return None;
    }
    let by_address = by_address(trace, &lives(trace, rows));
    let life = |address| life_at(trace, by_address.get(address)?, time);
    let found = record.held.iter().filter_map(life);
    Some(found.map(|life| life.alloc as u32).collect())
}

/// The outermost call of a module around each call: a call's number is above that of the call around it.
fn outermost_calls(record: &Record) -> Vec<u32> {
    let mut outermost: Vec<u32> = Vec::with_capacity(record.calls.len());
    for (number, call) in record.calls.iter().enumerate() {
        let around = outermost.get(call.1 as usize).copied().unwrap_or(0);
        outermost.push(match around {
            // Functions outside of modules are no models.
            0 if call.0.is_empty() || is_function(&call.0) => 0,
            0 => number as u32,
            around => around,
        });
    }
    outermost
}

fn evaluating(trace: &Trace, record: &Record, rows: std::ops::Range<usize>) -> HashSet<u32> {
    let outermost = outermost_calls(record);
    let idle: HashSet<u32> = record.idle_graphs.iter().copied().collect();
    let evaluates = |&row: &usize| {
        let call = scope_id(trace, row).and_then(|scope| record.scope_calls.get(scope).copied());
        call.and_then(|call| outermost.get(call as usize))
            .is_some_and(|call| idle.contains(call))
    };
    rows.filter(evaluates).map(|row| row as u32).collect()
}

fn unused_graphs(
    trace: &Trace,
    record: &Record,
    rows: std::ops::Range<usize>,
    ended: bool,
    last_reads: Option<&HashMap<u32, u32>>,
) -> HashSet<u32> {
    let outermost = outermost_calls(record);
    let call_of = |scope: usize| {
        let call = record.scope_calls.get(scope).copied().unwrap_or(0);
        outermost.get(call as usize).copied().unwrap_or(0)
    };
    let walked: HashSet<u32> = (0..record.scopes.len())
        .filter(|&scope| record.scopes[scope].0 == "backward")
        .map(call_of)
        .collect();
    let last = outermost.last().copied().unwrap_or(0);
    let infers = record.steps == 0 && record.inferences > 1;
    let for_nothing = last_reads.map_or_else(HashSet::new, |last_reads| {
        unread_gradients(trace, record, rows.clone(), call_of, last_reads)
    });
    let unused = |call: u32| {
        if call == 0 || call as usize >= record.calls.len() {
            return false;
        }
        let discarded = record.discarded_graphs.contains(&call);
        if walked.contains(&call) {
            // A loss on a teacher's output goes back through the teacher, for gradients nobody reads.
            return discarded || for_nothing.contains(&call);
        }
        let idle = discarded || record.idle_graphs.contains(&call);
        ended || (call != last && (idle || infers))
    };
    let mut known: HashMap<u32, bool> = HashMap::new();
    rows.filter(|&row| trace.events.action(row) == Action::Alloc)
        .filter(|&row| {
            scope_id(trace, row).is_some_and(|scope| {
                let forward = record
                    .scopes
                    .get(scope)
                    .is_some_and(|scope| scope.0 == "forward");
                let call = call_of(scope);
                forward && *known.entry(call).or_insert_with(|| unused(call))
            })
        })
        .map(|row| row as u32)
        .collect()
}

/// What functions without modules made for a graph, and no backward pass read before it was freed.
fn unused_outside_modules(
    trace: &Trace,
    record: &Record,
    rows: std::ops::Range<usize>,
    ended: bool,
) -> HashSet<u32> {
    /// A graph has as many lines and operators; less are results that are kept.
    const LINES: usize = 3;
    if record.reads.is_empty() {
        return HashSet::new();
    }
    let graphless: HashSet<usize> = record.graphless.iter().copied().collect();
    let phase_of = |scope: usize| {
        record
            .scopes
            .get(scope)
            .map_or("", |scope| scope.0.as_str())
    };
    // Backward passes, from their first allocation to their last.
    let mut backward: Vec<(i64, i64)> = Vec::new();
    let mut goes_on = false;
    for row in rows.clone() {
        let Some(scope) = scope_id(trace, row) else {
            continue;
        };
        let time = trace.events.time(row).0;
        let goes_back = phase_of(scope) == "backward";
        match backward.last_mut() {
            Some(last) if goes_back && goes_on => last.1 = time,
            _ if goes_back => backward.push((time, time)),
            _ => {}
        }
        goes_on = goes_back;
    }
    let spans: HashMap<u64, &[i64]> = record
        .reads
        .iter()
        .filter_map(|spans| spans.split_first())
        .map(|(&address, spans)| (address.cast_unsigned(), spans))
        .collect();
    let last_backward = backward.last().map_or(i64::MIN, |&(begin, _)| begin);
    // Whether the backward pass after it read what was made for a graph; nothing if that is no question.
    let is_read = |life: &Life| {
        let scope = scope_id(trace, life.alloc)?;
        let in_module = record
            .scopes
            .get(scope)
            .is_none_or(|scope| !scope.1.is_empty());
        if phase_of(scope) != "forward" || in_module || graphless.contains(&scope) {
            return None;
        }
        let born = trace.events.time(life.alloc).0;
        let freed = if life.free < rows.end {
            trace.events.time(life.free).0
        } else {
            i64::MAX
        };
        // What outlives the next backward passes is retained, by what refers to it.
        let begun = |time: i64| backward.partition_point(|&(begin, _)| begin <= time);
        if begun(freed) > begun(born) + 1 {
            return None;
        }
        // The backward pass may have been about to come.
        if freed == i64::MAX && !ended && last_backward < born {
            return None;
        }
        let address = trace.events.addr(life.alloc).0;
        let mut reads = spans
            .get(&address)
            .copied()
            .unwrap_or_default()
            .chunks_exact(2);
        let read = reads.any(|span| {
            let (from, to) = (span[0].max(born), span[1].min(freed));
            let next = backward.partition_point(|&(_, end)| end < from);
            from <= to && backward.get(next).is_some_and(|&(begin, _)| begin <= to)
        });
        Some((begun(born), read))
    };
    // Some operators keep what they do not read (a sum by an index keeps what it adds). If the pass went back through a line, all
    // of it is used.
    let own_lines = |row: usize| -> Vec<(StringId, u32)> {
        let frames = trace.stacks.frames(trace.events.stack(row));
        frames
            .filter(|frame| frame.is_python(&trace.strings))
            .filter(|frame| is_users_own(trace.strings.get(frame.file)))
            .map(|frame| (frame.file, frame.line))
            .collect()
    };
    let mut by_line: HashMap<_, (usize, Vec<usize>)> = HashMap::new();
    for life in lives(trace, rows.clone()) {
        if let Some((segment, read)) = is_read(&life)
            && outlives_operator(trace, life)
        {
            let key = (segment, own_lines(life.alloc));
            let (used, unread) = by_line.entry(key).or_default();
            if read {
                *used += 1;
            } else {
                unread.push(life.alloc);
            }
        }
    }
    let found: Vec<usize> = by_line
        .into_values()
        .filter(|(used, unread)| unread.len() > *used)
        .flat_map(|(_, unread)| unread)
        .collect();
    let lines: HashSet<_> = found
        .iter()
        .map(|&row| {
            (
                trace.events.stack(row),
                scope_id(trace, row).map(|id| &record.scopes[id].2),
            )
        })
        .collect();
    if lines.len() < LINES {
        return HashSet::new();
    }
    found.into_iter().map(|row| row as u32).collect()
}

fn replaced(
    trace: &Trace,
    record: &Record,
    rows: std::ops::Range<usize>,
    last_reads: Option<&HashMap<u32, u32>>,
) -> HashSet<u32> {
    let Some(labels) = &trace.labels else {
        return HashSet::new();
    };
    let root = |row: usize| trace.strings.get(labels.get(row).module).split('.').next();
    let by_address = by_address(trace, &lives(trace, rows.clone()));
    // When the first parameter of a model was made: all were marked at once, just before its first call. Another one may have
    // its name.
    let built = |new: &OutermostModel| -> Option<i64> {
        let own = |owner: &str| owner.split('.').next() == Some(new.name.as_str());
        let marked = record.marks.iter().filter(|(kind, time, _, owner)| {
            kind == "parameter" && *time <= new.first_us && own(owner)
        });
        let last = marked.clone().map(|mark| mark.1).max()?;
        let rows = marked
            .filter(|mark| mark.1 == last)
            .filter_map(|mark| life_at(trace, by_address.get(&mark.2)?, mark.1));
        rows.map(|life| trace.events.time(life.alloc).0).min()
    };
    let built: Vec<Option<i64>> = record.outermost_models.iter().map(built).collect();
    let mut found = HashSet::new();
    // A model may be gone and its memory kept, by its optimizer or a state dictionary: what is alive of it, the
    // history knows.
    for old in &record.outermost_models {
        let newer = record
            .outermost_models
            .iter()
            .zip(&built)
            .filter(|(new, built)| {
                // Training went on with another one, and never came back; or it was only built then. What was there before the older
                // one's last call is a part beside it.
                let instead = new.optimized && old.optimized;
                let built_after = built.is_some_and(|built| built > old.last_us);
                new.first_us > old.last_us && (instead || built_after)
            })
            .map(|(new, _)| new.first_us)
            .min();
        let Some(newer) = newer else { continue };
        // What is read later on is in use: weights that several models share, a state that was read from a file.
        let in_use = |row: usize| {
            let last = last_reads.and_then(|reads| reads.get(&(row as u32)));
            last.is_some_and(|&last| {
                (last as usize) < rows.end && trace.events.time(last as usize).0 > newer
            })
        };
        for row in rows.clone() {
            let label = labels.get(row);
            let before = match label.category {
                // Those of the newer model were made before its first call, too.
                Category::Parameter => old.last_us,
                Category::Gradient | Category::OptimizerState => newer,
                _ => continue,
            };
            if trace.events.action(row) == Action::Alloc
                && trace.events.time(row).0 < before
                && root(row) == Some(old.name.as_str())
                && !in_use(row)
            {
                found.insert(row as u32);
            }
        }
    }
    found
}

fn caches(trace: &Trace, record: &Record, rows: std::ops::Range<usize>) -> HashSet<u32> {
    let by_address = by_address(trace, &lives(trace, rows));
    let row_of = |time: i64, address: &u64| {
        life_at(trace, by_address.get(address)?, time).map(|life| life.alloc)
    };
    let filled: HashSet<usize> = (record.filled.iter())
        .filter_map(|(address, time)| row_of(*time, address))
        .collect();
    let mut found = HashSet::new();
    // How often each row was given to a model together with others of its size.
    let mut given: HashMap<usize, usize> = HashMap::new();
    // What is marked at one time was given in one call.
    for marks in record.marks.chunk_by(|a, b| a.0 == b.0 && a.1 == b.1) {
        let rows = marks
            .iter()
            .filter_map(|(_, time, address, _)| row_of(*time, address));
        match marks.first().map(|mark| mark.0.as_str()) {
            Some(CACHE) => found.extend(rows.map(|row| row as u32)),
            Some("input" | "given") => {
                let mut by_size: HashMap<u64, HashSet<usize>> = HashMap::new();
                for row in rows {
                    // One tensor for all layers is written part by part.
                    if filled.contains(&row) {
                        *given.entry(row).or_default() += 1;
                        continue;
                    }
                    by_size
                        .entry(trace.events.size(row).0)
                        .or_default()
                        .insert(row);
                }
                let alike = by_size.into_values().filter(|rows| rows.len() >= LAYERS);
                for row in alike.flatten() {
                    *given.entry(row).or_default() += 1;
                }
            }
            _ => {}
        }
    }
    let again = given.into_iter().filter(|&(_, calls)| calls > 1);
    found.extend(again.map(|(row, _)| row as u32));
    found
}

fn filled(trace: &Trace, record: &Record, rows: std::ops::Range<usize>) -> HashSet<u32> {
    let by_address = by_address(trace, &lives(trace, rows));
    let mut by_size: HashMap<u64, HashSet<u32>> = HashMap::new();
    for (address, time) in &record.filled {
        let life = by_address
            .get(address)
            .and_then(|lives| life_at(trace, lives, *time));
        if let Some(life) = life {
            let of_size = by_size.entry(trace.events.size(life.alloc).0).or_default();
            of_size.insert(life.alloc as u32);
        }
    }
    let alike = by_size.into_values().filter(|rows| rows.len() >= LAYERS);
    alike.flatten().collect()
}

/// What the recorder calls the frames that carry a scope, where allocations carry no metadata.
const SCOPE_FRAME: &str = "oomph_scope_";

/// The recorder's number of the scope in which a row happened: PyTorch kept it in the row's metadata.
fn scope_id(trace: &Trace, row: usize) -> Option<usize> {
    trace.strings.get(trace.events.metadata(row)).parse().ok()
}

/// Torch before 2.10 keeps no metadata. There a frame of each row's stack is named by the scope, which then becomes the metadata.
fn scopes_into_metadata(trace: &mut Trace, rows: std::ops::Range<usize>) {
    let numbers: Vec<Option<String>> = (0..trace.stacks.len())
        .map(|index| {
            // The innermost one: operators run inside of others.
            let mut frames = trace.stacks.frames(StackId(index as u32));
            frames.find_map(|frame| {
                let name = trace.strings.get(frame.name);
                let number = name.rsplit('.').next()?.strip_prefix(SCOPE_FRAME)?;
                number.parse::<usize>().ok()?;
                Some(number.to_owned())
            })
        })
        .collect();
    let notes: Vec<Option<StringId>> = numbers
        .into_iter()
        .map(|number| Some(trace.strings.intern(&number?)))
        .collect();
    for row in rows {
        if let Some(&Some(note)) = notes.get(trace.events.stack(row).index()) {
            trace.events.set_metadata(row, note);
        }
    }
}

/// The phase that the recorder calls `name`.
pub fn phase_named(name: &str) -> Phase {
    match name {
        "setup" => Phase::Setup,
        "load" => Phase::Load,
        "forward" => Phase::Forward,
        "backward" => Phase::Backward,
        "optimizer" => Phase::Optimizer,
        "inference" => Phase::Inference,
        _ => Phase::Unknown,
    }
}

/// All allocations of the history.
fn lives(trace: &Trace, rows: std::ops::Range<usize>) -> Vec<Life> {
    let mut open: HashMap<u64, usize> = HashMap::new();
    let mut lives: Vec<Life> = Vec::new();
    for row in rows.clone() {
        match trace.events.action(row) {
            Action::Alloc => {
                open.insert(trace.events.addr(row).0, lives.len());
                lives.push(Life {
                    alloc: row,
                    free: rows.end,
                });
            }
            Action::FreeRequested => {
                if let Some(index) = open.remove(&trace.events.addr(row).0) {
                    lives[index].free = row;
                }
            }
            _ => {}
        }
    }
    lives
}

/// What the recorder marked: allocation row → category and owner.
fn marked(
    trace: &mut Trace,
    record: &Record,
    lives: &[Life],
) -> HashMap<usize, (Category, StringId)> {
    let by_address = by_address(trace, lives);
    let mut found: HashMap<usize, (Category, StringId)> = HashMap::new();
    for (kind, time, address, owner) in &record.marks {
        let category = match kind.as_str() {
            "parameter" | CACHE => Category::Parameter,
            "gradient" => Category::Gradient,
            "optimizer_state" => Category::OptimizerState,
            "input" => Category::Input,
            _ => continue,
        };
        let Some(candidates) = by_address.get(address) else {
            continue;
        };
        if let Some(life) = life_at(trace, candidates, *time) {
            let owner = trace.strings.intern(owner);
            let entry = found.entry(life.alloc).or_insert((category, owner));
            // Parameters stay parameters, whatever else points at their memory.
            if rank(category) < rank(entry.0) {
                *entry = (category, owner);
            }
        }
    }
    found
}

fn by_address(trace: &Trace, lives: &[Life]) -> HashMap<u64, Vec<Life>> {
    let mut by_address: HashMap<u64, Vec<Life>> = HashMap::new();
    for life in lives {
        by_address
            .entry(trace.events.addr(life.alloc).0)
            .or_default()
            .push(*life);
    }
    by_address
}

/// Which of those at one address was alive at a time of the recorder's clock.
fn life_at(trace: &Trace, candidates: &[Life], time: i64) -> Option<Life> {
    let begins = |life: &Life| trace.events.time(life.alloc).0;
    // The clocks may disagree about the newest; prefer an older one that is still alive.
    CLOCK_SLACK.iter().find_map(|slack| {
        let index = candidates.partition_point(|life| begins(life) <= time + slack);
        candidates[..index]
            .iter()
            .rev()
            .find(|life| {
                life.free >= trace.events.len() || trace.events.time(life.free).0 >= time - slack
            })
            .copied()
    })
}

fn rank(category: Category) -> u8 {
    match category {
        Category::Parameter => 0,
        Category::OptimizerState => 1,
        Category::Gradient => 2,
        _ => 3,
    }
}

/// Unmarked allocations that look like marked ones of another step: same size, operator, phase
/// and module, and as long-lived.
fn spread(
    trace: &Trace,
    lives: &[Life],
    categories: &mut HashMap<usize, (Category, StringId)>,
    scope_of: impl Fn(&Trace, usize) -> Label,
) {
    type Key = (u64, StringId, Phase, StringId);
    let key = |row: usize| -> Key {
        let scope = scope_of(trace, row);
        (
            trace.events.size(row).0,
            scope.op,
            scope.phase,
            scope.module,
        )
    };
    let mut votes: HashMap<Key, HashMap<(Category, StringId), i64>> = HashMap::new();
    for life in lives {
        let vote = categories.get(&life.alloc).copied().unwrap_or_default();
        *votes
            .entry(key(life.alloc))
            .or_default()
            .entry(vote)
            .or_default() += 1;
    }
    for life in lives {
        if categories.contains_key(&life.alloc) {
            continue;
        }
        let Some(options) = votes.get(&key(life.alloc)) else {
            continue;
        };
        let unmarked = options.get(&Default::default()).copied().unwrap_or(0);
        let best = options
            .iter()
            .filter(|((category, _), _)| matches!(category, Category::Gradient | Category::Input))
            .max_by_key(|(_, count)| **count);
        // Only if most are marked: one gradient among many temporaries is not enough.
        if let Some((&vote, &count)) = best
            && count * 2 >= unmarked
        {
            categories.insert(life.alloc, vote);
        }
    }
}

/// Whether an operator calls a library that takes workspaces.
fn is_scratch(trace: &Trace, scope: Label) -> bool {
    let op = trace.strings.get(scope.op);
    let name = op.rsplit("::").next().unwrap_or(op);
    SCRATCH.iter().any(|part| name.contains(part))
}

/// Rows of the workspaces that PyTorch keeps for handles of cuBLAS: it makes one for each stream (and
/// one for cuBLASLt) and never frees it. Outputs of the same size that the script keeps are more.
fn handle_workspaces(
    trace: &Trace,
    scopes: &[Label],
    lives: &[Life],
    configured: u64,
) -> HashSet<usize> {
    const OF_A_STREAM: usize = 2;
    let mut by_stream: HashMap<(u64, u64), Vec<usize>> = HashMap::new();
    for life in lives {
        let size = trace.events.size(life.alloc).0;
        let scope = scope_id(trace, life.alloc)
            .and_then(|id| scopes.get(id))
            .copied()
            .unwrap_or_default();
        if life.free >= trace.events.len()
            && (CUBLAS_WORKSPACES.contains(&size) || size == configured)
            && is_scratch(trace, scope)
        {
            let stream = trace.events.stream(life.alloc).0;
            by_stream
                .entry((stream, size))
                .or_default()
                .push(life.alloc);
        }
    }
    by_stream.retain(|_, rows| rows.len() <= OF_A_STREAM);
    by_stream.into_values().flatten().collect()
}

/// Whether an allocation is not freed under the same operator that made it, as a workspace or an intermediate is.
fn outlives_operator(trace: &Trace, life: Life) -> bool {
    life.free >= trace.events.len()
        || (life.alloc..life.free).any(|row| scope_id(trace, row) != scope_id(trace, life.alloc))
}

/// What an unmarked allocation holds. `in_graph` is whether a backward pass made it that is differentiated itself: a forward pass
/// for the next one.
fn by_scope(
    trace: &Trace,
    handles_have: &HashSet<usize>,
    life: Life,
    scope: Label,
    in_graph: bool,
) -> Category {
    let scratch = is_scratch(trace, scope);
    if handles_have.contains(&life.alloc) {
        return Category::Workspace;
    }
    // Copies of weights that belong to no model: read, moved, cast.
    if scope.phase == Phase::Load {
        return Category::Parameter;
    }
    if !outlives_operator(trace, life) {
        return if scratch {
            Category::Workspace
        } else {
            Category::Temporary
        };
    }
    match scope.phase {
        Phase::Forward | Phase::Inference => Category::Activation,
        Phase::Backward if in_graph => Category::Activation,
        Phase::Backward | Phase::Optimizer => Category::Temporary,
        _ => Category::Unknown,
    }
}
