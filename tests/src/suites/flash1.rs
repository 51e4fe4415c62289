//! The tests of flash1.

/// Makes the tests of flash1's loops over blocks of keys and of queries: on a subject, and of compact tiles of its backward pass on one whose device has
/// these.
#[macro_export]
macro_rules! flash1_suite {
    ($subject:path, $compact:path) => {
        mod flash1_blocks {
            use $crate::cases::flash1;
            use $crate::path;
            use $crate::suite::check;

            const ALGORITHM: ferroflash::Algorithm = ferroflash::Algorithm::Flash1;

            #[test]
            fn blocks() {
                check(&$subject, ALGORITHM, path!("blocks"), flash1::blocks());
            }

            #[test]
            fn windows() {
                check(&$subject, ALGORITHM, path!("windows"), flash1::windows());
            }

            #[test]
            fn compact() {
                check(&$compact, ALGORITHM, path!("compact"), flash1::compact());
            }
        }
    };
}
