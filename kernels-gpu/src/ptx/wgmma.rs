//! Matrix products of a warpgroup that run while its threads go on.
//!
//! Four warps multiply 64 rows; warp `w` holds rows `16 w ..` of the result, in fragments of 16 × 8 laid out as those of
//! [`super::mma`]. Between the instruction and the [`Wgmma::wait`] that names them, accumulators belong to the tensor
//! cores: nothing reads, writes or moves them. The same holds for shared memory that a descriptor names, and for
//! registers of A.

#[cfg(not(target_arch = "nvptx64"))]
use crate::emu::wgmma;

/// Where an operand lies in shared memory: the "matrix descriptor" of the PTX manual (9.7.15.5.1).
///
/// Tiles have rows of 128 bytes in the 128-byte swizzle, as the TMA writes them, and begin at multiples of 1024 bytes.
#[derive(Clone, Copy)]
pub struct Descriptor {
    /// Bits 0 to 31: address / 16, and the leading dimension's byte offset / 16 above it.
    pub low: u32,
    /// Bits 32 to 63: the stride dimension's byte offset / 16, and the swizzle.
    pub high: u32,
}

/// Which dimension of an operand is contiguous in shared memory: the product's inner one, `k`, or the operand's own.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Major {
    /// `k` is contiguous: A is stored as its rows, `[m][k]`, and B as its columns, `[n][k]` (Q and K of QKᵀ).
    K = 0,
    /// `m` or `n` is contiguous: A is stored as its columns, `[k][m]`, and B as its rows, `[k][n]` (V of PV).
    Mn = 1,
}

/// The accumulators of a product of 64 × N, `N / 8` fragments, as an operand of `wgmma`.
pub trait Wgmma {
    /// No instruction: accumulators that hold whatever their registers do, for a product that drops it (`accumulate` = 0).
    ///
    /// Zeros would be written to the registers, and where that happens beside products in flight, `ptxas` lets no two
    /// products run at once.
    fn undefined() -> Self;

    /// `wgmma.mma_async.sync.aligned` of k = 16, or 32 elements of 8 bits, with both operands in shared memory; what the accumulators held is kept where `accumulate` is
    /// 1, dropped where it is 0.
    ///
    /// PTX 8.0, sm_90a.
    ///
    /// # Safety
    /// All 128 threads of a warpgroup reach it after a [`wgmma_fence`]; the operands lie where the descriptors say.
    unsafe fn multiply_ss<E: WgmmaElement, const MAJOR_A: u32, const MAJOR_B: u32>(
        &mut self,
        a: Descriptor,
        b: Descriptor,
        accumulate: u32,
    );

    /// The same with A in registers: the fragments of `mma.m16n8k16`, of 8 bits those of `mma.m16n8k32`, each warp its 16 rows.
    ///
    /// PTX 8.0, sm_90a.
    ///
    /// # Safety
    /// As [`Wgmma::multiply_ss`].
    unsafe fn multiply_rs<E: WgmmaElement, const MAJOR_B: u32>(
        &mut self,
        a: [u32; 4],
        b: Descriptor,
        accumulate: u32,
    );

    /// `wgmma.wait_group.sync.aligned PENDING`: waits until all but the last `PENDING` groups are done; if these accumulators belong
    /// to one that is, they are the thread's again.
    ///
    /// PTX 8.0, sm_90a.
    ///
    /// # Safety
    /// All 128 threads of the warpgroup reach it.
    unsafe fn wait<const PENDING: u32>(&mut self);
}

/// The element types of A and B.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Types {
    /// bfloat16, `k` = 16.
    Bf16,
    /// IEEE binary16, `k` = 16.
    F16,
    /// e4m3, `k` = 32. As of all types of 8 bits, `k` is the contiguous dimension of both operands.
    E4m3,
    /// e5m2, `k` = 32.
    E5m2,
    /// A in e4m3 and B in e5m2, `k` = 32.
    E4m3E5m2,
    /// A in e5m2 and B in e4m3, `k` = 32.
    E5m2E4m3,
}

/// Which element types `wgmma` multiplies.
pub trait WgmmaElement {
    /// Those of A and B.
    fn types() -> Types;
}

/// `wgmma.fence.sync.aligned`: orders the accumulators' and A's last accesses before the products that follow.
///
/// PTX 8.0, sm_90a.
///
/// # Safety
/// All 128 threads of the warpgroup reach it.
#[inline(always)]
#[cfg_attr(not(target_arch = "nvptx64"), track_caller)]
pub unsafe fn wgmma_fence() {
    bodies! {
        ptx!("wgmma.fence.sync.aligned;", options(nostack));
        cpu: wgmma::fence("wgmma.fence")
    }
}

/// `wgmma.commit_group.sync.aligned`: closes the group of the products since the last.
///
/// PTX 8.0, sm_90a.
///
/// # Safety
/// All 128 threads of the warpgroup reach it.
#[inline(always)]
#[cfg_attr(not(target_arch = "nvptx64"), track_caller)]
pub unsafe fn wgmma_commit_group() {
    bodies! {
        ptx!("wgmma.commit_group.sync.aligned;", options(nostack));
        cpu: wgmma::commit_group("wgmma.commit_group")
    }
}

/// `wgmma.mma_async.sync.aligned.…` on the accumulators `$d`, of the shape and types that `$instruction` names.
#[cfg(target_arch = "nvptx64")]
macro_rules! instruction {
    ($d:ident [$first:literal $($n:literal)*] $accumulate:ident, $instruction:expr, $prepare:literal, $tail:literal, $($operands:tt)*) => {
        ptx!(
            "{{ .reg .pred p; .reg .b64 a, b; setp.ne.u32 p, {accumulate}, 0; mov.b64 b, {{{b0}, {b1}}};",
            $prepare,
            concat!("wgmma.mma_async.sync.aligned.", $instruction, " {{"),
            "{}, {}, {}, {}",
            $(concat!(", {}, {}, {}, {}", nothing!($n)),)*
            $tail,
            inout(reg32) $d[$first][0], inout(reg32) $d[$first][1],
            inout(reg32) $d[$first][2], inout(reg32) $d[$first][3],
            $(inout(reg32) $d[$n][0], inout(reg32) $d[$n][1],
              inout(reg32) $d[$n][2], inout(reg32) $d[$n][3],)*
            accumulate = in(reg32) $accumulate,
            $($operands)*
            options(nostack)
        )
    };
}

/// Repeats text once for every index.
#[cfg(target_arch = "nvptx64")]
macro_rules! nothing {
    ($n:literal) => {
        ""
    };
}

/// Both operands in shared memory.
#[cfg(target_arch = "nvptx64")]
macro_rules! wgmma_ss {
    ($d:ident $n:tt $accumulate:ident, $instruction:expr, $a:ident, $b:ident, [$major_a:ident $major_b:ident]) => {
        instruction!($d $n $accumulate, $instruction, "mov.b64 a, {{{a0}, {a1}}};", "}}, a, b, p, 1, 1, {major_a}, {major_b}; }}",
            a0 = in(reg32) $a.low, a1 = in(reg32) $a.high, b0 = in(reg32) $b.low, b1 = in(reg32) $b.high,
            major_a = const $major_a, major_b = const $major_b,)
    };
}

/// A in registers.
#[cfg(target_arch = "nvptx64")]
macro_rules! wgmma_rs {
    ($d:ident $n:tt $accumulate:ident, $instruction:expr, $a:ident, $b:ident, [$major_b:ident]) => {
        instruction!($d $n $accumulate, $instruction, "", "}}, {{{a0}, {a1}, {a2}, {a3}}}, b, p, 1, 1, {major_b}; }}",
            a0 = in(reg32) $a[0], a1 = in(reg32) $a[1], a2 = in(reg32) $a[2], a3 = in(reg32) $a[3],
            b0 = in(reg32) $b.low, b1 = in(reg32) $b.high, major_b = const $major_b,)
    };
}

/// Both operands in shared memory, of 8 bits.
#[cfg(target_arch = "nvptx64")]
macro_rules! wgmma_ss_bytes {
    ($d:ident $n:tt $accumulate:ident, $instruction:expr, $a:ident, $b:ident) => {
        instruction!($d $n $accumulate, $instruction, "mov.b64 a, {{{a0}, {a1}}};", "}}, a, b, p, 1, 1; }}",
            a0 = in(reg32) $a.low, a1 = in(reg32) $a.high, b0 = in(reg32) $b.low, b1 = in(reg32) $b.high,)
    };
}

/// A in registers, of 8 bits.
#[cfg(target_arch = "nvptx64")]
macro_rules! wgmma_rs_bytes {
    ($d:ident $n:tt $accumulate:ident, $instruction:expr, $a:ident, $b:ident) => {
        instruction!($d $n $accumulate, $instruction, "", "}}, {{{a0}, {a1}, {a2}, {a3}}}, b, p, 1, 1; }}",
            a0 = in(reg32) $a[0], a1 = in(reg32) $a[1], a2 = in(reg32) $a[2], a3 = in(reg32) $a[3],
            b0 = in(reg32) $b.low, b1 = in(reg32) $b.high,)
    };
}

/// The products of one width: its columns as the instruction spells them, the number of fragments, their indices.
macro_rules! width {
    ($columns:literal, $fragments:literal, $indices:tt) => {
        impl Wgmma for [[f32; 4]; $fragments] {
            #[inline(always)]
            fn undefined() -> Self {
                undefined!($fragments $indices)
            }

            #[inline(always)]
            #[cfg_attr(not(target_arch = "nvptx64"), track_caller)]
            unsafe fn multiply_ss<E: WgmmaElement, const MAJOR_A: u32, const MAJOR_B: u32>(
                &mut self,
                a: Descriptor,
                b: Descriptor,
                accumulate: u32,
            ) {
                width!(self $indices wgmma_ss wgmma_ss_bytes, $columns, a, b, accumulate, [MAJOR_A MAJOR_B]);
            }

            #[inline(always)]
            #[cfg_attr(not(target_arch = "nvptx64"), track_caller)]
            unsafe fn multiply_rs<E: WgmmaElement, const MAJOR_B: u32>(
                &mut self,
                a: [u32; 4],
                b: Descriptor,
                accumulate: u32,
            ) {
                width!(self $indices wgmma_rs wgmma_rs_bytes, $columns, a, b, accumulate, [MAJOR_B]);
            }

            #[inline(always)]
            #[cfg_attr(not(target_arch = "nvptx64"), track_caller)]
            unsafe fn wait<const PENDING: u32>(&mut self) {
                wait_group!(self $indices PENDING);
            }
        }
    };
    ($d:ident $indices:tt $form:ident $form_of_bytes:ident, $columns:literal, $a:ident, $b:ident, $accumulate:ident, $majors:tt) => {
        #[cfg(target_arch = "nvptx64")]
        {
            match E::types() {
                Types::Bf16 => $form!($d $indices $accumulate, concat!("m64n", $columns, "k16.f32.bf16.bf16"), $a, $b, $majors),
                Types::F16 => $form!($d $indices $accumulate, concat!("m64n", $columns, "k16.f32.f16.f16"), $a, $b, $majors),
                Types::E4m3 => $form_of_bytes!($d $indices $accumulate, concat!("m64n", $columns, "k32.f32.e4m3.e4m3"), $a, $b),
                Types::E5m2 => $form_of_bytes!($d $indices $accumulate, concat!("m64n", $columns, "k32.f32.e5m2.e5m2"), $a, $b),
                Types::E4m3E5m2 => $form_of_bytes!($d $indices $accumulate, concat!("m64n", $columns, "k32.f32.e4m3.e5m2"), $a, $b),
                Types::E5m2E4m3 => $form_of_bytes!($d $indices $accumulate, concat!("m64n", $columns, "k32.f32.e5m2.e4m3"), $a, $b),
            }
        }
        #[cfg(not(target_arch = "nvptx64"))]
        {
            let (a, major_b) = width!(@operands $form $a $majors);
            let product = wgmma::Product { a, b: $b, major_b, types: E::types(), accumulate: $accumulate != 0 };
            wgmma::multiply("wgmma.mma_async", $d.as_flattened_mut(), product);
        }
    };
    (@operands wgmma_ss $a:ident [$major_a:ident $major_b:ident]) => {
        (wgmma::Left::Shared($a, $major_a), $major_b)
    };
    (@operands wgmma_rs $a:ident [$major_b:ident]) => {
        (wgmma::Left::Registers($a), $major_b)
    };
}

/// Accumulators that no instruction writes.
macro_rules! undefined {
    ($fragments:literal [$($n:literal)*]) => {{
        bodies! {
            mut d = [[0.0; 4]; $fragments], ptx!(
                $(concat!("// {} {} {} {}", nothing!($n)),)*
                $(out(reg32) d[$n][0], out(reg32) d[$n][1], out(reg32) d[$n][2], out(reg32) d[$n][3],)*
                options(nostack, nomem)
            );
            cpu: [[wgmma::UNDEFINED; 4]; $fragments]
        }
    }};
}

/// `wgmma.wait_group.sync.aligned` that names the accumulators `$d`.
macro_rules! wait_group {
    ($d:ident [$($n:literal)*] $pending:ident) => {
        bodies! {
            ptx!(
                "wgmma.wait_group.sync.aligned {pending};",
                $(concat!("// {} {} {} {}", nothing!($n)),)*
                $(inout(reg32) $d[$n][0], inout(reg32) $d[$n][1],
                  inout(reg32) $d[$n][2], inout(reg32) $d[$n][3],)*
                pending = const $pending,
                options(nostack)
            );
            cpu: wgmma::wait("wgmma.wait_group", $d.as_flattened_mut(), $pending)
        }
    };
}

width!(32, 4, [0 1 2 3]);
width!(40, 5, [0 1 2 3 4]);
width!(64, 8, [0 1 2 3 4 5 6 7]);
width!(80, 10, [0 1 2 3 4 5 6 7 8 9]);
width!(96, 12, [0 1 2 3 4 5 6 7 8 9 10 11]);
width!(112, 14, [0 1 2 3 4 5 6 7 8 9 10 11 12 13]);
width!(128, 16, [0 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15]);
width!(160, 20, [0 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 19]);
width!(192, 24, [0 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 19 20 21 22 23]);
width!(224, 28, [0 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 19 20 21 22 23 24 25 26 27]);
width!(256, 32, [0 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 19 20 21 22 23 24 25 26 27 28 29 30 31]);
