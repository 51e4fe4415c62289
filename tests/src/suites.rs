//! Makes the tests of a backend: each macro a set of tests that put a subject through [`crate::suite`].

mod beside;
mod dropout;
mod few;
mod flash1;
mod grouped;
mod scores;
mod sinks;
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
            use $crate::suite::{check, check_all, check_random, check_thinned};

            const SUBJECT: Subject = $subject;
            const ALGORITHM: ferroflash::Algorithm = ferroflash::Algorithm::$algorithm;

            #[test]
            fn quick() {
                check(&SUBJECT, ALGORITHM, path!("quick"), $crate::cases::quick());
            }

            #[test]
            fn full() {
                check(&SUBJECT, ALGORITHM, path!("full"), $crate::cases::full());
            }

            #[test]
            fn edge() {
                check(&SUBJECT, ALGORITHM, path!("edge"), $crate::cases::edge());
            }

            #[test]
            fn wide() {
                check(&SUBJECT, ALGORITHM, path!("wide"), $crate::cases::wide());
            }

            #[test]
            fn padded() {
                check(&SUBJECT, ALGORITHM, path!("padded"), $crate::cases::padded());
            }

            #[test]
            fn windows() {
                check(&SUBJECT, ALGORITHM, path!("windows"), $crate::cases::windows::all());
            }

            #[test]
            fn repeated() {
                check_all(&SUBJECT, ALGORITHM, path!("repeated"), aimed::repeated());
            }

            #[test]
            fn lengths() {
                check(&SUBJECT, ALGORITHM, path!("lengths"), $crate::cases::lengths::all());
            }

            #[test]
            fn values() {
                check(&SUBJECT, ALGORITHM, path!("values"), $crate::cases::values::all());
            }

            #[test]
            fn blocks() {
                check_thinned(&SUBJECT, ALGORITHM, path!("blocks"), $crate::cases::blocks::all());
            }

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
            use $crate::suite::check_all;

            $(#[test]
            fn $test() {
                let algorithm = ferroflash::Algorithm::$algorithm;
                let cases = aimed::edges(algorithm, TileShape::Default);
                check_all(&$subject, algorithm, concat!(module_path!(), "::", stringify!($test)), cases);
            })+

            #[test]
            fn mispredictions() {
                let cases = aimed::mispredictions(TileShape::Default);
                let algorithm = ferroflash::Algorithm::Flash3;
                check_all(&$subject, algorithm, path!("mispredictions"), cases);
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
            use $crate::suite::{check, check_random, check_thinned};

            const SUBJECT: Subject = $subject;
            const ALGORITHM: ferroflash::Algorithm = ferroflash::Algorithm::Flash2;

            #[test]
            fn quick() {
                check(&SUBJECT, ALGORITHM, path!("quick"), compact::quick());
            }

            #[test]
            fn full() {
                check(&SUBJECT, ALGORITHM, path!("full"), compact::full());
            }

            #[test]
            fn padded() {
                check(&SUBJECT, ALGORITHM, path!("padded"), compact::padded());
            }

            #[test]
            fn windows() {
                check_thinned(&SUBJECT, ALGORITHM, path!("windows"), compact::windows());
            }

            #[test]
            fn lengths() {
                check_thinned(&SUBJECT, ALGORITHM, path!("lengths"), compact::lengths());
            }

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
            use $crate::suite::{check, check_all, check_random, check_thinned};

            const SUBJECT: Subject = $subject;
            const ALGORITHM: ferroflash::Algorithm = ferroflash::Algorithm::Flash3;

            #[test]
            fn all() {
                check(&SUBJECT, ALGORITHM, path!("all"), short::all());
            }

            #[test]
            fn packed() {
                check_thinned(&SUBJECT, ALGORITHM, path!("packed"), short::packed());
            }

            #[test]
            fn windows() {
                check(&SUBJECT, ALGORITHM, path!("windows"), short::windows());
            }

            #[test]
            fn lengths() {
                check_thinned(&SUBJECT, ALGORITHM, path!("lengths"), short::lengths());
            }

            #[test]
            fn splits() {
                check_thinned(&SUBJECT, ALGORITHM, path!("splits"), short::splits());
            }

            #[test]
            fn quick() {
                check(&SUBJECT, ALGORITHM, path!("quick"), cases::quick());
            }

            #[test]
            fn many_splits() {
                let cases = aimed::many_splits(ALGORITHM);
                check_all(&SUBJECT, ALGORITHM, path!("many_splits"), cases);
            }

            #[test]
            fn mispredictions() {
                let cases = aimed::mispredictions(TileShape::Compact);
                check_all(&SUBJECT, ALGORITHM, path!("mispredictions"), cases);
            }

            #[test]
            fn edges() {
                let cases = aimed::edges(ALGORITHM, TileShape::Compact);
                check_all(&SUBJECT, ALGORITHM, path!("edges"), cases);
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
            use $crate::suite::{check, check_all, check_thinned};

            const SUBJECT: Subject = $subject;
            const ALGORITHM: ferroflash::Algorithm = ferroflash::Algorithm::Flash3;

            #[test]
            fn all() {
                check(&SUBJECT, ALGORITHM, path!("all"), wide_tiles::all());
            }

            #[test]
            fn windows() {
                check_thinned(&SUBJECT, ALGORITHM, path!("windows"), wide_tiles::windows());
            }

            #[test]
            fn lengths() {
                check_thinned(&SUBJECT, ALGORITHM, path!("lengths"), wide_tiles::lengths());
            }

            #[test]
            fn mispredictions() {
                let cases = aimed::wide_mispredictions();
                check_all(&SUBJECT, ALGORITHM, path!("mispredictions"), cases);
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
            use $crate::suite::{check, check_random, check_thinned};

            const SUBJECT: Subject = $subject;
            const ALGORITHM: ferroflash::Algorithm = ferroflash::Algorithm::Flash3;

            #[test]
            fn shifted() {
                check(&SUBJECT, ALGORITHM, path!("shifted"), orders::shifted());
            }

            #[test]
            fn lists() {
                check(&SUBJECT, ALGORITHM, path!("lists"), orders::lists());
            }

            #[test]
            fn causal() {
                check_thinned(&SUBJECT, ALGORITHM, path!("causal"), orders::causal());
            }

            #[test]
            fn windows() {
                check_thinned(&SUBJECT, ALGORITHM, path!("windows"), orders::windows());
            }

            #[test]
            fn lengths() {
                check_thinned(&SUBJECT, ALGORITHM, path!("lengths"), orders::lengths());
            }

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
                $crate::suite::check_all(&$subject, algorithm, test, cases);
            })+
        }
    };
}

/// Makes the tests of a backend whose device has so many SMs that flash3's backward pass divides the query heads of small problems
/// into shares.
#[macro_export]
macro_rules! shares_suite {
    ($subject:path) => {
        mod shares {
            use $crate::cases::shares;
            use $crate::path;
            use $crate::subject::Subject;
            use $crate::suite::{check, check_thinned};

            const SUBJECT: Subject = $subject;
            const ALGORITHM: ferroflash::Algorithm = ferroflash::Algorithm::Flash3;

            #[test]
            fn full() {
                check(&SUBJECT, ALGORITHM, path!("full"), shares::full());
            }

            #[test]
            fn causal() {
                check(&SUBJECT, ALGORITHM, path!("causal"), shares::causal());
            }

            #[test]
            fn windows() {
                check_thinned(&SUBJECT, ALGORITHM, path!("windows"), shares::windows());
            }

            #[test]
            fn lengths() {
                check_thinned(&SUBJECT, ALGORITHM, path!("lengths"), shares::lengths());
            }
        }
    };
}
