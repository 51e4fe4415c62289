//! Which arguments there are.

use std::sync::LazyLock;

use ferroflash_kernels::params::Argument;
use ferroflash_kernels::spec::Constant;

/// Arguments, each once: what calls go through in place of all that there may be.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) struct ArgumentSet(u64);

const _: () = assert!(Argument::ALL.len() <= u64::BITS as usize);

impl ArgumentSet {
    /// With this one.
    pub(crate) fn insert(&mut self, argument: Argument) {
        self.0 |= 1 << argument as u32;
    }

    /// Without this one.
    pub(crate) fn remove(&mut self, argument: Argument) {
        self.0 &= !(1 << argument as u32);
    }

    /// Whether it is one of them.
    pub(crate) fn contains(self, argument: Argument) -> bool {
        self.0 & 1 << argument as u32 != 0
    }

    /// Those of them that kernels are compiled for: optional inputs of which there is a [`Constant`].
    pub(crate) fn optional_inputs(self) -> ArgumentSet {
        static COMPILED_FOR: LazyLock<ArgumentSet> = LazyLock::new(|| {
            let all = Argument::ALL.into_iter();
            all.filter(|argument| constant(*argument).is_some())
                .collect()
        });
        ArgumentSet(self.0 & COMPILED_FOR.0)
    }

    /// Those of both.
    pub(crate) fn union(self, other: ArgumentSet) -> ArgumentSet {
        ArgumentSet(self.0 | other.0)
    }

    /// In the order of the arguments.
    pub(crate) fn iter(self) -> impl Iterator<Item = Argument> {
        let mut left = self.0;
        std::iter::from_fn(move || {
            let place = left.trailing_zeros() as usize;
            let argument = *Argument::ALL.get(place)?;
            left &= left - 1;
            Some(argument)
        })
    }
}

impl FromIterator<Argument> for ArgumentSet {
    fn from_iter<I: IntoIterator<Item = Argument>>(arguments: I) -> ArgumentSet {
        let mut set = ArgumentSet::default();
        arguments
            .into_iter()
            .for_each(|argument| set.insert(argument));
        set
    }
}

/// What kernels that read this optional input are compiled with, if they are compiled with or without it: the constant of its name.
pub(crate) fn constant(argument: Argument) -> Option<Constant> {
    argument.optional_input()?;
    let mut all = Constant::ALL.into_iter();
    all.find(|constant| constant.name() == argument.name())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_set_has_its_arguments_once_in_their_order() {
        let all: ArgumentSet = Argument::ALL.into_iter().rev().collect();
        assert!(all.iter().eq(Argument::ALL));
        let mut set: ArgumentSet = [Argument::Sin, Argument::K, Argument::K]
            .into_iter()
            .collect();
        assert!(set.iter().eq([Argument::K, Argument::Sin]));
        set.remove(Argument::K);
        set.remove(Argument::Q);
        assert!(set.iter().eq([Argument::Sin]));
        let union = set.union([Argument::Q].into_iter().collect());
        assert!(union.iter().eq([Argument::Q, Argument::Sin]));
        assert_eq!(ArgumentSet::default().iter().count(), 0);
    }
}
