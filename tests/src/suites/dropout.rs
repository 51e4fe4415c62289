//! The tests of weights that are dropped.

/// Makes the tests of dropout: a module of this name for a subject and an algorithm, in it a test for each of these sets of cases.
#[macro_export]
macro_rules! dropout_suite {
    ($subject:path { $module:ident: $algorithm:ident { $($set:ident),+ $(,)? } }) => {
        mod $module {
            $($crate::dropout_suite!(@ $set, $subject, $algorithm);)+
        }
    };
    (@ $set:ident, $subject:path, $algorithm:ident) => {
        $crate::set!($set, $subject, ferroflash::Algorithm::$algorithm, Sixth, Plain $crate::cases::dropout::$set);
    };
}

/// The same beside what has suites of its own: pages, expressions.
#[macro_export]
macro_rules! dropout_beside_suite {
    ($subject:path { $module:ident: $algorithm:ident { $($set:ident),+ $(,)? } }) => {
        mod $module {
            $($crate::set!(@beside $set, $subject, ferroflash::Algorithm::$algorithm, $crate::cases::dropout::$set);)+
        }
    };
}
