//! The tests of sinks of heads.

/// Makes the tests of sinks: a module of this name for a subject and an algorithm, in it a test for each of these sets of cases. Those behind
/// `all` are aimed ones, of which a sample has a third.
#[macro_export]
macro_rules! sinks_suite {
    ($subject:path { $module:ident: $algorithm:ident { $($set:ident),+ $(,)? } $(all { $($whole:ident),+ })? }) => {
        mod $module {
            $($crate::set!($set, $subject, ferroflash::Algorithm::$algorithm, Sixth, Plain $crate::cases::sinks::$set);)+
            $($($crate::sinks_suite!(@ $whole, $subject, $algorithm);)+)?
        }
    };
    (@ $set:ident, $subject:path, $algorithm:ident) => {
        #[test]
        fn $set() {
            let algorithm = ferroflash::Algorithm::$algorithm;
            let test = concat!(module_path!(), "::", stringify!($set));
            $crate::suite::check_aimed(&$subject, algorithm, test, $crate::cases::sinks::$set());
        }
    };
}

/// The same beside what has suites of its own: pages, values in the keys, 8 bits, expressions.
#[macro_export]
macro_rules! sinks_beside_suite {
    ($subject:path { $module:ident: $algorithm:ident { $($set:ident),+ $(,)? } }) => {
        mod $module {
            $($crate::set!(@beside $set, $subject, ferroflash::Algorithm::$algorithm, $crate::cases::sinks::$set);)+
        }
    };
}
