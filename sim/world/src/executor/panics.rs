//! Converts panics of simulated code into findings, with message and location.

use std::cell::RefCell;
use std::sync::Once;

thread_local! {
    /// The last panic on this thread inside [`guard`]; `None` outside.
    static CAUGHT: RefCell<Option<String>> = const { RefCell::new(None) };
}

/// Installs a hook that keeps panics of simulated code for [`guard`] instead of printing. Other panics go to
/// the previous hook.
pub(super) fn catch() {
    static HOOK: Once = Once::new();
    HOOK.call_once(|| {
        let before = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |panic| {
            let is_ours = CAUGHT.with(|caught| match &mut *caught.borrow_mut() {
                Some(text) => {
                    if text.is_empty() {
                        *text = panic.to_string();
                    }
                    true
                }
                None => false,
            });
            if !is_ours {
                before(panic);
            }
        }));
    });
}

/// Runs code of a world. The error is the panic's message.
pub(super) fn guard<T>(code: impl FnOnce() -> T) -> Result<T, String> {
    let outer = CAUGHT.with(|caught| caught.borrow_mut().replace(String::new()));
    let result = std::panic::catch_unwind(std::panic::AssertUnwindSafe(code));
    let text = CAUGHT.with(|caught| std::mem::replace(&mut *caught.borrow_mut(), outer));
    result.map_err(|_| text.unwrap_or_default())
}
