//! Whether the caller of a request was killed, by what /proc shows.

/// True if the thread ids in requests are those that /proc shows.
pub(super) fn sees_callers() -> bool {
    std::fs::read_link("/proc/self").is_ok_and(|own| *own == *std::process::id().to_string())
}

/// True if a thread was killed, so that it will not return from the call in which it waits.
pub(super) fn is_dying(thread: u32) -> bool {
    // A thread that cannot be checked counts as alive.
    thread != 0
        && std::fs::read_to_string(format!("/proc/{thread}/status"))
            .is_ok_and(|status| has_fatal_signal(&status))
}

/// Whether the thread with this proc(5) `status` has a pending signal that kills it: a SIGKILL of
/// its own, into which the kernel turns most others, or a signal that it neither blocks nor ignores
/// nor catches.
fn has_fatal_signal(status: &str) -> bool {
    use libc::{SIGCHLD, SIGCONT, SIGKILL, SIGSTOP, SIGTSTP, SIGTTIN, SIGTTOU, SIGURG, SIGWINCH};
    const HARMLESS: [i32; 8] = [SIGCHLD, SIGCONT, SIGSTOP, SIGTSTP, SIGTTIN, SIGTTOU, SIGURG, SIGWINCH];
    let bit = |signal: i32| 1u64 << (signal - 1);
    let field = |name: &str| {
        status.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':')).map(str::trim)
    };
    let set = |name: &str| field(name).and_then(|set| u64::from_str_radix(set, 16).ok());
    let (Some(own), Some(shared)) = (set("SigPnd"), set("ShdPnd")) else { return false };
    if own & bit(SIGKILL) != 0 {
        return true;
    }
    // A debugger may take a signal away.
    let (Some("0"), Some(blocked), Some(ignored), Some(caught)) =
        (field("TracerPid"), set("SigBlk"), set("SigIgn"), set("SigCgt"))
    else {
        return false;
    };
    let harmless = HARMLESS.into_iter().fold(0, |all, signal| all | bit(signal));
    (own | shared) & !(blocked | ignored | caught | harmless) != 0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn threads_with_a_fatal_signal_are_recognized() {
        let status = |tracer: u32, sets: [u64; 5]| {
            let [own, shared, blocked, ignored, caught] = sets;
            format!(
                "Name:\tSigPnd:\nTracerPid:\t{tracer}\nSigQ:\t0/1\nSigPnd:\t{own:016x}\nShdPnd:\t{shared:016x}\n\
                 SigBlk:\t{blocked:016x}\nSigIgn:\t{ignored:016x}\nSigCgt:\t{caught:016x}\n"
            )
        };
        let (kill, term, quit, winch) = (1 << 8, 1 << 14, 1 << 2, 1 << 27);
        assert!(!has_fatal_signal(&status(0, [0, 0, 0, 0, 0])));
        assert!(has_fatal_signal(&status(0, [kill, 0, 0, 0, 0])));
        assert!(has_fatal_signal(&status(9, [kill, term, 0, 0, 0])), "a SIGKILL cannot be taken away");
        assert!(has_fatal_signal(&status(0, [0, term, 0, 0, 0])));
        assert!(has_fatal_signal(&status(0, [quit, 0, 0, 0, term])));
        assert!(!has_fatal_signal(&status(9, [0, term, 0, 0, 0])), "a debugger may take it away");
        for set in 2..5 {
            let mut sets = [0, term, 0, 0, 0];
            sets[set] = term;
            assert!(!has_fatal_signal(&status(0, sets)));
        }
        assert!(!has_fatal_signal(&status(0, [0, winch, 0, 0, 0])));
        assert!(!has_fatal_signal("State:\tR (running)\n"));
        assert!(!is_dying(0));
        assert!(sees_callers() && !is_dying(std::process::id()));
    }
}
