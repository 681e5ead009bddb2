//! [`Handle`]: a handle of the async client whose calls wait here; and how such calls are written down.

use std::fmt;
use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use rowlock_env::task::Background;
use rowlock_env::time;

use crate::client::Client;
use crate::connect_error::ConnectError;
use crate::error::Error;
use crate::limits::BLOCKING_FAREWELL;
use crate::session::SessionState;

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

/// The way from a blocking handle to the session: the client, the thread that serves it, and how long to
/// wait. Shared by all handles of one session; its thread ends after the last of them.
#[derive(Clone, Debug)]
pub(super) struct Caller {
    link: Arc<RuntimeLink>,
    /// Time limit of calls that wait only for the servers.
    patience: Option<Duration>,
}

#[derive(Debug)]
struct RuntimeLink {
    /// Both parts, taken only by the drop.
    parts: Option<(Client, Background)>,
}

impl Caller {
    /// Starts the thread and opens the session.
    pub(super) fn connect(
        open: impl Future<Output = Result<Client, ConnectError>>,
    ) -> Result<Self, ConnectError> {
        let thread = Background::start("rowlock-client");
        let background = thread.map_err(|error| ConnectError::Thread(Arc::new(error)))?;
        let client = background.run(open)?;
        Ok(Caller { link: Arc::new(RuntimeLink { parts: Some((client, background)) }), patience: None })
    }

    pub(super) fn with_patience(&self, patience: Duration) -> Self {
        Caller { link: self.link.clone(), patience: Some(patience) }
    }

    pub(super) fn patience(&self) -> Option<Duration> {
        self.patience
    }

    pub(super) fn client(&self) -> &Client {
        &self.link.parts().0
    }

    pub(super) fn background(&self) -> &Background {
        &self.link.parts().1
    }

    /// Waits for a call that may wait for others.
    pub(super) fn wait<F: Future>(&self, call: F) -> F::Output {
        self.background().run(call)
    }

    /// Waits for a call that is answered by the servers alone.
    pub(super) fn ask<T>(&self, call: impl Future<Output = Result<T, Error>>) -> Result<T, Error> {
        let Some(patience) = self.patience else { return self.wait(call) };
        self.wait(async { time::timeout(patience, call).await.unwrap_or(Err(Error::NoAnswer)) })
    }
}

impl RuntimeLink {
    fn parts(&self) -> &(Client, Background) {
        self.parts.as_ref().expect("only the drop takes the parts")
    }
}

impl Drop for RuntimeLink {
    /// The last handle of the session is gone. Its task closes it then; the thread stays for that, for a
    /// while.
    fn drop(&mut self) {
        let Some((client, background)) = self.parts.take() else { return };
        let mut states = client.states();
        drop(client);
        background.end(async move {
            let ended = |state: &SessionState| state.is_final();
            // Should it not be closed in time, the servers expire it.
            let _ = time::timeout(BLOCKING_FAREWELL, states.wait_for(ended)).await;
        });
    }
}
