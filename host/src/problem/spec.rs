//! A problem as kernels are compiled for it: constants, and the numbers of its mask.

use ferroflash_kernels::attention::mask::{Band, Bounds, Work};
use ferroflash_kernels::params::Window;
use ferroflash_kernels::spec::{Constant, Spec};

use super::{Fp8, Precision, Problem};
use crate::dtype::Dtype;
use crate::terms::constant;

impl Problem {
    /// The sides on which the mask hides a key from some query. A causal mask over a single query, for instance, hides none.
    pub(crate) fn bounds(&self) -> Bounds {
        let hides =
            |side: Option<usize>, seqlen: usize| side.is_some_and(|n| n < seqlen.saturating_sub(1));
        let (left, right) = self.mask.window();
        let prefix = self.mask.prefix();
        let right = hides(right, self.seqlen_q) && prefix < self.seqlen_k;
        Bounds {
            left: hides(left, self.seqlen_k),
            right,
            prefix: right && prefix > 0,
        }
    }

    /// How the work of tiles grows along the sequence.
    pub(crate) fn work(&self) -> Work {
        self.bounds().work()
    }

    /// The mask's sides, as kernels take them for sequences of these lengths; kernels do not look at a side that hides nothing.
    pub(crate) fn window_of(&self, seqlen_q: u32, seqlen_k: u32) -> Window {
        let bounds = self.bounds();
        let (n_left, n_right) = self.mask.window();
        // A side that hides something is shorter than a sequence, whose length fits.
        let distance =
            |bound: bool, n: Option<usize>| if bound { n.unwrap_or(0) as u32 } else { 0 };
        Window::new(
            seqlen_q,
            seqlen_k,
            distance(bounds.left, n_left),
            distance(bounds.right, n_right),
        )
        .with_prefix(distance(bounds.prefix, Some(self.mask.prefix())))
    }

    /// Which keys queries see, in sequences of the largest lengths: by blocks, as kernels go through them.
    pub fn band(&self) -> Band {
        let (seqlen_q, seqlen_k) = (self.seqlen_q as u32, self.seqlen_k as u32);
        let window = self.window_of(seqlen_q, seqlen_k);
        Band::new(seqlen_q, seqlen_k, window, self.bounds())
    }

    /// The constants that its kernels are compiled with.
    pub(crate) fn spec(&self) -> Spec {
        let bounds = self.bounds();
        let with = |spec: Spec, has: bool, constant| if has { spec.with(constant) } else { spec };
        let spec = with(Spec::PLAIN, bounds.right, Constant::RightBound);
        let spec = with(spec, bounds.left, Constant::LeftBound);
        let spec = with(spec, bounds.prefix, Constant::Prefix);
        let spec = with(spec, self.pages.is_some(), Constant::Pages);
        let given = self.given.iter().filter_map(constant);
        let spec = given.fold(spec, Spec::with);
        let spec = with(spec, self.dropout().is_some(), Constant::Dropout);
        let edit = self.edit_parts();
        let spec = with(spec, edit.is_some(), Constant::Score);
        let has_gradient = edit.is_some_and(|edit| edit.has_gradient());
        let spec = with(spec, has_gradient, Constant::ScoreGradient);
        let spec = with(spec, self.block_mask.is_some(), Constant::BlockMask);
        let in_8_bits = self.fp8.is_some();
        let spec = with(spec, in_8_bits, Constant::QE4m3);
        let spec = with(spec, in_8_bits && self.dtype == Dtype::F16, Constant::OF16);
        let spec = with(spec, in_8_bits && self.dtype == Dtype::F32, Constant::OF32);
        let of_blocks = self.fp8 == Some(Fp8::PerBlock);
        let spec = with(spec, of_blocks, Constant::ScaleBlocks);
        let is_full = self.precision == Precision::Full;
        with(spec, is_full, Constant::FullPrecision)
    }
}
