//! The mask of a band, as kernels are given it.

/// Which keys query `i` of a sequence sees: a prefix, and offsets from `i`. Worked out on the host: kernels read them where they want them, and
/// keep no register for them. Each side counts only where the kernel is specialised to have it: [`crate::spec`].
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Window {
    /// It sees keys before this one, whatever `right` says.
    pub prefix: u32,
    /// It sees keys from `i + left` on.
    pub left: i32,
    /// It sees keys before `i + right`.
    pub right: i32,
}

impl Window {
    /// For queries that see `left` keys to the left and `right` to the right of their own place, `i + seqlen_k − seqlen_q`. All are
    /// at most [`super::MAX_ROWS`].
    pub const fn new(seqlen_q: u32, seqlen_k: u32, left: u32, right: u32) -> Window {
        let place_of_first = seqlen_k as i32 - seqlen_q as i32;
        Window {
            prefix: 0,
            left: place_of_first - left as i32,
            right: place_of_first + right as i32 + 1,
        }
    }

    /// The same with the first `prefix` keys, at most [`super::MAX_ROWS`].
    pub const fn with_prefix(self, prefix: u32) -> Window {
        Window { prefix, ..self }
    }

    /// The window of a sequence of these lengths, where `self` is that of a sequence without rows.
    #[inline(always)]
    pub const fn of_sequence(self, seqlen_q: u32, seqlen_k: u32) -> Window {
        let place_of_first = seqlen_k as i32 - seqlen_q as i32;
        Window {
            prefix: self.prefix,
            left: place_of_first + self.left,
            right: place_of_first + self.right,
        }
    }
}
