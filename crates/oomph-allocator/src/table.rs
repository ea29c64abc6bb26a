//! A table that only grows, and places in it. Only the table makes places, so looking one up cannot
//! fail, and no value has to be invented for a wrong index.

use std::hash::{Hash, Hasher};
use std::marker::PhantomData;
use std::num::NonZeroU32;
use std::ops::{Index, IndexMut};

/// Where a row of a [`Table`] is.
pub(crate) struct Place<T>(NonZeroU32, PhantomData<fn() -> T>);

impl<T> Clone for Place<T> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<T> Copy for Place<T> {}

impl<T> PartialEq for Place<T> {
    fn eq(&self, other: &Self) -> bool {
        self.0 == other.0
    }
}

impl<T> Eq for Place<T> {}

impl<T> PartialOrd for Place<T> {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl<T> Ord for Place<T> {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        self.0.cmp(&other.0)
    }
}

impl<T> Hash for Place<T> {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.0.hash(state);
    }
}

impl<T> std::fmt::Debug for Place<T> {
    fn fmt(&self, f: &mut std::fmt::Formatter) -> std::fmt::Result {
        write!(f, "{}", self.0.get() - 1)
    }
}

/// Rows that are added and changed, but never removed.
#[derive(Debug, Clone)]
pub(crate) struct Table<T>(Vec<T>);

impl<T> Default for Table<T> {
    fn default() -> Self {
        Self(Vec::new())
    }
}

impl<T> Table<T> {
    /// Adds a row.
    pub(crate) fn add(&mut self, row: T) -> Place<T> {
        self.0.push(row);
        // The length is one at least; a table of 2^32 rows would not fit into memory.
        let length = u32::try_from(self.0.len()).unwrap_or(u32::MAX);
        Place(
            NonZeroU32::new(length).unwrap_or(NonZeroU32::MAX),
            PhantomData,
        )
    }

    /// All rows and their places.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (Place<T>, &T)> {
        (1..=u32::MAX)
            .filter_map(NonZeroU32::new)
            .map(|number| Place(number, PhantomData))
            .zip(&self.0)
    }

    /// All rows, to change them.
    pub(crate) fn iter_mut(&mut self) -> impl Iterator<Item = &mut T> {
        self.0.iter_mut()
    }
}

impl<T> Index<Place<T>> for Table<T> {
    type Output = T;

    #[inline]
    fn index(&self, place: Place<T>) -> &T {
        &self.0[place.0.get() as usize - 1]
    }
}

impl<T> IndexMut<Place<T>> for Table<T> {
    #[inline]
    fn index_mut(&mut self, place: Place<T>) -> &mut T {
        &mut self.0[place.0.get() as usize - 1]
    }
}
