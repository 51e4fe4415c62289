//! The terms that errors, calls and plans have in common: plain data that knows of nothing above it.
//!
//! An error says which layout, place, pass or algorithm it is about; the modules that own these words return errors. So the types lie
//! below both. Users find each where it belongs: in [`crate::tensor`], [`crate::validate`], [`crate::plan`],
//! [`crate::problem`], [`crate::rotary`] or [`crate::weights`].

mod algorithm;
mod argument_set;
mod candidate;
mod layout;
mod location;
mod mask_blocks;
mod pass;
mod precision;
mod rotary;
mod sequence;
mod weights;

pub use algorithm::{Algorithm, Backend};
pub(crate) use argument_set::{ArgumentSet, constant};
pub use candidate::{Candidate, Outcome, Reason};
pub use layout::Layout;
pub use location::Location;
pub use mask_blocks::{MaskBlocks, Unmapped};
pub use pass::Pass;
pub use precision::Precision;
pub use rotary::{Direction, MAX_ROTARY_DIM, Pairs, Positions, QueryPositions, Turns};
pub use sequence::Sequence;
pub use weights::WeightsOf;
