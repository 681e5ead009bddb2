//! [`Handle`]: a handle of the async client whose calls wait here; and how such calls are written down.

use std::fmt;

use super::caller::Caller;

/// A handle of the async client, for callers that block: its calls have the same names, arguments and
/// results.
#[derive(Clone)]
#[must_use = "a handle does nothing by itself"]
pub struct Handle<T> {
    pub(super) inner: T,
    pub(super) caller: Caller,
}

impl<T> Handle<T> {
    pub(super) fn new(caller: &Caller, inner: T) -> Self {
        Handle { inner, caller: caller.clone() }
    }

    pub(super) fn target(&self) -> &T {
        &self.inner
    }
}

impl<T: fmt::Debug> fmt::Debug for Handle<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.inner.fmt(f)
    }
}

/// Calls of the async type `crate::$of` that wait here, in an `impl` of what has a `caller` and a `target`:
///
/// - `ask fn`: waits for the servers alone, for the operation timeout at most;
/// - `wait fn`: may wait for other clients;
/// - `get fn`: does not wait;
/// - `make fn`: gives a handle, and does not wait;
/// - `with fn`: takes a request and gives it back with an option.
///
/// A function behind the result receives the caller and the result, and returns the wrapped result.
macro_rules! calls {
    ($of:literal { $(
        $(#[$note:meta])*
        $how:ident fn $name:ident($($arg:ident: $type:ty),*) -> $ok:ty $(, $wrap:expr)?;
    )* }) => {
        $(calls! { @$how $of, [$(#[$note])*], $name($($arg: $type),*) -> $ok, [$($wrap)?] })*
    };
    (@ask $of:literal, [$($note:tt)*], $name:ident($($arg:ident: $type:ty),*) -> $ok:ty, [$($wrap:expr)?]) => {
        #[doc = concat!("As [`crate::", $of, "::", stringify!($name), "`].")]
        $($note)*
        #[doc = "# Errors"]
        #[doc = concat!("As [`crate::", $of, "::", stringify!($name), "`]; [`Error::NoAnswer`].")]
        pub fn $name(&self $(, $arg: $type)*) -> Result<$ok, Error> {
            let answer = self.caller.ask(self.target().$name($($arg),*))?;
            Ok(calls!(@wrap self, answer $(, $wrap)?))
        }
    };
    (@wait $of:literal, [$($note:tt)*], $name:ident($($arg:ident: $type:ty),*) -> $ok:ty, [$($wrap:expr)?]) => {
        #[doc = concat!("As [`crate::", $of, "::", stringify!($name), "`].")]
        $($note)*
        #[doc = "# Errors"]
        #[doc = concat!("As [`crate::", $of, "::", stringify!($name), "`].")]
        pub fn $name(&self $(, $arg: $type)*) -> Result<$ok, Error> {
            let answer = self.caller.wait(self.target().$name($($arg),*))?;
            Ok(calls!(@wrap self, answer $(, $wrap)?))
        }
    };
    (@get $of:literal, [$($note:tt)*], $name:ident($($arg:ident: $type:ty),*) -> $ok:ty, []) => {
        #[doc = concat!("As [`crate::", $of, "::", stringify!($name), "`].")]
        $($note)*
        pub fn $name(&self $(, $arg: $type)*) -> $ok {
            self.target().$name($($arg),*)
        }
    };
    (@make $of:literal, [$($note:tt)*], $name:ident($($arg:ident: $type:ty),*) -> $ok:ty, []) => {
        #[doc = concat!("As [`crate::", $of, "::", stringify!($name), "`].")]
        $($note)*
        pub fn $name(&self $(, $arg: $type)*) -> $ok {
            Handle::new(&self.caller, self.target().$name($($arg),*))
        }
    };
    (@with $of:literal, [$($note:tt)*], $name:ident($($arg:ident: $type:ty),*) -> $ok:ty, []) => {
        #[doc = concat!("As [`crate::", $of, "::", stringify!($name), "`].")]
        $($note)*
        pub fn $name(self $(, $arg: $type)*) -> $ok {
            Handle { inner: self.inner.$name($($arg),*), ..self }
        }
    };
    (@wrap $self:ident, $answer:ident) => { $answer };
    (@wrap $self:ident, $answer:ident, $wrap:expr) => { $wrap(&$self.caller, $answer) };
}

pub(super) use calls;
