//! A mutex without poisoning: a panic is caught at the C boundary and must not disable the GPU.

use std::sync::{MutexGuard, PoisonError};

/// A [`std::sync::Mutex`] that ignores poisoning.
#[derive(Debug, Default)]
pub struct Mutex<T>(std::sync::Mutex<T>);

impl<T> Mutex<T> {
    pub const fn new(value: T) -> Self {
        Self(std::sync::Mutex::new(value))
    }

    pub fn lock(&self) -> MutexGuard<'_, T> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
