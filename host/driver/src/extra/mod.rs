//! Typed calls of the driver.
//!
//! | file | contents |
//! |---|---|
//! | [`module`] | compiling and loading code, with the log of the driver's compiler |
//! | [`function`] | attributes, occupancy, launches with a parameter struct |
//! | [`stream`] | streams that do not wait for the default stream; copies and fills on any stream |
//! | [`event`] | events on any stream |
//! | [`graph`] | capturing a stream's work and launching it again |
//! | [`context`] | a device's context, and the current one |
//! | [`device`] | the devices, their names and limits |
//! | [`memory`] | memory of a device |
//! | [`tensor_map`] | tensors as Hopper's copy engine sees them |
//!
//! Functions are found by their exact suffixed name. Handles are the driver's own ([`crate::sys`]), and a call is `unsafe` because the driver does
//! not check the handles and addresses that it is given.

/// Declares calls. After `=` is the driver's function with its arguments; `&mut` is where it writes the result of the call, for which any bytes are
/// valid: a handle, an address, a number.
macro_rules! calls {
    () => {};
    (
        $(#[$meta:meta])*
        $vis:vis unsafe fn $name:ident($($argument:ident: $type:ty),* $(,)?) =
            $call:ident($($given:ident: $of:ty),* $(,)?); $($rest:tt)*
    ) => {
        $(#[$meta])*
        #[inline]
        $vis unsafe fn $name($($argument: $type),*) -> Result<(), crate::DriverError> {
            Ok(crate::entry::entry!($call($($given: $of),*))?)
        }

        calls! { $($rest)* }
    };
    (
        $(#[$meta:meta])*
        $vis:vis unsafe fn $name:ident($($argument:ident: $type:ty),* $(,)?) -> $gives:ty =
            $call:ident($($before:ident: $of:ty,)* &mut $(, $behind:ident: $also:ty)*); $($rest:tt)*
    ) => {
        $(#[$meta])*
        #[inline]
        $vis unsafe fn $name($($argument: $type),*) -> Result<$gives, crate::DriverError> {
            // SAFETY: any bytes are a value of what calls give, as the documentation says.
            let mut given = unsafe { std::mem::zeroed::<$gives>() };
            let to = &raw mut given;
            crate::entry::entry!($call($($before: $of,)* to: *mut $gives $(, $behind: $also)*))?;
            Ok(given)
        }

        calls! { $($rest)* }
    };
}

pub mod context;
pub mod device;
pub mod event;
pub mod function;
pub mod graph;
pub mod memory;
pub mod module;
pub mod stream;
pub mod tensor_map;
