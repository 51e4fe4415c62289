//! Makes the tests of a backend: each macro a set of tests that put a subject through [`crate::suite`].

mod beside;
mod decode;
mod dropout;
mod flash1;
mod grouped;
mod scores;
mod sinks;
mod sizes;
mod tf32;

/// The path of a test of the module that this stands in, from the test program's name on.
#[doc(hidden)]
#[macro_export]
macro_rules! path {
    ($test:literal) => {
        concat!(module_path!(), "::", $test)
    };
}

/// Makes the tests of one backend: a module for each algorithm, in it a test for each set of cases.
#[macro_export]
macro_rules! suite {
    ($subject:path { $($module:ident: $algorithm:ident),+ $(,)? }) => {
        $(mod $module {
            use $crate::cases::aimed;
            use $crate::path;
            use $crate::subject::Subject;
            use $crate::suite::{check_aimed, check_random};

            const SUBJECT: Subject = $subject;
            const ALGORITHM: ferroflash::Algorithm = ferroflash::Algorithm::$algorithm;

            $crate::set!(quick, SUBJECT, ALGORITHM, Strata, Plain $crate::cases::quick);

            $crate::set!(full, SUBJECT, ALGORITHM, Strata, Plain $crate::cases::full);

            $crate::set!(edge, SUBJECT, ALGORITHM, Strata, Plain $crate::cases::edge);

            $crate::set!(wide, SUBJECT, ALGORITHM, Strata, Plain $crate::cases::wide);

            $crate::set!(padded, SUBJECT, ALGORITHM, Strata, Plain $crate::cases::padded);

            $crate::set!(windows, SUBJECT, ALGORITHM, Strata, Plain $crate::cases::windows::all);

            #[test]
            fn repeated() {
                check_aimed(&SUBJECT, ALGORITHM, path!("repeated"), aimed::repeated());
            }

            $crate::set!(lengths, SUBJECT, ALGORITHM, Strata, Plain $crate::cases::lengths::all);

            $crate::set!(values, SUBJECT, ALGORITHM, Strata, Plain $crate::cases::values::all);

            $crate::set!(blocks, SUBJECT, ALGORITHM, Sixth, Plain $crate::cases::blocks::all);

            #[test]
            fn random() {
                check_random(&SUBJECT, ALGORITHM, path!("random"));
            }
        })+
    };
}

/// Makes the tests of the edges of an algorithm's forward blocks, and of flash3's speculative softmax, in tiles of the default
/// shape.
#[macro_export]
macro_rules! edges_suite {
    ($subject:path { $($test:ident: $algorithm:ident),+ $(,)? }) => {
        mod edges {
            use $crate::cases::aimed;
            use $crate::path;
            use $crate::subject::TileShape;
            use $crate::suite::check_aimed;

            $(#[test]
            fn $test() {
                let algorithm = ferroflash::Algorithm::$algorithm;
                let cases = aimed::edges(algorithm, TileShape::Default);
                check_aimed(&$subject, algorithm, concat!(module_path!(), "::", stringify!($test)), cases);
            })+

            #[test]
            fn mispredictions() {
                let cases = aimed::mispredictions(TileShape::Default);
                let algorithm = ferroflash::Algorithm::Flash3;
                check_aimed(&$subject, algorithm, path!("mispredictions"), cases);
            }
        }
    };
}

/// Makes the tests of a backend whose device runs flash2's backward pass above head_dim 64 with compact tiles.
#[macro_export]
macro_rules! compact_suite {
    ($subject:path) => {
        mod compact {
            use $crate::cases::compact;
            use $crate::path;
            use $crate::subject::Subject;
            use $crate::suite::check_random;

            const SUBJECT: Subject = $subject;
            const ALGORITHM: ferroflash::Algorithm = ferroflash::Algorithm::Flash2;

            $crate::set!(quick, SUBJECT, ALGORITHM, Strata, Plain compact::quick);

            $crate::set!(full, SUBJECT, ALGORITHM, Strata, Plain compact::full);

            $crate::set!(padded, SUBJECT, ALGORITHM, Strata, Plain compact::padded);

            $crate::set!(windows, SUBJECT, ALGORITHM, Sixth, Plain compact::windows);

            $crate::set!(lengths, SUBJECT, ALGORITHM, Sixth, Plain compact::lengths);

            $crate::set!(blocks, SUBJECT, ALGORITHM, Sixth, Plain compact::blocks);

            #[test]
            fn random() {
                check_random(&SUBJECT, ALGORITHM, path!("random"));
            }
        }
    };
}

/// Makes the tests of a backend whose device has so many SMs that flash3's forward pass takes compact tiles for every small
/// problem.
#[macro_export]
macro_rules! short_suite {
    ($subject:path) => {
        mod short {
            use $crate::cases::{self, aimed, short};
            use $crate::path;
            use $crate::subject::{Subject, TileShape};
            use $crate::suite::{check_aimed, check_random};

            const SUBJECT: Subject = $subject;
            const ALGORITHM: ferroflash::Algorithm = ferroflash::Algorithm::Flash3;

            $crate::set!(all, SUBJECT, ALGORITHM, Strata, Plain short::all);

            $crate::set!(packed, SUBJECT, ALGORITHM, Sixth, Plain short::packed);

            $crate::set!(windows, SUBJECT, ALGORITHM, Strata, Plain short::windows);

            $crate::set!(lengths, SUBJECT, ALGORITHM, Sixth, Plain short::lengths);

            $crate::set!(splits, SUBJECT, ALGORITHM, Sixth, Plain short::splits);

            $crate::set!(quick, SUBJECT, ALGORITHM, Strata, Plain cases::quick);

            #[test]
            fn many_splits() {
                let cases = aimed::many_splits(ALGORITHM);
                check_aimed(&SUBJECT, ALGORITHM, path!("many_splits"), cases);
            }

            #[test]
            fn mispredictions() {
                let cases = aimed::mispredictions(TileShape::Compact);
                check_aimed(&SUBJECT, ALGORITHM, path!("mispredictions"), cases);
            }

            #[test]
            fn edges() {
                let cases = aimed::edges(ALGORITHM, TileShape::Compact);
                check_aimed(&SUBJECT, ALGORITHM, path!("edges"), cases);
            }

            #[test]
            fn random() {
                check_random(&SUBJECT, ALGORITHM, path!("random"));
            }
        }
    };
}

/// Makes the tests of a backend whose device runs flash3's forward pass with wide tiles, given sequences that are long.
#[macro_export]
macro_rules! wide_tiles_suite {
    ($subject:path) => {
        mod wide_tiles {
            use $crate::cases::{aimed, wide_tiles};
            use $crate::path;
            use $crate::subject::Subject;
            use $crate::suite::check_aimed;

            const SUBJECT: Subject = $subject;
            const ALGORITHM: ferroflash::Algorithm = ferroflash::Algorithm::Flash3;

            $crate::set!(all, SUBJECT, ALGORITHM, Strata, Plain wide_tiles::all);

            $crate::set!(windows, SUBJECT, ALGORITHM, Sixth, Plain wide_tiles::windows);

            $crate::set!(lengths, SUBJECT, ALGORITHM, Sixth, Plain wide_tiles::lengths);

            #[test]
            fn mispredictions() {
                let cases = aimed::wide_mispredictions();
                check_aimed(&SUBJECT, ALGORITHM, path!("mispredictions"), cases);
            }
        }
    };
}

/// Makes the tests of a backend whose device has so many SMs that flash3's backward pass takes small problems' tiles in each
/// of its orders.
#[macro_export]
macro_rules! orders_suite {
    ($subject:path) => {
        mod orders {
            use $crate::cases::orders;
            use $crate::path;
            use $crate::subject::Subject;
            use $crate::suite::check_random;

            const SUBJECT: Subject = $subject;
            const ALGORITHM: ferroflash::Algorithm = ferroflash::Algorithm::Flash3;

            $crate::set!(shifted, SUBJECT, ALGORITHM, Strata, Plain orders::shifted);

            $crate::set!(lists, SUBJECT, ALGORITHM, Strata, Plain orders::lists);

            $crate::set!(causal, SUBJECT, ALGORITHM, Sixth, Plain orders::causal);

            $crate::set!(windows, SUBJECT, ALGORITHM, Sixth, Plain orders::windows);

            $crate::set!(lengths, SUBJECT, ALGORITHM, Sixth, Plain orders::lengths);

            #[test]
            fn random() {
                check_random(&SUBJECT, ALGORITHM, path!("random"));
            }
        }
    };
}

/// Makes the tests of a backend whose device has one SM, so that each block of threads takes several tiles.
#[macro_export]
macro_rules! stages_suite {
    ($subject:path { $($test:ident: $algorithm:ident),+ $(,)? }) => {
        mod stages {
            $(#[test]
            fn $test() {
                let algorithm = ferroflash::Algorithm::$algorithm;
                let test = concat!(module_path!(), "::", stringify!($test));
                let cases = $crate::cases::aimed::stages();
                $crate::suite::check_aimed(&$subject, algorithm, test, cases);
            })+
        }
    };
}

/// Makes the tests of a backend whose device has so many SMs that flash3's backward pass divides the query heads of small problems
/// into shares.
#[macro_export]
macro_rules! head_splits_suite {
    ($subject:path) => {
        mod head_splits {
            use $crate::cases::head_splits;
            use $crate::subject::Subject;

            const SUBJECT: Subject = $subject;
            const ALGORITHM: ferroflash::Algorithm = ferroflash::Algorithm::Flash3;

            $crate::set!(full, SUBJECT, ALGORITHM, Strata, Plain head_splits::full);

            $crate::set!(causal, SUBJECT, ALGORITHM, Strata, Plain head_splits::causal);

            $crate::set!(windows, SUBJECT, ALGORITHM, Sixth, Plain head_splits::windows);

            $crate::set!(lengths, SUBJECT, ALGORITHM, Sixth, Plain head_splits::lengths);
        }
    };
}
