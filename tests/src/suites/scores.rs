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

            $crate::set!(all, $subject, ALGORITHM, Sixth, Scores scores::all);

            $crate::set!(masks, $subject, ALGORITHM, Sixth, Scores scores::masks);

            $crate::set!(blocks, $subject, ALGORITHM, Sixth, Scores scores::blocks);

            $crate::set!(mapped, $subject, ALGORITHM, Sixth, Scores scores::mapped);

            $crate::set!(mapped_long, $subject, ALGORITHM, Sixth, Scores scores::mapped_long);

            $crate::set!(lengths, $subject, ALGORITHM, Sixth, Scores scores::lengths);

            $crate::set!(decode, $subject, ALGORITHM, Sixth, Scores scores::few);

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
            $crate::set!(wide, $subject, ferroflash::Algorithm::Flash3, Sixth, Scores $crate::cases::scores::wide);
        }
    };
}
