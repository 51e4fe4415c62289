//! The tests of f32 tensors on a GPU.

/// Makes the tests of a backend that multiplies f32 on tensor cores.
#[macro_export]
macro_rules! tf32_suite {
    ($subject:path) => {
        mod tf32 {
            use $crate::cases::tf32;
            use $crate::subject::Subject;

            const SUBJECT: Subject = $subject;
            const ALGORITHM: ferroflash::Algorithm = ferroflash::Algorithm::Flash2;

            $crate::set!(all, SUBJECT, ALGORITHM, Sixth, Plain tf32::all);

            $crate::set!(beside, SUBJECT, ALGORITHM, Sixth, Plain tf32::beside);

            $crate::set!(scores, SUBJECT, ALGORITHM, Sixth, Scores tf32::scores);

            $crate::set!(pages, SUBJECT, ALGORITHM, Sixth, Pages tf32::pages);
        }
    };
}
