//! The tests of flash2's kernel for few queries.

/// Makes the tests of flash2's forward pass of few queries.
#[macro_export]
macro_rules! decode_suite {
    ($subject:path) => {
        mod decode {
            use $crate::cases::{aimed, decode};
            use $crate::path;
            use $crate::subject::Subject;
            use $crate::suite::check_aimed;

            const SUBJECT: Subject = $subject;
            const ALGORITHM: ferroflash::Algorithm = ferroflash::Algorithm::Flash2;

            #[test]
            fn many_splits() {
                let cases = aimed::many_splits(ALGORITHM);
                check_aimed(&SUBJECT, ALGORITHM, path!("many_splits"), cases);
            }

            #[test]
            fn many_sequences() {
                check_aimed(
                    &SUBJECT,
                    ALGORITHM,
                    path!("many_sequences"),
                    aimed::many_sequences(),
                );
            }

            $crate::set!(all, SUBJECT, ALGORITHM, Strata, Plain decode::all);

            $crate::set!(lengths, SUBJECT, ALGORITHM, Sixth, Plain decode::lengths);

            $crate::set!(splits, SUBJECT, ALGORITHM, Sixth, Plain decode::splits);
        }
    };
}
