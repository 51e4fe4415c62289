//! Shapes of a problem's tensors, and how many elements they have.

use ferroflash_expression::Index;

use super::{Problem, ScaleLayout};
use crate::error::{ProblemError, ScoreError};
use crate::tensor::Layout;

impl Problem {
    /// Elements of the block mask's map; 0 if there is none. Saturates.
    pub(crate) fn n_blocks(&self) -> u64 {
        let product = |shape: [usize; 4]| {
            let sizes = shape.iter();
            sizes.fold(1, |product: u64, &size| product.saturating_mul(size as u64))
        };
        self.block_mask_shape().map_or(0, product)
    }

    /// Whether a sequence can have more than one page.
    pub(crate) fn has_several_pages(&self) -> bool {
        self.pages
            .is_some_and(|pages| pages.n_slots(self.seqlen_k) > 1)
    }

    /// Entries of the page table; 0 if there is none. Saturates.
    pub(crate) fn n_table_entries(&self) -> u64 {
        let columns = self.pages.map_or(0, |pages| pages.n_columns(self.seqlen_k));
        (self.batch as u64).saturating_mul(columns as u64)
    }

    /// Where the scales lie, if q, k and v are in 8 bits: of q, and of k and v.
    pub(crate) fn scale_layouts(&self) -> Option<[ScaleLayout; 2]> {
        let scales = self.fp8?;
        let of = |seqlen| ScaleLayout::new(scales, self.heads_k, seqlen);
        Some([self.seqlen_q, self.seqlen_k].map(of))
    }

    /// Scales of q, and of k or of v; 0 if they have none. Saturates.
    pub(crate) fn n_scales(&self) -> [u64; 2] {
        if let Some(layouts) = self.scale_layouts() {
            return layouts.map(|layout| layout.n_scales(self.batch) as u64);
        }
        let of_cache = self.fp8_kv.map_or(0, |scales| {
            scales.n_scales(self.batch, self.pages, self.heads_k)
        });
        [0, of_cache]
    }

    /// The number of values of an index into a tensor that a score reads; one if the index is 0.
    pub(crate) fn extent_of(&self, index: Option<Index>) -> usize {
        match index {
            Some(Index::Batch) => self.batch,
            Some(Index::Head) => self.heads_q,
            Some(Index::KvHead) => self.heads_k,
            Some(Index::Query) => self.seqlen_q,
            Some(Index::Key) => self.seqlen_k,
            None | Some(Index::SeqlenQ | Index::SeqlenK) => 1,
        }
    }

    /// The shape of the gradient of a tensor that the score names: as many dimensions as the tensor, of batch, heads, queries, keys or one element. See
    /// [`Gradients::d_score_tensor`](crate::Gradients::d_score_tensor). An error says why it has no gradient.
    pub fn score_gradient_shape(&self, name: &str) -> Result<Vec<usize>, ScoreError> {
        let parts = self.edit_parts();
        let tensors = parts.map_or(&[][..], |parts| parts.tensors());
        let place = tensors.iter().position(|read| read.tensor.name == name);
        let (Some(parts), Some(place)) = (parts, place) else {
            return Err(ScoreError::Unknown {
                what: "gradient of tensor",
                name: name.to_owned(),
                taken: tensors
                    .iter()
                    .map(|read| read.tensor.name.clone())
                    .collect(),
            });
        };
        let gradient = parts.gradient_of(place);
        let (read, _) = gradient.map_err(|why| ScoreError::NoTensorGradient {
            name: name.to_owned(),
            why,
        })?;
        Ok(read
            .dims()
            .iter()
            .map(|&index| self.extent_of(index))
            .collect())
    }

    /// How many (query, key) pairs of one head see each other by the mask, in one batch entry; a block mask is ignored.
    pub fn visible_pairs(&self) -> u64 {
        let (left, right) = self.mask.window();
        let (n_q, n_k) = (self.seqlen_q as i128, self.seqlen_k as i128);
        let of_query = |i: i128| {
            let place = i + n_k - n_q;
            let end = right.map_or(n_k, |n| place + n as i128 + 1);
            let end = end.max(self.mask.prefix() as i128).clamp(0, n_k);
            let first = left.map_or(0, |n| (place - n as i128).clamp(0, n_k));
            (end - first).max(0)
        };
        (0..n_q).map(of_query).sum::<i128>() as u64
    }

    /// Elements of lse: batch · heads_q · seqlen_q, with packed queries heads_q · total_q. Saturates.
    pub(crate) fn n_rows(&self) -> u64 {
        let [batch, rows, heads, _] = self.shape_q();
        [batch, rows, heads]
            .iter()
            .fold(1, |product: u64, &size| product.saturating_mul(size as u64))
    }

    /// The layout of the weights: `[batch, heads_q, seqlen_q, columns]`, contiguous, where `columns` is `seqlen_k`
    /// rounded up to a multiple of 8, and elements beyond `seqlen_k` are undefined.
    pub fn weights_layout(&self) -> Result<Layout, ProblemError> {
        let columns = self
            .seqlen_k
            .checked_next_multiple_of(8)
            .ok_or(ProblemError::SizeOverflow { what: "seqlen_k" })?;
        Layout::bhsd([self.batch, self.heads_q, self.seqlen_q, columns])
    }

    /// Shape of q and of its gradient: `[batch, seqlen_q, heads_q, head_dim]`; packed, `[1, total_q, heads_q, head_dim]`.
    pub fn shape_q(&self) -> [usize; 4] {
        match self.total_q {
            None => [self.batch, self.seqlen_q, self.heads_q, self.head_dim],
            Some(total) => [1, total, self.heads_q, self.head_dim],
        }
    }

    /// Shape of k and of its gradient: `[batch, seqlen_k, heads_k, head_dim]`; packed, `[1, total_k, heads_k, head_dim]`; in
    /// pages, `[n_pages, page_size, heads_k, head_dim]`.
    pub fn shape_k(&self) -> [usize; 4] {
        if let Some(pages) = self.pages {
            return [
                pages.n_pages(),
                pages.page_size(),
                self.heads_k,
                self.head_dim,
            ];
        }
        match self.total_k {
            None => [self.batch, self.seqlen_k, self.heads_k, self.head_dim],
            Some(total) => [1, total, self.heads_k, self.head_dim],
        }
    }

    /// Shape of v and of its gradient: as [`Problem::shape_k`], with head_dim_v columns. If the values are in the keys, the shape of those columns.
    pub fn shape_v(&self) -> [usize; 4] {
        let [entries, rows, heads, _] = self.shape_k();
        [entries, rows, heads, self.head_dim_v()]
    }

    /// Shape of o and of its gradient: as [`Problem::shape_q`], with head_dim_v columns.
    pub fn shape_o(&self) -> [usize; 4] {
        let [entries, rows, heads, _] = self.shape_q();
        [entries, rows, heads, self.head_dim_v()]
    }

    /// Shape of lse: `[batch, heads_q, seqlen_q]`; of packed queries `[1, heads_q, total_q]`.
    pub fn shape_lse(&self) -> [usize; 3] {
        let [batch, rows, heads, _] = self.shape_q();
        [batch, heads, rows]
    }
}
