//! How a struct of arguments is declared: its fields, each with the [`Argument`] that it is.

use super::{Argument, Operands};
use crate::tensor::{Tensor, TensorMut, Vector, VectorMut};

/// A struct of what a call reads, or of what it writes: its fields generate the methods that set the optional ones, and the conversion of all of
/// them into a call's [`Operands`].
///
/// A field is `name: Type = Argument`. `others` are fields that are more, or less, than an argument ([`Put`]).
macro_rules! arguments {
    (
        $(#[$struct_doc:meta])*
        $access:ident struct $name:ident {
            required { $($(#[$doc:meta])* $field:ident: $type:ident = $argument:ident,)* }
            optional { $($(#[$optional_doc:meta])* $optional:ident: $optional_type:ident = $optional_argument:ident,)* }
            others { $($(#[$other_doc:meta])* $other:ident: $other_type:ty = $other_default:expr,)* }
        }
    ) => {
        $(#[$struct_doc])*
        #[non_exhaustive]
        pub struct $name<'a> {
            $($(#[$doc])* pub $field: $type<'a>,)*
            $($(#[$optional_doc])* pub $optional: Option<$optional_type<'a>>,)*
            $($(#[$other_doc])* pub $other: $other_type,)*
        }

        impl<'a> $name<'a> {
            /// The required arguments.
            fn required($($field: $type<'a>),*) -> $name<'a> {
                $name {
                    $($field,)*
                    $($optional: None,)*
                    $($other: $other_default,)*
                }
            }

            $(
                #[doc = concat!("With [`", stringify!($name), "::", stringify!($optional), "`](struct@", stringify!($name), ").")]
                #[must_use]
                pub fn $optional(mut self, $optional: impl Into<$optional_type<'a>>) -> $name<'a> {
                    self.$optional = Some($optional.into());
                    self
                }
            )*
        }

        arguments!(@put $access $name { $($field = $argument,)* $($optional = $optional_argument,)* } { $($other,)* });
    };
    (@put read $name:ident { $($field:ident = $argument:ident,)* } { $($other:ident,)* }) => {
        impl<'a> $name<'a> {
            pub(super) fn put(&self, operands: &mut Operands<'a>) {
                $(self.$field.give(Argument::$argument, operands);)*
                $(self.$other.put(operands);)*
            }
        }
    };
    (@put write $name:ident { $($field:ident = $argument:ident,)* } { $($other:ident,)* }) => {
        impl $name<'_> {
            pub(super) fn put<'o>(&'o mut self, operands: &mut Operands<'o>) {
                $((&mut self.$field).give(Argument::$argument, operands);)*
                $((&mut self.$other).put(operands);)*
            }
        }
    };
}
pub(super) use arguments;

/// A field of a struct of arguments that is not an argument.
pub(super) trait Put<'o> {
    /// Adds it to the operands.
    fn put(self, operands: &mut Operands<'o>);
}

/// A field of a struct of arguments: an argument, or an optional one.
pub(super) trait Give<'o> {
    /// Adds it to the operands, if it is there.
    fn give(self, argument: Argument, operands: &mut Operands<'o>);
}

impl<'o, T: Give<'o>> Give<'o> for Option<T> {
    fn give(self, argument: Argument, operands: &mut Operands<'o>) {
        if let Some(given) = self {
            given.give(argument, operands);
        }
    }
}

impl<'o, T> Give<'o> for &'o mut Option<T>
where
    &'o mut T: Give<'o>,
{
    fn give(self, argument: Argument, operands: &mut Operands<'o>) {
        self.as_mut().give(argument, operands);
    }
}

impl<'o> Give<'o> for Tensor<'o> {
    fn give(self, argument: Argument, operands: &mut Operands<'o>) {
        operands.put(argument, self);
    }
}

impl<'o> Give<'o> for Vector<'o> {
    fn give(self, argument: Argument, operands: &mut Operands<'o>) {
        operands.put(argument, self);
    }
}

impl<'o> Give<'o> for &'o mut TensorMut<'_> {
    fn give(self, argument: Argument, operands: &mut Operands<'o>) {
        operands.put(argument, self.reborrow());
    }
}

impl<'o> Give<'o> for &'o mut VectorMut<'_> {
    fn give(self, argument: Argument, operands: &mut Operands<'o>) {
        operands.put(argument, self.reborrow());
    }
}
