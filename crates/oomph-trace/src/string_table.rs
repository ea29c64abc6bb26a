//! Interned strings: one arena, handles of four bytes.

use std::hash::Hasher;

use hashbrown::HashTable;
use rustc_hash::FxHasher;

use crate::visible::visible;

/// Bytes of all strings together. The names of a large job take a few megabytes: each is stored once.
pub const MAX_STRINGS: usize = 512 << 20;

/// A handle to a string of a [`StringTable`].
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct StringId(pub u32);

impl StringId {
    /// The empty string, in every table.
    pub const EMPTY: Self = Self(0);

    /// The handle as an index.
    pub const fn index(self) -> usize {
        self.0 as usize
    }
}

/// Strings, each stored once. The empty string is always [`StringId::EMPTY`].
#[derive(Debug, Clone)]
pub struct StringTable {
    arena: String,
    // End offset of each string; the start is the end of the one before.
    ends: Vec<u32>,
    lookup: HashTable<u32>,
    refused: bool,
}

impl Default for StringTable {
    fn default() -> Self {
        let mut table = Self {
            arena: String::new(),
            ends: Vec::new(),
            lookup: HashTable::new(),
            refused: false,
        };
        table.intern("");
        table
    }
}

fn hash(text: &str) -> u64 {
    let mut hasher = FxHasher::default();
    hasher.write(text.as_bytes());
    hasher.finish()
}

fn slice<'a>(arena: &'a str, ends: &[u32], id: u32) -> &'a str {
    let index = id as usize;
    let end = ends.get(index).copied().unwrap_or(0) as usize;
    let start = match index.checked_sub(1) {
        Some(before) => ends.get(before).copied().unwrap_or(0) as usize,
        None => 0,
    };
    arena.get(start..end).unwrap_or("")
}

impl StringTable {
    /// The handle of `text`, which is stored if it is new. Once there are [`MAX_STRINGS`] bytes, new strings
    /// become the empty string.
    ///
    /// Names of files, functions and modules end up on terminals: what acts there is stored as
    /// [`visible`] shows it.
    pub fn intern(&mut self, text: &str) -> StringId {
        let text = &*visible(text);
        let hash_value = hash(text);
        let (arena, ends) = (&self.arena, &self.ends);
        if let Some(&id) = self
            .lookup
            .find(hash_value, |&id| slice(arena, ends, id) == text)
        {
            return StringId(id);
        }
        let end = self.arena.len() + text.len();
        if end > MAX_STRINGS {
            self.refused = true;
            return StringId::EMPTY;
        }
        let end = end as u32;
        let id = self.ends.len() as u32;
        self.arena.push_str(text);
        self.ends.push(end);
        let (arena, ends) = (&self.arena, &self.ends);
        self.lookup
            .insert_unique(hash_value, id, |&id| hash(slice(arena, ends, id)));
        StringId(id)
    }

    /// Whether a string was left out because there were too many.
    pub fn is_full(&self) -> bool {
        self.refused
    }

    /// The handle of `text` if it is in the table.
    pub fn find(&self, text: &str) -> Option<StringId> {
        self.lookup
            .find(hash(text), |&id| slice(&self.arena, &self.ends, id) == text)
            .map(|&id| StringId(id))
    }

    /// The string behind a handle; the empty string for a handle of another table.
    pub fn get(&self, id: StringId) -> &str {
        slice(&self.arena, &self.ends, id.0)
    }

    /// How many strings there are.
    pub fn len(&self) -> usize {
        self.ends.len()
    }

    /// Never true: the empty string is always there.
    pub fn is_empty(&self) -> bool {
        self.ends.is_empty()
    }

    /// All strings, in the order of their handles.
    pub fn iter(&self) -> impl Iterator<Item = (StringId, &str)> {
        (0..self.ends.len() as u32).map(|id| (StringId(id), self.get(StringId(id))))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_string_is_stored_once() {
        let mut table = StringTable::default();
        assert_eq!(table.intern(""), StringId::EMPTY);
        let a = table.intern("forward");
        let b = table.intern("backward");
        assert_ne!(a, b);
        assert_eq!(table.intern("forward"), a);
        assert_eq!(table.get(a), "forward");
        assert_eq!(table.get(b), "backward");
        assert_eq!(table.find("nobody"), None);
        assert_eq!(table.len(), 3);
        assert_eq!(table.get(StringId(99)), "");
    }
}
