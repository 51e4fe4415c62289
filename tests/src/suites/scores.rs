//! The tests of scores and masks of the user's own.

/// Makes the tests of scores and masks of the user's own: a module for each algorithm.
#[macro_export]
macro_rules! scores_suite {
    ($subject:path { $($module:ident: $algorithm:ident),+ $(,)? }) => {
        $(mod $module {
            use $crate::cases::scores;
            use $crate::path;
            use $crate::scores::check;

            const ALGORITHM: ferroflash::Algorithm = ferroflash::Algorithm::$algorithm;

            #[test]
            fn all() {
                check(&$subject, ALGORITHM, path!("all"), &scores::all());
            }

            #[test]
            fn masks() {
                check(&$subject, ALGORITHM, path!("masks"), &scores::masks());
            }

            #[test]
            fn blocks() {
                check(&$subject, ALGORITHM, path!("blocks"), &scores::blocks());
            }

            #[test]
            fn mapped() {
                check(&$subject, ALGORITHM, path!("mapped"), &scores::mapped());
            }

            #[test]
            fn mapped_long() {
                check(&$subject, ALGORITHM, path!("mapped_long"), &scores::mapped_long());
            }

            #[test]
            fn lengths() {
                check(&$subject, ALGORITHM, path!("lengths"), &scores::lengths());
            }

            #[test]
            fn few() {
                check(&$subject, ALGORITHM, path!("few"), &scores::few());
            }

            #[test]
            fn gradients() {
                let cases = scores::gradients();
                $crate::scores::check_all(&$subject, ALGORITHM, path!("gradients"), &cases);
            }

            #[test]
            fn random() {
                let n = $subject.n_random.div_ceil(4) as usize;
                let cases = scores::random(n, $crate::sample::seed());
                check(&$subject, ALGORITHM, path!("random"), &cases);
            }
        })+
    };
}

/// Makes the tests of scores and masks of the user's own in flash3's wide tiles.
#[macro_export]
macro_rules! wide_scores_suite {
    ($subject:path) => {
        mod wide_scores {
            #[test]
            fn wide() {
                let algorithm = ferroflash::Algorithm::Flash3;
                let cases = $crate::cases::scores::wide();
                $crate::scores::check(&$subject, algorithm, $crate::path!("wide"), &cases);
            }
        }
    };
}
