//! Interned frames and stacks. A stack is a run of frame handles, innermost first, as PyTorch
//! writes it.

use std::hash::Hasher;

use hashbrown::HashTable;
use rustc_hash::FxHasher;

use crate::string_table::{StringId, StringTable};

/// A handle to a frame of a [`StackTable`].
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct FrameId(pub u32);

/// A handle to a stack of a [`StackTable`].
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct StackId(pub u32);

impl StackId {
    /// The stack without frames, in every table: nobody recorded one.
    pub const NONE: Self = Self(0);

    /// The handle as an index.
    pub const fn index(self) -> usize {
        self.0 as usize
    }
}

/// One frame of a call stack.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash)]
pub struct Frame {
    /// The source file; C++ frames carry `??` or a bare file name.
    pub file: StringId,
    /// The function.
    pub name: StringId,
    /// The line, 0 where unknown.
    pub line: u32,
}

impl Frame {
    /// Whether this is a frame of Python code and not of the C++ below it.
    pub fn is_python(self, strings: &StringTable) -> bool {
        let file = strings.get(self.file);
        let python_suffix = std::path::Path::new(file)
            .extension()
            .is_some_and(|extension| extension.eq_ignore_ascii_case("py"));
        // Notebook cells are `/tmp/ipykernel_…/….py`, `<ipython-input-…>`, or what `oomph run` calls them;
        // `python -c` is `<string>`.
        python_suffix
            || (file.starts_with('<') && file.ends_with('>'))
            || file.contains(".ipynb:cell ")
    }
}

/// Whether a file is the user's own and not a library's. Compiled libraries name theirs as they were built.
pub fn is_users_own(file: &str) -> bool {
    const COMPILED: [&str; 3] = [".pyx", ".pxd", ".pxi"];
    const LIBRARIES: [&str; 7] = [
        "site-packages",
        "dist-packages",
        "/lib/python3",
        "\\lib\\python3",
        "<frozen",
        "<__array_function__",
        "<eval_with_key>",
    ];
    !LIBRARIES.iter().any(|part| file.contains(part))
        && !COMPILED.iter().any(|suffix| file.ends_with(suffix))
        && !is_in_checkout_of_torch(file)
        && !is_of_oomph(file)
}

/// Whether a file runs between the script and PyTorch in a run of oomph's, wherever that is installed (`pip install --target`).
fn is_of_oomph(file: &str) -> bool {
    const BETWEEN: [&str; 3] = ["_recorder", "_virtual_gpu", "levers"];
    file.split("/oomph/")
        .skip(1)
        .any(|inside| BETWEEN.contains(&inside.split('/').next().unwrap_or_default()))
}

/// Whether a file is one of PyTorch's in a checkout of it. A user's project may be in a directory of that name, too.
fn is_in_checkout_of_torch(file: &str) -> bool {
    const OWN: [&str; 24] = [
        "ao",
        "amp",
        "autograd",
        "backends",
        "compiler",
        "cuda",
        "distributed",
        "distributions",
        "export",
        "fft",
        "func",
        "functional.py",
        "fx",
        "jit",
        "library.py",
        "linalg",
        "nn",
        "onnx",
        "optim",
        "overrides.py",
        "profiler",
        "serialization.py",
        "storage.py",
        "utils",
    ];
    file.split("/torch/").skip(1).any(|inside| {
        let first = inside.split('/').next().unwrap_or_default();
        first.starts_with('_') || OWN.contains(&first)
    })
}

/// Frames and stacks, each stored once.
#[derive(Debug, Clone)]
pub struct StackTable {
    frames: Vec<Frame>,
    frame_lookup: HashTable<u32>,
    // Concatenated frames of all stacks, and where each stack ends.
    members: Vec<FrameId>,
    ends: Vec<u64>,
    stack_lookup: HashTable<u32>,
}

impl Default for StackTable {
    fn default() -> Self {
        let mut table = Self {
            frames: Vec::new(),
            frame_lookup: HashTable::new(),
            members: Vec::new(),
            ends: Vec::new(),
            stack_lookup: HashTable::new(),
        };
        table.intern(&[]);
        table
    }
}

fn hash_frame(frame: Frame) -> u64 {
    let mut hasher = FxHasher::default();
    hasher.write_u64(u64::from(frame.file.0) << 32 | u64::from(frame.name.0));
    hasher.write_u32(frame.line);
    hasher.finish()
}

fn hash_stack(stack: &[FrameId]) -> u64 {
    let mut hasher = FxHasher::default();
    for frame in stack {
        hasher.write_u32(frame.0);
    }
    hasher.write_usize(stack.len());
    hasher.finish()
}

fn slice<'a>(members: &'a [FrameId], ends: &[u64], id: u32) -> &'a [FrameId] {
    let index = id as usize;
    let end = ends.get(index).copied().unwrap_or(0) as usize;
    let start = match index.checked_sub(1) {
        Some(before) => ends.get(before).copied().unwrap_or(0) as usize,
        None => 0,
    };
    members.get(start..end).unwrap_or(&[])
}

impl StackTable {
    /// The handle of `frame`.
    pub fn intern_frame(&mut self, frame: Frame) -> FrameId {
        let hash_value = hash_frame(frame);
        let frames = &self.frames;
        if let Some(&id) = self
            .frame_lookup
            .find(hash_value, |&id| frames.get(id as usize) == Some(&frame))
        {
            return FrameId(id);
        }
        let id = self.frames.len() as u32;
        self.frames.push(frame);
        let frames = &self.frames;
        self.frame_lookup.insert_unique(hash_value, id, |&id| {
            frames
                .get(id as usize)
                .map_or(0, |&frame| hash_frame(frame))
        });
        FrameId(id)
    }

    /// The handle of `stack`, innermost frame first.
    pub fn intern(&mut self, stack: &[FrameId]) -> StackId {
        let hash_value = hash_stack(stack);
        let (members, ends) = (&self.members, &self.ends);
        if let Some(&id) = self
            .stack_lookup
            .find(hash_value, |&id| slice(members, ends, id) == stack)
        {
            return StackId(id);
        }
        let id = self.ends.len() as u32;
        self.members.extend_from_slice(stack);
        self.ends.push(self.members.len() as u64);
        let (members, ends) = (&self.members, &self.ends);
        self.stack_lookup
            .insert_unique(hash_value, id, |&id| hash_stack(slice(members, ends, id)));
        StackId(id)
    }

    /// The frames of a stack, innermost first.
    pub fn stack(&self, id: StackId) -> &[FrameId] {
        slice(&self.members, &self.ends, id.0)
    }

    /// A frame; an empty one for a handle of another table.
    pub fn frame(&self, id: FrameId) -> Frame {
        self.frames.get(id.0 as usize).copied().unwrap_or_default()
    }

    /// The frames of a stack with their contents, innermost first.
    pub fn frames(&self, id: StackId) -> impl DoubleEndedIterator<Item = Frame> + '_ {
        self.stack(id).iter().map(|&frame| self.frame(frame))
    }

    /// How many stacks there are (the empty one included).
    pub fn len(&self) -> usize {
        self.ends.len()
    }

    /// Never true: the empty stack is always there.
    pub fn is_empty(&self) -> bool {
        self.ends.is_empty()
    }

    /// How many frames there are.
    pub fn frame_count(&self) -> usize {
        self.frames.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cells_of_a_notebook_are_python_and_the_users_own() {
        let mut strings = StringTable::default();
        for (file, python) in [
            ("/home/me/vae.ipynb:cell 3", true),
            ("<ipython-input-3-0123>", true),
            ("/home/me/train.py", true),
            ("ATen/native/Linear.cpp", false),
        ] {
            let frame = Frame {
                file: strings.intern(file),
                ..Frame::default()
            };
            assert_eq!(frame.is_python(&strings), python, "{file}");
        }
        assert!(is_users_own("/home/me/vae.ipynb:cell 3"));
    }

    #[test]
    fn a_directory_that_is_called_torch_or_oomph_is_no_library() {
        for file in [
            "/home/me/torch/train.py",
            "/home/me/torch/project/models/vit.py",
            "/home/me/oomph/examples/train_gpt.py",
        ] {
            assert!(is_users_own(file), "{file}");
        }
        for file in [
            "/venv/lib/python3.11/site-packages/torch/nn/modules/module.py",
            "uvloop/loop.pyx",
            "/src/pytorch/torch/nn/modules/module.py",
            "/home/me/torch/pytorch/torch/_tensor.py",
            "/opt/tools/oomph/_virtual_gpu/values.py",
            "/opt/tools/oomph/levers/recompute.py",
        ] {
            assert!(!is_users_own(file), "{file}");
        }
    }

    #[test]
    fn each_stack_is_stored_once() {
        let mut strings = StringTable::default();
        let mut table = StackTable::default();
        let file = strings.intern("/job/train.py");
        let main = table.intern_frame(Frame {
            file,
            name: strings.intern("main"),
            line: 3,
        });
        let step = table.intern_frame(Frame {
            file,
            name: strings.intern("step"),
            line: 9,
        });
        let a = table.intern(&[step, main]);
        assert_eq!(table.intern(&[step, main]), a);
        assert_ne!(table.intern(&[main, step]), a);
        assert_eq!(table.stack(a), &[step, main]);
        assert_eq!(table.intern(&[]), StackId::NONE);
        assert_eq!(table.len(), 3);
        assert!(table.frame(step).is_python(&strings));
    }
}
