use super::*;

/// The scheduling class of the calling thread.
fn class() -> libc::c_long {
    // SAFETY: the call takes a number only and changes no memory.
    unsafe { libc::syscall(libc::SYS_sched_getscheduler, 0) }
}

#[test]
fn a_thread_that_leaves_serving_is_ordinary_and_runs_anywhere() {
    // A thread of its own, since it changes where it may run.
    let body = || {
        let all = cpu::allowed();
        cpu::pin(all[0]);
        assert!(SchedulingClass::Idle.apply(0));
        // As a serving thread starts one.
        let started = std::thread::spawn(|| {
            let inherited = (class(), cpu::allowed());
            leave_serving();
            (inherited, (class(), cpu::allowed()))
        });
        let (before, after) = started.join().unwrap();
        assert_eq!(before, (libc::SCHED_IDLE.into(), vec![all[0]]));
        assert_eq!(after, (libc::SCHED_OTHER.into(), all));
    };
    std::thread::spawn(body).join().unwrap();
}
