//! What a run ends with when something is wrong.

use std::cell::RefCell;
use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Once;

/// The result of a check.
pub type Outcome<T = ()> = Result<T, Failure>;

/// Something that must not happen, in words.
#[derive(Debug, Clone)]
pub struct Failure(String);

impl Failure {
    /// A failure; `what` says what was wrong.
    pub fn new(what: impl Into<String>) -> Self {
        Self(what.into())
    }

    /// Says what was being done.
    #[must_use]
    pub fn during(self, doing: impl fmt::Display) -> Self {
        Self(format!("{doing}: {}", self.0))
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl From<espalier_engine::Error> for Failure {
    fn from(error: espalier_engine::Error) -> Self {
        Self(format!("unexpected {:?} error: {error}", error.kind()))
    }
}

impl From<espalier_storage::Error> for Failure {
    fn from(error: espalier_storage::Error) -> Self {
        Self(format!("unexpected error: {error}"))
    }
}

/// Fails unless the condition holds.
macro_rules! ensure {
    ($condition:expr, $($message:tt)+) => {
        if !$condition {
            return Err($crate::Failure::new(format!($($message)+)));
        }
    };
}
pub(crate) use ensure;

/// Runs `body`; a panic in it becomes a failure and is not printed.
///
/// # Errors
/// Those of `body`, and its panics.
pub fn catch<T>(body: impl FnOnce() -> Outcome<T>) -> Outcome<T> {
    QUIET_HOOK.call_once(|| {
        let loud = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |info| {
            let quiet = CAUGHT.with_borrow_mut(|caught| {
                let place = info.location().map(|l| format!(" at {}:{}", l.file(), l.line()));
                caught.as_mut().map(|place_of| *place_of = place.unwrap_or_default())
            });
            if quiet.is_none() {
                loud(info);
            }
        }));
    });
    let outer = CAUGHT.replace(Some(String::new()));
    let outcome = catch_unwind(AssertUnwindSafe(body));
    let place = CAUGHT.replace(outer).unwrap_or_default();
    outcome.unwrap_or_else(|panic| {
        let text = panic.downcast_ref::<&str>().map(|s| (*s).to_owned());
        let text = text.or_else(|| panic.downcast_ref::<String>().cloned()).unwrap_or_default();
        Err(Failure::new(format!("panic{place}: {text}")))
    })
}

static QUIET_HOOK: Once = Once::new();

thread_local! {
    /// Inside [`catch`]: the place of the last panic.
    static CAUGHT: RefCell<Option<String>> = const { RefCell::new(None) };
}
