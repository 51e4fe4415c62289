//! THE list of probes: the PTX entries and the table are made from it.
//!
//! Where an agreement is not exact, it is what the PTX manual allows the device and 1 ulp for the CPU: `ex2` 2 ulp,
//! `rcp` 1 ulp, `lg2` 2⁻²² absolute near 1 and relative elsewhere. Sums within `mma` have no documented order or
//! rounding: 17 terms below 32, each cut at 2⁻²⁴ of the greatest, differ by less than 4·10⁻⁵.

/// Calls `$callback!` with every probe: `name { threads, shared_bytes, fill, input_words, output_words, agreement }`.
#[macro_export]
macro_rules! for_each_probe {
    ($callback:ident) => {
        $callback! {
            special_registers { 96, 1024, Bits, 0, 6, Exact }
            mma_bf16 { 32, 0, WholeBf16, 8, 4, Exact }
            mma_f16 { 32, 0, WholeF16, 8, 4, Exact }
            mma_bf16_sums { 32, 0, RealBf16, 8, 4, Within(4e-5) }
            mma_f16_sums { 32, 0, RealF16, 8, 4, Within(4e-5) }
            ldmatrix_x4 { 32, 512, Bits, 4, 4, Exact }
            ldmatrix_x4_trans { 32, 512, Bits, 4, 4, Exact }
            ldmatrix_x2 { 32, 512, Bits, 4, 2, Exact }
            ldmatrix_x2_trans { 32, 512, Bits, 4, 2, Exact }
            copies { 32, 1024, Bits, 8, 8, Exact }
            named_barriers { 64, 512, Bits, 1, 2, Exact }
            block_barrier { 128, 512, Bits, 1, 1, Exact }
            shuffles { 32, 0, Bits, 2, 12, Exact }
            votes { 32, 0, Bits, 1, 6, Exact }
            ex2_approx { 32, 0, Exponents, 16, 16, Ulps(3) }
            lg2_approx { 32, 0, Floats, 16, 16, Within(5e-7) }
            rcp_approx { 32, 0, Floats, 16, 16, Ulps(2) }
            fma { 32, 0, Floats, 12, 4, Ulps(0) }
            max { 32, 0, Floats, 16, 8, Ulps(0) }
            cvt_bf16x2 { 32, 0, Floats, 16, 8, Exact }
            cvt_f16x2 { 32, 0, HalfFloats, 16, 8, Exact }
            unpack { 32, 0, Bits, 4, 20, Ulps(0) }
            shared_words { 64, 2048, Bits, 8, 8, Exact }
            global_words { 64, 0, Bits, 20, 20, Exact }
            predicated_stores { 64, 0, Bits, 8, 8, Exact }
            red_add_f32 { 64, 0, Bits, 0, 1, Exact }
            atom_add_u32 { 64, 0, Bits, 0, 2, Exact }
            release_acquire { 64, 0, Bits, 1, 1, Exact }
            fences { 64, 0, Bits, 1, 1, Exact }
        }
    };
}
