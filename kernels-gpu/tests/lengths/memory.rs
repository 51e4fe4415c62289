//! Kernels, launched on the emulator, and the memory that they are given.

use super::*;

pub fn launch(
    memory: &mut GlobalMemory,
    variant: &Variant,
    grid: u32,
    spec: Spec,
    params: &Params,
) {
    let tile_config = &variant.tile_config;
    let launch = Launch {
        grid,
        threads: tile_config.threads,
        shared_bytes: tile_config.shared_bytes,
        resident_blocks: 3 * tile_config.blocks_per_sm,
        blocks_per_sm: tile_config.blocks_per_sm,
        cluster: 1,
        spec: spec.among(variant.capabilities()),
    };
    let kernel = entry::emulated(variant.name).unwrap();
    emu::run(&launch, &Options::seeded(7), memory, &|| kernel(params))
        .unwrap_or_else(|fault| panic!("{}: {fault}", variant.name));
}

/// Memory that begins at a multiple of 128 bytes: tensor maps lie at such places.
pub struct Aligned<T> {
    data: Vec<T>,
    first: usize,
}

impl<T: Copy + Default> Aligned<T> {
    /// Zeros.
    pub fn new(len: usize) -> Aligned<T> {
        let mut data = vec![T::default(); len + 128 / size_of::<T>()];
        let first = data.as_ptr().align_offset(128);
        data.truncate(first + len);
        Aligned { data, first }
    }

    /// A copy.
    pub fn copy(from: &[T]) -> Aligned<T> {
        let mut copy = Aligned::new(from.len());
        copy.slice().copy_from_slice(from);
        copy
    }

    pub fn slice(&mut self) -> &mut [T] {
        &mut self.data[self.first..]
    }
}

/// Zeros of this many bytes.
pub fn words(n_bytes: usize) -> Aligned<u32> {
    Aligned::new(n_bytes.div_ceil(4))
}

/// The workspace of a list.
pub struct Workspace {
    pub tiles: Aligned<u32>,
    pub q_blocks: Aligned<u32>,
    pub maps: Aligned<u32>,
    pub scratch: Aligned<u32>,
    pub counter: Vec<u32>,
    pub max_tiles: u32,
    pub max_q_blocks: u32,
}

impl Workspace {
    pub fn new(batch: u32, max_tiles: u32, max_q_blocks: u32, n_maps: u32) -> Workspace {
        let entries = |n: u32| words(((n + 1) * ListedTile::N_BYTES) as usize);
        Workspace {
            tiles: entries(max_tiles),
            q_blocks: entries(max_q_blocks),
            maps: words((batch * n_maps) as usize * size_of::<TensorMap>()),
            scratch: words(7 * 4 * batch as usize),
            counter: vec![0],
            max_tiles,
            max_q_blocks,
        }
    }

    /// Keys of a split, as a list says.
    pub fn split_keys(list: &Aligned<u32>) -> u32 {
        list.data[list.first + 1]
    }

    pub fn list(list: &Aligned<u32>) -> Vec<ListedTile> {
        let words = &list.data[list.first..];
        let mut entries = words.chunks_exact(8).skip(1);
        (0..words[0])
            .map(|_| {
                let entry = entries.next().unwrap();
                let half = |i: usize| <[u32; 4]>::try_from(&entry[i..i + 4]).unwrap();
                ListedTile::from_words([half(0), half(4)])
            })
            .collect()
    }
}

/// Launches the kernel that lists tiles, for rows of q and, in the backward pass, of k.
pub fn launch_list(memory: &mut GlobalMemory, is_tma: bool, spec: Spec, params: &TileListParams) {
    let lengths = &params.lengths;
    let blocks = |cu_seqlens: u64, rows: u32| {
        let entries = if cu_seqlens == 0 {
            params.shape.batch
        } else {
            1
        };
        entries * rows.div_ceil(config::tile_list().block_q)
    };
    let mut grid = 1 + blocks(lengths.cu_seqlens_q, lengths.rows_q);
    if params.is_backward() {
        grid += blocks(lengths.cu_seqlens_k, lengths.rows_k);
    }
    let name = if is_tma {
        "tile_list_sm90a"
    } else {
        "tile_list_sm80"
    };
    let variant = variants::by_name(name).unwrap();
    launch(memory, variant, grid, spec, &Params::TileList(*params));
}
