use super::*;
use crate::transport::arena::Headers;
use crate::transport::mapping::HUGE_PAGE_BYTES;
use espalier_sync::Mutex;

const PAGE_BYTES: usize = 4096;

/// Tests that look at places one after the other.
static PLACES: Mutex<()> = Mutex::new(());

/// Reads what the kernel would find at the window.
fn seen(window: &PayloadWindow) -> u8 {
    // SAFETY: the window is mapped, and not written meanwhile.
    unsafe { window.address().read_volatile() }
}

#[test]
fn a_window_shows_the_newest_memory_and_the_older_one_stays() {
    let _places = PLACES.lock();
    let arena = Arena::new(3, PAGE_BYTES + 1).unwrap();
    let (mut window, mut first) = PayloadWindow::new(&arena, 1).unwrap();
    let (other, _) = PayloadWindow::new(&arena, 2).unwrap();
    assert_eq!((window.len(), first.bytes().len()), (2 * PAGE_BYTES, 2 * PAGE_BYTES));
    first.bytes()[0] = 1;
    assert_eq!(seen(&window), 1);
    let mut second = window.renew().unwrap();
    assert_eq!(seen(&window), 0);
    second.bytes()[0] = 2;
    first.bytes()[0] = 3;
    assert_eq!((seen(&window), second.bytes()[0], first.bytes()[0], seen(&other)), (2, 2, 3, 0));
    drop(window);
    assert_eq!(second.bytes()[0], 2);
}

#[test]
fn gathered_memory_holds_what_it_held() {
    let _places = PLACES.lock();
    let arena = Arena::new(2, HUGE_PAGE_BYTES / 2).unwrap();
    let (mut window, mut view) = PayloadWindow::new(&arena, 1).unwrap();
    view.bytes().fill(7);
    let gathered = view.gather();
    assert!(view.bytes().iter().all(|byte| *byte == 7));
    assert_eq!(seen(&window), 7);
    let mut next = window.renew().unwrap();
    assert_eq!((seen(&window), next.bytes()[0], view.bytes()[0]), (0, 0, 7));
    // Also what was never used.
    assert_eq!(next.gather(), gathered);
    assert!(next.bytes().iter().all(|byte| *byte == 0));
}

#[test]
fn another_process_finds_what_is_there_where_it_was() {
    let _places = PLACES.lock();
    let arena = Arena::new(2, PAGE_BYTES).unwrap();
    Headers::new(&arena, 1).bytes()[5] = 5;
    let (mut window, mut view) = PayloadWindow::new(&arena, 1).unwrap();
    view.bytes()[0] = 1;
    window.renew().unwrap().bytes()[0] = 2;
    let (base, memory) = (arena.base(), arena.memory().try_clone_to_owned().unwrap());
    let again = || memory.try_clone().unwrap();
    assert!(Arena::adopt(again(), base, 2, PAGE_BYTES).is_err(), "the place is taken");
    arena.put(1, &[9, 8]).unwrap();
    drop((window, view, arena));
    assert!(Arena::adopt(again(), base, 3, PAGE_BYTES).is_err(), "it is too short");
    let arena = Arena::adopt(again(), base, 2, PAGE_BYTES).unwrap();
    assert_eq!((arena.base(), Headers::new(&arena, 1).bytes()[5]), (base, 5));
    let (window, mut view) = PayloadWindow::new(&arena, 1).unwrap();
    assert_eq!((seen(&window), view.bytes()[..3].to_vec()), (9, vec![9, 8, 0]));
    assert_ne!(Arena::new(1, 1).unwrap().base(), base, "a second one lies elsewhere");
}
