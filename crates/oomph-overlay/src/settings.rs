//! Where the overlay is, and what it leaves alone: the variable [`VARIABLE`] has the overlay's directory and then rules,
//! separated by colons: `+DIR` is protected and `-DIR` left alone. The longest directory that a path lies in decides.

use std::ffi::{CStr, c_char};
use std::sync::atomic::{AtomicPtr, AtomicUsize, Ordering};

use crate::path::{Path, is_within};

/// The variable's name.
pub const VARIABLE: &CStr = c"OOMPH_OVERLAY";

/// What the variable says.
#[derive(Clone, Copy)]
pub struct Settings {
    text: &'static [u8],
}

impl Settings {
    /// The settings, if there is an overlay. A process that was forked from another one may have got other ones since.
    pub fn now() -> Option<Self> {
        static SEEN: AtomicUsize = AtomicUsize::new(0);
        static TEXT: AtomicPtr<c_char> = AtomicPtr::new(std::ptr::null_mut());
        // SAFETY: a C string that lives for ever.
        let value = unsafe { libc::getenv(VARIABLE.as_ptr()) };
        if value.is_null() {
            return None;
        }
        if SEEN.load(Ordering::Acquire) != value as usize {
            // A copy: what it points to may be replaced. It is made once in a process, or twice.
            // SAFETY: `getenv` returned a C string.
            let copy = unsafe { libc::strdup(value) };
            if copy.is_null() {
                return None;
            }
            TEXT.store(copy, Ordering::Release);
            SEEN.store(value as usize, Ordering::Release);
        }
        let text = TEXT.load(Ordering::Acquire);
        // SAFETY: a copy that is never freed.
        let text = unsafe { CStr::from_ptr(text) }.to_bytes();
        text.starts_with(b"/").then_some(Self { text })
    }

    /// The overlay's directory.
    pub fn directory(self) -> &'static [u8] {
        self.text
            .split(|&byte| byte == b':')
            .next()
            .unwrap_or_default()
    }

    /// A path in the overlay's directory.
    pub fn place(self, parts: &[&[u8]]) -> Option<Path> {
        let mut path = Path::of(&[self.directory(), b"/"])?;
        for part in parts {
            path.push(part)?;
        }
        Some(path)
    }

    /// Whether the file of this path is to stay as it is.
    pub fn protects(self, path: &[u8]) -> bool {
        if is_within(path, self.directory()) {
            return false;
        }
        // Python's compiled modules are good whoever made them.
        if path
            .split(|&byte| byte == b'/')
            .any(|part| part == b"__pycache__")
        {
            return false;
        }
        let rules = self.text.split(|&byte| byte == b':').skip(1);
        let matching = rules
            .filter_map(|rule| rule.split_first())
            .filter(|(_, directory)| is_within(path, directory));
        // Of two that are the same, the last one counts.
        let longest = matching.max_by_key(|(_, directory)| directory.len());
        longest.is_none_or(|(sign, _)| *sign == b'+')
    }
}
