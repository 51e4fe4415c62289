//! Every case of the suite on the emulator, which runs the GPU kernels with all of its checks.
conformance::suite!(conformance::subject::EMULATED {
    flash2: Flash2,
    standard: Standard
});
conformance::compact_suite!(conformance::subject::EMULATED_COMPACT);
