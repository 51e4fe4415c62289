//! Rotary position embedding (RoPE; Su et al. 2021, arXiv 2104.09864), which encodes the position of a row.
//!
//! The first `rotary_dim` elements of a row of q or k form pairs. Pair i of the row at position p is rotated by the angle
//! p · θ_i, with θ_i = base^(−2i / rotary_dim). A score q·k then depends on the distance of the two rows.
//!
//! ```text
//! y_1 = x_1 cos(p θ_i) − x_2 sin(p θ_i)
//! y_2 = x_1 sin(p θ_i) + x_2 cos(p θ_i)
//! ```
//!
//! [`Rotary`] has the frequencies, [`RotaryTable`] the cosines and sines, and [`RotaryTable::rotate`] rotates rows. A rotation keeps lengths, so its
//! gradient is the inverse rotation: [`RotaryTable::rotate_back`]. Both work in host memory; [`Rotate`](crate::Rotate) does the same on any device,
//! and [`Append`](crate::Append) as it writes to a cache.
//!
//! ```
//! use ferroflash::rotary::{Pairs, Positions, Rotary};
//! use ferroflash::{Tensor, TensorMut};
//!
//! // Two new rows of one head, after the 100 that a cache already has.
//! let table = Rotary::new(64).base(500_000.0).table(4096)?;
//! let k = vec![1.0f32; 2 * 64];
//! let mut rotated = vec![0.0f32; 2 * 64];
//! table.rotate(
//!     Pairs::Halves,
//!     Positions::From(100),
//!     &Tensor::bshd(&k, [1, 2, 1, 64])?,
//!     &mut TensorMut::bshd(&mut rotated, [1, 2, 1, 64])?,
//! )?;
//! let (sin, cos) = 100f32.sin_cos(); // θ_0 is 1
//! assert!((rotated[0] - (cos - sin)).abs() < 1e-5);
//! # Ok::<(), ferroflash::Error>(())
//! ```

mod frequencies;
mod table;

pub use crate::terms::{Direction, MAX_ROTARY_DIM, Pairs, Positions, QueryPositions, Turns};
pub use frequencies::{Rotary, Scaling};
pub use table::RotaryTable;
