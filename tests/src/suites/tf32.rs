//! The tests of f32 tensors on a GPU.

/// Makes the tests of a backend that multiplies f32 on tensor cores.
#[macro_export]
macro_rules! tf32_suite {
    ($subject:path) => {
        mod tf32 {
            use $crate::cases::tf32;
            use $crate::path;
            use $crate::subject::Subject;
            use $crate::suite::check_thinned;

            const SUBJECT: Subject = $subject;
            const ALGORITHM: ferroflash::Algorithm = ferroflash::Algorithm::Flash2;

            #[test]
            fn all() {
                check_thinned(&SUBJECT, ALGORITHM, path!("all"), tf32::all());
            }

            #[test]
            fn beside() {
                check_thinned(&SUBJECT, ALGORITHM, path!("beside"), tf32::beside());
            }

            #[test]
            fn scores() {
                $crate::scores::check(&SUBJECT, ALGORITHM, path!("scores"), &tf32::scores());
            }

            #[test]
            fn pages() {
                $crate::pages::check(&SUBJECT, ALGORITHM, path!("pages"), &tf32::pages());
            }
        }
    };
}
