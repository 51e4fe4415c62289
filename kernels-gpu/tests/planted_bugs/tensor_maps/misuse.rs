//! Tensor maps where none can lie.

use ferroflash_kernels::emu::{self, GlobalMemory, Kind, Launch, Options};
use ferroflash_kernels::ptx::{special, tensor_map, tma};
use ferroflash_kernels::spec::Spec;

use super::{BOX, Line, bar};

/// What is done with a map.
const USES: [fn(u64); 4] = [
    // SAFETY: wrong on purpose.
    |map| unsafe { tensor_map::replace_address(map, 0) },
    // SAFETY: wrong on purpose.
    |map| unsafe { tensor_map::replace_rows(map, 1) },
    // SAFETY: wrong on purpose.
    |map| unsafe { tensor_map::fence_tensor_map_acquire(map) },
    // SAFETY: wrong on purpose.
    |map| unsafe { tma::tma_load(special::shared_base(), map, [0; 4], bar()) },
];

/// A map at so many bytes from the beginning of two that were written, or given as input.
fn misuse(use_map: fn(u64), role: fn(&mut GlobalMemory) -> u64, offset: u64) -> Kind {
    let mut memory = GlobalMemory::new();
    let map = role(&mut memory) + offset;
    let launch = Launch {
        grid: 1,
        threads: 32,
        shared_bytes: BOX + 8,
        resident_blocks: 1,
        blocks_per_sm: 1,
        cluster: 1,
        spec: Spec::PLAIN,
    };
    let ran = emu::run(&launch, &Options::seeded(1), &mut memory, &|| {
        if special::lane_idx() == 0 {
            use_map(map);
        }
    });
    ran.unwrap_err().kind().clone()
}

#[test]
fn maps_are_aligned_and_in_one_buffer() {
    static GIVEN: [Line; 2] = [Line([1; 16]); 2];
    let given = |memory: &mut GlobalMemory| memory.input("maps", &GIVEN);
    for (i, use_map) in USES.into_iter().enumerate() {
        let misaligned = misuse(use_map, given, 64);
        assert!(
            matches!(misaligned, Kind::Misaligned { alignment: 128, .. }),
            "use {i}: {misaligned:?}"
        );
        let outside = misuse(use_map, given, 256);
        assert!(
            matches!(outside, Kind::OutOfBounds { bytes: 128, .. }),
            "use {i}: {outside:?}"
        );
        let nowhere = misuse(use_map, |_| 1 << 60, 0);
        assert!(
            matches!(nowhere, Kind::OutOfBounds { .. }),
            "use {i}: {nowhere:?}"
        );
    }
    for use_map in &USES[..2] {
        let read_only = misuse(*use_map, given, 0);
        assert!(matches!(read_only, Kind::ReadOnly { .. }), "{read_only:?}");
    }
}
