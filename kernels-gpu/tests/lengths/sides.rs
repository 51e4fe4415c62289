//! Lengths of sequences as a caller gives them, and what they mean.

use super::*;

/// A generator that is good enough to make cases of.
pub struct Random(pub u64);

impl Random {
    pub fn next(&mut self) -> u64 {
        self.0 = self
            .0
            .wrapping_mul(6364136223846793005)
            .wrapping_add(1442695040888963407);
        self.0 >> 33
    }

    pub fn below(&mut self, n: u64) -> u64 {
        self.next() % n
    }
}

/// A number as bf16 or f16; small ones, whose sums of products stay small.
pub fn element(random: &mut Random, f16: bool) -> u16 {
    let x = (random.below(2001) as f32 - 1000.0) / 500.0;
    if f16 {
        half::f16::from_f32(x).to_bits()
    } else {
        half::bf16::from_f32(x).to_bits()
    }
}

/// Lengths of one side, as the caller gives them.
#[derive(Clone, Debug, Default)]
pub struct Side {
    pub cu_seqlens: Option<Vec<i32>>,
    pub seqused: Option<Vec<i32>>,
    pub leftpad: Option<Vec<i32>>,
    pub rows: u32,
    pub max: u32,
}

impl Side {
    /// Batch entries of its tensors.
    pub fn entries(&self, batch: u32) -> u32 {
        if self.cu_seqlens.is_some() { 1 } else { batch }
    }

    /// The most blocks of `rows` rows that its sequences may have.
    pub fn most(&self, rows: u32, batch: u32) -> u32 {
        match self.cu_seqlens {
            Some(_) => self.rows.div_ceil(rows) + batch,
            None => self.rows.div_ceil(rows) * batch,
        }
    }

    /// A sequence's first row and its length, worked out in a plain way.
    pub fn of(&self, sequence: usize) -> (i64, i64) {
        let (begin, end) = match &self.cu_seqlens {
            Some(cu_seqlens) => (
                i64::from(cu_seqlens[sequence]),
                i64::from(cu_seqlens[sequence + 1]),
            ),
            None => (0, i64::from(self.rows)),
        };
        let begin = begin.clamp(0, i64::from(self.rows));
        let end = end.clamp(begin, i64::from(self.rows));
        let mut used = (end - begin).min(i64::from(self.max));
        if let Some(seqused) = &self.seqused {
            used = used.min(i64::from(seqused[sequence]).max(0));
        }
        let pad = match &self.leftpad {
            Some(leftpad) => i64::from(leftpad[sequence]).clamp(0, used),
            None => 0,
        };
        (begin + pad, used - pad)
    }
}

pub fn lend<'a>(memory: &mut GlobalMemory<'a>, name: &str, vector: &'a Option<Vec<i32>>) -> u64 {
    vector
        .as_ref()
        .map_or(0, |vector| memory.input(name, vector))
}

pub fn lengths<'a>(memory: &mut GlobalMemory<'a>, q: &'a Side, k: &'a Side) -> Lengths {
    Lengths {
        cu_seqlens_q: lend(memory, "cu_seqlens_q", &q.cu_seqlens),
        cu_seqlens_k: lend(memory, "cu_seqlens_k", &k.cu_seqlens),
        seqused_q: lend(memory, "seqused_q", &q.seqused),
        seqused_k: lend(memory, "seqused_k", &k.seqused),
        leftpad_k: lend(memory, "leftpad_k", &k.leftpad),
        rows_q: q.rows,
        rows_k: k.rows,
    }
}

pub fn listing(
    workspace: &Workspace,
    batch: u32,
    q: &Side,
    k: &Side,
    backward: bool,
) -> TileListParams {
    TileListParams {
        list: TileList {
            rows_q: q.rows,
            packed_q: q.cu_seqlens.is_some() as u32,
            packed_k: k.cu_seqlens.is_some() as u32,
            ..TileList::default()
        },
        shape: Shape {
            batch,
            heads_q: 2,
            heads_k: 1,
            group_size: 2,
            seqlen_q: q.max,
            seqlen_k: k.max,
            head_dim: 64,
            head_dim_v: 64,
        },
        tile_rows: if backward { 128 } else { 64 },
        block_q: if backward { 64 } else { 0 },
        max_tiles: workspace.max_tiles,
        max_q_blocks: workspace.max_q_blocks,
        ..TileListParams::default()
    }
}

/// The same of these heads, and with the window of a sequence without rows where sequences have lengths of their own (`listed`).
pub fn sized(
    params: TileListParams,
    (heads_q, heads_k): (u32, u32),
    head_dim: u32,
    (left, right): (u32, u32),
    listed: bool,
) -> TileListParams {
    let shape = Shape {
        heads_q,
        heads_k,
        group_size: heads_q / heads_k,
        head_dim,
        head_dim_v: head_dim,
        ..params.shape
    };
    let (seqlen_q, seqlen_k) = if listed {
        (0, 0)
    } else {
        (shape.seqlen_q, shape.seqlen_k)
    };
    TileListParams {
        shape,
        window: Window::new(seqlen_q, seqlen_k, left, right),
        ..params
    }
}

/// What all passes multiply scores by.
pub const SCALE: Scale = Scale {
    scale: 0.125,
    scale_log2: 0.125 * std::f32::consts::LOG2_E,
};
