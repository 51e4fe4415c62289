//! The tensor core of a warp: products in flight.
//!
//! Accumulators in flight hold tags, signalling NaN: whoever calculates with one gets a quiet NaN, and whoever waits
//! with anything but the tags in place is found out. The sums themselves are kept here until a wait names the tags.

use std::collections::VecDeque;

use super::block::Block;
use super::machine::LANES;
use super::mma::Operand;
use super::shared::{Reader, Shared};
use super::site::Site;
use crate::ptx::wgmma::Major;

/// Rows of a warp's part of a product.
pub(super) const M: usize = 16;
/// Inner dimension of a product of 16-bit elements.
pub(super) const K: usize = 16;
/// The same of 8-bit elements.
const K_OF_BYTES: usize = 32;
/// Bytes that are read as one: half of the inner dimension.
pub(super) const CHUNK: u32 = 16;

/// Bits of a tag: the sign, the exponent of NaN, and not the one that makes it quiet.
const TAG: u32 = 0xff80_0000;
/// The bit that arithmetic sets.
const QUIET: u32 = 1 << 22;
/// Bits for the register's number.
const INDEX_BITS: u32 = 7;
/// Numbers of accumulators: 1 to this.
const MOST_CHAINS: u32 = 0x7ffe;

#[inline]
fn tag(chain: u32, index: usize) -> u32 {
    TAG | chain << INDEX_BITS | index as u32
}

/// What a lane finds in its registers.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Found {
    /// Values of its own.
    Values,
    /// The tags of these accumulators, all of them.
    Tags(u32),
    /// Some of the tags of these, or what arithmetic made of them.
    Remains(u32),
}

/// Where A comes from.
pub(super) enum Left {
    /// Offsets of pieces: two for each row, or for each column where those are contiguous.
    Shared(Vec<usize>, Major),
    /// The fragments of all lanes.
    Registers(Box<[[u32; 4]; LANES]>),
}

/// One product that the warp has not waited for.
pub(super) struct Product {
    pub chain: u32,
    /// Of A, and of B.
    pub types: [Operand; 2],
    pub a: Left,
    /// Offsets of pieces of B: two for each column, or for each row all its columns.
    pub b: Vec<usize>,
    pub major_b: Major,
    pub add: Add,
    pub group: u64,
}

/// What becomes of what the accumulators held.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Add {
    Replaces,
    Adds,
}

/// Accumulators in flight.
pub(super) struct Chain {
    id: u32,
    pub columns: usize,
    /// By rows.
    sums: Vec<f32>,
    /// Products on them that nobody waited for.
    pub pending: u32,
    /// The last of those.
    pub site: Site,
    /// Lanes that have not got their results.
    left: u32,
}

/// The products of one warp.
#[derive(Default)]
pub(super) struct TensorCore {
    /// Whether a fence stands between the threads' last access of accumulators, as far as known, and now.
    pub fenced: bool,
    /// Groups committed so far; the open group has this number.
    pub committed: u64,
    products: VecDeque<Product>,
    /// How many of the products, from the front, have been calculated.
    calculated: usize,
    pub chains: Vec<Chain>,
    chains_made: u32,
    /// What accumulators held that are about to be in flight.
    staging: Vec<f32>,
}

/// Row and column of accumulator register `index` of a lane.
#[inline]
fn place(lane: usize, index: usize) -> (usize, usize) {
    let (fragment, element) = (index / 4, index % 4);
    (
        lane / 4 + 8 * (element / 2),
        fragment * 8 + lane % 4 * 2 + element % 2,
    )
}

impl TensorCore {
    #[inline]
    pub fn find(&mut self, chain: u32) -> Option<&mut Chain> {
        self.chains.iter_mut().find(|other| other.id == chain)
    }

    /// What these registers hold.
    pub fn examine(&self, d: &[f32]) -> Found {
        let chain = |x: &f32| {
            let bits = x.to_bits() & !QUIET;
            let id = (bits ^ TAG) >> INDEX_BITS;
            self.chains
                .iter()
                .find(|chain| chain.id == id)
                .map(|chain| chain.id)
        };
        if self.chains.is_empty() {
            return Found::Values;
        }
        let Some(id) = d.iter().find_map(chain) else {
            return Found::Values;
        };
        let whole = d
            .iter()
            .enumerate()
            .all(|(index, x)| x.to_bits() == tag(id, index));
        if whole {
            Found::Tags(id)
        } else {
            Found::Remains(id)
        }
    }

    /// Notes what a lane's accumulators hold, in case a product adds to them.
    pub fn stage(&mut self, lane: usize, d: &[f32]) {
        let columns = d.len() * 2;
        self.staging.resize(M * columns, 0.0);
        for (index, x) in d.iter().enumerate() {
            let (row, column) = place(lane, index);
            self.staging[row * columns + column] = *x;
        }
    }

    /// What was staged becomes accumulators in flight.
    pub fn begin(&mut self, columns: usize, site: Site) -> u32 {
        let id = self.chains_made % MOST_CHAINS + 1;
        self.chains_made += 1;
        self.chains.push(Chain {
            id,
            columns,
            sums: std::mem::take(&mut self.staging),
            pending: 0,
            site,
            left: LANES as u32,
        });
        id
    }

    /// Puts tags into the registers of accumulators in flight.
    pub fn hide(chain: u32, d: &mut [f32]) {
        for (index, x) in d.iter_mut().enumerate() {
            *x = f32::from_bits(tag(chain, index));
        }
    }

    /// Gives a lane its results.
    pub fn hand_back(&mut self, chain: u32, lane: usize, d: &mut [f32]) {
        let Some(position) = self.chains.iter().position(|other| other.id == chain) else {
            return;
        };
        let results = &mut self.chains[position];
        for (index, x) in d.iter_mut().enumerate() {
            let (row, column) = place(lane, index);
            *x = results.sums[row * results.columns + column];
        }
        results.left -= 1;
        if results.left == 0 {
            self.chains.remove(position);
        }
    }

    pub fn push(&mut self, product: Product, site: Site) {
        if let Some(chain) = self.find(product.chain) {
            chain.pending += 1;
            chain.site = site;
        }
        self.products.push_back(product);
    }

    /// Calculates all products issued so far: they may read their operands at any moment.
    pub fn calculate(&mut self, shared: &Shared) {
        while let Some(product) = self.products.get(self.calculated) {
            self.calculated += 1;
            let chain = self
                .chains
                .iter_mut()
                .find(|chain| chain.id == product.chain);
            if let Some(Chain { columns, sums, .. }) = chain {
                product.calculate(shared, sums, *columns);
            }
        }
    }
}

/// All groups of a warp but the newest are done: what they read is read now.
pub(super) fn retire(block: &mut Block, warp: usize, newest: u32) {
    let Block { warps, shared, .. } = block;
    let index = block.index;
    let now = warps[warp].now;
    let core = &mut warps[warp].tensor_core;
    let done = core.committed.saturating_sub(u64::from(newest));
    let at = super::clock::Stamp {
        block: index,
        clock: now.clock,
        sub: now.sub,
        ..Default::default()
    };
    if core
        .products
        .front()
        .is_some_and(|product| product.group < done)
    {
        core.calculate(shared);
    }
    while let Some(product) = core.products.pop_front_if(|product| product.group < done) {
        core.calculated -= 1;
        let left: &[usize] = match &product.a {
            Left::Shared(pieces, _) => pieces,
            Left::Registers(_) => &[],
        };
        for offset in left.iter().chain(&product.b) {
            shared.end_reading(Reader::Warp(warp), *offset, CHUNK, &at);
        }
        if let Some(chain) = core.find(product.chain) {
            chain.pending -= 1;
        }
    }
}

impl Product {
    /// The elements of a piece.
    #[inline]
    fn elements(shared: &Shared, offset: usize, of: Operand) -> impl Iterator<Item = f32> {
        let bytes: [u8; CHUNK as usize] = shared.bytes(offset);
        let (registers, _) = bytes.as_chunks();
        let registers: [[u8; 4]; 4] = std::array::from_fn(|i| registers[i]);
        registers
            .into_iter()
            .flat_map(move |register| of.elements(u32::from_le_bytes(register)))
    }

    fn left<const K: usize>(&self, shared: &Shared) -> [[f32; K]; M] {
        let [of, _] = self.types;
        let mut a = [[0.0; K]; M];
        match &self.a {
            Left::Shared(pieces, major) => {
                for (i, piece) in pieces.iter().enumerate() {
                    let (line, first) = (i / 2, i % 2 * K / 2);
                    for (x, at) in Product::elements(shared, *piece, of).zip(first..) {
                        match major {
                            Major::K => a[line][at] = x,
                            Major::Mn => a[at][line] = x,
                        }
                    }
                }
            }
            Left::Registers(lanes) => {
                for (lane, registers) in lanes.iter().enumerate() {
                    for (i, register) in registers.iter().enumerate() {
                        let row = lane / 4 + 8 * (i % 2);
                        let column = lane % 4 * (K / 8) + K / 2 * (i / 2);
                        for (x, at) in of.elements(*register).zip(column..) {
                            a[row][at] = x;
                        }
                    }
                }
            }
        }
        a
    }

    fn right<const K: usize>(&self, shared: &Shared, columns: usize) -> Vec<f32> {
        let [_, of] = self.types;
        let mut b = vec![0.0; K * columns];
        for (i, piece) in self.b.iter().enumerate() {
            let elements = Product::elements(shared, *piece, of);
            match self.major_b {
                Major::K => {
                    let (column, half) = (i / 2, i % 2);
                    for (k, x) in elements.enumerate() {
                        b[(half * K / 2 + k) * columns + column] = x;
                    }
                }
                Major::Mn => {
                    for (k, x) in elements.enumerate() {
                        b[i * K / 2 + k] = x;
                    }
                }
            }
        }
        b
    }

    /// As `emu/mma.rs` sums; in 8 bits as [`add_bytes`] does.
    fn calculate(&self, shared: &Shared, sums: &mut [f32], columns: usize) {
        if self.add == Add::Replaces {
            sums.fill(0.0);
        }
        match self.types[0].bytes() {
            1 => self.add_to::<K_OF_BYTES>(shared, sums, columns, add_bytes),
            _ => self.add_to::<K>(shared, sums, columns, add),
        }
    }

    fn add_to<const K: usize>(
        &self,
        shared: &Shared,
        sums: &mut [f32],
        columns: usize,
        add: impl Fn(&[f32; K], &[f32], &mut [f32]),
    ) {
        let (a, b) = (self.left::<K>(shared), self.right::<K>(shared, columns));
        for (a, sums) in a.iter().zip(sums.chunks_exact_mut(columns)) {
            add(a, &b, sums);
        }
    }
}

/// A row of sums += a row of A times B.
fn add<const K: usize>(a: &[f32; K], b: &[f32], sums: &mut [f32]) {
    for (x, b) in a.iter().zip(b.chunks_exact(sums.len())) {
        for (sum, y) in sums.iter_mut().zip(b) {
            *sum += x * y;
        }
    }
}

/// Bits that Hopper keeps of sums of products of 8-bit numbers.
const BITS_OF_SUMS: i32 = 14;

/// The same of 8-bit numbers, as Hopper does it, bit for bit (docs/src/fp8.md, "Sums: 14 bits"): the products and the sum are cut, towards zero, 13 bits below the
/// greatest of their exponents, that of a product being the sum of its factors'; the sum of what is left is exact, and is cut to 14 bits.
fn add_bytes<const K: usize>(a: &[f32; K], b: &[f32], sums: &mut [f32]) {
    if !a.iter().chain(b).chain(&*sums).all(|x| x.is_finite()) {
        return add(a, b, sums);
    }
    // Of 0: less than that of any product that counts.
    let exponent = |x: f32| (x.to_bits() >> 23 & 0xff) as i32 - 127;
    let n = sums.len();
    let mut greatest: Vec<i32> = sums.iter().map(|sum| exponent(*sum)).collect();
    for (x, b) in a.iter().zip(b.chunks_exact(n)) {
        let of_x = exponent(*x);
        for (greatest, y) in greatest.iter_mut().zip(b) {
            *greatest = (*greatest).max(of_x + exponent(*y));
        }
    }
    // From here on sums are multiples of the last bit that is kept. All are small enough for f32.
    let power = |exponent: i32| f32::from_bits(((127 + exponent) as u32) << 23);
    let last_bits = greatest
        .iter()
        .map(|greatest| (*greatest).max(-100) - (BITS_OF_SUMS - 1));
    let scales: Vec<f32> = last_bits.clone().map(|bit| power(-bit)).collect();
    let cut = |x: f32| x as i32 as f32;
    for (sum, scale) in sums.iter_mut().zip(&scales) {
        *sum = cut(*sum * scale);
    }
    for (x, b) in a.iter().zip(b.chunks_exact(n)) {
        for ((sum, y), scale) in sums.iter_mut().zip(b).zip(&scales) {
            *sum += cut(x * y * scale);
        }
    }
    for (sum, bit) in sums.iter_mut().zip(last_bits) {
        let kept = u32::MAX << (f32::MANTISSA_DIGITS as i32 - BITS_OF_SUMS);
        *sum = f32::from_bits(sum.to_bits() & kept) * power(bit);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sum_of(sum: f32, products: &[[f32; 2]]) -> f32 {
        let (mut a, mut b) = ([0.0; K_OF_BYTES], [0.0; K_OF_BYTES]);
        for (at, [x, y]) in products.iter().enumerate() {
            (a[at], b[at]) = (*x, *y);
        }
        let mut sums = [sum];
        add_bytes(&a, &b, &mut sums);
        sums[0]
    }

    #[test]
    fn sums_of_bytes_have_14_bits() {
        let (one, small) = ([1.0, 1.0], 2f32.powi(-9));
        assert_eq!(sum_of(0.0, &[one; 32]), 32.0);
        assert_eq!(sum_of(8191.0, &[one]), 8192.0);
        assert_eq!(sum_of(8192.0, &[one, one]), 8194.0);
        // 14 bits of 16384 end at 2: each product of 1 is lost.
        assert_eq!(sum_of(16384.0, &[one; 32]), 16384.0);
        assert_eq!(sum_of(-16384.0, &[[1.0, 3.0]]), -16382.0);
        // 1.5 · 1.5 counts as 2⁰, so 2⁻¹³ is not cut; beside 2 · 1 it is.
        let two_small = [[small, 0.0625]; 2];
        let beside = |large| sum_of(0.0, &[large, two_small[0], two_small[1]]);
        assert_eq!(beside([1.5, 1.5]), 2.25 + 2f32.powi(-12));
        assert_eq!(beside([2.0, 1.0]), 2.0);
        // The exact sum is cut in the end.
        assert_eq!(sum_of(0.0, &[one, one, [small, 0.0625]]), 2.0);
        assert!(sum_of(f32::NAN, &[one]).is_nan());
        assert_eq!(sum_of(0.0, &[[f32::INFINITY, 1.0]]), f32::INFINITY);
    }
}
