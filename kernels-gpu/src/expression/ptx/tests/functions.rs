//! Errors of the full functions.
