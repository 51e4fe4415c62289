//! Every case of the suite on the emulator, which runs the GPU kernels with all of its checks.
conformance::suite!(conformance::subject::EMULATED_HOPPER { flash3: Flash3 });
conformance::suite!(conformance::subject::EMULATED {
    flash1: Flash1,
    flash2: Flash2,
    standard: Standard
});
conformance::flash1_suite!(
    conformance::subject::EMULATED,
    conformance::subject::EMULATED_COMPACT
);
conformance::compact_suite!(conformance::subject::EMULATED_COMPACT);
conformance::short_suite!(conformance::subject::EMULATED_SHORT);
conformance::decode_suite!(conformance::subject::EMULATED);
conformance::tf32_suite!(conformance::subject::EMULATED);
conformance::grouped_suite!(conformance::subject::EMULATED_GROUPED);
conformance::thresholds_suite!(
    apart: conformance::subject::EMULATED_APART,
    many_sms: conformance::subject::EMULATED_MANY_SMS,
    grouped: conformance::subject::EMULATED_GROUPED_SOON,
    grouped_apart: conformance::subject::EMULATED_GROUPED_APART,
    wide: conformance::subject::EMULATED_WIDE_SOON,
    wide_splits: conformance::subject::EMULATED_WIDE_SPLITS,
    paired: conformance::subject::EMULATED_PAIRED_SOON,
    paired_splits: conformance::subject::EMULATED_PAIRED_SPLITS
);
conformance::wide_tiles_suite!(conformance::subject::EMULATED_WIDE);
conformance::orders_suite!(conformance::subject::EMULATED_ORDERS);
conformance::edges_suite!(conformance::subject::EMULATED_HOPPER {
    flash1: Flash1,
    flash2: Flash2,
    flash3: Flash3
});
conformance::stages_suite!(conformance::subject::EMULATED_ONE_SM {
    flash2: Flash2,
    flash3: Flash3
});
conformance::head_splits_suite!(conformance::subject::EMULATED_HEAD_SPLITS);
conformance::merge_suite!(conformance::subject::EMULATED_HOPPER);
conformance::append_suite!(conformance::subject::EMULATED_HOPPER);
conformance::quantize_suite!(conformance::subject::EMULATED_HOPPER);
conformance::fp8_suite!(conformance::subject::EMULATED_HOPPER, Flash2);
conformance::e4m3_suite!(conformance::subject::EMULATED_HOPPER, Flash3, few: Flash2, wide: conformance::subject::EMULATED_WIDE_SOON);
conformance::mla_suite!(conformance::subject::EMULATED_HOPPER, Flash3);
conformance::pages_suite!(conformance::subject::EMULATED_HOPPER {
    pages: Flash3,
    pages_flash2: Flash2
});
conformance::pages_suite!(conformance::subject::EMULATED_SHORT {
    pages_short: Flash3
});
conformance::beyond_suite!(conformance::subject::EMULATED_UNSEEN {
    flash2: Flash2,
    flash3: Flash3
});
conformance::unseen_suite!(conformance::subject::EMULATED_UNSEEN {
    unseen: flash3,
    flash2,
    standard,
});
conformance::unseen_suite!(conformance::subject::EMULATED_UNSEEN);
conformance::unseen_suite!(conformance::subject::EMULATED_UNSEEN_SHORT {
    unseen_short: flash3
});
conformance::scores_suite!(conformance::subject::EMULATED_HOPPER { scores: Flash3 });
conformance::scores_suite!(conformance::subject::EMULATED {
    scores_flash2: Flash2,
    scores_standard: Standard
});
conformance::scores_suite!(conformance::subject::EMULATED_SHORT {
    scores_short: Flash3
});
conformance::wide_scores_suite!(conformance::subject::EMULATED_WIDE);
conformance::sinks_suite!(conformance::subject::EMULATED_HOPPER {
    sinks: Flash3 {
        all,
        masks,
        lengths,
        blocks
    }
});
conformance::sinks_suite!(conformance::subject::EMULATED {
    sinks_flash2: Flash2 {
        all,
        masks,
        lengths,
        blocks,
        few
    } all { splits }
});
conformance::sinks_suite!(conformance::subject::EMULATED {
    sinks_flash1: Flash1 { all, masks }
});
conformance::sinks_suite!(conformance::subject::EMULATED {
    sinks_standard: Standard {
        all,
        masks,
        lengths,
        blocks
    }
});
conformance::sinks_suite!(conformance::subject::EMULATED_SHORT {
    sinks_short: Flash3 { short } all { splits }
});
conformance::sinks_suite!(conformance::subject::EMULATED_GROUPED {
    sinks_grouped: Flash3 { grouped }
});
conformance::sinks_suite!(conformance::subject::EMULATED_WIDE {
    sinks_wide: Flash3 { wide }
});
conformance::sinks_suite!(conformance::subject::EMULATED_COMPACT {
    sinks_compact: Flash2 { compact }
});
conformance::sinks_suite!(conformance::subject::EMULATED_HEAD_SPLITS {
    sinks_shares: Flash3 { shares }
});
conformance::sinks_beside_suite!(conformance::subject::EMULATED_HOPPER {
    sinks_beside: Flash3 {
        pages,
        latent,
        scores
    }
});
conformance::sinks_beside_suite!(conformance::subject::EMULATED_HOPPER {
    sinks_beside_flash2: Flash2 { pages, fp8, scores }
});
conformance::sinks_beside_suite!(conformance::subject::EMULATED_SHORT {
    sinks_beside_short: Flash3 { pages }
});
conformance::dropout_suite!(conformance::subject::EMULATED_HOPPER {
    dropout: Flash3 {
        all,
        masks,
        lengths,
        blocks
    }
});
conformance::dropout_suite!(conformance::subject::EMULATED {
    dropout_flash2: Flash2 {
        all,
        masks,
        lengths,
        blocks,
        few
    }
});
conformance::dropout_suite!(conformance::subject::EMULATED {
    dropout_standard: Standard {
        all,
        masks,
        lengths,
        blocks
    }
});
conformance::dropout_suite!(conformance::subject::EMULATED_SHORT {
    dropout_short: Flash3 { short }
});
conformance::dropout_suite!(conformance::subject::EMULATED_WIDE {
    dropout_wide: Flash3 { wide }
});
conformance::dropout_suite!(conformance::subject::EMULATED_COMPACT {
    dropout_compact: Flash2 { compact }
});
conformance::dropout_suite!(conformance::subject::EMULATED_HEAD_SPLITS {
    dropout_shares: Flash3 { shares }
});
conformance::dropout_beside_suite!(conformance::subject::EMULATED_HOPPER {
    dropout_beside: Flash3 { pages, scores }
});
conformance::dropout_beside_suite!(conformance::subject::EMULATED {
    dropout_beside_flash2: Flash2 { pages, scores }
});
conformance::dropout_beside_suite!(conformance::subject::EMULATED {
    dropout_beside_standard: Standard { scores }
});

/// Every way of a plan has a case.
#[test]
fn ways() {
    conformance::sets::check_ways(ferroflash::Backend::Emulated);
}
