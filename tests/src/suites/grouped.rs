//! The tests of flash3's grouped tiles.

/// Makes the tests of a backend whose device runs flash3's forward pass with grouped tiles.
#[macro_export]
macro_rules! grouped_suite {
    ($subject:path) => {
        mod grouped {
            use $crate::cases::grouped;
            use $crate::path;
            use $crate::subject::Subject;
            use $crate::suite::{check, check_thinned};

            const SUBJECT: Subject = $subject;
            const ALGORITHM: ferroflash::Algorithm = ferroflash::Algorithm::Flash3;

            #[test]
            fn all() {
                check(&SUBJECT, ALGORITHM, path!("all"), grouped::all());
            }

            #[test]
            fn lengths() {
                check_thinned(&SUBJECT, ALGORITHM, path!("lengths"), grouped::lengths());
            }

            #[test]
            fn splits() {
                check_thinned(&SUBJECT, ALGORITHM, path!("splits"), grouped::splits());
            }

            #[test]
            fn pages() {
                $crate::pages::check(&SUBJECT, ALGORITHM, path!("pages"), &grouped::pages());
            }
        }
    };
}
