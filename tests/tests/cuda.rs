//! Every case of the suite on the first GPU.
conformance::suite!(conformance::subject::CUDA_OF_FEW_SMS { flash3: Flash3 });
conformance::suite!(conformance::subject::CUDA {
    flash1: Flash1,
    flash2: Flash2,
    standard: Standard
});
conformance::flash1_suite!(
    conformance::subject::CUDA,
    conformance::subject::CUDA_COMPACT
);
conformance::compact_suite!(conformance::subject::CUDA_COMPACT);
conformance::short_suite!(conformance::subject::CUDA_SHORT);
conformance::decode_suite!(conformance::subject::CUDA);
conformance::tf32_suite!(conformance::subject::CUDA);
conformance::grouped_suite!(conformance::subject::CUDA_GROUPED);
conformance::thresholds_suite!(
    apart: conformance::subject::CUDA_APART,
    many_sms: conformance::subject::CUDA_MANY_SMS,
    grouped: conformance::subject::CUDA_GROUPED_SOON,
    grouped_apart: conformance::subject::CUDA_GROUPED_APART,
    wide: conformance::subject::CUDA_WIDE_SOON,
    wide_splits: conformance::subject::CUDA_WIDE_SPLITS,
    paired: conformance::subject::CUDA_PAIRED_SOON,
    paired_splits: conformance::subject::CUDA_PAIRED_SPLITS
);
conformance::many_suite!(conformance::subject::CUDA_AS_IT_IS);
conformance::wide_tiles_suite!(conformance::subject::CUDA_WIDE);
conformance::orders_suite!(conformance::subject::CUDA_ORDERS);
conformance::edges_suite!(conformance::subject::CUDA_OF_FEW_SMS {
    flash1: Flash1,
    flash2: Flash2,
    flash3: Flash3
});
conformance::head_splits_suite!(conformance::subject::CUDA_HEAD_SPLITS);
conformance::merge_suite!(conformance::subject::CUDA);
conformance::append_suite!(conformance::subject::CUDA);
conformance::quantize_suite!(conformance::subject::CUDA);
conformance::fp8_suite!(conformance::subject::CUDA, Flash2);
conformance::e4m3_suite!(conformance::subject::CUDA, Flash3, few: Flash2, wide: conformance::subject::CUDA_WIDE_SOON);
conformance::mla_suite!(conformance::subject::CUDA_OF_FEW_SMS, Flash3);
conformance::pages_suite!(conformance::subject::CUDA_OF_FEW_SMS {
    pages: Flash3,
    pages_flash2: Flash2
});
conformance::pages_suite!(conformance::subject::CUDA_SHORT {
    pages_short: Flash3
});
conformance::beyond_suite!(conformance::subject::CUDA {
    flash2: Flash2,
    flash3: Flash3
});
conformance::unseen_suite!(conformance::subject::CUDA {
    unseen: flash3,
    flash2,
    standard,
});
conformance::unseen_suite!(conformance::subject::CUDA);
conformance::unseen_suite!(conformance::subject::CUDA_OF_FEW_SMS {
    unseen_few_sms: flash3
});
conformance::scores_suite!(conformance::subject::CUDA_OF_FEW_SMS { scores: Flash3 });
conformance::scores_suite!(conformance::subject::CUDA {
    scores_flash2: Flash2,
    scores_standard: Standard
});
conformance::scores_suite!(conformance::subject::CUDA_SHORT {
    scores_short: Flash3
});
conformance::wide_scores_suite!(conformance::subject::CUDA_WIDE);
conformance::sinks_suite!(conformance::subject::CUDA_OF_FEW_SMS {
    sinks: Flash3 {
        all,
        masks,
        lengths,
        blocks
    }
});
conformance::sinks_suite!(conformance::subject::CUDA {
    sinks_flash2: Flash2 {
        all,
        masks,
        lengths,
        blocks,
        few
    } all { splits }
});
conformance::sinks_suite!(conformance::subject::CUDA {
    sinks_flash1: Flash1 { all, masks }
});
conformance::sinks_suite!(conformance::subject::CUDA {
    sinks_standard: Standard {
        all,
        masks,
        lengths,
        blocks
    }
});
conformance::sinks_suite!(conformance::subject::CUDA_SHORT {
    sinks_short: Flash3 { short } all { splits }
});
conformance::sinks_suite!(conformance::subject::CUDA_GROUPED {
    sinks_grouped: Flash3 { grouped }
});
conformance::sinks_suite!(conformance::subject::CUDA_WIDE {
    sinks_wide: Flash3 { wide }
});
conformance::sinks_suite!(conformance::subject::CUDA_COMPACT {
    sinks_compact: Flash2 { compact }
});
conformance::sinks_suite!(conformance::subject::CUDA_HEAD_SPLITS {
    sinks_shares: Flash3 { shares }
});
conformance::sinks_beside_suite!(conformance::subject::CUDA_OF_FEW_SMS {
    sinks_beside: Flash3 {
        pages,
        latent,
        scores
    }
});
conformance::sinks_beside_suite!(conformance::subject::CUDA {
    sinks_beside_flash2: Flash2 { pages, fp8, scores }
});
conformance::sinks_beside_suite!(conformance::subject::CUDA_SHORT {
    sinks_beside_short: Flash3 { pages }
});
conformance::dropout_suite!(conformance::subject::CUDA_OF_FEW_SMS {
    dropout: Flash3 {
        all,
        masks,
        lengths,
        blocks
    }
});
conformance::dropout_suite!(conformance::subject::CUDA {
    dropout_flash2: Flash2 {
        all,
        masks,
        lengths,
        blocks,
        few
    }
});
conformance::dropout_suite!(conformance::subject::CUDA {
    dropout_standard: Standard {
        all,
        masks,
        lengths,
        blocks
    }
});
conformance::dropout_suite!(conformance::subject::CUDA_SHORT {
    dropout_short: Flash3 { short }
});
conformance::dropout_suite!(conformance::subject::CUDA_WIDE {
    dropout_wide: Flash3 { wide }
});
conformance::dropout_suite!(conformance::subject::CUDA_COMPACT {
    dropout_compact: Flash2 { compact }
});
conformance::dropout_suite!(conformance::subject::CUDA_HEAD_SPLITS {
    dropout_shares: Flash3 { shares }
});
conformance::dropout_beside_suite!(conformance::subject::CUDA_OF_FEW_SMS {
    dropout_beside: Flash3 { pages, scores }
});
conformance::dropout_beside_suite!(conformance::subject::CUDA {
    dropout_beside_flash2: Flash2 { pages, scores }
});
conformance::dropout_beside_suite!(conformance::subject::CUDA {
    dropout_beside_standard: Standard { scores }
});

/// Every way of a plan has a case.
#[test]
fn ways() {
    conformance::sets::check_ways(ferroflash::Backend::Cuda);
}
