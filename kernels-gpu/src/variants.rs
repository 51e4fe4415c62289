//! THE list of kernels. PTX entries, the host's table, the emulator's table and the book's support matrix are all generated from it; a kernel that
//! is not in it cannot be used.

/// Calls `$callback!` with every variant: `name: kind { arch, dtype, head_dim, head_dim_v, tiles }`, with the fields of the kind; a variant without
/// `tiles` has [`TileShape::Default`], one without `head_dim_v` has the same number of columns for values as for keys.
#[macro_export]
macro_rules! for_each_variant {
    ($callback:ident) => {
        $callback! {
            forward_sm80_bf16_d32:  Forward { arch: Sm80, dtype: Bf16, head_dim: 32 }
            forward_sm80_bf16_d64:  Forward { arch: Sm80, dtype: Bf16, head_dim: 64 }
            forward_sm80_bf16_d128: Forward { arch: Sm80, dtype: Bf16, head_dim: 128 }
            forward_sm80_bf16_d256: Forward { arch: Sm80, dtype: Bf16, head_dim: 256 }
            forward_sm80_bf16_d512: Forward { arch: Sm80, dtype: Bf16, head_dim: 512 }
            forward_sm80_f16_d32:   Forward { arch: Sm80, dtype: F16, head_dim: 32 }
            forward_sm80_f16_d64:   Forward { arch: Sm80, dtype: F16, head_dim: 64 }
            forward_sm80_f16_d128:  Forward { arch: Sm80, dtype: F16, head_dim: 128 }
            forward_sm80_f16_d256:  Forward { arch: Sm80, dtype: F16, head_dim: 256 }
            forward_sm80_f16_d512:  Forward { arch: Sm80, dtype: F16, head_dim: 512 }
            forward_sm80_bf16_d32_compact: Forward { arch: Sm80, dtype: Bf16, head_dim: 32, tiles: Compact }
            forward_sm80_bf16_d64_compact: Forward { arch: Sm80, dtype: Bf16, head_dim: 64, tiles: Compact }
            forward_sm80_bf16_d128_compact: Forward { arch: Sm80, dtype: Bf16, head_dim: 128, tiles: Compact }
            forward_sm80_f16_d32_compact: Forward { arch: Sm80, dtype: F16, head_dim: 32, tiles: Compact }
            forward_sm80_f16_d64_compact: Forward { arch: Sm80, dtype: F16, head_dim: 64, tiles: Compact }
            forward_sm80_f16_d128_compact: Forward { arch: Sm80, dtype: F16, head_dim: 128, tiles: Compact }

            forward_flash1_sm80_bf16_d32:  Flash1Forward { arch: Sm80, dtype: Bf16, head_dim: 32 }
            forward_flash1_sm80_bf16_d64:  Flash1Forward { arch: Sm80, dtype: Bf16, head_dim: 64 }
            forward_flash1_sm80_bf16_d128: Flash1Forward { arch: Sm80, dtype: Bf16, head_dim: 128 }
            forward_flash1_sm80_bf16_d256: Flash1Forward { arch: Sm80, dtype: Bf16, head_dim: 256 }
            forward_flash1_sm80_f16_d32:   Flash1Forward { arch: Sm80, dtype: F16, head_dim: 32 }
            forward_flash1_sm80_f16_d64:   Flash1Forward { arch: Sm80, dtype: F16, head_dim: 64 }
            forward_flash1_sm80_f16_d128:  Flash1Forward { arch: Sm80, dtype: F16, head_dim: 128 }
            forward_flash1_sm80_f16_d256:  Flash1Forward { arch: Sm80, dtype: F16, head_dim: 256 }

            forward_sm80_f32_d32:  Forward { arch: Sm80, dtype: F32, head_dim: 32 }
            forward_sm80_f32_d64:  Forward { arch: Sm80, dtype: F32, head_dim: 64 }
            forward_sm80_f32_d128: Forward { arch: Sm80, dtype: F32, head_dim: 128 }

            forward_e4m3_sm89_bf16_d64_compact:  ForwardE4m3 { arch: Sm89, dtype: Bf16, head_dim: 64, tiles: Compact }
            forward_e4m3_sm89_bf16_d128_compact: ForwardE4m3 { arch: Sm89, dtype: Bf16, head_dim: 128, tiles: Compact }
            forward_e4m3_sm89_f16_d64_compact:   ForwardE4m3 { arch: Sm89, dtype: F16, head_dim: 64, tiles: Compact }
            forward_e4m3_sm89_f16_d128_compact:  ForwardE4m3 { arch: Sm89, dtype: F16, head_dim: 128, tiles: Compact }

            forward_sm90a_bf16_d64:          TmaForward { arch: Sm90a, dtype: Bf16, head_dim: 64 }
            forward_sm90a_bf16_d96:          TmaForward { arch: Sm90a, dtype: Bf16, head_dim: 96 }
            forward_sm90a_bf16_d128:         TmaForward { arch: Sm90a, dtype: Bf16, head_dim: 128 }
            forward_sm90a_bf16_d160:         TmaForward { arch: Sm90a, dtype: Bf16, head_dim: 160 }
            forward_sm90a_bf16_d192:         TmaForward { arch: Sm90a, dtype: Bf16, head_dim: 192 }
            forward_sm90a_bf16_d256:         TmaForward { arch: Sm90a, dtype: Bf16, head_dim: 256 }
            forward_sm90a_bf16_d512:         TmaForward { arch: Sm90a, dtype: Bf16, head_dim: 512 }
            forward_sm90a_bf16_d64_wide:     TmaForward { arch: Sm90a, dtype: Bf16, head_dim: 64, tiles: Wide }
            forward_sm90a_bf16_d128_wide:    TmaForward { arch: Sm90a, dtype: Bf16, head_dim: 128, tiles: Wide }
            forward_sm90a_bf16_d64_compact:  TmaForward { arch: Sm90a, dtype: Bf16, head_dim: 64, tiles: Compact }
            forward_sm90a_bf16_d96_compact:  TmaForward { arch: Sm90a, dtype: Bf16, head_dim: 96, tiles: Compact }
            forward_sm90a_bf16_d128_compact: TmaForward { arch: Sm90a, dtype: Bf16, head_dim: 128, tiles: Compact }
            forward_sm90a_bf16_d192_compact: TmaForward { arch: Sm90a, dtype: Bf16, head_dim: 192, tiles: Compact }
            forward_sm90a_bf16_d256_compact: TmaForward { arch: Sm90a, dtype: Bf16, head_dim: 256, tiles: Compact }
            forward_sm90a_f16_d64:           TmaForward { arch: Sm90a, dtype: F16, head_dim: 64 }
            forward_sm90a_f16_d96:           TmaForward { arch: Sm90a, dtype: F16, head_dim: 96 }
            forward_sm90a_f16_d128:          TmaForward { arch: Sm90a, dtype: F16, head_dim: 128 }
            forward_sm90a_f16_d160:          TmaForward { arch: Sm90a, dtype: F16, head_dim: 160 }
            forward_sm90a_f16_d192:          TmaForward { arch: Sm90a, dtype: F16, head_dim: 192 }
            forward_sm90a_f16_d256:          TmaForward { arch: Sm90a, dtype: F16, head_dim: 256 }
            forward_sm90a_f16_d512:          TmaForward { arch: Sm90a, dtype: F16, head_dim: 512 }
            forward_sm90a_f16_d64_wide:      TmaForward { arch: Sm90a, dtype: F16, head_dim: 64, tiles: Wide }
            forward_sm90a_f16_d128_wide:     TmaForward { arch: Sm90a, dtype: F16, head_dim: 128, tiles: Wide }
            forward_sm90a_f16_d64_compact:   TmaForward { arch: Sm90a, dtype: F16, head_dim: 64, tiles: Compact }
            forward_sm90a_f16_d96_compact:   TmaForward { arch: Sm90a, dtype: F16, head_dim: 96, tiles: Compact }
            forward_sm90a_f16_d128_compact:  TmaForward { arch: Sm90a, dtype: F16, head_dim: 128, tiles: Compact }
            forward_sm90a_f16_d192_compact:  TmaForward { arch: Sm90a, dtype: F16, head_dim: 192, tiles: Compact }
            forward_sm90a_f16_d256_compact:  TmaForward { arch: Sm90a, dtype: F16, head_dim: 256, tiles: Compact }

            forward_sm90a_bf16_d64_grouped:  TmaForward { arch: Sm90a, dtype: Bf16, head_dim: 64, tiles: Grouped }
            forward_sm90a_bf16_d128_grouped: TmaForward { arch: Sm90a, dtype: Bf16, head_dim: 128, tiles: Grouped }
            forward_sm90a_f16_d64_grouped:   TmaForward { arch: Sm90a, dtype: F16, head_dim: 64, tiles: Grouped }
            forward_sm90a_f16_d128_grouped:  TmaForward { arch: Sm90a, dtype: F16, head_dim: 128, tiles: Grouped }

            forward_sm90a_e4m3_d64:  TmaForward { arch: Sm90a, dtype: E4m3, head_dim: 64 }
            forward_sm90a_e4m3_d96:  TmaForward { arch: Sm90a, dtype: E4m3, head_dim: 96 }
            forward_sm90a_e4m3_d128: TmaForward { arch: Sm90a, dtype: E4m3, head_dim: 128 }
            forward_sm90a_e4m3_d192: TmaForward { arch: Sm90a, dtype: E4m3, head_dim: 192 }
            forward_sm90a_e4m3_d256: TmaForward { arch: Sm90a, dtype: E4m3, head_dim: 256 }
            forward_sm90a_e4m3_d64_wide:  TmaForward { arch: Sm90a, dtype: E4m3, head_dim: 64, tiles: Wide }
            forward_sm90a_e4m3_d96_wide:  TmaForward { arch: Sm90a, dtype: E4m3, head_dim: 96, tiles: Wide }
            forward_sm90a_e4m3_d128_wide: TmaForward { arch: Sm90a, dtype: E4m3, head_dim: 128, tiles: Wide }
            forward_sm90a_e4m3_d128_one_level: TmaForward { arch: Sm90a, dtype: E4m3, head_dim: 128, tiles: OneLevel }
            forward_sm90a_e4m3_d192_one_level: TmaForward { arch: Sm90a, dtype: E4m3, head_dim: 192, tiles: OneLevel }
            forward_sm90a_e4m3_d256_one_level: TmaForward { arch: Sm90a, dtype: E4m3, head_dim: 256, tiles: OneLevel }

            forward_sm90a_bf16_d64_v256:  TmaForward { arch: Sm90a, dtype: Bf16, head_dim: 64, head_dim_v: 256 }
            forward_sm90a_bf16_d64_v512:  TmaForward { arch: Sm90a, dtype: Bf16, head_dim: 64, head_dim_v: 512 }
            forward_sm90a_bf16_d192_v128: TmaForward { arch: Sm90a, dtype: Bf16, head_dim: 192, head_dim_v: 128 }
            forward_sm90a_f16_d64_v256:   TmaForward { arch: Sm90a, dtype: F16, head_dim: 64, head_dim_v: 256 }
            forward_sm90a_f16_d64_v512:   TmaForward { arch: Sm90a, dtype: F16, head_dim: 64, head_dim_v: 512 }
            forward_sm90a_f16_d192_v128:  TmaForward { arch: Sm90a, dtype: F16, head_dim: 192, head_dim_v: 128 }

            forward_mla_sm90a_bf16_d576_compact: TmaForwardMla { arch: Sm90a, dtype: Bf16, head_dim: 576, tiles: Compact }
            forward_mla_sm90a_f16_d576_compact:  TmaForwardMla { arch: Sm90a, dtype: F16, head_dim: 576, tiles: Compact }

            combine_sm80_bf16: Combine { arch: Sm80, dtype: Bf16 }
            combine_sm80_f16:  Combine { arch: Sm80, dtype: F16 }
            merge_sm80_bf16: Merge { arch: Sm80, dtype: Bf16 }
            merge_sm80_f16:  Merge { arch: Sm80, dtype: F16 }
            merge_sm80_f32:  Merge { arch: Sm80, dtype: F32 }
            amax_sm89_bf16: Amax { arch: Sm89, dtype: Bf16 }
            amax_sm89_f16:  Amax { arch: Sm89, dtype: F16 }
            amax_sm89_f32:  Amax { arch: Sm89, dtype: F32 }
            quantize_sm89_bf16: Quantize { arch: Sm89, dtype: Bf16 }
            quantize_sm89_f16:  Quantize { arch: Sm89, dtype: F16 }
            quantize_sm89_f32:  Quantize { arch: Sm89, dtype: F32 }
            dequantize_sm80_bf16: Dequantize { arch: Sm80, dtype: Bf16 }
            dequantize_sm80_f16:  Dequantize { arch: Sm80, dtype: F16 }
            dequantize_sm80_f32:  Dequantize { arch: Sm80, dtype: F32 }
            append_sm80_bf16: Append { arch: Sm80, dtype: Bf16 }
            append_sm80_f16:  Append { arch: Sm80, dtype: F16 }
            append_sm80_f32:  Append { arch: Sm80, dtype: F32 }
            append_e4m3_sm89_bf16: AppendE4m3 { arch: Sm89, dtype: Bf16 }
            append_e4m3_sm89_f16:  AppendE4m3 { arch: Sm89, dtype: F16 }
            append_e4m3_sm89_f32:  AppendE4m3 { arch: Sm89, dtype: F32 }
            clear_sm80: Clear { arch: Sm80 }
            mask_map_sm80: MaskMap { arch: Sm80 }
            block_list_sm80: BlockList { arch: Sm80 }
            sink_gradient_sm80: SinkGradient { arch: Sm80 }
            tensor_gradient_sm80_bf16: TensorGradient { arch: Sm80, dtype: Bf16 }
            tensor_gradient_sm80_f16:  TensorGradient { arch: Sm80, dtype: F16 }
            tensor_gradient_sm80_f32:  TensorGradient { arch: Sm80, dtype: F32 }
            tile_list_sm80:  TileList { arch: Sm80 }
            tile_list_sm90a: TmaTileList { arch: Sm90a }

            backward_preprocess_sm80_bf16_d32:  BackwardPreprocess { arch: Sm80, dtype: Bf16, head_dim: 32 }
            backward_preprocess_sm80_bf16_d64:  BackwardPreprocess { arch: Sm80, dtype: Bf16, head_dim: 64 }
            backward_preprocess_sm80_bf16_d128: BackwardPreprocess { arch: Sm80, dtype: Bf16, head_dim: 128 }
            backward_preprocess_sm80_bf16_d256: BackwardPreprocess { arch: Sm80, dtype: Bf16, head_dim: 256 }
            backward_preprocess_sm80_f16_d32:   BackwardPreprocess { arch: Sm80, dtype: F16, head_dim: 32 }
            backward_preprocess_sm80_f16_d64:   BackwardPreprocess { arch: Sm80, dtype: F16, head_dim: 64 }
            backward_preprocess_sm80_f16_d128:  BackwardPreprocess { arch: Sm80, dtype: F16, head_dim: 128 }
            backward_preprocess_sm80_f16_d256:  BackwardPreprocess { arch: Sm80, dtype: F16, head_dim: 256 }

            backward_sm80_bf16_d32:  Backward { arch: Sm80, dtype: Bf16, head_dim: 32 }
            backward_sm80_bf16_d64:  Backward { arch: Sm80, dtype: Bf16, head_dim: 64 }
            backward_sm80_bf16_d128: Backward { arch: Sm80, dtype: Bf16, head_dim: 128 }
            backward_sm80_bf16_d256: Backward { arch: Sm80, dtype: Bf16, head_dim: 256 }
            backward_sm80_f16_d32:   Backward { arch: Sm80, dtype: F16, head_dim: 32 }
            backward_sm80_f16_d64:   Backward { arch: Sm80, dtype: F16, head_dim: 64 }
            backward_sm80_f16_d128:  Backward { arch: Sm80, dtype: F16, head_dim: 128 }
            backward_sm80_f16_d256:  Backward { arch: Sm80, dtype: F16, head_dim: 256 }

            backward_postprocess_sm80_bf16_d32:  BackwardPostprocess { arch: Sm80, dtype: Bf16, head_dim: 32 }
            backward_postprocess_sm80_bf16_d64:  BackwardPostprocess { arch: Sm80, dtype: Bf16, head_dim: 64 }
            backward_postprocess_sm80_bf16_d128: BackwardPostprocess { arch: Sm80, dtype: Bf16, head_dim: 128 }
            backward_postprocess_sm80_bf16_d256: BackwardPostprocess { arch: Sm80, dtype: Bf16, head_dim: 256 }
            backward_postprocess_sm80_f16_d32:   BackwardPostprocess { arch: Sm80, dtype: F16, head_dim: 32 }
            backward_postprocess_sm80_f16_d64:   BackwardPostprocess { arch: Sm80, dtype: F16, head_dim: 64 }
            backward_postprocess_sm80_f16_d128:  BackwardPostprocess { arch: Sm80, dtype: F16, head_dim: 128 }
            backward_postprocess_sm80_f16_d256:  BackwardPostprocess { arch: Sm80, dtype: F16, head_dim: 256 }

            backward_preprocess_sm80_bf16_d128_compact: BackwardPreprocess { arch: Sm80, dtype: Bf16, head_dim: 128, tiles: Compact }
            backward_preprocess_sm80_bf16_d256_compact: BackwardPreprocess { arch: Sm80, dtype: Bf16, head_dim: 256, tiles: Compact }
            backward_preprocess_sm80_f16_d128_compact:  BackwardPreprocess { arch: Sm80, dtype: F16, head_dim: 128, tiles: Compact }
            backward_preprocess_sm80_f16_d256_compact:  BackwardPreprocess { arch: Sm80, dtype: F16, head_dim: 256, tiles: Compact }
            backward_sm80_bf16_d128_compact:       Backward { arch: Sm80, dtype: Bf16, head_dim: 128, tiles: Compact }
            backward_sm80_bf16_d256_compact:       Backward { arch: Sm80, dtype: Bf16, head_dim: 256, tiles: Compact }
            backward_sm80_f16_d128_compact:        Backward { arch: Sm80, dtype: F16, head_dim: 128, tiles: Compact }
            backward_sm80_f16_d256_compact:        Backward { arch: Sm80, dtype: F16, head_dim: 256, tiles: Compact }
            backward_postprocess_sm80_bf16_d128_compact:    BackwardPostprocess { arch: Sm80, dtype: Bf16, head_dim: 128, tiles: Compact }
            backward_postprocess_sm80_bf16_d256_compact:    BackwardPostprocess { arch: Sm80, dtype: Bf16, head_dim: 256, tiles: Compact }
            backward_postprocess_sm80_f16_d128_compact:     BackwardPostprocess { arch: Sm80, dtype: F16, head_dim: 128, tiles: Compact }
            backward_postprocess_sm80_f16_d256_compact:     BackwardPostprocess { arch: Sm80, dtype: F16, head_dim: 256, tiles: Compact }

            backward_preprocess_sm80_f32_d32:          BackwardPreprocess { arch: Sm80, dtype: F32, head_dim: 32 }
            backward_preprocess_sm80_f32_d64:          BackwardPreprocess { arch: Sm80, dtype: F32, head_dim: 64 }
            backward_preprocess_sm80_f32_d128:         BackwardPreprocess { arch: Sm80, dtype: F32, head_dim: 128 }
            backward_preprocess_sm80_f32_d128_compact: BackwardPreprocess { arch: Sm80, dtype: F32, head_dim: 128, tiles: Compact }
            backward_sm80_f32_d32:                Backward { arch: Sm80, dtype: F32, head_dim: 32 }
            backward_sm80_f32_d64:                Backward { arch: Sm80, dtype: F32, head_dim: 64 }
            backward_sm80_f32_d128:               Backward { arch: Sm80, dtype: F32, head_dim: 128 }
            backward_sm80_f32_d128_compact:       Backward { arch: Sm80, dtype: F32, head_dim: 128, tiles: Compact }
            backward_postprocess_sm80_f32_d32:             BackwardPostprocess { arch: Sm80, dtype: F32, head_dim: 32 }
            backward_postprocess_sm80_f32_d64:             BackwardPostprocess { arch: Sm80, dtype: F32, head_dim: 64 }
            backward_postprocess_sm80_f32_d128:            BackwardPostprocess { arch: Sm80, dtype: F32, head_dim: 128 }
            backward_postprocess_sm80_f32_d128_compact:    BackwardPostprocess { arch: Sm80, dtype: F32, head_dim: 128, tiles: Compact }

            backward_flash1_sm80_bf16_d32:  Flash1Backward { arch: Sm80, dtype: Bf16, head_dim: 32 }
            backward_flash1_sm80_bf16_d64:  Flash1Backward { arch: Sm80, dtype: Bf16, head_dim: 64 }
            backward_flash1_sm80_bf16_d128: Flash1Backward { arch: Sm80, dtype: Bf16, head_dim: 128 }
            backward_flash1_sm80_bf16_d256: Flash1Backward { arch: Sm80, dtype: Bf16, head_dim: 256 }
            backward_flash1_sm80_f16_d32:   Flash1Backward { arch: Sm80, dtype: F16, head_dim: 32 }
            backward_flash1_sm80_f16_d64:   Flash1Backward { arch: Sm80, dtype: F16, head_dim: 64 }
            backward_flash1_sm80_f16_d128:  Flash1Backward { arch: Sm80, dtype: F16, head_dim: 128 }
            backward_flash1_sm80_f16_d256:  Flash1Backward { arch: Sm80, dtype: F16, head_dim: 256 }
            backward_flash1_sm80_bf16_d128_compact: Flash1Backward { arch: Sm80, dtype: Bf16, head_dim: 128, tiles: Compact }
            backward_flash1_sm80_f16_d128_compact:  Flash1Backward { arch: Sm80, dtype: F16, head_dim: 128, tiles: Compact }

            backward_preprocess_sm90a_bf16_d64:       TmaBackwardPreprocess { arch: Sm90a, dtype: Bf16, head_dim: 64 }
            backward_preprocess_sm90a_bf16_d96:       TmaBackwardPreprocess { arch: Sm90a, dtype: Bf16, head_dim: 96 }
            backward_preprocess_sm90a_bf16_d128:      TmaBackwardPreprocess { arch: Sm90a, dtype: Bf16, head_dim: 128 }
            backward_preprocess_sm90a_bf16_d192:      TmaBackwardPreprocess { arch: Sm90a, dtype: Bf16, head_dim: 192 }
            backward_preprocess_sm90a_bf16_d256:      TmaBackwardPreprocess { arch: Sm90a, dtype: Bf16, head_dim: 256 }
            backward_preprocess_sm90a_bf16_d128_wide: TmaBackwardPreprocess { arch: Sm90a, dtype: Bf16, head_dim: 128, tiles: Wide }
            backward_preprocess_sm90a_bf16_d256_wide: TmaBackwardPreprocess { arch: Sm90a, dtype: Bf16, head_dim: 256, tiles: Wide }
            backward_preprocess_sm90a_bf16_d256_paired: TmaBackwardPreprocess { arch: Sm90a, dtype: Bf16, head_dim: 256, tiles: Paired }
            backward_preprocess_sm90a_f16_d64:        TmaBackwardPreprocess { arch: Sm90a, dtype: F16, head_dim: 64 }
            backward_preprocess_sm90a_f16_d96:        TmaBackwardPreprocess { arch: Sm90a, dtype: F16, head_dim: 96 }
            backward_preprocess_sm90a_f16_d128:       TmaBackwardPreprocess { arch: Sm90a, dtype: F16, head_dim: 128 }
            backward_preprocess_sm90a_f16_d192:       TmaBackwardPreprocess { arch: Sm90a, dtype: F16, head_dim: 192 }
            backward_preprocess_sm90a_f16_d256:       TmaBackwardPreprocess { arch: Sm90a, dtype: F16, head_dim: 256 }
            backward_preprocess_sm90a_f16_d128_wide:  TmaBackwardPreprocess { arch: Sm90a, dtype: F16, head_dim: 128, tiles: Wide }
            backward_preprocess_sm90a_f16_d256_wide:  TmaBackwardPreprocess { arch: Sm90a, dtype: F16, head_dim: 256, tiles: Wide }
            backward_preprocess_sm90a_f16_d256_paired: TmaBackwardPreprocess { arch: Sm90a, dtype: F16, head_dim: 256, tiles: Paired }
            backward_preprocess_sm90a_bf16_d192_v128: TmaBackwardPreprocess { arch: Sm90a, dtype: Bf16, head_dim: 192, head_dim_v: 128 }
            backward_preprocess_sm90a_f16_d192_v128:  TmaBackwardPreprocess { arch: Sm90a, dtype: F16, head_dim: 192, head_dim_v: 128 }

            backward_sm90a_bf16_d64:       TmaBackward { arch: Sm90a, dtype: Bf16, head_dim: 64 }
            backward_sm90a_bf16_d96:       TmaBackward { arch: Sm90a, dtype: Bf16, head_dim: 96 }
            backward_sm90a_bf16_d128:      TmaBackward { arch: Sm90a, dtype: Bf16, head_dim: 128 }
            backward_sm90a_bf16_d192:      TmaBackward { arch: Sm90a, dtype: Bf16, head_dim: 192 }
            backward_sm90a_bf16_d256:      TmaBackward { arch: Sm90a, dtype: Bf16, head_dim: 256 }
            backward_sm90a_bf16_d128_wide: TmaBackward { arch: Sm90a, dtype: Bf16, head_dim: 128, tiles: Wide }
            backward_sm90a_bf16_d256_wide: TmaBackward { arch: Sm90a, dtype: Bf16, head_dim: 256, tiles: Wide }
            backward_sm90a_bf16_d256_paired: TmaBackward { arch: Sm90a, dtype: Bf16, head_dim: 256, tiles: Paired }
            backward_sm90a_f16_d64:        TmaBackward { arch: Sm90a, dtype: F16, head_dim: 64 }
            backward_sm90a_f16_d96:        TmaBackward { arch: Sm90a, dtype: F16, head_dim: 96 }
            backward_sm90a_f16_d128:       TmaBackward { arch: Sm90a, dtype: F16, head_dim: 128 }
            backward_sm90a_f16_d192:       TmaBackward { arch: Sm90a, dtype: F16, head_dim: 192 }
            backward_sm90a_f16_d256:       TmaBackward { arch: Sm90a, dtype: F16, head_dim: 256 }
            backward_sm90a_f16_d128_wide:  TmaBackward { arch: Sm90a, dtype: F16, head_dim: 128, tiles: Wide }
            backward_sm90a_f16_d256_wide:  TmaBackward { arch: Sm90a, dtype: F16, head_dim: 256, tiles: Wide }
            backward_sm90a_f16_d256_paired: TmaBackward { arch: Sm90a, dtype: F16, head_dim: 256, tiles: Paired }
            backward_sm90a_bf16_d192_v128: TmaBackward { arch: Sm90a, dtype: Bf16, head_dim: 192, head_dim_v: 128 }
            backward_sm90a_f16_d192_v128:  TmaBackward { arch: Sm90a, dtype: F16, head_dim: 192, head_dim_v: 128 }

            standard_scores_sm80_bf16:    StandardScores { arch: Sm80, dtype: Bf16 }
            standard_scores_sm80_f16:     StandardScores { arch: Sm80, dtype: F16 }
            standard_softmax_sm80_bf16:   StandardSoftmax { arch: Sm80, dtype: Bf16 }
            standard_softmax_sm80_f16:    StandardSoftmax { arch: Sm80, dtype: F16 }
            standard_output_sm80_bf16:    StandardOutput { arch: Sm80, dtype: Bf16 }
            standard_output_sm80_f16:     StandardOutput { arch: Sm80, dtype: F16 }
            standard_delta_sm80_bf16:     StandardDelta { arch: Sm80, dtype: Bf16 }
            standard_delta_sm80_f16:      StandardDelta { arch: Sm80, dtype: F16 }
            standard_delta_sm80_f32:      StandardDelta { arch: Sm80, dtype: F32 }
            standard_d_v_sm80_bf16:       StandardDv { arch: Sm80, dtype: Bf16 }
            standard_d_v_sm80_f16:        StandardDv { arch: Sm80, dtype: F16 }
            standard_d_weights_sm80_bf16: StandardDWeights { arch: Sm80, dtype: Bf16 }
            standard_d_weights_sm80_f16:  StandardDWeights { arch: Sm80, dtype: F16 }
            standard_d_scores_sm80_bf16:  StandardDScores { arch: Sm80, dtype: Bf16 }
            standard_d_scores_sm80_f16:   StandardDScores { arch: Sm80, dtype: F16 }
            standard_d_q_sm80_bf16:       StandardDq { arch: Sm80, dtype: Bf16 }
            standard_d_q_sm80_f16:        StandardDq { arch: Sm80, dtype: F16 }
            standard_d_k_sm80_bf16:       StandardDk { arch: Sm80, dtype: Bf16 }
            standard_d_k_sm80_f16:        StandardDk { arch: Sm80, dtype: F16 }
        }
    };
}

/// The tile shape of a variant. The kernels of one pass have the same shape.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum TileShape {
    /// The preferred one, if it fits.
    Default,
    /// Smaller. In flash2's backward pass for devices with 99 KB of shared memory per block, compute capability 8.6, 8.9 and
    /// 12.0; in flash3's forward pass for short sequences, and with tiles that several heads may share; in flash2's decode kernel, with such tiles.
    Compact,
    /// Larger: more rows of q, for long sequences.
    Wide,
    /// In flash3's forward pass: as large as the default one, with tiles that several heads may share, and keys that may be divided among tiles. For
    /// few queries of many heads with the same keys, which compact tiles would read more than once.
    Grouped,
    /// In flash3's forward pass in 8 bits, for long sequences whose user asks for speed: sums over the keys have one level.
    OneLevel,
    /// In flash3's backward pass, for long sequences: two blocks of a cluster share a tile of keys.
    Paired,
}

impl TileShape {
    /// The shape of this number; another number fails to compile.
    pub const fn numbered(number: u32) -> TileShape {
        const ALL: [TileShape; 6] = [
            TileShape::Default,
            TileShape::Compact,
            TileShape::Wide,
            TileShape::Grouped,
            TileShape::OneLevel,
            TileShape::Paired,
        ];
        ALL[number as usize]
    }

    /// Its name in variants and messages.
    pub const fn name(self) -> &'static str {
        match self {
            TileShape::Default => "default",
            TileShape::Compact => "compact",
            TileShape::Wide => "wide",
            TileShape::Grouped => "grouped",
            TileShape::OneLevel => "one_level",
            TileShape::Paired => "paired",
        }
    }
}

/// What a kernel computes, and by which algorithm.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Kind {
    /// flash2 forward: o and lse.
    Forward,
    /// flash2 decode over keys and values in `e4m3`: o and lse.
    ForwardE4m3,
    /// flash1 forward: o and lse.
    Flash1Forward,
    /// flash3 forward: o and lse.
    TmaForward,
    /// flash3 forward with values that are the first columns of the keys: o and lse.
    TmaForwardMla,
    /// flash3 forward, last, if keys are divided among tiles: merges o and lse of the splits.
    Combine,
    /// Any backward pass with sinks: their gradients.
    SinkGradient,
    /// Any backward pass: the gradient of a tensor that a score reads.
    TensorGradient,
    /// Not attention: merges o and lse over two parts of the keys into those over all keys.
    Merge,
    /// Not attention: appends rows to a cache of keys and values, rotates rows by their positions.
    Append,
    /// The same of a cache in `e4m3`.
    AppendE4m3,
    /// Backward pass of flash2 and flash3, first, if no query may see some keys: clears their rows of dK and dV.
    Clear,
    /// Not attention: the greatest magnitudes of a tensor's tiles, or of each scale's tiles once these are there.
    Amax,
    /// Not attention: rounds a tensor to 8 bits.
    Quantize,
    /// Any backward pass, first, if q, k and v are in 8 bits: takes them out.
    Dequantize,
    /// Either pass of flash2 and flash3, first, if a mask expression may hide whole blocks: the map of a block mask with these blocks.
    MaskMap,
    /// Either pass of flash2 and flash3, first, under a block mask: the lists of visible blocks of tiles; in the backward pass twice, first for the ranks.
    BlockList,
    /// Either pass of flash2, first, with sequences of different lengths: the list of their tiles; clears rows of o, lse and the gradients outside
    /// every sequence.
    TileList,
    /// The same for flash3; also tensor maps of every sequence.
    TmaTileList,
    /// flash1 and flash2 backward, first: Δ and lse·log₂e, padded; clears the accumulator of dQ, the dQ semaphores and the tile counters.
    BackwardPreprocess,
    /// flash2 backward, second: dK and dV; contributions to dQ.
    Backward,
    /// flash1 backward, between [`Kind::BackwardPreprocess`] and [`Kind::BackwardPostprocess`]: as [`Kind::Backward`].
    Flash1Backward,
    /// flash1 and flash2 backward, last: dQ from its f32 accumulator.
    BackwardPostprocess,
    /// flash3 backward, first: as [`Kind::BackwardPreprocess`].
    TmaBackwardPreprocess,
    /// flash3 backward, last: as [`Kind::Backward`], and then as [`Kind::BackwardPostprocess`].
    TmaBackward,
    /// standard forward, first: S = q·kᵀ · scale, masked.
    StandardScores,
    /// standard forward, second: P = softmax(S), lse.
    StandardSoftmax,
    /// standard forward, last: O = P·V.
    StandardOutput,
    /// standard backward: Δ = rowsum(dO ∘ O).
    StandardDelta,
    /// standard backward: dV = Pᵀ·dO, summed over the group of query heads.
    StandardDv,
    /// standard backward: dP = dO·Vᵀ.
    StandardDWeights,
    /// standard backward: dS = P ∘ (dP − Δ), over P.
    StandardDScores,
    /// standard backward: dQ = dS·K · scale.
    StandardDq,
    /// standard backward: dK = dSᵀ·Q · scale, summed over the group of query heads.
    StandardDk,
}

/// One kernel of the list.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Variant {
    /// Its name, which is also that of the PTX entry and of the PTX module.
    pub name: &'static str,
    /// What it computes.
    pub kind: Kind,
    /// The architecture that it is compiled for.
    pub arch: Arch,
    /// Element type; `None`: any, with tensors described as having elements of two bytes.
    pub dtype: Option<Dtype>,
    /// The head_dim it is compiled for; `None`: it is compiled for none. See [`Variant::head_dims`].
    pub head_dim: Option<u32>,
    /// The columns of values that it is compiled for, if they differ.
    pub head_dim_v: Option<u32>,
    /// The shape of its tiles.
    pub tiles: TileShape,
    /// Whether it records its tiles.
    pub stamps: Stamps,
    /// The resources of a block.
    pub tile_config: TileConfig,
}

#[macro_use]
mod table;

mod arch;
mod capabilities;
mod columns;
mod dtype;
mod stamps;

pub use crate::config::TileConfig;
pub use arch::{Arch, Reach};
pub use capabilities::{ScoreSite, of_elements};
pub use columns::{
    HEAD_DIM_MULTIPLE, HEAD_DIM_MULTIPLE_E4M3, HEAD_DIM_MULTIPLE_F32, HeadDims, MAX_HEAD_DIM,
    MAX_HEAD_DIM_IN_PIECES,
};
pub use dtype::Dtype;
pub use stamps::{PROFILED, Stamps, compiled};

/// The list as data, in its order.
pub const VARIANTS: &[Variant] = for_each_variant!(listed);

/// The variant with this name, in the list or profiled.
pub fn by_name(name: &str) -> Option<&'static Variant> {
    compiled().find(|variant| variant.name == name)
}
