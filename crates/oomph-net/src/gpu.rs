//! What the net needs of a GPU: physical memory in two places, address ranges, mappings and copies.
//! The driver has it ([`crate::driver`]); tests have a GPU that keeps real bytes.

/// Where memory lies.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Place {
    Device,
    /// Memory of the host that the GPU reads and writes at the same addresses.
    Host,
}

/// Which way a copy goes. Copies of one way are done in order, those of two ways at the same time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Way {
    /// To host memory.
    Out,
    /// To device memory.
    In,
}

/// The driver refused; what it said is of no use to the caller.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Refused;

pub trait Gpu {
    /// Physical memory of `size` bytes.
    fn create(&self, place: Place, size: u64) -> Result<u64, Refused>;
    /// Gives physical memory back, once nothing maps it.
    fn release(&self, handle: u64);
    /// A range of addresses, with nothing behind it.
    fn reserve(&self, size: u64) -> Result<u64, Refused>;
    fn unreserve(&self, at: u64, size: u64);
    /// Puts all of `handle` behind `[at, at + size)`, for the GPU to read and write.
    fn map(&self, at: u64, size: u64, handle: u64) -> Result<(), Refused>;
    fn unmap(&self, at: u64, size: u64) -> Result<(), Refused>;
    /// Begins a copy.
    fn copy(&self, to: u64, from: u64, size: u64, way: Way) -> Result<(), Refused>;
    /// Marks the copies of `way` that have begun.
    fn mark(&self, way: Way) -> Result<u64, Refused>;
    /// Waits for the copies before `mark`, and forgets it.
    fn wait(&self, mark: u64) -> Result<(), Refused>;
    /// Bytes of device memory that are free.
    fn free(&self) -> u64;
}
