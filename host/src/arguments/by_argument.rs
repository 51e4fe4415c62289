//! One value for every argument.

use std::ops::{Index, IndexMut};

use super::Argument;

/// A value for every [`Argument`], stored inline: nothing is allocated.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ByArgument<T>([T; Argument::ALL.len()]);

impl<T> ByArgument<T> {
    /// `f` of each argument.
    pub fn from_fn(mut f: impl FnMut(Argument) -> T) -> ByArgument<T> {
        ByArgument(Argument::ALL.map(&mut f))
    }

    /// The values in the order of the arguments.
    pub fn iter(&self) -> impl Iterator<Item = (Argument, &T)> {
        Argument::ALL.into_iter().zip(&self.0)
    }

    /// The same, mutable.
    pub fn iter_mut(&mut self) -> impl Iterator<Item = (Argument, &mut T)> {
        Argument::ALL.into_iter().zip(&mut self.0)
    }
}

impl<T> ByArgument<Option<T>> {
    /// `None` for each.
    pub(crate) const fn none() -> ByArgument<Option<T>> {
        ByArgument([const { None }; Argument::ALL.len()])
    }
}

impl<T: Default> Default for ByArgument<T> {
    fn default() -> ByArgument<T> {
        ByArgument::from_fn(|_| T::default())
    }
}

impl<T> Index<Argument> for ByArgument<T> {
    type Output = T;

    fn index(&self, argument: Argument) -> &T {
        &self.0[argument as usize]
    }
}

impl<T> IndexMut<Argument> for ByArgument<T> {
    fn index_mut(&mut self, argument: Argument) -> &mut T {
        &mut self.0[argument as usize]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_argument_has_its_own_place() {
        let names = ByArgument::from_fn(Argument::name);
        for argument in Argument::ALL {
            assert_eq!(names[argument], argument.name());
        }
        assert!(
            names
                .iter()
                .all(|(argument, name)| argument.name() == *name)
        );
    }
}
