//! Every case of the suite on the first GPU.
conformance::suite!(conformance::subject::CUDA {
    flash3: Flash3,
    flash2: Flash2,
    standard: Standard
});
conformance::compact_suite!(conformance::subject::CUDA_COMPACT);
conformance::wide_tiles_suite!(conformance::subject::CUDA_WIDE);
