//! PyTorch checkpoints: the zip archive with `data.pkl`, and the older sequence of pickles.
//!
//! Sizes only. No tensor is read and nothing that stands in the file is run, so that a checkpoint
//! from anywhere can be looked at.

use std::collections::{HashMap, HashSet};
use std::io::{Cursor, Read, Seek};
use std::rc::Rc;

use crate::dtype::DType;
use crate::error::{EstimateError, show};
use crate::input::Input;
use crate::model::{Format, Model, Tensor};
use crate::pickle::{Id, Machine, Value};
use crate::zip;

const FORMAT: &str = "PyTorch";
/// `data.pkl` holds names and shapes; 70B parameters take under a megabyte.
const MAX_PICKLE: u64 = 256 << 20;
/// How deep containers nest: modules within modules, optimizer state within checkpoints.
const MAX_DEPTH: usize = 200;
/// Longer names are cut; `state_dict` keys have some dozens of characters.
const MAX_NAME: usize = 1024;
/// The integer with which files before PyTorch 1.6 begin, as a pickle of protocol 2.
const LEGACY_MAGIC: &[u8] = b"\x80\x02\x8a\nl\xfc\x9cF\xf9 j\xa8P\x19.";

/// Reads the sizes of a PyTorch checkpoint.
pub fn read_torch<R: Read + Seek>(reader: R) -> Result<Model, EstimateError> {
    read(Input::new(reader)?)
}

pub(crate) fn is_legacy(start: &[u8]) -> bool {
    start.starts_with(LEGACY_MAGIC)
}

pub(crate) fn read<R: Read + Seek>(mut input: Input<R>) -> Result<Model, EstimateError> {
    let start = input.peek_start()?;
    let mut machine = Machine::default();
    let mut stored = HashMap::new();
    let root = if is_legacy(&start) {
        // Magic number, protocol, system, and then the object.
        for _ in 0..3 {
            machine.run(&mut input)?;
        }
        machine.run(&mut input)?
    } else if start.starts_with(b"PK") {
        let members = zip::members(&mut input)?;
        let Some(pickle) = members
            .iter()
            .find(|member| member.name == "data.pkl" || is_top_level(&member.name, "data.pkl"))
        else {
            return Err(EstimateError::Malformed {
                format: FORMAT,
                offset: 0,
                expected: "an archive with data.pkl".to_owned(),
                found: format!("an archive of {} other members", members.len()),
            });
        };
        let prefix = pickle.name.trim_end_matches("data.pkl").to_owned();
        for member in &members {
            if let Some(key) = member
                .name
                .strip_prefix(&prefix)
                .and_then(|rest| rest.strip_prefix("data/"))
            {
                stored.insert(key.to_owned(), member.uncompressed);
            }
        }
        if pickle.uncompressed > MAX_PICKLE || pickle.compressed > MAX_PICKLE {
            return Err(EstimateError::Limit {
                format: FORMAT,
                what: "the size of data.pkl",
                value: pickle.uncompressed.max(pickle.compressed),
                limit: MAX_PICKLE,
            });
        }
        zip::seek_to_data(&mut input, pickle)?;
        match pickle.method {
            0 => machine.run(&mut input)?,
            8 => {
                let bytes = input.bytes(pickle.compressed, MAX_PICKLE, FORMAT, "data.pkl")?;
                let mut plain = Vec::new();
                flate2::read::DeflateDecoder::new(bytes.as_slice())
                    .take(MAX_PICKLE)
                    .read_to_end(&mut plain)
                    .map_err(|source| EstimateError::Io {
                        offset: input.position(),
                        source,
                    })?;
                machine.run(&mut Input::new(Cursor::new(plain))?)?
            }
            method => {
                return Err(EstimateError::Unsupported {
                    format: FORMAT,
                    what: format!("data.pkl is compressed by method {method}; expected 0 or 8"),
                });
            }
        }
    } else {
        return Err(EstimateError::Malformed {
            format: FORMAT,
            offset: 0,
            expected: "a zip archive or PyTorch's magic number".to_owned(),
            found: show(&start),
        });
    };
    Ok(collect(&machine, root, &stored))
}

fn is_top_level(name: &str, file: &str) -> bool {
    name.split_once('/').is_some_and(|(_, rest)| rest == file)
}

/// Walks what was built and names each tensor by its path. A storage counts once, in full, with
/// the first tensor that uses it, because that is how it is loaded.
fn collect(machine: &Machine, root: Id, stored: &HashMap<String, u64>) -> Model {
    let mut model = Model::new(Format::Torch);
    for problem in &machine.problems {
        model.problem(problem.clone());
    }
    let mut seen = HashSet::new();
    let mut used = HashSet::new();
    // Depth first, children in order: the stack holds them reversed. Names are made when they are
    // needed, because a hostile file can have millions of entries under a long name.
    let mut stack = vec![(root, Rc::from(""), Step::Same, 0_usize)];
    let mut too_deep = false;
    while let Some((id, parent, step, depth)) = stack.pop() {
        match machine.value(id) {
            Value::Opaque | Value::Int(_) | Value::Text(_) | Value::Global(_) => continue,
            Value::Tensor(_) => {}
            _ if !seen.insert(id) => continue,
            _ => {}
        }
        let path = path(machine, &parent, step);
        let start = stack.len();
        match machine.value(id) {
            Value::Tensor(tensor) => {
                let first = used.insert(tensor.storage);
                let Some(storage) = machine.storages.get(tensor.storage as usize) else {
                    continue;
                };
                if !first {
                    continue;
                }
                model.tensors.push(Tensor {
                    name: path.to_string(),
                    dtype: tensor.dtype.or(storage.dtype).unwrap_or(DType::U8),
                    elements: tensor.elements,
                    bytes: storage.bytes.unwrap_or(0),
                });
            }
            // A storage on its own, without a tensor.
            Value::Storage(index) => {
                if used.insert(*index)
                    && let Some(storage) = machine.storages.get(*index as usize)
                    && let Some(bytes) = storage.bytes
                {
                    let dtype = storage.dtype.unwrap_or(DType::U8);
                    model.tensors.push(Tensor {
                        name: path.to_string(),
                        dtype,
                        elements: bytes / dtype.bytes_for(1).unwrap_or(1).max(1),
                        bytes,
                    });
                }
            }
            _ if depth >= MAX_DEPTH => too_deep = true,
            Value::Sequence(items) => {
                for (index, &item) in items.iter().enumerate() {
                    stack.push((item, Rc::clone(&path), Step::Index(index), depth + 1));
                }
            }
            Value::Object(items) => {
                for &item in items {
                    stack.push((item, Rc::clone(&path), Step::Same, depth + 1));
                }
            }
            Value::Dict(entries) => {
                for &(key, value) in entries {
                    stack.push((value, Rc::clone(&path), Step::Key(key), depth + 1));
                }
            }
            _ => {}
        }
        stack[start..].reverse();
    }
    if too_deep {
        model.problem(format!(
            "containers nest deeper than {MAX_DEPTH}; what lies below is not counted"
        ));
    }
    let mut unreached = 0_u64;
    for (index, storage) in machine.storages.iter().enumerate() {
        if let (Some(&bytes), Some(expected)) = (stored.get(&storage.key), storage.bytes)
            && bytes != expected
        {
            model.problem(format!(
                "storage `{}` has {bytes} bytes in the archive where its type and size say {expected}; the latter is counted",
                storage.key
            ));
        }
        if !used.contains(&(index as u32)) {
            unreached = unreached.saturating_add(storage.bytes.unwrap_or(0));
        }
    }
    if unreached > 0 {
        model.tensors.push(Tensor {
            name: "inside objects of unknown classes".to_owned(),
            dtype: DType::U8,
            elements: unreached,
            bytes: unreached,
        });
        model.problem(format!(
            "{unreached} bytes of storages belong to no tensor of a known kind; counted as u8"
        ));
    }
    (model.optimizer_state, model.tensors) = std::mem::take(&mut model.tensors)
        .into_iter()
        .partition(is_optimizer_state);
    model
}

/// Training scripts call it `optimizer`, `optimizer_state_dict`, `optimizers`, `optim`, …
fn is_optimizer_state(tensor: &Tensor) -> bool {
    tensor
        .name
        .split_once('.')
        .is_some_and(|(first, _)| first.to_ascii_lowercase().contains("optim"))
}

/// How a value is reached from the one that holds it.
#[derive(Clone, Copy)]
enum Step {
    /// Part of an object: its attributes, which have names of their own.
    Same,
    Index(usize),
    Key(Id),
}

fn path(machine: &Machine, parent: &Rc<str>, step: Step) -> Rc<str> {
    let name = match step {
        Step::Same => return Rc::clone(parent),
        Step::Index(index) => index.to_string(),
        Step::Key(key) => match machine.value(key) {
            // `nn.Module` keeps its tensors in dicts that have no part in their names.
            Value::Text(text)
                if matches!(text.as_str(), "_parameters" | "_buffers" | "_modules") =>
            {
                return Rc::clone(parent);
            }
            Value::Text(text) => text.clone(),
            Value::Int(number) => number.to_string(),
            _ => return Rc::clone(parent),
        },
    };
    if parent.len() + name.len() > MAX_NAME {
        return Rc::clone(parent);
    }
    if parent.is_empty() {
        return Rc::from(name);
    }
    Rc::from(format!("{parent}.{name}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn other_files_are_refused() {
        for bytes in [
            b"".as_slice(),
            b"PK",
            b"hello",
            b"\x80\x02\x8a\nl\xfc\x9cF\xf9 j\xa8P\x19.",
        ] {
            assert!(read_torch(Cursor::new(bytes)).is_err());
        }
    }

    #[test]
    fn a_pickle_that_would_run_a_command_runs_nothing() {
        // cos\nsystem\n(S'echo hacked'\ntR. after the legacy preamble.
        let mut bytes = LEGACY_MAGIC.to_vec();
        bytes.extend_from_slice(b"\x80\x02M\xe9\x03.");
        bytes.extend_from_slice(b"\x80\x02}.");
        bytes.extend_from_slice(b"cos\nsystem\n(S'echo hacked'\ntR.");
        let model = read_torch(Cursor::new(bytes)).expect("inert");
        assert!(model.tensors.is_empty());
    }

    #[test]
    fn a_cycle_ends() {
        let mut bytes = LEGACY_MAGIC.to_vec();
        bytes.extend_from_slice(b"\x80\x02M\xe9\x03.");
        bytes.extend_from_slice(b"\x80\x02}.");
        // l = []; l.append(l)
        bytes.extend_from_slice(b"\x80\x02]q\x00h\x00a.");
        assert!(
            read_torch(Cursor::new(bytes))
                .expect("ends")
                .tensors
                .is_empty()
        );
    }
}
