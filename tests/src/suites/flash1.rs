//! The tests of flash1.

/// Makes the tests of flash1's loops over blocks of keys and of queries: on a subject, and of compact tiles of its backward pass on one whose device has
/// these.
#[macro_export]
macro_rules! flash1_suite {
    ($subject:path, $compact:path) => {
        mod flash1_blocks {
            use $crate::cases::flash1;

            const ALGORITHM: ferroflash::Algorithm = ferroflash::Algorithm::Flash1;

            $crate::set!(blocks, $subject, ALGORITHM, Strata, Plain flash1::blocks);

            $crate::set!(windows, $subject, ALGORITHM, Strata, Plain flash1::windows);

            $crate::set!(compact, $compact, ALGORITHM, Strata, Plain flash1::compact);
        }
    };
}
