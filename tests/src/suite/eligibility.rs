//! What each algorithm takes.

use ferroflash::{Algorithm, Backend, Dtype};

use crate::buffer::{Arrangement, Repeats};
use crate::cases::Case;
use crate::cases::decode::is_decode;

/// What each algorithm takes in both passes, said a second time so that a refusal too many is a failure.
pub(crate) fn is_eligible(backend: Backend, algorithm: Algorithm, case: &Case) -> bool {
    let half = case.dtype != Dtype::F32;
    let empty = case.sizes.query_elems() == 0 && case.sizes.key_elems() == 0;
    let aligned = case.arrangement != Arrangement::Unaligned || empty;
    let repeats = case.arrangement.repeats() != Repeats::Nothing;
    // Between these, flash3's blocks of keys do not divide those of a mask.
    let (head_dim, head_dim_v) = (case.sizes.head_dim, case.sizes.head_dim_v);
    let divides = head_dim <= 192 && head_dim_v <= 128 || head_dim.max(head_dim_v) > 256;
    let divides = case.blocks.is_none() || divides;
    let columns_of = |multiple, most| {
        [head_dim, head_dim_v]
            .iter()
            .all(|n: &usize| n.is_multiple_of(multiple) && *n <= most)
    };
    let columns = |most| columns_of(8, most);
    match (backend, algorithm) {
        (Backend::Cpu, Algorithm::Tiled) => true,
        (Backend::Cpu, _) => false,
        (_, Algorithm::Flash1) => {
            let dense = case.lengths.is_none() && case.blocks.is_none();
            let whole = case.split_kv.is_none() && case.dropout.is_none();
            half && aligned && dense && whole && columns(256)
        }
        (_, Algorithm::Flash2) if !half => aligned && case.split_kv.is_none() && columns_of(4, 128),
        (_, Algorithm::Flash2) => {
            let splits = case.split_kv.is_none() || is_decode(case) && columns(128);
            half && aligned && splits && columns(512)
        }
        // Tensor maps know no stride of 0.
        (_, Algorithm::Flash3) => half && aligned && !repeats && divides && columns(512),
        (_, Algorithm::Standard) => half && aligned && columns(576),
        _ => false,
    }
}
