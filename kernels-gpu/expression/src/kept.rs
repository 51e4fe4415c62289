//! Edits that live as long as the process.

use std::collections::HashSet;
use std::fmt;
use std::hash::{Hash, Hasher};
use std::sync::{Mutex, PoisonError};

use super::ptx::Edit;

/// An edit that lives as long as the process, as do the kernels compiled for it. Equal edits are stored once: copying and comparing them is as cheap
/// as for a number.
#[derive(Clone, Copy)]
pub struct Kept(&'static Edit);

/// All of them.
static KEPT: Pool<Edit> = Pool::new();

/// Values that live as long as the process, equal ones stored once.
pub struct Pool<T: 'static>(Mutex<Option<HashSet<&'static T>>>);

impl<T: Eq + Hash> Pool<T> {
    /// None yet.
    pub const fn new() -> Pool<T> {
        Pool(Mutex::new(None))
    }

    /// Stores a value, or finds an equal one.
    pub fn keep(&self, value: T) -> &'static T {
        let mut kept = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let kept = kept.get_or_insert_default();
        if let Some(found) = kept.get(&value) {
            return found;
        }
        let stays: &'static T = Box::leak(Box::new(value));
        kept.insert(stays);
        stays
    }
}

impl<T: Eq + Hash> Default for Pool<T> {
    fn default() -> Pool<T> {
        Pool::new()
    }
}

impl Kept {
    /// Stores an edit, or finds an equal one.
    pub fn new(edit: Edit) -> Kept {
        Kept(KEPT.keep(edit))
    }

    /// The edit.
    pub fn edit(self) -> &'static Edit {
        self.0
    }
}

impl PartialEq for Kept {
    fn eq(&self, other: &Kept) -> bool {
        std::ptr::eq(self.0, other.0)
    }
}

impl Eq for Kept {}

impl Hash for Kept {
    fn hash<H: Hasher>(&self, state: &mut H) {
        std::ptr::from_ref(self.0).hash(state);
    }
}

impl fmt::Debug for Kept {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Expression;

    #[test]
    fn equal_edits_are_one() {
        let capped = |cap: f32| Edit {
            score: Expression::score(|s, _| (s / cap).tanh() * cap).ok(),
            ..Edit::default()
        };
        let (a, b) = (Kept::new(capped(30.0)), Kept::new(capped(30.0)));
        assert!(a.edit().score.is_some());
        assert_eq!(a, b);
        assert_ne!(a, Kept::new(capped(31.0)));
        assert_ne!(a, Kept::new(Edit::default()));
    }
}
