//! Arguments of exported functions, typed by what the vendor's header promises of them, so that
//! the functions themselves can be safe. Each type has the layout of the C argument.
//!
//! C makes these values; Rust code makes them from references, or states why it may.

use std::ffi::{CStr, c_char};
use std::marker::PhantomData;

/// An output: null, or a place for one `T` while the call lasts.
#[repr(transparent)]
#[derive(Debug)]
pub struct Out<'a, T>(*mut T, PhantomData<&'a mut T>);

impl<T> Clone for Out<'_, T> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<T> Copy for Out<'_, T> {}

impl<T> Out<'_, T> {
    /// The output that nobody wants.
    pub const fn null() -> Self {
        Self(std::ptr::null_mut(), PhantomData)
    }

    /// # Safety
    /// `at` must be null or valid for writes of `T` as long as the result is used.
    pub const unsafe fn new(at: *mut T) -> Self {
        Self(at, PhantomData)
    }

    /// Writes `value`, unless nobody wants it.
    pub fn put(self, value: T) {
        if !self.0.is_null() {
            // SAFETY: not null, so valid for a write. Outputs may be packed in foreign structs.
            unsafe { self.0.write_unaligned(value) }
        }
    }

    pub fn is_null(self) -> bool {
        self.0.is_null()
    }

    /// The same place as C passed it.
    pub fn as_ptr(self) -> *mut T {
        self.0
    }
}

impl<'a, T> From<&'a mut T> for Out<'a, T> {
    fn from(place: &'a mut T) -> Self {
        Self(place, PhantomData)
    }
}

/// An input: null, or one `T` that can be read while the call lasts.
#[repr(transparent)]
#[derive(Debug, Clone, Copy)]
pub struct In<'a, T>(*const T, PhantomData<&'a T>);

impl<T: Copy> In<'_, T> {
    /// The value, if there is one.
    pub fn get(self) -> Option<T> {
        // SAFETY: not null, so valid for a read. Inputs may be packed in foreign structs.
        (!self.0.is_null()).then(|| unsafe { self.0.read_unaligned() })
    }
}

/// A text: null, or a C string that can be read while the call lasts.
#[repr(transparent)]
#[derive(Debug, Clone, Copy)]
pub struct Text<'a>(*const c_char, PhantomData<&'a CStr>);

impl<'a> Text<'a> {
    /// The text, if there is one.
    pub fn get(self) -> Option<&'a CStr> {
        // SAFETY: not null, so a C string that lives as long as the call.
        (!self.0.is_null()).then(|| unsafe { CStr::from_ptr(self.0) })
    }
}

/// Writes what fits of `text`, and a terminator, to a buffer of `room` bytes. False, and nothing
/// written, if the buffer is null or empty.
///
/// # Safety
/// `out` must be null or valid for writes of `room` bytes.
pub unsafe fn put_text(out: *mut c_char, room: usize, text: &str) -> bool {
    if out.is_null() || room == 0 {
        return false;
    }
    let count = text.len().min(room - 1);
    // SAFETY: `out` is not null, and `count` bytes and the terminator are `room` at most.
    unsafe {
        std::ptr::copy_nonoverlapping(text.as_ptr().cast(), out, count);
        out.add(count).write(0);
    }
    true
}
