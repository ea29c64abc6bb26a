//! PyTorch's generator for the CPU, a Mersenne Twister (MT19937), so many draws further: what nobody looks at need not be drawn.

use std::ffi::c_int;

use crate::export;

const WORDS: usize = 624;
const MIDDLE: usize = 397;

/// The beginning of what `torch.get_rng_state()` gives (`THGeneratorState` of ATen).
#[repr(C)]
pub struct State {
    seed: u64,
    /// Draws until the words are made anew, and that one.
    left: c_int,
    seeded: c_int,
    /// The word of the next draw.
    next: u64,
    words: [u64; WORDS],
}

/// Makes the words anew.
fn renew(words: &mut [u32; WORDS]) {
    let twist = |a: u32, b: u32| {
        let mixed = (a & 0x8000_0000) | (b & 0x7fff_ffff);
        (mixed >> 1) ^ ((b & 1) * 0x9908_b0df)
    };
    for at in 0..WORDS - MIDDLE {
        words[at] = words[at + MIDDLE] ^ twist(words[at], words[at + 1]);
    }
    for at in WORDS - MIDDLE..WORDS - 1 {
        words[at] = words[at + MIDDLE - WORDS] ^ twist(words[at], words[at + 1]);
    }
    words[WORDS - 1] = words[MIDDLE - 1] ^ twist(words[WORDS - 1], words[0]);
}

impl State {
    /// As after so many draws of 32 bits.
    fn skip(&mut self, draws: u64) {
        let ready = u64::try_from(self.left - 1).unwrap_or(0);
        if draws <= ready {
            self.left -= draws as c_int;
            self.next += draws;
            return;
        }
        let more = draws - ready;
        let mut words = self.words.map(|word| word as u32);
        for _ in 0..more.div_ceil(WORDS as u64) {
            renew(&mut words);
        }
        self.words = words.map(u64::from);
        self.next = (more - 1) % WORDS as u64 + 1;
        self.left = WORDS as c_int + 1 - self.next as c_int;
    }
}

export! {
    /// Moves a state of PyTorch's generator for the CPU so many draws of 32 bits further.
    unsafe fn oomph_vgpu_skip(state: u64, draws: u64) -> (), or (); {
        // SAFETY: the address of the caller's state, which nobody else uses meanwhile.
        unsafe { (*(state as *mut State)).skip(draws) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn seeded(seed: u64) -> State {
        let mut words = [seed & 0xffff_ffff; WORDS];
        for at in 1..WORDS {
            let before = words[at - 1];
            words[at] = (1_812_433_253 * (before ^ (before >> 30)) + at as u64) & 0xffff_ffff;
        }
        State {
            seed,
            left: 1,
            seeded: 1,
            next: 0,
            words,
        }
    }

    #[test]
    fn the_ten_thousandth_draw_is_that_of_the_standard() {
        // `std::mt19937` with its default seed: 4123659995.
        let mut state = seeded(5489);
        state.skip(10_000);
        let mut y = state.words[state.next as usize - 1];
        y ^= y >> 11;
        y ^= (y << 7) & 0x9d2c_5680;
        y ^= (y << 15) & 0xefc6_0000;
        y ^= y >> 18;
        assert_eq!(y, 4_123_659_995);
    }

    #[test]
    fn skips_add_up() {
        for parts in [
            [1, 623],
            [624, 1],
            [0, 5],
            [623, 2],
            [1248, 1247],
            [7, 6000],
        ] {
            let (mut once, mut twice) = (seeded(3), seeded(3));
            once.skip(parts[0] + parts[1]);
            twice.skip(parts[0]);
            twice.skip(parts[1]);
            let all = |state: &State| (state.left, state.next, state.words);
            assert_eq!(all(&once), all(&twice), "{parts:?}");
        }
    }
}
