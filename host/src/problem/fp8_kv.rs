//! Keys and values in 8 bits.

use std::fmt;

use super::Pages;

/// Keys and values are 8-bit floating-point numbers of the format e4m3 (OCP 8-bit Floating Point Specification; `float8::F8E4M3`), which halves the
/// memory and the time to read it. The value of an element of k is the element times the scale of its sequence or page and its head, from
/// [`Inputs::k_descale`](crate::Inputs::k_descale); likewise for v. Queries and results keep the problem's type, and products and sums are as exact
/// as with keys and values of 16 bits: the error is that of rounding keys and values to three bits of mantissa.
///
/// An [`Append`](crate::Append) writes new rows to such a cache, rounded with the scales that it is given.
///
/// ```
/// use ferroflash::{Attention, Device, Dtype, Fp8Kv, Inputs, Outputs, Problem, Tensor, TensorMut};
/// use float8::F8E4M3;
///
/// let problem = Problem::builder(Dtype::F32)
///     .seqlen_q(1)
///     .seqlen_k(2)
///     .fp8_kv(Fp8Kv::PerSequence)
///     .heads(1)
///     .head_dim(1)
///     .build()?;
/// // Both keys are alike; the values stand for 0.5 · 3 and 0.5 · 5.
/// let (q, k) = ([1f32], [1.0, 1.0].map(F8E4M3::from_f32));
/// let v = [3.0, 5.0].map(F8E4M3::from_f32);
/// let (of_q, of_k) = (problem.shape_q(), problem.shape_k());
/// let inputs = Inputs::new(&Tensor::bshd(&q, of_q)?, &Tensor::bshd(&k, of_k)?, &Tensor::bshd(&v, of_k)?)
///     .k_descale(&[1f32])
///     .v_descale(&[0.5f32]);
/// let (mut o, mut lse) = ([0f32], [0f32]);
/// let attention = Attention::new(&Device::cpu(), problem)?;
/// attention.forward(&inputs, &mut Outputs::new(TensorMut::bshd(&mut o, of_q)?, &mut lse))?;
/// assert!((o[0] - 2.0).abs() < 1e-6);
/// # Ok::<(), ferroflash::Error>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Fp8Kv {
    /// Scales are f32 `[batch, heads_k]`.
    PerSequence,
    /// Scales are f32 `[n_pages, heads_k]`, for each page of the pool: only with pages.
    PerPage,
}

impl Fp8Kv {
    /// How errors name scales per page without pages.
    pub(crate) const WITHOUT_PAGES: &'static str = "a scale for each page, without pages,";

    /// Whether it wants pages, and there are none.
    pub(crate) fn wants_pages(self, pages: Option<Pages>) -> bool {
        self == Fp8Kv::PerPage && pages.is_none()
    }

    /// Scales of k or of v. Saturates.
    pub(crate) fn n_scales(self, batch: usize, pages: Option<Pages>, heads_k: usize) -> u64 {
        let entries = match (self, pages) {
            (Fp8Kv::PerPage, Some(pages)) => pages.n_pages(),
            (Fp8Kv::PerPage | Fp8Kv::PerSequence, _) => batch,
        };
        (entries as u64).saturating_mul(heads_k as u64)
    }
}

/// `e4m3 with a scale per page`.
impl fmt::Display for Fp8Kv {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Fp8Kv::PerSequence => "e4m3 with a scale per sequence",
            Fp8Kv::PerPage => "e4m3 with a scale per page",
        })
    }
}
