//! How the elements of a line are written: as they are, or in 8 bits.

use crate::ptx::convert::cvt_e4m3x4;
use crate::ptx::global;
use crate::tile::products::Products;

/// Writes the elements of a line that is read in `E`.
pub(super) trait Store<E: Products>: Copy {
    /// What is written of 16 bytes that are read.
    type Chunk: Copy;

    /// Of elements that stay as they are.
    fn copied(self, x: [u32; 4]) -> Self::Chunk;

    /// Of the elements `x`, of which the first `n_turned` become the numbers `y`.
    fn turned(self, x: [u32; 4], y: E::Chunk, n_turned: u32) -> Self::Chunk;

    /// Writes a chunk of a row.
    ///
    /// # Safety
    /// The row has it; no other thread uses it.
    unsafe fn store(self, row: u64, chunk: u32, y: Self::Chunk);

    /// Writes an element of a row that stays as it is.
    ///
    /// # Safety
    /// As [`Store::store`].
    unsafe fn store_bits(self, row: u64, i: u32, bits: u32);

    /// Writes an element of a row.
    ///
    /// # Safety
    /// As [`Store::store`].
    unsafe fn store_number(self, row: u64, i: u32, y: f32);
}

/// In the type in which it is read; what stays as it is, bit for bit.
#[derive(Clone, Copy)]
pub(super) struct AsIs;

impl<E: Products> Store<E> for AsIs {
    type Chunk = [u32; 4];

    #[inline(always)]
    fn copied(self, x: [u32; 4]) -> [u32; 4] {
        x
    }

    #[inline(always)]
    fn turned(self, mut x: [u32; 4], y: E::Chunk, n_turned: u32) -> [u32; 4] {
        let y = E::pack_chunk(y);
        for i in 0..4 {
            // A word holds a pair or half of one.
            if i as u32 * 4 / E::BYTES < n_turned {
                x[i] = y[i];
            }
        }
        x
    }

    #[inline(always)]
    unsafe fn store(self, row: u64, chunk: u32, y: [u32; 4]) {
        // SAFETY: the caller's contract.
        unsafe { global::st_global_x4(row + u64::from(chunk) * 16, y) }
    }

    #[inline(always)]
    unsafe fn store_bits(self, row: u64, i: u32, bits: u32) {
        // SAFETY: the caller's contract.
        unsafe { E::store_bits(row + u64::from(i) * u64::from(E::BYTES), bits) }
    }

    #[inline(always)]
    unsafe fn store_number(self, row: u64, i: u32, y: f32) {
        // SAFETY: the caller's contract.
        unsafe { Store::<E>::store_bits(self, row, i, E::bits(y)) }
    }
}

/// In e4m3, times a factor: rounded once, as a rounding to 8 bits of given scales does it.
#[derive(Clone, Copy)]
pub(super) struct Rounded {
    pub(super) factor: f32,
}

impl<E: Products> Store<E> for Rounded {
    /// Eight elements, or four in the first word.
    type Chunk = [u32; 2];

    #[inline(always)]
    fn copied(self, x: [u32; 4]) -> [u32; 2] {
        Store::<E>::turned(self, x, E::unpack_chunk(x), E::PER_CHUNK)
    }

    #[inline(always)]
    fn turned(self, x: [u32; 4], mut y: E::Chunk, n_turned: u32) -> [u32; 2] {
        let x = E::unpack_chunk(x);
        for i in 0..E::PER_CHUNK as usize {
            let number = if (i as u32) < n_turned { y[i] } else { x[i] };
            y[i] = number * self.factor;
        }
        let mut words = [0; 2];
        for n in 0..E::PER_CHUNK as usize / 4 {
            words[n] = cvt_e4m3x4([y[4 * n], y[4 * n + 1], y[4 * n + 2], y[4 * n + 3]]);
        }
        words
    }

    #[inline(always)]
    unsafe fn store(self, row: u64, chunk: u32, y: [u32; 2]) {
        let address = row + u64::from(chunk * E::PER_CHUNK);
        // SAFETY: the caller's contract.
        unsafe {
            match E::PER_CHUNK {
                4 => global::st_global_u32(address, y[0]),
                _ => global::st_global_x2(address, y),
            }
        }
    }

    #[inline(always)]
    unsafe fn store_bits(self, row: u64, i: u32, bits: u32) {
        // SAFETY: the caller's contract.
        unsafe { Store::<E>::store_number(self, row, i, E::of_bits(bits)) }
    }

    #[inline(always)]
    unsafe fn store_number(self, row: u64, i: u32, y: f32) {
        let code = cvt_e4m3x4([y * self.factor, 0.0, 0.0, 0.0]);
        // SAFETY: the caller's contract.
        unsafe { global::st_global_u8(row + u64::from(i), code as u8) }
    }
}
