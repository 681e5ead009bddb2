//! [`Fence`]: the largest fencing token that a resource has seen.

use std::collections::BTreeMap;
use std::fmt;

use rowlock_env::decides;
use rowlock_env::sync::watch;
use rowlock_proto::FencingToken;
use rowlock_proto::report::in_query;

/// The largest fencing token that a resource has seen. Keep a fence for each resource in the program that
/// writes to the resource; the fence refuses a late holder's smaller token.
///
/// ```
/// use rowlock_client::{Fence, FencingToken};
///
/// let fence = Fence::default();
/// assert!(fence.check(FencingToken(41)).is_ok());
/// assert!(fence.check(FencingToken(40)).is_err());
/// ```
///
/// The fence lives in memory. Data that outlives the program needs the token beside the data, compared in the
/// same transaction: `docs/fencing.md`.
pub struct Fence {
    state: watch::Sender<State>,
}

#[derive(Default)]
struct State {
    seen: FencingToken,
    /// Tokens between [`Fence::enter`] and the drop of their [`Entered`], each with a count.
    inside: BTreeMap<FencingToken, usize>,
}

/// Refusal of a token below the largest token that the resource has seen: the token's holder has lost the
/// lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("stale token {token}: a holder with token {seen} has been here, so the lock of {token} is lost")]
pub struct StaleToken {
    /// The token that the fence refused.
    pub token: FencingToken,
    /// The largest token of the resource.
    pub seen: FencingToken,
}

/// Admission of a write; keeps holders with larger tokens out until dropped.
#[must_use = "the write is guarded only until this is dropped"]
pub struct Entered<'a> {
    fence: &'a Fence,
    token: FencingToken,
}

impl State {
    fn admit(&mut self, token: FencingToken) -> Result<(), StaleToken> {
        if decides!("token-is-below-seen", token < self.seen) {
            return Err(StaleToken { token, seen: self.seen });
        }
        self.seen = token;
        Ok(())
    }
}

impl Fence {
    /// Name of the HTTP header that carries a token to a resource. The value is the percent-encoded lock, a
    /// semicolon, and the token in decimal digits.
    pub const HEADER: &'static str = "Rowlock-Fence";

    /// Starts with the largest token stored beside the data.
    pub fn after(seen: FencingToken) -> Fence {
        Fence { state: watch::channel(State { seen, inside: BTreeMap::new() }).0 }
    }

    /// Returns the largest token to date.
    pub fn seen(&self) -> FencingToken {
        self.state.borrow().seen
    }

    /// Remembers `token` unless a larger token came before. Comparison and write must be a single step: call
    /// `check` under the mutex of the data, or use [`Fence::enter`].
    ///
    /// # Errors
    /// [`StaleToken`]: refuse the write.
    pub fn check(&self, token: FencingToken) -> Result<(), StaleToken> {
        let mut admitted = Ok(());
        self.state.send_if_modified(|state| {
            let before = state.seen;
            admitted = state.admit(token);
            state.seen != before
        });
        admitted
    }

    /// Admits a write that takes time: waits until all admitted writes with smaller tokens have ended. The
    /// fence refuses smaller tokens from the call on, not from the return.
    ///
    /// # Errors
    /// [`StaleToken`], also if a larger token came during the wait.
    /// # Cancel safety
    /// Cancel safe; the token stays remembered.
    pub async fn enter(&self, token: FencingToken) -> Result<Entered<'_>, StaleToken> {
        let mut admitted = Ok(());
        self.state.modify(|state| {
            admitted = state.admit(token);
            if admitted.is_ok() {
                *state.inside.entry(token).or_default() += 1;
            }
        });
        admitted?;
        let entered = Entered { fence: self, token };
        let is_first =
            |state: &State| state.inside.first_key_value().is_none_or(|(first, _)| *first >= token);
        // The sender lives in `self`.
        let _ = self.state.subscribe().wait_for(is_first).await;
        let seen = self.seen();
        if decides!("entered-token-is-stale", token < seen) {
            Err(StaleToken { token, seen })
        } else {
            Ok(entered)
        }
    }

    /// Formats the value of [`Fence::HEADER`] for a lock's name or path.
    pub fn header(lock: &str, token: FencingToken) -> String {
        format!("{};{token}", in_query(lock))
    }

    /// Parses a value of [`Fence::HEADER`]; `None` for another lock or an invalid value.
    pub fn token_in(value: &str, lock: &str) -> Option<FencingToken> {
        let (name, token) = value.split_once(';')?;
        let is_it = name == in_query(lock) && token.bytes().all(|byte| byte.is_ascii_digit());
        if is_it { token.parse().ok() } else { None }
    }
}

impl Default for Fence {
    /// Starts with the token 0.
    fn default() -> Fence {
        Fence::after(FencingToken(0))
    }
}

impl fmt::Debug for Fence {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Fence").field(&self.seen()).finish()
    }
}

impl Drop for Entered<'_> {
    fn drop(&mut self) {
        self.fence.state.modify(|state| {
            let count = state.inside.get_mut(&self.token).expect("Invariant: counted by `enter`");
            *count -= 1;
            if *count == 0 {
                state.inside.remove(&self.token);
            }
        });
    }
}

#[cfg(test)]
mod tests {
    use std::future::Future;
    use std::pin::pin;
    use std::task::{Context, Waker};

    use super::*;

    const fn token(number: i64) -> FencingToken {
        FencingToken(number)
    }

    #[test]
    fn a_smaller_token_is_refused_and_an_equal_one_is_not() {
        let fence = Fence::after(token(7));
        assert_eq!(fence.check(token(6)), Err(StaleToken { token: token(6), seen: token(7) }));
        for number in [7, 7, i64::MAX - 1, i64::MAX] {
            assert_eq!(fence.check(token(number)), Ok(()));
        }
        assert!(fence.check(token(i64::MAX - 1)).is_err());
        assert_eq!(fence.seen(), token(i64::MAX));
    }

    #[test]
    fn a_larger_token_waits_for_the_writes_of_smaller_ones_and_refuses_new_ones_at_once() {
        let fence = Fence::default();
        let mut context = Context::from_waker(Waker::noop());
        let now = |future: std::pin::Pin<&mut dyn Future<Output = _>>, context: &mut Context<'_>| match future
            .poll(context)
        {
            std::task::Poll::Ready(entered) => Some(entered),
            std::task::Poll::Pending => None,
        };
        let mut one = pin!(fence.enter(token(1)));
        let first = now(one.as_mut(), &mut context).unwrap().unwrap();
        let mut again = pin!(fence.enter(token(1)));
        let second = now(again.as_mut(), &mut context).unwrap().unwrap();
        let mut two = pin!(fence.enter(token(2)));
        assert!(now(two.as_mut(), &mut context).is_none(), "two writes with token 1 are under way");
        let mut late = pin!(fence.enter(token(1)));
        assert!(now(late.as_mut(), &mut context).unwrap().is_err());
        let mut three = pin!(fence.enter(token(3)));
        assert!(now(three.as_mut(), &mut context).is_none());
        drop(first);
        assert!(now(two.as_mut(), &mut context).is_none());
        drop(second);
        // 3 came while 2 waited.
        assert!(now(two.as_mut(), &mut context).unwrap().is_err());
        assert!(now(three.as_mut(), &mut context).unwrap().is_ok());
        assert!(fence.state.borrow().inside.is_empty(), "each one that has left is forgotten");
    }

    #[test]
    fn a_header_is_read_for_its_own_lock_only() {
        let value = Fence::header("a;b/é", token(9_007_199_254_740_993));
        assert_eq!(value, "a%3Bb/%C3%A9;9007199254740993");
        assert_eq!(Fence::token_in(&value, "a;b/é"), Some(token(9_007_199_254_740_993)));
        for (value, lock) in [(&*value, "a"), ("a;", "a"), ("a;-1", "a"), ("a", "a"), ("a;1;2", "a")] {
            assert_eq!(Fence::token_in(value, lock), None, "{value}");
        }
    }
}
