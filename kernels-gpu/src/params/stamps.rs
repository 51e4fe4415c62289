//! The records that profiled kernels write for each tile, for a profile: see [`crate::variants::PROFILED`].

/// A moment, by both clocks of a GPU.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Moment {
    /// `%globaltimer`, nanoseconds: the same clock for all multiprocessors. It goes on in ticks, of 32 ns on some GPUs and of 1 µs on others.
    pub ns: u64,
    /// `%clock64`, cycles of the multiprocessor's own clock.
    pub cycles: u64,
}

/// A record: which block of threads worked on a tile, and when. All zeros where nobody did.
///
/// One thread of the block writes it. Which moments begin and end a tile, the kernels say: [`crate::kernels::common::stamps`].
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Stamp {
    /// Which block of threads.
    pub block: u32,
    /// `%smid`: the multiprocessor that it ran on.
    pub sm: u32,
    /// (batch, head) of the tile, as the schedule counts them: of q forward, of k backward, where head splits of one count each.
    pub head: u32,
    /// Which tile of the head: of queries forward, of keys backward.
    pub tile: u32,
    /// Its beginning.
    pub start: Moment,
    /// Its end.
    pub end: Moment,
}

impl Stamp {
    /// Bytes of a record.
    pub const N_BYTES: u64 = size_of::<Stamp>() as u64;
    /// 32-bit words of a record.
    pub const WORDS: usize = size_of::<Stamp>() / 4;

    /// From the words that a kernel has written, lower halves first.
    pub const fn from_words(words: [u32; Self::WORDS]) -> Stamp {
        const fn wide(low: u32, high: u32) -> u64 {
            low as u64 | (high as u64) << 32
        }
        let [block, sm, head, tile, a, b, c, d, e, f, g, h] = words;
        Stamp {
            block,
            sm,
            head,
            tile,
            start: Moment {
                ns: wide(a, b),
                cycles: wide(c, d),
            },
            end: Moment {
                ns: wide(e, f),
                cycles: wide(g, h),
            },
        }
    }

    /// Whether somebody has begun this tile.
    pub const fn is_there(&self) -> bool {
        self.start.ns != 0
    }
}

const _: () = assert!(size_of::<Stamp>() == 48);
