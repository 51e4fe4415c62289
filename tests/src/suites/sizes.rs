//! The tests of plans that small problems do not get.

/// Makes the tests of subjects whose thresholds are small, so that small problems get the plans of large ones: `apart`, where a launch of its own merges
/// what splits of keys have found; `many_sms`, where a plan or the device divides keys by itself; `grouped` and `grouped_apart`, the same in grouped
/// tiles; `wide` and `wide_splits`, where tiles are wide; `paired` and `paired_splits`, where blocks share tiles.
#[macro_export]
macro_rules! thresholds_suite {
    (apart: $apart:path, many_sms: $many_sms:path, grouped: $grouped:path, grouped_apart: $grouped_apart:path, wide: $wide:path, wide_splits: $wide_splits:path, paired: $paired:path, paired_splits: $paired_splits:path) => {
        mod thresholds {
            use ferroflash::Algorithm::{Flash2, Flash3};

            mod apart {
                use super::*;
                use $crate::cases::{decode, e4m3, fp8, mla, pages, short, thresholds};

                $crate::set!(decode_splits, $apart, Flash2, Sixth, Plain decode::splits);
                $crate::set!(decode_lengths, $apart, Flash2, Sixth, Plain decode::lengths);
                $crate::set!(short_splits, $apart, Flash3, Strata, Plain short::splits);
                $crate::set!(pages_flash2, $apart, Flash2, Sixth, Pages pages::all);
                $crate::set!(pages_flash3, $apart, Flash3, Sixth, Pages pages::all);
                $crate::set!(paged_splits, $apart, Flash3, Sixth, Pages pages::splits);
                $crate::set!(paged_splits_flash2, $apart, Flash2, Sixth, Pages pages::splits);
                $crate::set!(fp8_all, $apart, Flash2, Sixth, Fp8 fp8::all);
                $crate::set!(fp8_splits, $apart, Flash2, Sixth, Fp8 fp8::splits);
                $crate::set!(e4m3_splits, $apart, Flash2, Sixth, E4m3 e4m3::few_splits);
                $crate::set!(mla_splits, $apart, Flash3, Sixth, Latent mla::splits);
                $crate::set!(mla_lengths, $apart, Flash3, Sixth, Latent mla::lengths);
                $crate::set!(mla_windows, $apart, Flash3, Sixth, Latent thresholds::mla_windows);
            }

            mod many_sms {
                use super::*;
                use $crate::cases::{decode, e4m3, fp8, mla, pages, thresholds};

                $crate::set!(e4m3_lengths, $many_sms, Flash2, Sixth, E4m3 e4m3::few_lengths);
                $crate::set!(decode_lengths, $many_sms, Flash2, Sixth, Plain decode::lengths);
                $crate::set!(pages_flash2, $many_sms, Flash2, Sixth, Pages pages::all);
                $crate::set!(fp8_all, $many_sms, Flash2, Sixth, Fp8 fp8::all);
                $crate::set!(mla_all, $many_sms, Flash3, Sixth, Latent mla::all);
                $crate::set!(mla_lengths, $many_sms, Flash3, Sixth, Latent mla::lengths);
                $crate::set!(mla_windows, $many_sms, Flash3, Sixth, Latent thresholds::mla_windows);
            }

            mod grouped {
                use super::*;
                use $crate::cases::grouped;

                $crate::set!(lengths, $grouped, Flash3, Sixth, Plain grouped::lengths);
                $crate::set!(splits, $grouped, Flash3, Sixth, Plain grouped::splits);
                $crate::set!(pages, $grouped, Flash3, Sixth, Pages grouped::pages);
            }

            mod grouped_apart {
                use super::*;
                use $crate::cases::grouped;

                $crate::set!(lengths, $grouped_apart, Flash3, Sixth, Plain grouped::lengths);
                $crate::set!(splits, $grouped_apart, Flash3, Sixth, Plain grouped::splits);
                $crate::set!(pages, $grouped_apart, Flash3, Sixth, Pages grouped::pages);
            }

            mod wide {
                use super::*;
                use $crate::cases::{pages, windows, thresholds};

                $crate::set!(masks, $wide, Flash3, Strata, Plain thresholds::wide);
                $crate::set!(lengths, $wide, Flash3, Sixth, Plain thresholds::wide_lengths);
                $crate::set!(windows, $wide, Flash3, Sixth, Plain windows::all);
                $crate::set!(pages, $wide, Flash3, Sixth, Pages pages::mixed);
                $crate::set!(columns, $wide, Flash3, Strata, Plain thresholds::wide_columns);
                $crate::set!(columns_lengths, $wide, Flash3, Sixth, Plain thresholds::wide_columns_lengths);
                $crate::set!(columns_head_splits, $wide_splits, Flash3, Strata, Plain thresholds::wide_columns_head_splits);
            }

            mod paired {
                use super::*;
                use $crate::cases::thresholds;

                $crate::set!(masks, $paired, Flash3, Strata, Plain thresholds::paired);
                $crate::set!(clusters, $paired_splits, Flash3, Strata, Plain thresholds::paired);
                $crate::set!(lengths, $paired, Flash3, Sixth, Plain thresholds::wide_columns_lengths);
                $crate::set!(head_splits, $paired_splits, Flash3, Strata, Plain thresholds::wide_columns_head_splits);
            }
        }
    };
}

/// Makes the tests of sequences by the hundred.
#[macro_export]
macro_rules! many_suite {
    ($subject:path) => {
        mod many {
            use ferroflash::Algorithm::{Flash2, Flash3};
            use $crate::cases::{Case, fp8::Fp8Case, mla::MlaCase, many, pages::PagedCase};
            use $crate::sample::seed;

            const N: usize = $subject.n_random as usize / 4;

            fn dense() -> Vec<Case> {
                many::dense(N, seed())
            }

            fn paged() -> Vec<PagedCase> {
                many::paged(N, seed())
            }

            fn in_8_bits() -> Vec<Fp8Case> {
                many::in_8_bits(N, seed())
            }

            fn in_keys() -> Vec<MlaCase> {
                many::latent(N / 2, seed())
            }

            $crate::set!(flash2, $subject, Flash2, Strata, Plain dense);
            $crate::set!(flash3, $subject, Flash3, Strata, Plain dense);
            $crate::set!(pages_flash2, $subject, Flash2, Strata, Pages paged);
            $crate::set!(pages_flash3, $subject, Flash3, Strata, Pages paged);
            $crate::set!(fp8, $subject, Flash2, Strata, Fp8 in_8_bits);
            $crate::set!(latent, $subject, Flash3, Strata, Latent in_keys);
        }
    };
}
