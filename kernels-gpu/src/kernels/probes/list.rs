//! THE list of probes, in three parts: the PTX entries and the tables are made from it.
//!
//! Where an agreement is not exact, it is what the PTX manual allows the device and 1 ulp for the CPU: `ex2` 2 ulp,
//! `rcp` 1 ulp, `lg2` 2⁻²² absolute near 1 and relative elsewhere. Sums within `mma` have no documented order or
//! rounding: 17 terms below 32, each cut at 2⁻²⁴ of the greatest, differ by less than 4·10⁻⁵.

/// Calls `$callback!` with every probe: `name { threads, shared_bytes, fill, input_words, output_words, agreement }`.
#[macro_export]
macro_rules! for_each_probe {
    ($callback:ident) => {
        $callback! {
            special_registers { 96, 1024, Bits, 0, 7, Exact }
            spec_constants { 32, 0, Bits, 0, $crate::spec::Constant::ALL.len() as u32, Exact }
            clocks { 64, 0, Bits, 0, 3, Exact }
            mma_bf16 { 32, 0, WholeBf16, 8, 4, Exact }
            mma_f16 { 32, 0, WholeF16, 8, 4, Exact }
            mma_bf16_sums { 32, 0, RealBf16, 8, 4, Within(4e-5) }
            mma_f16_sums { 32, 0, RealF16, 8, 4, Within(4e-5) }
            mma_tf32 { 32, 0, Whole, 10, 4, Exact }
            mma_tf32_sums { 32, 0, Real, 10, 4, Within(4e-5) }
            ldmatrix_x4 { 32, 512, Bits, 4, 4, Exact }
            ldmatrix_x4_trans { 32, 512, Bits, 4, 4, Exact }
            ldmatrix_x2 { 32, 512, Bits, 4, 2, Exact }
            ldmatrix_x2_trans { 32, 512, Bits, 4, 2, Exact }
            copies { 32, 1152, Bits, 8, 9, Exact }
            named_barriers { 64, 512, Bits, 1, 2, Exact }
            barrier_votes { 64, 512, Bits, 1, 5, Exact }
            block_barrier { 128, 512, Bits, 1, 1, Exact }
            shuffles { 32, 0, Bits, 2, 12, Exact }
            votes { 32, 0, Bits, 1, 9, Exact }
            reductions { 32, 0, Bits, 1, 4, Exact }
            ex2_approx { 32, 0, Exponents, 16, 16, Ulps(3) }
            lg2_approx { 32, 0, Floats, 16, 16, Within(5e-7) }
            rcp_approx { 32, 0, Floats, 16, 16, Ulps(2) }
            fma { 32, 0, Floats, 12, 8, Ulps(0) }
            max { 32, 0, Floats, 16, 8, Ulps(0) }
            cvt_bf16x2 { 32, 0, Floats, 16, 8, Exact }
            cvt_f16x2 { 32, 0, HalfFloats, 16, 8, Exact }
            cvt_tf32 { 32, 0, Floats, 16, 16, Ulps(0) }
            unpack { 32, 0, Bits, 4, 20, Ulps(0) }
            prmt { 32, 0, Bits, 1, 3, Exact }
            prmt_signs { 32, 0, Bits, 2, 3, Exact }
            shared_words { 64, 2048, Bits, 8, 8, Exact }
            global_words { 64, 0, Bits, 24, 24, Exact }
            predicated_loads { 64, 0, Bits, 4, 4, Exact }
            predicated_stores { 64, 0, Bits, 8, 8, Exact }
            red_add_f32 { 64, 0, Bits, 0, 1, Exact }
            atom_add_u32 { 64, 0, Bits, 0, 2, Exact }
            atom_inc_u32 { 64, 0, Bits, 0, 2, Exact }
            release_acquire { 64, 0, Bits, 1, 1, Exact }
            fences { 64, 0, Bits, 1, 1, Exact }
        }
    };
}

/// Calls `$callback!` with every probe of Hopper's instructions, in rows as those of [`crate::for_each_probe`].
#[macro_export]
macro_rules! for_each_hopper_probe {
    ($callback:ident) => {
        $callback! {
            mbarrier_phases { 128, 2056, Bits, 4, 4, Exact }
            tma_loads { 128, 14344, Bits, 23, 28, Exact }
            tma_loads_of_heads { 128, 10248, Bits, 23, 20, Exact }
            tma_stores { 128, 8192, Bits, 23, 23, Exact }
            tma_stores_of_heads { 128, 8192, Bits, 23, 23, Exact }
            made_tensor_maps { 128, 2056, Bits, 24, 24, Exact }
            bulk_loads { 128, 2056, Bits, 4, 4, Exact }
            bulk_stores { 128, 2048, Bits, 4, 8, Exact }
            bulk_adds { 128, 2048, Bits, 4, 4, Exact }
            stmatrix_x4 { 128, 2048, Bits, 4, 4, Exact }
            stmatrix_x4_trans { 128, 2048, Bits, 4, 4, Exact }
            stmatrix_x2_trans { 128, 1024, Bits, 2, 2, Exact }
            red_add_f32x4 { 128, 0, Bits, 0, 1, Exact }
            wgmma_n40_ss_k { 128, 13312, WholeF16, 26, 20, Exact }
            wgmma_n64_ss_k { 128, 16384, WholeBf16, 32, 32, Exact }
            wgmma_n64_ss_mn { 128, 16384, WholeF16, 32, 32, Exact }
            wgmma_n64_ts_k { 128, 16384, WholeF16, 32, 32, Exact }
            wgmma_n64_ts_mn { 128, 16384, WholeBf16, 32, 32, Exact }
            wgmma_n64_rs_k { 128, 16384, WholeF16, 32, 32, Exact }
            wgmma_n64_rs_mn { 128, 16384, WholeBf16, 32, 32, Exact }
            wgmma_n80_ss_k { 128, 18432, WholeF16, 36, 40, Exact }
            wgmma_n80_ts_k { 128, 18432, WholeBf16, 36, 40, Exact }
            wgmma_n80_rs_mn { 128, 24576, WholeBf16, 48, 40, Exact }
            wgmma_n96_ss_k { 128, 20480, WholeBf16, 40, 48, Exact }
            wgmma_n96_rs_mn { 128, 24576, WholeF16, 48, 48, Exact }
            wgmma_n112_ss_k { 128, 22528, WholeF16, 44, 56, Exact }
            wgmma_n112_rs_mn { 128, 24576, WholeBf16, 48, 56, Exact }
            wgmma_n128_ss_k { 128, 24576, WholeBf16, 48, 64, Exact }
            wgmma_n128_ss_mn { 128, 24576, WholeBf16, 48, 64, Exact }
            wgmma_n128_ts_mn { 128, 24576, WholeF16, 48, 64, Exact }
            wgmma_n128_rs_k { 128, 24576, WholeF16, 48, 64, Exact }
            wgmma_n128_rs_mn { 128, 24576, WholeF16, 48, 64, Exact }
            wgmma_n160_ss_k { 128, 28672, WholeF16, 56, 80, Exact }
            wgmma_n160_rs_mn { 128, 32768, WholeBf16, 64, 80, Exact }
            wgmma_n192_ss_k { 128, 32768, WholeBf16, 64, 96, Exact }
            wgmma_n192_rs_mn { 128, 32768, WholeF16, 64, 96, Exact }
            wgmma_n256_ss_k { 128, 40960, WholeF16, 80, 128, Exact }
            wgmma_n256_ts_mn { 128, 40960, WholeBf16, 80, 128, Exact }
            wgmma_n256_rs_mn { 128, 40960, WholeBf16, 80, 128, Exact }
            wgmma_n64_rs_e4m3 { 128, 16384, WholeE4m3, 32, 32, Exact }
            wgmma_n96_ss_e4m3 { 128, 20480, WholeE4m3, 40, 48, Exact }
            wgmma_n96_rs_e4m3 { 128, 20480, WholeE4m3, 40, 48, Exact }
            wgmma_n128_ss_e4m3 { 128, 24576, WholeE4m3, 48, 64, Exact }
            wgmma_n128_rs_e4m3 { 128, 24576, WholeE4m3, 48, 64, Exact }
            wgmma_n192_ss_e4m3 { 128, 32768, WholeE4m3, 64, 96, Exact }
            wgmma_n192_rs_e4m3 { 128, 32768, WholeE4m3, 64, 96, Exact }
            wgmma_n256_rs_e4m3 { 128, 40960, WholeE4m3, 80, 128, Exact }
            wgmma_n128_ss_e5m2 { 128, 24576, WholeE5m2, 48, 64, Exact }
            wgmma_n128_rs_e4m3_e5m2 { 128, 24576, WholeE4m3, 48, 64, Exact }
            wgmma_n128_ss_e5m2_e4m3 { 128, 24576, WholeE4m3, 48, 64, Exact }
            setmaxnreg { 128, 0, Bits, 1, 2, Exact }
            cvt_f16x2_e4m3x2 { 128, 0, Bits, 1, 2, Exact }
            cvt_f16x2_e5m2x2 { 128, 0, Bits, 1, 2, Exact }
            cvt_e4m3x4 { 128, 0, HalfFloats, 4, 2, Exact }
            cvt_e5m2x4 { 128, 0, Floats, 4, 2, Exact }
            prmt_pair { 128, 0, Bits, 3, 1, Exact }
        }
    };
}

/// Calls `$callback!` with every probe of clusters of two blocks, in rows as those of [`crate::for_each_probe`].
#[macro_export]
macro_rules! for_each_cluster_probe {
    ($callback:ident) => {
        $callback! {
            ranks { 128, 1024, Bits, 0, 4, Exact }
            stores { 128, 2048, Bits, 4, 4, Exact }
            arrivals { 128, 4112, Bits, 4, 8, Exact }
            reuse { 128, 2064, Bits, 4, 8, Exact }
            async_stores { 128, 3088, Bits, 4, 6, Exact }
            bulk_stores { 128, 4112, Bits, 4, 4, Exact }
            multicast { 128, 4112, Bits, 12, 8, Exact }
            fences { 128, 2048, Bits, 4, 4, Exact }
        }
    };
}
