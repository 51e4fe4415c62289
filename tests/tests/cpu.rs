//! Every case of the suite on the CPU backend.
conformance::suite!(conformance::subject::CPU { tiled: Tiled });
conformance::merge_suite!(conformance::subject::CPU);
conformance::append_suite!(conformance::subject::CPU);
conformance::quantize_suite!(conformance::subject::CPU);
conformance::fp8_suite!(conformance::subject::CPU, Tiled);
conformance::e4m3_suite!(conformance::subject::CPU, Tiled, few: Tiled);
conformance::mla_suite!(conformance::subject::CPU, Tiled);
conformance::pages_suite!(conformance::subject::CPU { pages: Tiled });
conformance::scores_suite!(conformance::subject::CPU { scores: Tiled });
conformance::sinks_suite!(conformance::subject::CPU {
    sinks: Tiled {
        all,
        masks,
        lengths,
        blocks,
        few
    }
});
conformance::sinks_beside_suite!(conformance::subject::CPU {
    sinks_beside: Tiled {
        pages,
        latent,
        fp8,
        scores
    }
});
conformance::dropout_suite!(conformance::subject::CPU {
    dropout: Tiled {
        all,
        masks,
        lengths,
        blocks,
        few
    }
});
conformance::dropout_beside_suite!(conformance::subject::CPU {
    dropout_beside: Tiled { pages, scores }
});
