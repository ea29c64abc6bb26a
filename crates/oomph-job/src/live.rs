//! The live status line under a running script's own output.
//!
//! The script writes to a pseudo-terminal of the same size, so it
//! still sees a terminal, and its bytes pass through unchanged. The status is drawn only
//! while the cursor is at the beginning of a line, and erased before the script's next byte,
//! so a half-written line, such as a progress bar or a prompt, is not touched. Standard input stays the
//! real terminal. If any of this is unavailable, the script runs without a status line.

use std::fs::{self, File};
use std::io::{self, Read as _, Write as _};
use std::os::fd::OwnedFd;
use std::path::Path;
use std::process::{Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use oomph_trace::visible::acts;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::termios::{
    OptionalActions, OutputModes, tcgetattr, tcgetwinsize, tcsetattr, tcsetwinsize,
};

use crate::signals::{self, Running};
use crate::status_line::StatusLine;
use crate::watchdog::Watchdog;

/// How often the line is redrawn.
const TICK: Duration = Duration::from_millis(100);
/// The line waits this long after the script wrote, so that it does not flicker between lines.
const QUIET: Duration = Duration::from_millis(150);
/// The most that is read of the recorder's status.
const STATUS_BYTES: usize = 128;

/// Runs `command` with a status line that begins with `doing`; `status` is the file in which the
/// recorder reports the script's progress. The script's output on inherited streams appears
/// above the line.
pub fn run(
    command: &mut Command,
    grace: Duration,
    doing: &str,
    status: &Path,
    inherits: Inherits,
    watchdog: Option<&Watchdog>,
) -> io::Result<ExitStatus> {
    let mut screen = match inherits {
        Inherits::Nothing => Screen::without_output(),
        Inherits::Both | Inherits::Stderr => match Screen::with_output(command, inherits) {
            Ok(screen) => screen,
            Err(_) => return signals::spawn(command, grace)?.wait(),
        },
    };
    let child = signals::spawn(command, grace)?;
    // Close our copy of the script's side, or we would never see the end of its output.
    if !matches!(inherits, Inherits::Nothing) {
        command.stderr(Stdio::null());
        if matches!(inherits, Inherits::Both) {
            command.stdout(Stdio::null());
        }
    }
    let mut line = Line::new(doing, status);
    let ended = watch(child, &mut screen, &mut line, watchdog);
    line.shown.wipe();
    ended
}

/// Which streams of the script go to our terminal.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Inherits {
    /// Standard output and standard error.
    Both,
    /// Standard error; standard output goes elsewhere.
    Stderr,
    /// None: they go to a file.
    Nothing,
}

/// The far end of the script's terminal.
struct Screen {
    master: Option<File>,
}

impl Screen {
    fn without_output() -> Self {
        Self { master: None }
    }

    fn with_output(command: &mut Command, inherits: Inherits) -> io::Result<Self> {
        use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};
        let master = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC)?;
        grantpt(&master)?;
        unlockpt(&master)?;
        let name = ptsname(&master, Vec::new())?;
        let slave = rustix::fs::open(
            name.as_c_str(),
            rustix::fs::OFlags::RDWR | rustix::fs::OFlags::NOCTTY | rustix::fs::OFlags::CLOEXEC,
            rustix::fs::Mode::empty(),
        )?;
        tcsetwinsize(&slave, tcgetwinsize(io::stderr())?)?;
        // The real terminal translates newlines.
        let mut modes = tcgetattr(&slave)?;
        modes.output_modes.remove(OutputModes::OPOST);
        tcsetattr(&slave, OptionalActions::Now, &modes)?;
        if inherits == Inherits::Both {
            command.stdout(OwnedFd::from(File::from(slave.try_clone()?)));
        }
        command.stderr(slave);
        Ok(Self {
            master: Some(File::from(master)),
        })
    }

    /// Waits up to [`TICK`] for output; returns it, or `None` after the end.
    fn read(&mut self, buffer: &mut [u8], timeout: Duration) -> io::Result<Option<usize>> {
        let Some(master) = &mut self.master else {
            std::thread::sleep(timeout);
            return Ok(Some(0));
        };
        let wait = Timespec {
            tv_sec: 0,
            tv_nsec: timeout.as_nanos() as i64,
        };
        let mut ready = [PollFd::new(&*master, PollFlags::IN)];
        match poll(&mut ready, Some(&wait)) {
            Ok(0) | Err(rustix::io::Errno::INTR) => return Ok(Some(0)),
            Ok(_) => {}
            Err(error) => return Err(error.into()),
        }
        match master.read(buffer) {
            Ok(0) => Ok(None),
            Ok(length) => Ok(Some(length)),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => Ok(Some(0)),
            // The script's side is closed.
            Err(_) => Ok(None),
        }
    }

    fn follow_size(&self) {
        if let Some(master) = &self.master
            && let (Ok(wanted), Ok(size)) = (tcgetwinsize(io::stderr()), tcgetwinsize(master))
            && (wanted.ws_col, wanted.ws_row) != (size.ws_col, size.ws_row)
        {
            let _ = tcsetwinsize(master, wanted);
        }
    }
}

/// The status line, and what it must not disturb.
struct Line<'a> {
    doing: &'a str,
    status: &'a Path,
    shown: StatusLine,
    last_output: Option<Instant>,
    at_line_start: bool,
}

impl<'a> Line<'a> {
    fn new(doing: &'a str, status: &'a Path) -> Self {
        Self {
            doing,
            status,
            shown: StatusLine::default(),
            last_output: None,
            at_line_start: true,
        }
    }

    fn draw(&mut self) {
        if !self.at_line_start || self.last_output.is_some_and(|last| last.elapsed() < QUIET) {
            return;
        }
        let place = fs::read(self.status)
            .ok()
            .map(|text| {
                String::from_utf8_lossy(&text[..text.len().min(STATUS_BYTES)])
                    .trim_end_matches(['\0', ' '])
                    .to_owned()
            })
            .filter(|text| !text.contains(acts))
            .unwrap_or_default();
        self.shown.draw(self.doing, &place);
    }

    fn pass(&mut self, bytes: &[u8]) {
        self.shown.wipe();
        let mut out = io::stderr().lock();
        let _ = out.write_all(bytes);
        let _ = out.flush();
        self.last_output = Some(Instant::now());
        self.at_line_start = bytes.last() == Some(&b'\n');
    }
}

fn watch(
    mut child: Running,
    screen: &mut Screen,
    line: &mut Line<'_>,
    watchdog: Option<&Watchdog>,
) -> io::Result<ExitStatus> {
    const CHUNK: usize = 1 << 16;
    let mut buffer = vec![0_u8; CHUNK];
    loop {
        let ended = child.try_wait()?;
        // After the script exits, its output must still be read; but its surviving children
        // may keep the terminal open forever.
        let timeout = if ended.is_some() {
            Duration::ZERO
        } else {
            TICK
        };
        match screen.read(&mut buffer, timeout)? {
            Some(0) => {
                if let Some(status) = ended {
                    return Ok(status);
                }
                // Where the script has written half a line, it waits for the rest.
                if line.at_line_start
                    && let Some(said) = watchdog.and_then(Watchdog::line)
                {
                    line.pass(format!("{said}\r\n").as_bytes());
                }
                screen.follow_size();
                line.draw();
            }
            Some(length) => line.pass(&buffer[..length]),
            None => {
                if let Some(status) = ended {
                    return Ok(status);
                }
                // The script closed its output but goes on.
                std::thread::sleep(TICK);
                line.draw();
            }
        }
    }
}
