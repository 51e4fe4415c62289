//! How much memory there is, how many views of the pool a case has, and how large they are.

use ferroflash::Problem;
use ferroflash::dtype::ScalarType;

use crate::failure::Failure;

/// Bytes of keys and values that a round of views reads: several times what an L2 cache holds. Views of less than 8 MiB read less,
/// being [`MAX_VIEWS`] at most.
const ROUND_BYTES: u64 = 384 << 20;

/// The most views, as many as the peers' script has.
const MAX_VIEWS: u64 = 48;

/// Views begin at multiples of so many elements: of 256 bytes and more, as allocations do.
const VIEW_ALIGNMENT: u64 = 128;

/// The memory that there is for a case.
#[derive(Clone, Copy, Debug)]
pub struct Room {
    free_bytes: u64,
}

impl Room {
    pub fn of(free_bytes: u64) -> Room {
        Room { free_bytes }
    }

    /// What tensors may take: a part is left for workspaces and kernels.
    fn bytes(self) -> u64 {
        self.free_bytes - self.free_bytes / 16
    }

    /// An error where so many layers have no room; one view is enough for one layer.
    pub fn admit(self, problem: &Problem, layers: usize) -> Result<(), Failure> {
        let others = (layers.max(1) as u64 - 1).saturating_mul(view_bytes(problem));
        let needed = tensor_bytes(problem).saturating_add(others);
        if needed <= self.bytes() {
            return Ok(());
        }
        let gib = |n_bytes: u64| n_bytes as f64 / f64::from(1 << 30);
        Err(Failure::Option(format!(
            "skipped: q, k, v and o take {:.1} GiB, and {:.1} of the {:.1} GiB that are free may be theirs",
            gib(needed),
            gib(self.bytes()),
            gib(self.free_bytes)
        )))
    }

    /// How many views a round should have, as far as there is room: as many as layers, where there are several.
    pub fn n_views(self, problem: &Problem, layers: usize) -> u64 {
        if layers > 1 {
            return layers as u64;
        }
        let view_bytes = view_bytes(problem);
        let wanted = ROUND_BYTES.div_ceil(view_bytes).min(MAX_VIEWS);
        let others = tensor_bytes(problem).saturating_sub(view_bytes);
        let held = self.bytes().saturating_sub(others) / view_bytes;
        wanted.min(held).max(1)
    }
}

/// Bytes of q, k, v, o and lse.
fn tensor_bytes(problem: &Problem) -> u64 {
    let elems = |shape: &[usize]| shape.iter().product::<usize>() as u64;
    let of_q = elems(&problem.shape_q());
    let size = |dtype: ScalarType| 2 * dtype.size_bytes() as u64;
    let of_q = of_q.saturating_mul(size(problem.dtype().into()));
    let of_k = view_elems(problem).saturating_mul(size(problem.dtype_k()));
    let tensors = of_q.saturating_add(of_k);
    tensors.saturating_add(elems(&problem.shape_lse()).saturating_mul(size_of::<f32>() as u64))
}

/// Bytes of a view of k and v, 1 where they are empty.
fn view_bytes(problem: &Problem) -> u64 {
    let element = problem.dtype_k().size_bytes() as u64;
    (2 * element).saturating_mul(view_elems(problem)).max(1)
}

/// Elements from one view of k to the next.
pub fn view_elems(problem: &Problem) -> u64 {
    let n_elems = problem.shape_k().iter().product::<usize>() as u64;
    n_elems.next_multiple_of(VIEW_ALIGNMENT)
}
