//! Makes the tests of operations beside attention.

/// Makes the tests of merges of two parts of the keys.
#[macro_export]
macro_rules! merge_suite {
    ($subject:path) => {
        mod merge {
            use $crate::cases::merges;
            use $crate::merge::{check, check_of_attention};
            use $crate::path;
            use $crate::sample::seed;
            use $crate::subject::Subject;

            const SUBJECT: Subject = $subject;

            #[test]
            fn shapes() {
                check(&SUBJECT, path!("shapes"), &merges::shapes(seed()));
            }

            #[test]
            fn edges() {
                check(&SUBJECT, path!("edges"), &merges::edges(seed()));
            }

            #[test]
            fn random() {
                let n = SUBJECT.n_random as usize;
                check(&SUBJECT, path!("random"), &merges::random(n, seed()));
            }

            #[test]
            fn of_attention() {
                check_of_attention(&SUBJECT);
            }
        }
    };
}

/// Makes the tests of appends to a cache, and of rotations.
#[macro_export]
macro_rules! append_suite {
    ($subject:path) => {
        mod append {
            use $crate::append::{check, check_rounding, check_steps};
            use $crate::cases::appends;
            use $crate::path;
            use $crate::sample::seed;
            use $crate::subject::Subject;

            const SUBJECT: Subject = $subject;

            #[test]
            fn turns() {
                check(&SUBJECT, path!("turns"), &appends::turns(seed()));
            }

            #[test]
            fn edges() {
                check(&SUBJECT, path!("edges"), &appends::edges(seed()));
            }

            #[test]
            fn random() {
                let n = SUBJECT.n_random as usize;
                check(&SUBJECT, path!("random"), &appends::random(n, seed()));
            }

            #[test]
            fn in_8_bits() {
                check(&SUBJECT, path!("in_8_bits"), &appends::in_8_bits(seed()));
            }

            #[test]
            fn steps() {
                check_steps(&SUBJECT);
            }

            #[test]
            fn rounding() {
                check_rounding(&SUBJECT);
            }
        }

        mod rotate {
            use $crate::cases::appends;
            use $crate::path;
            use $crate::rotate::check;
            use $crate::sample::seed;
            use $crate::subject::Subject;

            const SUBJECT: Subject = $subject;

            #[test]
            fn turns() {
                check(&SUBJECT, path!("turns"), &appends::turns(seed()));
            }

            #[test]
            fn edges() {
                check(&SUBJECT, path!("edges"), &appends::edges(seed()));
            }

            #[test]
            fn random() {
                let n = SUBJECT.n_random as usize;
                check(&SUBJECT, path!("random"), &appends::random(n, seed()));
            }
        }
    };
}

/// Makes the tests of roundings to 8 bits.
#[macro_export]
macro_rules! quantize_suite {
    ($subject:path) => {
        mod quantize {
            use $crate::cases::quantize;
            use $crate::path;
            use $crate::quantize::check;
            use $crate::sample::seed;
            use $crate::subject::Subject;

            const SUBJECT: Subject = $subject;

            #[test]
            fn shapes() {
                check(&SUBJECT, path!("shapes"), &quantize::shapes(seed()));
            }

            #[test]
            fn edges() {
                check(&SUBJECT, path!("edges"), &quantize::edges(seed()));
            }

            #[test]
            fn random() {
                let n = SUBJECT.n_random as usize;
                check(&SUBJECT, path!("random"), &quantize::random(n, seed()));
            }
        }
    };
}

/// Makes the tests of keys and values in pages: a module of this name for a subject and an algorithm.
#[macro_export]
macro_rules! pages_suite {
    ($subject:path { $($module:ident: $algorithm:ident),+ $(,)? }) => {
        $(mod $module {
            use $crate::cases::pages;
            use $crate::pages::check;
            use $crate::path;

            const ALGORITHM: ferroflash::Algorithm = ferroflash::Algorithm::$algorithm;

            $crate::set!(all, $subject, ALGORITHM, Sixth, Pages pages::all);

            $crate::set!(splits, $subject, ALGORITHM, Sixth, Pages pages::splits);

            $crate::set!(shared, $subject, ALGORITHM, Sixth, Pages pages::shared);

            $crate::set!(mixed, $subject, ALGORITHM, Sixth, Pages pages::mixed);

            $crate::set!(scores, $subject, ALGORITHM, Sixth, PagedScores $crate::cases::paged_scores::all);

            $crate::set!(padded, $subject, ALGORITHM, Sixth, Pages pages::padded);

            #[test]
            fn random() {
                let n = $subject.n_random as usize;
                let cases = pages::random(n, $crate::sample::seed());
                check(&$subject, ALGORITHM, path!("random"), &cases);
            }

            #[test]
            fn serving() {
                $crate::serving::check(&$subject, ALGORITHM, path!("serving"));
            }
        })+
    };
}

/// Makes the tests of keys and values in 8 bits.
#[macro_export]
macro_rules! fp8_suite {
    ($subject:path, $algorithm:ident) => {
        mod fp8 {
            use $crate::cases::fp8;

            const ALGORITHM: ferroflash::Algorithm = ferroflash::Algorithm::$algorithm;

            $crate::set!(all, $subject, ALGORITHM, Strata, Fp8 fp8::all);

            $crate::set!(splits, $subject, ALGORITHM, Strata, Fp8 fp8::splits);

            $crate::set!(queries, $subject, ALGORITHM, Sixth, Fp8 fp8::queries);
        }
    };
}

/// Makes the tests of queries, keys and values in 8 bits: on a subject, with the algorithm of few queries apart, and, if there is one, on one that takes wide tiles
/// of any number of queries.
#[macro_export]
macro_rules! e4m3_suite {
    ($subject:path, $algorithm:ident, few: $few:ident $(, wide: $wide:path)?) => {
        mod e4m3 {
            const OF_FEW: ferroflash::Algorithm = ferroflash::Algorithm::$few;

            const ALGORITHM: ferroflash::Algorithm = ferroflash::Algorithm::$algorithm;

            $crate::set!(all, $subject, ALGORITHM, Sixth, E4m3 $crate::cases::e4m3::all);

            $crate::set!(pages, $subject, ALGORITHM, Sixth, E4m3 $crate::cases::e4m3::pages);

            $crate::set!(scores, $subject, ALGORITHM, Sixth, E4m3 $crate::cases::e4m3::scores);

            $crate::set!(gradients, $subject, ALGORITHM, Sixth, E4m3 $crate::cases::e4m3::gradients);

            $crate::set!(per_block, $subject, ALGORITHM, Sixth, E4m3 $crate::cases::e4m3::per_block);

            $crate::set!(per_block_gradients, $subject, ALGORITHM, Sixth, E4m3 $crate::cases::e4m3::per_block_gradients);

            $crate::set!(few_queries, $subject, OF_FEW, Sixth, E4m3 $crate::cases::e4m3::few_queries);

            $crate::set!(few_lengths, $subject, OF_FEW, Sixth, E4m3 $crate::cases::e4m3::few_lengths);

            $crate::set!(few_splits, $subject, OF_FEW, Sixth, E4m3 $crate::cases::e4m3::few_splits);

            $(
                $crate::set!(wide, $wide, ALGORITHM, Sixth, E4m3 $crate::cases::e4m3::wide);

                $crate::set!(per_block_wide, $wide, ALGORITHM, Sixth, E4m3 $crate::cases::e4m3::per_block_wide);

                $crate::set!(one_level, $wide, ALGORITHM, Sixth, E4m3 $crate::cases::e4m3::one_level);
            )?
        }
    };
}

/// Makes the tests of values in the keys.
#[macro_export]
macro_rules! mla_suite {
    ($subject:path, $algorithm:ident) => {
        mod mla {
            use $crate::cases::mla;

            const ALGORITHM: ferroflash::Algorithm = ferroflash::Algorithm::$algorithm;

            $crate::set!(all, $subject, ALGORITHM, Sixth, Latent mla::all);

            #[test]
            fn outgrown() {
                let cases = mla::outgrown();
                let test = concat!(module_path!(), "::outgrown");
                $crate::mla::check_all(&$subject, ALGORITHM, test, &cases);
            }

            $crate::set!(lengths, $subject, ALGORITHM, Sixth, Latent mla::lengths);

            $crate::set!(splits, $subject, ALGORITHM, Sixth, Latent mla::splits);

            $crate::set!(small, $subject, ALGORITHM, Sixth, Latent mla::small);
        }
    };
}

/// Makes the tests of tables that name pages which the pool does not have, for a subject on which nobody looks at them before the kernels do.
#[macro_export]
macro_rules! beyond_suite {
    ($subject:path { $($test:ident: $algorithm:ident),+ $(,)? }) => {
        mod beyond {
            use $crate::cases::pages;
            use $crate::pages::beyond;
            use $crate::path;

            $(#[test]
            fn $test() {
                let algorithm = ferroflash::Algorithm::$algorithm;
                let test = concat!(module_path!(), "::", stringify!($test));
                beyond::check(&$subject, algorithm, test, &pages::beyond());
            })+

            #[test]
            fn append() {
                beyond::check_append(&$subject, path!("append"), &pages::beyond());
            }
        }
    };
}

/// Makes the tests of lengths and tables that are any numbers, for a subject on which nobody looks at them before the kernels do: a module of
/// this name, of these sets of cases.
#[macro_export]
macro_rules! unseen_suite {
    ($subject:path) => {
        mod unseen_append {
            #[test]
            fn pages() {
                $crate::unseen::append::check(&$subject, $crate::path!("pages"));
            }
        }
    };
    ($subject:path { $module:ident: $($test:ident),+ $(,)? }) => {
        mod $module {
            use $crate::cases::unseen;

            $(#[test]
            fn $test() {
                let test = concat!(module_path!(), "::", stringify!($test));
                $crate::unseen::check(&$subject, test, &unseen::$test());
            })+
        }
    };
}
