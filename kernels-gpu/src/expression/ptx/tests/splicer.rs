//! Texts that do not fit.
