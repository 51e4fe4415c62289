//! The tests of flash3's grouped tiles.

/// Makes the tests of a backend whose device runs flash3's forward pass with grouped tiles.
#[macro_export]
macro_rules! grouped_suite {
    ($subject:path) => {
        mod grouped {
            use $crate::cases::grouped;
            use $crate::subject::Subject;

            const SUBJECT: Subject = $subject;
            const ALGORITHM: ferroflash::Algorithm = ferroflash::Algorithm::Flash3;

            $crate::set!(all, SUBJECT, ALGORITHM, Strata, Plain grouped::all);

            $crate::set!(lengths, SUBJECT, ALGORITHM, Sixth, Plain grouped::lengths);

            $crate::set!(splits, SUBJECT, ALGORITHM, Sixth, Plain grouped::splits);

            $crate::set!(pages, SUBJECT, ALGORITHM, Sixth, Pages grouped::pages);
        }
    };
}
