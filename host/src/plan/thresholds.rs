//! Every size at which planning chooses differently: one list, measured on an H200, which tests make small.
//!
//! Results are the same on both sides of each. A problem that really reaches a threshold may have thousands of rows, which the emulator does not
//! run; so a device has its own thresholds ([`DeviceInfo::thresholds`](super::DeviceInfo::thresholds)), and a test sets smaller ones. Limits of the
//! hardware or of a format are not among them: exceeding those is refused.

/// The sizes at which planning chooses differently. Numbers "for each SM" are multiplied by the device's number of SMs.
///
/// The [module](mod@crate::plan) has an example.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Thresholds {
    /// With divided keys, the most rows of lse that tiles merge themselves: each has a counter. A separate launch merges more of them. At most
    /// [`MOST_ARRIVALS`](super::workspace::MOST_ARRIVALS).
    pub arrivals: u64,
    /// The most rows that a block of threads merges when no tile is left, two for each of its warps: many small blocks, in a separate launch, merge
    /// more of them faster.
    pub rows_merged_by_block: u64,
    /// The most work, in steps of keys of all tiles, that the device divides into equal parts in flash2's decode kernel: it counts in 32 bits. With
    /// more it would find parts that are too small, and more of them than blocks; so splits then have equal numbers of keys.
    pub shared_work: u64,
    /// The most queries for which planning divides the keys by itself.
    pub split_queries: u64,
    /// The most packed rows of flash2's decode kernel: two tiles, which read the same keys one after the other.
    pub decode_rows: u64,
    /// Bytes of keys and values from which on that kernel is faster than flash3's with divided keys.
    pub large_cache_bytes: u64,
    /// Bytes of keys and values for each SM from which on grouped tiles pay. Compact ones read the same keys more than once, at the same time: they
    /// come from the L2 cache, but not as fast as all SMs could read them. Smaller caches are read faster by more blocks.
    pub grouped_bytes_per_sm: u64,
    /// Rows of all heads for each SM from which on flash3's forward pass takes wide tiles: four of them.
    pub wide_rows_per_sm: u64,
    /// The least queries of a sequence of wide tiles, at head_dims up to 64 without a mask.
    pub wide_queries_narrow: u64,
    /// The same at greater head_dims without a mask, and at those up to 64 under one.
    pub wide_queries: u64,
    /// The same at greater head_dims under a mask.
    pub wide_queries_masked: u64,
    /// The least queries of a sequence of wide tiles, or of those with sums of one level, where q, k and v have 8 bits, without a mask.
    pub wide_queries_e4m3: u64,
    /// The same under a mask.
    pub wide_queries_e4m3_masked: u64,
    /// Queries for each SM from which on flash3's backward pass takes wide tiles.
    pub wide_gradients_per_sm: u64,
    /// The same if lengths differ: tiles of any shape are then in a list.
    pub wide_gradients_listed_per_sm: u64,
    /// The least queries of wide tiles of the backward pass, on any device.
    pub wide_gradients: u64,
    /// The same at head_dim above 192, on any device: where consumers divide the columns.
    pub wide_gradients_by_columns: u64,
    /// The least queries of paired tiles of the backward pass, at head_dim above 192, on any device.
    pub paired_gradients: u64,
    /// Blocks of scores per SM from which on it pays to look for those that a mask expression hides. An SM takes about a µs for one at
    /// head_dim 128; the launches take some 2 µs each, and a mask such as a causal one leaves half of the blocks.
    pub mapped_blocks_per_sm: u64,
    /// The most blocks of all maps of a mask expression: lists of visible blocks take up to 32 bytes of workspace for each.
    pub mapped_blocks: u64,
    /// In the backward pass without a mask, tiles of this many rounds fill the device well enough: query heads are not divided into head splits.
    pub enough_rounds: u64,
    /// Bytes of K and V that the heads of one causal group of the forward pass may take together: what the L2 cache (50 MB) keeps while their query tiles pass.
    pub causal_group_bytes: u64,
    /// Bytes of q, dO and the accumulator of dQ that stay in the L2 cache while tiles of their heads read them. It is fast with 34 MB (half shifted), and was slow
    /// with 70 MB.
    pub gradient_heads_bytes: u64,
    /// How much of these stays there for heads that do not share keys: a little more than half shifted, which are fast.
    pub gradient_bytes: u64,
    /// The same under a mask, where tiles visit only a part of their heads' rows, and the few misses cost no time.
    pub gradient_bytes_in_band: u64,
}

impl Thresholds {
    /// As measured on an H200: `tests/benches/notes`.
    pub const MEASURED: Thresholds = Thresholds {
        arrivals: super::workspace::MOST_ARRIVALS,
        rows_merged_by_block: 8,
        shared_work: u32::MAX as u64,
        split_queries: 64,
        decode_rows: 32,
        large_cache_bytes: 512 << 20,
        grouped_bytes_per_sm: 256 << 10,
        wide_rows_per_sm: 4 * 192,
        wide_queries_narrow: 1024,
        wide_queries: 4096,
        wide_queries_masked: 8192,
        wide_queries_e4m3: 1024,
        wide_queries_e4m3_masked: 2048,
        wide_gradients_per_sm: 62,
        wide_gradients_listed_per_sm: 46,
        wide_gradients: 1024,
        wide_gradients_by_columns: 512,
        paired_gradients: 512,
        mapped_blocks_per_sm: 16,
        mapped_blocks: 1 << 22,
        enough_rounds: 8,
        causal_group_bytes: 32 << 20,
        gradient_heads_bytes: 26 << 20,
        gradient_bytes: 36 << 20,
        gradient_bytes_in_band: 44 << 20,
    };
}
