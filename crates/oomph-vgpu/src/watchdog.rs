//! PyTorch's watchdog of collectives, on the virtual clock.
//!
//! `ProcessGroupNCCL` keeps the tensors of a collective until the program waits for it. If nobody waits, as under
//! `DistributedDataParallel`, a thread of PyTorch, the watchdog, sees every tenth of a second which collectives are done. The
//! next collective of the process group then gives their tensors back. On a GPU that is a race. Here the watchdog sees at
//! each tenth of a second of the host's clock ([`crate::streams`]) what is done by then, and the first collective after it
//! waits until the watchdog has looked. So every run of a job gives the same.

use std::cell::Cell;
use std::collections::{HashMap, HashSet};
use std::sync::{Condvar, PoisonError};
use std::time::{Duration, Instant};

use crate::sync::Mutex;
use crate::{ledger, streams};

/// How often PyTorch's watchdog looks.
const PERIOD: Duration = Duration::from_millis(100);
/// An event that the watchdog has not asked for within this time is none of its events. A host that has called nothing for
/// so long waits for the watchdog.
const PATIENCE: Duration = Duration::from_secs(10);

/// The event after a collective that nobody has waited for.
#[derive(Debug, Clone, Copy)]
struct Pending {
    communicator: u64,
    /// When it will have passed, on the host's clock.
    due: Duration,
    /// Whether the watchdog has asked for it.
    asked: bool,
    /// The watchdog, of one process group, that was told that it has passed: what follows from that is done when it calls the next time.
    told: Option<u64>,
}

#[derive(Debug, Default)]
struct State {
    pending: HashMap<u64, Pending>,
    /// Until when the watchdog has seen, on the host's clock.
    seen: Duration,
    /// Whether it is kept from seeing more.
    held: bool,
    /// Communicators whose events no watchdog asks for.
    unwatched: HashSet<u64>,
    /// Where the host's clock was when the watchdog last found it moved, and when that was.
    host: Option<(Duration, Instant)>,
}

static STATE: std::sync::LazyLock<Mutex<State>> = std::sync::LazyLock::new(Mutex::default);
static LOOKED: Condvar = Condvar::new();

thread_local! {
    /// The stream and communicator of the collective that the thread has just called.
    static CALLED: Cell<Option<(u64, u64)>> = const { Cell::new(None) };
    static IS_WATCHDOG: bool = is_named(b"pt_nccl_watchdg");
}

/// Whether the calling thread's name begins so.
pub fn is_named(start: &[u8]) -> bool {
    let mut name = [0_u8; 16];
    // SAFETY: the buffer has the length that is stated, which is that of every thread's name.
    let status = unsafe {
        libc::pthread_getname_np(libc::pthread_self(), name.as_mut_ptr().cast(), name.len())
    };
    status == 0 && name.starts_with(start)
}

/// Whether the calling thread is the watchdog: what it asks moves no clock.
pub fn is_this_thread() -> bool {
    IS_WATCHDOG.with(|is| *is)
}

/// The calling thread has called a collective: the next event on `stream` says when it is done.
pub fn called(communicator: u64, stream: u64) {
    CALLED.set(Some((stream, communicator)));
}

/// The calling thread has put something else on a stream.
pub fn left() {
    CALLED.set(None);
}

/// An event was recorded on `stream` that will have passed at `due`.
pub fn recorded(event: u64, stream: u64, due: Duration) {
    let after = CALLED.take().filter(|(of, _)| *of == stream);
    let mut state = STATE.lock();
    match after {
        Some((_, communicator)) if !state.unwatched.contains(&communicator) => {
            let pending = Pending {
                communicator,
                due,
                asked: false,
                told: None,
            };
            state.pending.insert(event, pending);
        }
        _ => {
            state.pending.remove(&event);
        }
    }
}

/// Something waits for `event`, or it is gone: the watchdog gives nothing back for it.
pub fn settled(event: u64) {
    STATE.lock().pending.remove(&event);
}

/// The communicator ends, for which the watchdog must be through.
pub fn let_go(communicator: u64) {
    STATE
        .lock()
        .pending
        .retain(|_, event| event.communicator != communicator);
}

/// Whether `event` has passed for the watchdog, which asks.
pub fn answer(event: u64) -> bool {
    goes_on();
    let host = streams::host();
    let mut guard = STATE.lock();
    let state = &mut *guard;
    let idle = match state.host {
        Some((same, since)) if same == host => since.elapsed() > PATIENCE,
        _ => {
            state.host = Some((host, Instant::now()));
            false
        }
    };
    let (seen, held) = (state.seen, state.held);
    let Some(pending) = state.pending.get_mut(&event) else {
        return true;
    };
    pending.asked = true;
    let has_passed = idle || !held && pending.due <= seen;
    pending.told = has_passed.then(this_thread);
    has_passed
}

fn this_thread() -> u64 {
    // SAFETY: no arguments, and it cannot fail.
    unsafe { libc::pthread_self() }
}

/// The watchdog calls something: it is through with what it was told before.
pub fn goes_on() {
    let me = Some(this_thread());
    let mut state = STATE.lock();
    let before = state.pending.len();
    state.pending.retain(|_, event| event.told != me);
    if state.pending.len() < before {
        LOOKED.notify_all();
    }
}

/// A collective begins: the watchdog has looked at the last tenth of a second.
pub fn catch_up() {
    let now = streams::host();
    let period = PERIOD.as_nanos();
    let last = PERIOD * u32::try_from(now.as_nanos() / period).unwrap_or(u32::MAX);
    let is_later = {
        let state = STATE.lock();
        !state.held && last > state.seen
    };
    if is_later && look(last) {
        ledger::assume(
            "ProcessGroupNCCL",
            "tensors of collectives that nobody waits for come back at each tenth of a second of the virtual clock, when \
             PyTorch's watchdog looks; on a GPU that is a race",
        );
    }
}

/// The watchdog sees everything that was called so far.
pub fn look_at_all() {
    let last = {
        let mut state = STATE.lock();
        state.held = false;
        state.pending.values().map(|event| event.due).max()
    };
    if let Some(last) = last {
        look(last);
    }
}

/// The watchdog sees nothing more.
pub fn hold() {
    STATE.lock().held = true;
}

/// The watchdog sees everything that was called so far, and nobody waits for it.
pub fn release() {
    let mut state = STATE.lock();
    state.held = false;
    state.pending.clear();
}

/// Waits until the watchdog has seen everything until `seen`; whether there was anything.
fn look(seen: Duration) -> bool {
    let since = Instant::now();
    let mut state = STATE.lock();
    state.seen = seen.max(state.seen);
    let limit = state.seen;
    let before = state.pending.len();
    while state.pending.values().any(|event| event.due <= limit) {
        let left = PATIENCE.saturating_sub(since.elapsed());
        if left.is_zero() {
            break;
        }
        let waited = LOOKED.wait_timeout(state, left);
        state = waited.unwrap_or_else(PoisonError::into_inner).0;
    }
    let state = &mut *state;
    for event in state.pending.values() {
        if event.due <= limit && !event.asked {
            state.unwatched.insert(event.communicator);
        }
    }
    state.pending.retain(|_, event| event.due > limit);
    state.pending.len() < before
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_nobody_waits_for_is_done_when_the_watchdog_has_looked() -> std::io::Result<()> {
        const STREAM: u64 = 7;
        let due = |event| {
            called(1, STREAM);
            recorded(event, STREAM, Duration::from_secs(event));
        };
        (1..=3).for_each(due);
        settled(2);
        called(1, STREAM);
        left();
        recorded(4, STREAM, Duration::ZERO);
        assert_eq!(STATE.lock().pending.len(), 2);
        let watchdog = std::thread::Builder::new().name("pt_nccl_watchdg".to_owned());
        let watchdog = watchdog.spawn(|| {
            assert!(is_this_thread() && answer(2) && answer(4));
            while !answer(1) {
                std::thread::yield_now();
            }
            // It is through with the first event when it calls the next time.
            goes_on();
            answer(3)
        })?;
        assert!(look(Duration::from_secs(2)));
        assert!(!look(Duration::from_secs(2)));
        assert!(matches!(watchdog.join(), Ok(false)));
        assert!(!is_this_thread());
        let_go(1);
        assert!(STATE.lock().pending.is_empty());
        Ok(())
    }
}
