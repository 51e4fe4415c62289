//! Makes the tests of a backend: each macro a set of tests that put a subject through [`crate::suite`].

/// Makes the tests of one backend: a module for each algorithm, in it a test for each set of cases.
#[macro_export]
macro_rules! suite {
    ($subject:path { $($module:ident: $algorithm:ident),+ $(,)? }) => {
        $(mod $module {
            use $crate::suite::{check, check_random};
            use $crate::subject::Subject;

            const SUBJECT: Subject = $subject;
            const ALGORITHM: ferroflash::Algorithm = ferroflash::Algorithm::$algorithm;

            #[test]
            fn quick() {
                check(&SUBJECT, ALGORITHM, "quick", $crate::cases::quick());
            }

            #[test]
            fn full() {
                check(&SUBJECT, ALGORITHM, "full", $crate::cases::full());
            }

            #[test]
            fn edge() {
                check(&SUBJECT, ALGORITHM, "edge", $crate::cases::edge());
            }

            #[test]
            fn wide() {
                check(&SUBJECT, ALGORITHM, "wide", $crate::cases::wide());
            }

            #[test]
            fn padded() {
                check(&SUBJECT, ALGORITHM, "padded", $crate::cases::padded());
            }

            #[test]
            fn windows() {
                check(&SUBJECT, ALGORITHM, "windows", $crate::cases::windows::all());
            }

            #[test]
            fn random() {
                check_random(&SUBJECT, ALGORITHM);
            }
        })+
    };
}

/// Makes the tests of a backend whose device runs flash2's backward pass at head_dim 128 with compact tiles.
#[macro_export]
macro_rules! compact_suite {
    ($subject:path) => {
        mod compact {
            use $crate::cases::compact;
            use $crate::subject::Subject;
            use $crate::suite::{check, check_random};

            const SUBJECT: Subject = $subject;
            const ALGORITHM: ferroflash::Algorithm = ferroflash::Algorithm::Flash2;

            #[test]
            fn quick() {
                check(&SUBJECT, ALGORITHM, "compact quick", compact::quick());
            }

            #[test]
            fn full() {
                check(&SUBJECT, ALGORITHM, "compact full", compact::full());
            }

            #[test]
            fn random() {
                check_random(&SUBJECT, ALGORITHM);
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
            use $crate::cases::{self, short};
            use $crate::subject::Subject;
            use $crate::suite::{check, check_random};

            const SUBJECT: Subject = $subject;
            const ALGORITHM: ferroflash::Algorithm = ferroflash::Algorithm::Flash3;

            #[test]
            fn all() {
                check(&SUBJECT, ALGORITHM, "short", short::all());
            }

            #[test]
            fn packed() {
                check(&SUBJECT, ALGORITHM, "packed", short::packed());
            }

            #[test]
            fn quick() {
                check(&SUBJECT, ALGORITHM, "short quick", cases::quick());
            }

            #[test]
            fn random() {
                check_random(&SUBJECT, ALGORITHM);
            }
        }
    };
}

/// Makes the tests of a backend whose device runs flash3's forward pass with wide tiles, given sequences that are long.
#[macro_export]
macro_rules! wide_tiles_suite {
    ($subject:path) => {
        mod wide_tiles {
            #[test]
            fn all() {
                let cases = $crate::cases::wide_tiles::all();
                let algorithm = ferroflash::Algorithm::Flash3;
                $crate::suite::check(&$subject, algorithm, "wide tiles", cases);
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
            use $crate::subject::Subject;
            use $crate::suite::{check, check_random};

            const SUBJECT: Subject = $subject;
            const ALGORITHM: ferroflash::Algorithm = ferroflash::Algorithm::Flash3;

            #[test]
            fn shifted() {
                check(&SUBJECT, ALGORITHM, "shifted", orders::shifted());
            }

            #[test]
            fn lists() {
                check(&SUBJECT, ALGORITHM, "lists", orders::lists());
            }

            #[test]
            fn causal() {
                check(&SUBJECT, ALGORITHM, "causal lists", orders::causal());
            }

            #[test]
            fn random() {
                check_random(&SUBJECT, ALGORITHM);
            }
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
            use $crate::subject::Subject;
            use $crate::suite::check;

            const SUBJECT: Subject = $subject;
            const ALGORITHM: ferroflash::Algorithm = ferroflash::Algorithm::Flash3;

            #[test]
            fn full() {
                check(&SUBJECT, ALGORITHM, "shares", shares::full());
            }

            #[test]
            fn causal() {
                check(&SUBJECT, ALGORITHM, "causal shares", shares::causal());
            }

            #[test]
            fn windows() {
                check(
                    &SUBJECT,
                    ALGORITHM,
                    "shares with windows",
                    shares::windows(),
                );
            }
        }
    };
}
