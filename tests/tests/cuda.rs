//! Every case of the suite on the first GPU.
conformance::suite!(conformance::subject::CUDA {
    flash3: Flash3,
    flash2: Flash2,
    standard: Standard
});
