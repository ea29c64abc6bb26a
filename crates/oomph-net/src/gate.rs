//! The gate that work passes on its way to the GPU. Closed, it holds back what comes, and waits for what is
//! passing.

use std::cell::Cell;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

const CLOSED: usize = 1 << (usize::BITS - 1);

/// How many threads are passing, and whether the gate is closed.
static PASSING: AtomicUsize = AtomicUsize::new(0);

thread_local! {
    /// A driver's function may call another: who is inside does not ask again.
    static DEPTH: Cell<u32> = const { Cell::new(0) };
}

/// Passes while `work` is put on the GPU.
pub fn pass<T>(work: impl FnOnce() -> T) -> T {
    struct Leave(bool);
    impl Drop for Leave {
        fn drop(&mut self) {
            DEPTH.set(DEPTH.get() - 1);
            if self.0 {
                PASSING.fetch_sub(1, Ordering::Release);
            }
        }
    }
    let outermost = DEPTH.get() == 0;
    if outermost {
        while PASSING.fetch_add(1, Ordering::Acquire) & CLOSED != 0 {
            PASSING.fetch_sub(1, Ordering::Release);
            while PASSING.load(Ordering::Relaxed) & CLOSED != 0 {
                std::thread::sleep(Duration::from_micros(20));
            }
        }
    }
    DEPTH.set(DEPTH.get() + 1);
    let _leave = Leave(outermost);
    work()
}

/// Whether this thread is passing: it cannot close the gate.
pub fn is_passing() -> bool {
    DEPTH.get() > 0
}

/// Holds back all work until it is dropped.
#[derive(Debug)]
pub struct Closed(());

impl Drop for Closed {
    fn drop(&mut self) {
        PASSING.fetch_and(!CLOSED, Ordering::Release);
    }
}

/// Closes the gate. Only one thread at a time may: the caller holds the net's lock.
pub fn close() -> Closed {
    PASSING.fetch_or(CLOSED, Ordering::Acquire);
    while PASSING.load(Ordering::Acquire) & !CLOSED != 0 {
        std::thread::yield_now();
    }
    Closed(())
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicBool;
    use std::sync::{Arc, Mutex};
    use std::thread;

    use super::*;

    #[test]
    fn nobody_passes_a_closed_gate() {
        let closed = Arc::new(AtomicBool::new(false));
        let closing = Arc::new(Mutex::new(()));
        let threads: Vec<_> = (0..4)
            .map(|number| {
                let (closed, closing) = (Arc::clone(&closed), Arc::clone(&closing));
                thread::spawn(move || {
                    for round in 0..2000 {
                        pass(|| {
                            pass(|| assert!(!closed.load(Ordering::SeqCst)));
                            assert!(is_passing());
                        });
                        if round % 100 == number {
                            let _one = closing.lock();
                            let _closed = close();
                            closed.store(true, Ordering::SeqCst);
                            thread::yield_now();
                            closed.store(false, Ordering::SeqCst);
                        }
                    }
                })
            })
            .collect();
        for thread in threads {
            assert!(thread.join().is_ok());
        }
    }
}
