//! Paths in fixed buffers: a function that opens files may be called where memory cannot be allocated.

use std::ffi::{CStr, c_char, c_int};

use crate::kernel;

const MOST: usize = libc::PATH_MAX as usize;

/// A path, which ends with a zero.
#[derive(Clone)]
pub struct Path {
    bytes: [u8; MOST],
    length: usize,
}

impl Path {
    /// The parts one after the other; `None` if that is too long.
    pub fn of(parts: &[&[u8]]) -> Option<Self> {
        let mut path = Self {
            bytes: [0; MOST],
            length: 0,
        };
        for part in parts {
            path.push(part)?;
        }
        Some(path)
    }

    pub fn push(&mut self, part: &[u8]) -> Option<()> {
        let end = self.length + part.len();
        // The last byte stays zero.
        let space = self
            .bytes
            .get_mut(self.length..end)
            .filter(|_| end < MOST)?;
        space.copy_from_slice(part);
        self.length = end;
        Some(())
    }

    pub fn bytes(&self) -> &[u8] {
        &self.bytes[..self.length]
    }

    pub fn pointer(&self) -> *const c_char {
        self.bytes.as_ptr().cast()
    }

    pub fn text(&self) -> &CStr {
        CStr::from_bytes_until_nul(&self.bytes).unwrap_or_default()
    }

    /// The directory that it lies in, and its name; `None` for `/`.
    pub fn split(&self) -> Option<(&[u8], &[u8])> {
        split(self.bytes())
    }

    /// The directory that it lies in, unless that is the root.
    pub fn parent(&self) -> Option<Self> {
        let (parent, _) = self.split()?;
        if parent.is_empty() {
            return None;
        }
        Self::of(&[parent])
    }

    fn truncate(&mut self, length: usize) {
        self.bytes[length..self.length].fill(0);
        self.length = length;
    }

    /// The parent's path in its place.
    fn go_up(&mut self) {
        let up = self.split().map_or(0, |(parent, _)| parent.len());
        self.truncate(up);
    }

    /// Where a link leads to.
    pub fn target(&self) -> Option<Self> {
        let mut target = Self::of(&[])?;
        target.length = kernel::read_link(kernel::HERE, self.pointer(), &mut target.bytes)?;
        Some(target)
    }
}

/// A path's directory, which is empty for the root, and its name.
fn split(path: &[u8]) -> Option<(&[u8], &[u8])> {
    let slash = path.iter().rposition(|&byte| byte == b'/')?;
    let name = &path[slash + 1..];
    (!name.is_empty()).then_some((&path[..slash], name))
}

/// Whether `path` is `directory` or lies in it; a `directory` of no length is the root.
pub fn is_within(path: &[u8], directory: &[u8]) -> bool {
    path.strip_prefix(directory)
        .is_some_and(|rest| rest.is_empty() || rest[0] == b'/')
}

/// Where a file that is open lies; `HERE` is the working directory.
fn place_of(at: c_int) -> Option<Path> {
    let mut link = Path::of(&[b"/proc/self/"])?;
    if at == kernel::HERE {
        link.push(b"cwd")?;
    } else {
        let mut digits = [0_u8; 10];
        let mut rest = u32::try_from(at).ok()?;
        let mut first = digits.len();
        loop {
            first -= 1;
            digits[first] = b'0' + (rest % 10) as u8;
            rest /= 10;
            if rest == 0 {
                break;
            }
        }
        link.push(b"fd/")?;
        link.push(&digits[first..])?;
    }
    let place = link.target()?;
    (place.bytes().first() == Some(&b'/')).then_some(place)
}

/// The same for a path that the program gave to the C library; `None` for a null pointer.
pub fn of_program(at: c_int, path: *const c_char) -> Option<Path> {
    if path.is_null() {
        return None;
    }
    // SAFETY: not null, so what the C library takes: a C string.
    absolute(at, unsafe { CStr::from_ptr(path) }.to_bytes())
}

/// The path that the kernel would take `path` for, beginning at `/`, with no step upwards. Links in it may be left.
pub fn absolute(at: c_int, path: &[u8]) -> Option<Path> {
    let mut whole = match path.first()? {
        b'/' => Path::of(&[])?,
        _ => place_of(at)?,
    };
    if whole.bytes() == b"/" {
        whole.truncate(0);
    }
    for part in path.split(|&byte| byte == b'/') {
        match part {
            b"" | b"." => {}
            b".." => whole.go_up(),
            name => {
                whole.push(b"/")?;
                whole.push(name)?;
            }
        }
    }
    Some(whole)
}

/// The same path with the links in its directories followed, if these are there; the last part is left as it is.
pub fn without_links(path: &Path) -> Option<Path> {
    let Some(parent) = path.parent() else {
        return path.split().map(|_| path.clone());
    };
    let flags = libc::O_PATH | libc::O_DIRECTORY | libc::O_CLOEXEC;
    let open = kernel::open(kernel::HERE, parent.pointer(), flags, 0);
    if open < 0 {
        return None;
    }
    let place = place_of(open);
    kernel::close(open);
    let name = &path.bytes()[parent.length..];
    match place?.bytes() {
        b"/" => Path::of(&[name]),
        place => Path::of(&[place, name]),
    }
}
