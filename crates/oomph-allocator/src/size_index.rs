//! The free blocks of one stream, ordered by size and then rank: the address, but in torch 2.12.
//!
//! A B-tree would work, but a replay spends most of its time here: sorted chunks that fit into a few
//! cache lines are about three times as fast for the hundreds to thousands of free blocks that
//! real jobs have.

/// A free block: size, address, rank among blocks of its size, and its place in the simulator's table.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Entry<B> {
    pub(crate) size: u64,
    pub(crate) addr: u64,
    pub(crate) rank: u64,
    pub(crate) block: B,
}

impl<B: Copy> Entry<B> {
    #[inline]
    fn key(self) -> (u64, u64) {
        (self.size, self.rank)
    }
}

/// Entries per chunk before it is cut in two.
const CHUNK: usize = 64;

/// A place in a [`SizeIndex`], valid until the next change.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Cursor {
    chunk: usize,
    item: usize,
}

#[derive(Debug, Clone)]
pub(crate) struct SizeIndex<B> {
    // No chunk is empty.
    chunks: Vec<Vec<Entry<B>>>,
    // The largest key of each chunk.
    highest: Vec<(u64, u64)>,
}

impl<B> Default for SizeIndex<B> {
    fn default() -> Self {
        Self {
            chunks: Vec::new(),
            highest: Vec::new(),
        }
    }
}

impl<B: Copy> SizeIndex<B> {
    pub(crate) fn iter(&self) -> impl Iterator<Item = Entry<B>> + '_ {
        self.chunks.iter().flatten().copied()
    }

    #[inline]
    fn chunk_for(&self, key: (u64, u64)) -> usize {
        self.highest.partition_point(|&highest| highest < key)
    }

    pub(crate) fn insert(&mut self, entry: Entry<B>) {
        let key = entry.key();
        let at = self.chunk_for(key).min(self.chunks.len().saturating_sub(1));
        let (Some(chunk), Some(highest)) = (self.chunks.get_mut(at), self.highest.get_mut(at))
        else {
            let mut chunk = Vec::with_capacity(CHUNK);
            chunk.push(entry);
            self.chunks.push(chunk);
            self.highest.push(key);
            return;
        };
        let item = chunk.partition_point(|other| other.key() < key);
        chunk.insert(item, entry);
        *highest = (*highest).max(key);
        if chunk.len() >= CHUNK {
            let mut upper = Vec::with_capacity(CHUNK);
            upper.extend(chunk.drain(CHUNK / 2..));
            if let Some(last) = chunk.last() {
                let upper_highest = std::mem::replace(highest, last.key());
                self.highest.insert(at + 1, upper_highest);
                self.chunks.insert(at + 1, upper);
            }
        }
    }

    /// Removes the block of this size and rank; false if there is none.
    pub(crate) fn remove(&mut self, size: u64, rank: u64) -> bool {
        let key = (size, rank);
        let at = self.chunk_for(key);
        let (Some(chunk), Some(highest)) = (self.chunks.get_mut(at), self.highest.get_mut(at))
        else {
            return false;
        };
        let item = chunk.partition_point(|other| other.key() < key);
        if chunk.get(item).map(|entry| entry.key()) != Some(key) {
            return false;
        }
        chunk.remove(item);
        if let Some(last) = chunk.last() {
            *highest = last.key();
        } else {
            self.chunks.remove(at);
            self.highest.remove(at);
        }
        true
    }

    /// The first block of at least `size` bytes: the smallest, then the lowest rank.
    #[inline]
    pub(crate) fn lower_bound(&self, size: u64) -> Option<(Cursor, Entry<B>)> {
        let chunk = self.chunk_for((size, 0));
        let entries = self.chunks.get(chunk)?;
        let item = entries.partition_point(|entry| entry.size < size);
        let entry = *entries.get(item)?;
        Some((Cursor { chunk, item }, entry))
    }

    /// The next block in order.
    pub(crate) fn next(&self, cursor: Cursor) -> Option<(Cursor, Entry<B>)> {
        let chunk = self.chunks.get(cursor.chunk)?;
        let cursor = if cursor.item + 1 < chunk.len() {
            Cursor {
                item: cursor.item + 1,
                ..cursor
            }
        } else {
            Cursor {
                chunk: cursor.chunk + 1,
                item: 0,
            }
        };
        let entry = *self.chunks.get(cursor.chunk)?.get(cursor.item)?;
        Some((cursor, entry))
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn behaves_like_an_ordered_set(
            changes in proptest::collection::vec((any::<bool>(), 0_u64..40, 0_u64..40), 0..600)
        ) {
            let mut index = SizeIndex::default();
            let mut model = BTreeSet::new();
            for (insert, size, addr) in changes {
                if insert {
                    if model.insert((size, addr)) {
                        index.insert(Entry { size, addr, rank: addr, block: 0 });
                    }
                } else {
                    prop_assert_eq!(index.remove(size, addr), model.remove(&(size, addr)));
                }
                let found = index.lower_bound(size).map(|(_, entry)| entry.key());
                prop_assert_eq!(found, model.range((size, 0)..).next().copied());
            }
            let keys: Vec<_> = index.iter().map(Entry::key).collect();
            prop_assert_eq!(&keys, &model.iter().copied().collect::<Vec<_>>());
            let mut walked = Vec::new();
            let mut at = index.lower_bound(0);
            while let Some((cursor, entry)) = at {
                walked.push(entry.key());
                at = index.next(cursor);
            }
            prop_assert_eq!(keys, walked);
        }
    }
}
