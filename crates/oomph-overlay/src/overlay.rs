//! Which file a path means: an upper one, a lower one, or none.

use std::ffi::{c_char, c_int};
use std::sync::atomic::{AtomicBool, Ordering};

use crate::directories;
use crate::kernel::{self, HERE};
use crate::path::{Path, absolute, is_within, of_program, without_links};
use crate::settings::Settings;

/// How many links a path may lead through, as in the kernel.
const MOST_LINKS: u32 = 40;

/// The most bytes of a file that is copied before it is changed, where the file system cannot share them.
const MOST_COPIED: u64 = 1 << 28;

/// The tree of files of the program's own.
const UPPER: &[u8] = b"upper";
/// The tree that marks what was removed.
const GONE: &[u8] = b"gone";
/// The tree that marks what the program made among the lower files.
const MADE: &[u8] = b"made";

/// What there is at a path.
pub enum Place {
    /// The program's own file, of this kind (`S_IFMT`), at this path.
    Upper(Path, libc::mode_t),
    /// A file that was there.
    Lower(libc::stat),
    /// The program has removed it.
    Gone,
    /// Nothing.
    Absent,
    /// Links that lead nowhere.
    Endless,
    /// Links lead out of what is protected.
    Outside,
}

/// A protected path and what it means.
pub struct Entry {
    settings: Settings,
    /// The path, without links in its directories.
    pub path: Path,
    /// What is there.
    pub place: Place,
}

/// Where a new file goes.
pub enum New {
    /// Among the lower files; it is then marked as the program's own.
    Lower,
    /// To this path.
    Upper(Path),
    /// Nowhere: `errno`.
    Refused(c_int),
}

/// The GPU works from now on.
pub fn begin() {
    let begun = Settings::now().and_then(|settings| settings.place(&[b"begun"]));
    if let Some(begun) = begun {
        touch(&begun);
    }
}

/// The overlay, if there is one and the program has written to it or removed something: without, all is as it looks.
pub fn in_use() -> Option<Settings> {
    static SEEN: AtomicBool = AtomicBool::new(false);
    let settings = Settings::now()?;
    let seen = SEEN.load(Ordering::Relaxed) || kernel::exists(settings.place(&[UPPER])?.text());
    if seen {
        SEEN.store(true, Ordering::Relaxed);
    }
    seen.then_some(settings)
}

fn has_begun(settings: Settings) -> bool {
    static SEEN: AtomicBool = AtomicBool::new(false);
    if !SEEN.load(Ordering::Relaxed) {
        let begun = settings.place(&[b"begun"]);
        SEEN.store(
            begun.is_some_and(|begun| kernel::exists(begun.text())),
            Ordering::Relaxed,
        );
    }
    SEEN.load(Ordering::Relaxed)
}

/// Makes an empty file.
fn touch(path: &Path) -> bool {
    let flags = libc::O_CREAT | libc::O_WRONLY | libc::O_CLOEXEC;
    let file = kernel::open(HERE, path.pointer(), flags, 0o600);
    if file >= 0 {
        kernel::close(file);
    }
    file >= 0
}

/// Makes the directories that a path in the overlay lies in. What is there stays.
fn make_parents(settings: Settings, path: &Path) {
    let first = settings.directory().len() + 1;
    for (at, _) in path
        .bytes()
        .iter()
        .enumerate()
        .skip(first)
        .filter(|(_, byte)| **byte == b'/')
    {
        if let Some(parent) = Path::of(&[&path.bytes()[..at]]) {
            kernel::make_directory(parent.pointer(), 0o700);
        }
    }
}

/// Marks a path in one of the trees. A mark is a file, so all that lies below its path is marked with it.
fn mark(settings: Settings, tree: &[u8], path: &Path) {
    let Some(mark) = settings.place(&[tree, path.bytes()]) else {
        return;
    };
    make_parents(settings, &mark);
    // Marks below give way to it.
    if kernel::kind(mark.text()) == Some(libc::S_IFDIR) {
        remove_tree(&mark);
    }
    touch(&mark);
    // The overlay is in use.
    if let Some(upper) = settings.place(&[UPPER]) {
        kernel::make_directory(upper.pointer(), 0o700);
    }
}

/// Whether a path, or a directory that it lies in, is marked.
fn is_marked(settings: Settings, tree: &[u8], path: &Path) -> bool {
    let Some(mark) = settings.place(&[tree, path.bytes()]) else {
        return false;
    };
    match kernel::kind(mark.text()) {
        Some(kind) => kind == libc::S_IFREG,
        None => kernel::error() == libc::ENOTDIR,
    }
}

/// Removes a tree of marks.
fn remove_tree(path: &Path) {
    directories::any_in(path, |name| {
        if let Some(below) = Path::of(&[path.bytes(), b"/", name])
            && kernel::unlink(HERE, below.pointer(), 0) != 0
        {
            remove_tree(&below);
        }
        false
    });
    kernel::unlink(HERE, path.pointer(), libc::AT_REMOVEDIR);
}

/// A path's next form.
enum Step {
    /// Its directories are none of them links.
    There(Path),
    /// One was.
    To(Path),
}

/// Follows a link in the directories of a path.
fn step(settings: Settings, path: &Path) -> Option<Step> {
    if !settings.protects(path.bytes()) {
        return Some(Step::There(path.clone()));
    }
    let bytes = path.bytes();
    let slashes = (1..bytes.len()).filter(|&at| bytes[at] == b'/');
    let mut is_mixed = true;
    for at in slashes {
        let directory = Path::of(&[&bytes[..at]])?;
        if is_mixed {
            let upper = settings.place(&[UPPER, directory.bytes()])?;
            let gone = settings.place(&[GONE, directory.bytes()])?;
            is_mixed = kernel::exists(gone.text()) || kernel::kind(upper.text()).is_some();
            // From here on all is as it was, unless a link leads back to where it is not.
            if !is_mixed && let Some(plain) = without_links(path) {
                return Some(if plain.bytes() == bytes {
                    Step::There(plain)
                } else {
                    Step::To(plain)
                });
            }
        }
        let place = Entry::look(settings, &directory)?;
        let entry = Entry {
            settings,
            path: directory,
            place,
        };
        if let Some(target) = entry.link() {
            let next = beside(&entry.path, &target)?;
            return Some(Step::To(Path::of(&[next.bytes(), &bytes[at..]])?));
        }
    }
    Some(Step::There(path.clone()))
}

/// The path that a link of this path means by its target.
fn beside(link: &Path, target: &Path) -> Option<Path> {
    match target.bytes().first()? {
        b'/' => absolute(HERE, target.bytes()),
        _ => absolute(
            HERE,
            Path::of(&[link.split()?.0, b"/", target.bytes()])?.bytes(),
        ),
    }
}

/// The path that a path in the overlay's upper tree stands for: the working directory may be one of the program's own.
fn own_place(settings: Settings, path: &Path) -> Option<Path> {
    let upper = Path::of(&[settings.directory(), b"/", UPPER])?;
    match path.bytes().strip_prefix(upper.bytes()) {
        Some(rest) if is_within(path.bytes(), upper.bytes()) => Path::of(&[rest]),
        _ => Some(path.clone()),
    }
}

impl Entry {
    /// What a path means to the program; `None` if the overlay leaves it alone, or there is none.
    pub fn find(at: c_int, path: *const c_char, follow: bool) -> Option<Self> {
        let settings = Settings::now()?;
        let mut path = of_program(at, path)?;
        // What is asked for most, of devices and of the process itself.
        let system: [&[u8]; 3] = [b"/proc", b"/dev", b"/sys"];
        if system.iter().any(|system| is_within(path.bytes(), system)) {
            return None;
        }
        for links in 0..MOST_LINKS {
            path = match step(settings, &own_place(settings, &path)?)? {
                Step::To(next) => next,
                Step::There(path) => {
                    if !settings.protects(path.bytes()) {
                        let place = Place::Outside;
                        return (links > 0).then_some(Self {
                            settings,
                            path,
                            place,
                        });
                    }
                    let place = Self::look(settings, &path)?;
                    let entry = Self {
                        settings,
                        path,
                        place,
                    };
                    match entry.link().filter(|_| follow) {
                        Some(target) => beside(&entry.path, &target)?,
                        None => return Some(entry),
                    }
                }
            };
        }
        Some(Self {
            settings,
            path,
            place: Place::Endless,
        })
    }

    fn look(settings: Settings, path: &Path) -> Option<Place> {
        let upper = settings.place(&[UPPER, path.bytes()])?;
        let own = kernel::kind(upper.text());
        if let Some(kind) = own
            && kind != libc::S_IFDIR
        {
            return Some(Place::Upper(upper, kind));
        }
        let gone = is_marked(settings, GONE, path);
        let lower = kernel::status(HERE, path.pointer(), kernel::NO_FOLLOW);
        Some(match (lower, own, gone) {
            // A directory of both is one.
            (Some(status), None, false) => Place::Lower(status),
            (Some(status), Some(_), false) if status.st_mode & libc::S_IFMT == libc::S_IFDIR => {
                Place::Lower(status)
            }
            (_, Some(kind), _) => Place::Upper(upper, kind),
            (Some(_), None, true) => Place::Gone,
            (None, None, _) => Place::Absent,
        })
    }

    /// Where it leads to, if it is a link.
    fn link(&self) -> Option<Path> {
        match &self.place {
            Place::Upper(path, libc::S_IFLNK) => path.target(),
            Place::Lower(status) if status.st_mode & libc::S_IFMT == libc::S_IFLNK => {
                self.path.target()
            }
            _ => None,
        }
    }

    /// Where it really is; `None` if it is not there.
    pub fn real(&self) -> Option<&Path> {
        match &self.place {
            Place::Upper(path, _) => Some(path),
            Place::Lower(_) => Some(&self.path),
            Place::Outside => kernel::kind(self.path.text()).map(|_| &self.path),
            Place::Gone | Place::Absent | Place::Endless => None,
        }
    }

    /// Why it is not there: `errno`.
    pub fn lack(&self) -> c_int {
        if matches!(self.place, Place::Endless) {
            return libc::ELOOP;
        }
        let mut path = self.path.bytes();
        while let Some(slash) = path
            .iter()
            .rposition(|&byte| byte == b'/')
            .filter(|&at| at > 0)
        {
            path = &path[..slash];
            let kind = match Path::of(&[path]).and_then(|path| Self::look(self.settings, &path)) {
                Some(Place::Upper(_, kind)) => kind,
                Some(Place::Lower(status)) => status.st_mode & libc::S_IFMT,
                _ => continue,
            };
            // A link here leads nowhere.
            return match kind {
                libc::S_IFDIR | libc::S_IFLNK => libc::ENOENT,
                _ => libc::ENOTDIR,
            };
        }
        libc::ENOENT
    }

    /// What kind of file the program sees (`S_IFMT`).
    pub fn kind(&self) -> Option<libc::mode_t> {
        match &self.place {
            Place::Upper(_, kind) => Some(*kind),
            Place::Lower(status) => Some(status.st_mode & libc::S_IFMT),
            Place::Outside => kernel::kind(self.path.text()),
            Place::Gone | Place::Absent | Place::Endless => None,
        }
    }

    /// Whether it is a lower file that the program has made itself.
    pub fn is_own(&self) -> bool {
        matches!(self.place, Place::Lower(_)) && is_marked(self.settings, MADE, &self.path)
    }

    /// Whether it is a lower file or directory that must stay.
    pub fn stays(&self) -> bool {
        matches!(self.place, Place::Lower(_)) && !is_marked(self.settings, MADE, &self.path)
    }

    /// Its path among the program's own files, in directories that are there. It then hides a lower file.
    pub fn upper(&self) -> Option<Path> {
        let path = self.settings.place(&[UPPER, self.path.bytes()])?;
        make_parents(self.settings, &path);
        Some(path)
    }

    /// Where its directory has files of the program's own, if there are any.
    pub fn twin(&self) -> Option<Path> {
        self.settings
            .place(&[UPPER, self.path.bytes()])
            .filter(|path| kernel::exists(path.text()))
    }

    /// The entry of this name in the directory that this is.
    pub fn child(&self, name: &[u8]) -> Option<Self> {
        let path = Path::of(&[self.path.bytes(), b"/", name])?;
        let place = Self::look(self.settings, &path)?;
        Some(Self {
            settings: self.settings,
            path,
            place,
        })
    }

    /// Whether it is a lower file or directory, and nothing of its name is above.
    pub fn is_below_only(&self) -> bool {
        matches!(self.place, Place::Lower(_)) && self.twin().is_none()
    }

    /// Whether something is, or may be, missing from the lower directory that this is, or added to it.
    pub fn is_mixed(&self) -> bool {
        let gone = self.settings.place(&[GONE, self.path.bytes()]);
        self.twin().is_some() || gone.is_some_and(|gone| kernel::exists(gone.text()))
    }

    /// Where a new file of this path goes.
    pub fn new_place(&self) -> New {
        match self.place {
            Place::Upper(..) | Place::Lower(_) | Place::Outside => {
                return New::Refused(libc::EEXIST);
            }
            Place::Endless => return New::Refused(libc::ELOOP),
            Place::Gone | Place::Absent => {}
        }
        let Some(parent) = self.path.parent() else {
            return New::Lower;
        };
        let upper = || match self.upper() {
            Some(path) => New::Upper(path),
            None => New::Refused(libc::ENAMETOOLONG),
        };
        match Self::look(self.settings, &parent) {
            Some(Place::Upper(_, libc::S_IFDIR)) => upper(),
            Some(Place::Lower(status)) if status.st_mode & libc::S_IFMT == libc::S_IFDIR => {
                let begun = has_begun(self.settings);
                let hidden = matches!(self.place, Place::Gone);
                // Where the program may not write, it learns that.
                if (begun || hidden) && kernel::may(HERE, parent.pointer(), libc::W_OK) {
                    upper()
                } else {
                    New::Lower
                }
            }
            _ => New::Refused(self.lack()),
        }
    }

    /// Remembers that the program made this lower file.
    pub fn mark_own(&self) {
        if !is_marked(self.settings, MADE, &self.path) {
            mark(self.settings, MADE, &self.path);
        }
    }

    /// Hides the lower file, and all that lies below.
    pub fn mark_gone(&self) {
        mark(self.settings, GONE, &self.path);
    }

    /// Makes a copy of a lower file that the program may change; `None` if it is too large, which is then noted.
    pub fn copy_up(&self, with_contents: bool) -> Option<Path> {
        let Place::Lower(status) = &self.place else {
            return None;
        };
        let upper = self.upper()?;
        if with_contents {
            if copy_file(&self.path, &upper, status.st_mode, MOST_COPIED) {
                return Some(upper);
            }
            note(self.settings, b"in-place", &self.path);
            return None;
        }
        let flags = libc::O_CREAT | libc::O_WRONLY | libc::O_CLOEXEC;
        let file = kernel::open(HERE, upper.pointer(), flags, status.st_mode & 0o7777);
        (file >= 0).then(|| {
            kernel::close(file);
            upper
        })
    }
}

/// Adds a path to a list.
fn note(settings: Settings, list: &[u8], path: &Path) {
    let Some(list) = settings.place(&[list]) else {
        return;
    };
    let flags = libc::O_CREAT | libc::O_WRONLY | libc::O_APPEND | libc::O_CLOEXEC;
    let file = kernel::open(HERE, list.pointer(), flags, 0o600);
    if file >= 0 {
        if let Some(line) = Path::of(&[path.bytes(), b"\n"]) {
            let bytes = line.bytes();
            kernel::call!(SYS_write, file, bytes.as_ptr(), bytes.len());
        }
        kernel::close(file);
    }
}

/// Lists what the program has just made where the overlay leaves it alone, if it may be a temporary file or directory: these are
/// made for their owner alone. What the program leaves of them goes with the overlay.
pub fn note_temporary(at: c_int, path: *const c_char, mode: libc::mode_t) {
    if mode & 0o77 != 0 {
        return;
    }
    if let Some(settings) = Settings::now()
        && let Some(path) = of_program(at, path)
        && !is_within(path.bytes(), b"/dev")
        && !is_within(path.bytes(), settings.directory())
    {
        note(settings, b"temporary", &path);
    }
}

/// The working directory as the program sees it, if it is one of its own.
pub fn own_directory(place: &[u8]) -> Option<Path> {
    let path = own_place(Settings::now()?, &Path::of(&[place])?)?;
    (path.bytes() != place).then_some(path)
}

/// Copies a file of at most `most` bytes, or of any size if the file system can share them.
pub fn copy_file(from: &Path, to: &Path, mode: libc::mode_t, most: u64) -> bool {
    let source = kernel::open(HERE, from.pointer(), libc::O_RDONLY | libc::O_CLOEXEC, 0);
    if source < 0 {
        return false;
    }
    let flags = libc::O_CREAT | libc::O_WRONLY | libc::O_TRUNC | libc::O_CLOEXEC;
    // Readable and writable for its owner, whatever it was: only this program sees it.
    let target = kernel::open(HERE, to.pointer(), flags, mode & 0o7777 | 0o600);
    let done = target >= 0 && kernel::copy(source, target, most);
    kernel::close(source);
    if target >= 0 {
        kernel::close(target);
        if !done {
            kernel::unlink(HERE, to.pointer(), 0);
        }
    }
    done
}
