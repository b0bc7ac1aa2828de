use super::*;
use std::sync::mpsc::{Receiver, Sender, channel};

/// Two trees that are alike: to find that out takes until the test says so.
struct Alike {
    begun: Sender<()>,
    end: Receiver<()>,
}

impl Differences for Alike {
    fn next(&mut self) -> espalier_fs::Result<Option<(Change, Vec<u8>)>> {
        self.begun.send(()).unwrap();
        self.end.recv().unwrap();
        Ok(None)
    }

    fn nodes(&self) -> u64 {
        7
    }
}

fn paths(count: usize) -> Box<dyn Differences> {
    Box::new(ChangedPaths::new(vec![b"path".to_vec(); count]))
}

/// Continues a comparison; the bytes of the differences that came.
fn next(comparisons: &Comparisons, session: u64, uid: u32) -> Result<u32, Errno> {
    let mut answer = Vec::new();
    comparisons.next(session, uid, &mut answer)?;
    Ok(u32::from_ne_bytes(answer[16..20].try_into().unwrap()))
}

#[test]
fn a_long_comparison_of_one_user_holds_up_no_other() {
    let comparisons = Comparisons::default();
    let ((begun, has_begun), (end, ended)) = (channel(), channel());
    let long = comparisons.begin(1, Box::new(Alike { begun, end: ended }));
    std::thread::scope(|scope| {
        let call = scope.spawn(|| next(&comparisons, long, 1));
        has_begun.recv().unwrap();
        assert_eq!(next(&comparisons, long, 1), Err(Errno(libc::EBUSY)));
        assert_eq!(next(&comparisons, long, 2), Err(Errno(libc::ESTALE)));
        let short = comparisons.begin(2, paths(1));
        assert_eq!((next(&comparisons, short, 2), next(&comparisons, short, 2)), (Ok(7), Ok(0)));
        // However long ago it was begun.
        comparisons.0.lock().used = None;
        assert!(comparisons.is_one_under_way());
        end.send(()).unwrap();
        assert_eq!(call.join().unwrap(), Ok(0));
    });
    assert!(!comparisons.is_one_under_way());
    assert_eq!(next(&comparisons, long, 1), Err(Errno(libc::ESTALE)));
}

#[test]
fn many_comparisons_of_one_user_drop_none_of_another() {
    let comparisons = Comparisons::default();
    let other = comparisons.begin(2, paths(1));
    let first = comparisons.begin(1, paths(1));
    for _ in 0..COMPARISON_LIMITS.per_user {
        comparisons.begin(1, paths(1));
    }
    assert_eq!(next(&comparisons, other, 2), Ok(7));
    assert_eq!(next(&comparisons, first, 1), Err(Errno(libc::ESTALE)));
    assert_eq!(next(&comparisons, first + 1, 1), Ok(7));
}

#[test]
fn many_tokens_of_one_user_drop_none_of_another() {
    let tokens = Tokens::default();
    let other = tokens.give(2, NodeId(5)).unwrap();
    let first = tokens.give(1, NodeId(6)).unwrap();
    for _ in 0..TOKEN_LIMITS.total {
        tokens.give(1, NodeId(7)).unwrap();
    }
    assert_eq!(tokens.find(&first, 1), Err(Errno(libc::ESTALE)));
    assert_eq!(tokens.find(&other, 1), Err(Errno(libc::ESTALE)));
    assert_eq!((tokens.find(&other, 2), tokens.take(&other, 2)), (Ok(NodeId(5)), Ok(NodeId(5))));
    assert_eq!(tokens.take(&other, 2), Err(Errno(libc::ESTALE)));
}
