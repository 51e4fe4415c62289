//! Keys and values in pages.

use std::fmt;

/// Keys and values are in the pages of a pool, `[n_pages, page_size, heads_k, head_dim]` with any strides, and
/// [`Inputs::page_table`](crate::Inputs::page_table), i32 `[batch, columns]`, says which page of the pool each page of a sequence is
/// (PagedAttention; Kwon et al. 2023). Row `r` of a sequence is row `r % page_size` of its page `r / page_size`. Sequences may share
/// pages. A sequence has [`Inputs::seqused_k`](crate::Inputs::seqused_k) rows. The rest of its last page, which may be NaN, does not enter any
/// result, nor do later entries of the table. A sequence may begin at any row of any of its pages: [`Inputs::leftpad_k`](crate::Inputs::leftpad_k)
/// gives the row. Rows before it do not enter any result either. If sequences have several pages, `flash3` is slower with `leftpad_k`, as it copies
/// each row by itself; `flash2` is then preferred if it has the head_dim. A table of one column selects entries of a cache without pages.
///
/// ```
/// use ferroflash::{Attention, Device, Dtype, Inputs, Mask, Outputs, Pages, Problem, Tensor, TensorMut};
///
/// // Two sequences of up to six keys, in a pool of five pages of two rows.
/// let problem = Problem::builder(Dtype::F32)
///     .batch(2)
///     .seqlen_q(1)
///     .seqlen_k(6)
///     .pages(Pages::new(5, 2))
///     .heads(1)
///     .head_dim(1)
///     .mask(Mask::Causal)
///     .build()?;
/// // The first row of page p has the value 10p, the other 10p + 1; all keys are equal.
/// let (q, k) = ([1f32; 2], [0f32; 10]);
/// let v = [0f32, 1., 10., 11., 20., 21., 30., 31., 40., 41.];
/// let (table, lens) = ([4, 0, 0, 2, 4, 1], [3, 6]);
/// let (of_q, pool) = (problem.shape_q(), problem.shape_k());
/// let inputs = Inputs::new(&Tensor::bshd(&q, of_q)?, &Tensor::bshd(&k, pool)?, &Tensor::bshd(&v, pool)?)
///     .page_table(&table)
///     .seqused_k(&lens);
/// let (mut o, mut lse) = ([0f32; 2], [0f32; 2]);
/// let attention = Attention::new(&Device::cpu(), problem)?;
/// attention.forward(&inputs, &mut Outputs::new(TensorMut::bshd(&mut o, of_q)?, &mut lse))?;
/// assert!((o[0] - (40. + 41. + 0.) / 3.).abs() < 1e-5);
/// assert!((o[1] - (20. + 21. + 40. + 41. + 10. + 11.) / 6.).abs() < 1e-5);
/// # Ok::<(), ferroflash::Error>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Pages {
    n_pages: usize,
    page_size: usize,
    columns: Option<usize>,
}

impl Pages {
    /// A pool of this many pages, each of `page_size` rows: at least 1; inference engines use up to 256. The table has as many columns as the
    /// longest sequence has pages.
    pub const fn new(n_pages: usize, page_size: usize) -> Pages {
        Pages {
            n_pages,
            page_size,
            columns: None,
        }
    }

    /// With a table of this many columns: at least as many as the longest sequence has pages.
    #[must_use]
    pub const fn columns(self, columns: usize) -> Pages {
        Pages {
            columns: Some(columns),
            ..self
        }
    }

    /// Pages of the pool.
    pub const fn n_pages(self) -> usize {
        self.n_pages
    }

    /// Rows of a page.
    pub const fn page_size(self) -> usize {
        self.page_size
    }

    /// Columns of the table, if the longest sequence has this many rows.
    pub fn n_columns(self, seqlen_k: usize) -> usize {
        self.columns.unwrap_or_else(|| self.n_slots(seqlen_k))
    }

    /// Pages of a sequence of this many rows.
    pub fn n_slots(self, seqlen: usize) -> usize {
        seqlen.div_ceil(self.page_size.max(1))
    }
}

/// `4096 pages of 16 rows`.
impl fmt::Display for Pages {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} pages of {} rows", self.n_pages, self.page_size)
    }
}
