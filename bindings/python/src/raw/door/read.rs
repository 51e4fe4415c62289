//! Python arguments as numbers. The result is `None` if an argument is not a plain number: other code handles it.

use pyo3::prelude::*;
use pyo3::types::{PyBool, PyFloat, PyInt, PyTuple};

/// An integer, or none.
pub(super) fn whole(given: &Bound<'_, PyAny>) -> Option<Option<i64>> {
    if given.is_none() {
        return Some(None);
    }
    given.cast_exact::<PyInt>().ok()?.extract().ok().map(Some)
}

/// A number, or none.
pub(super) fn real(given: &Bound<'_, PyAny>) -> Option<Option<f64>> {
    if given.is_none() {
        return Some(None);
    }
    if let Ok(number) = given.cast_exact::<PyFloat>() {
        return Some(Some(number.value()));
    }
    let number: i64 = given.cast_exact::<PyInt>().ok()?.extract().ok()?;
    Some(Some(number as f64))
}

/// A truth value.
pub(super) fn truth(given: &Bound<'_, PyAny>) -> Option<bool> {
    given
        .cast_exact::<PyBool>()
        .ok()
        .map(|truth| truth.is_true())
}

/// Whether a number is 0, or there is none.
pub(super) fn is_zero(given: &Bound<'_, PyAny>) -> bool {
    matches!(real(given), Some(None | Some(0.0)))
}

/// The sides of a window; none, and a negative number, is no limit.
pub(super) fn sides(window: &Bound<'_, PyAny>) -> Option<(Option<i64>, Option<i64>)> {
    if window.is_none() {
        return Some((None, None));
    }
    let window = window.cast_exact::<PyTuple>().ok()?;
    if window.len() != 2 {
        return None;
    }
    let side = |at: usize| -> Option<Option<i64>> {
        let side = whole(&window.get_item(at).ok()?)?;
        Some(side.filter(|&keys| keys >= 0))
    };
    Some((side(0)?, side(1)?))
}
