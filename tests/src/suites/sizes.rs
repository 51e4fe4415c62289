//! The tests of plans that small problems do not get.

/// Makes the tests of a subject whose thresholds are small: a launch of its own merges what splits of keys have found.
#[macro_export]
macro_rules! merged_apart_suite {
    ($subject:path, grouped: $grouped:path) => {
        mod merged_apart {
            use $crate::cases::thresholds;
            use $crate::path;
            use $crate::subject::Subject;
            use $crate::suite::check_all;

            const SUBJECT: Subject = $subject;
            const FLASH2: ferroflash::Algorithm = ferroflash::Algorithm::Flash2;
            const FLASH3: ferroflash::Algorithm = ferroflash::Algorithm::Flash3;

            #[test]
            fn few() {
                check_all(&SUBJECT, FLASH2, path!("few"), thresholds::few());
            }

            #[test]
            fn short() {
                check_all(&SUBJECT, FLASH3, path!("short"), thresholds::short());
            }

            #[test]
            fn grouped() {
                check_all(&$grouped, FLASH3, path!("grouped"), thresholds::grouped());
            }

            #[test]
            fn pages_flash2() {
                $crate::pages::check(
                    &SUBJECT,
                    FLASH2,
                    path!("pages_flash2"),
                    &thresholds::paged(),
                );
            }

            #[test]
            fn pages_flash3() {
                $crate::pages::check(
                    &SUBJECT,
                    FLASH3,
                    path!("pages_flash3"),
                    &thresholds::paged(),
                );
            }

            #[test]
            fn fp8() {
                $crate::fp8::check(&SUBJECT, FLASH2, path!("fp8"), &thresholds::in_8_bits());
            }

            #[test]
            fn latent() {
                $crate::latent::check(&SUBJECT, FLASH3, path!("latent"), &thresholds::latent());
            }
        }
    };
}

/// Makes the tests of sequences by the hundred.
#[macro_export]
macro_rules! many_suite {
    ($subject:path) => {
        mod many {
            use $crate::cases::many;
            use $crate::path;
            use $crate::sample::seed;
            use $crate::subject::Subject;

            const SUBJECT: Subject = $subject;
            const FLASH2: ferroflash::Algorithm = ferroflash::Algorithm::Flash2;
            const FLASH3: ferroflash::Algorithm = ferroflash::Algorithm::Flash3;
            const N: usize = SUBJECT.n_random as usize / 4;

            #[test]
            fn flash2() {
                $crate::suite::check(&SUBJECT, FLASH2, path!("flash2"), many::dense(N, seed()));
            }

            #[test]
            fn flash3() {
                $crate::suite::check(&SUBJECT, FLASH3, path!("flash3"), many::dense(N, seed()));
            }

            #[test]
            fn pages_flash2() {
                let cases = many::paged(N, seed());
                $crate::pages::check(&SUBJECT, FLASH2, path!("pages_flash2"), &cases);
            }

            #[test]
            fn pages_flash3() {
                let cases = many::paged(N, seed());
                $crate::pages::check(&SUBJECT, FLASH3, path!("pages_flash3"), &cases);
            }

            #[test]
            fn fp8() {
                let cases = many::in_8_bits(N, seed());
                $crate::fp8::check(&SUBJECT, FLASH2, path!("fp8"), &cases);
            }

            #[test]
            fn latent() {
                let cases = many::latent(N / 2, seed());
                $crate::latent::check(&SUBJECT, FLASH3, path!("latent"), &cases);
            }
        }
    };
}
