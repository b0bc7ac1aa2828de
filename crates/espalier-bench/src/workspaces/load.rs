//! What goes on beside a measurement: builds that read sources, write results and rename them.

use super::bench::Bench;
use anyhow::{Result, ensure};
use std::process::{Child, Stdio};

/// One job: it copies some sources, makes one large file of them, and removes the copies, until it
/// is ended.
const JOB: &str = "while :; do \
    for part in src/part*; do \
        mkdir -p target/job$0 && cp -r \"$part\" target/job$0/ && \
        tar -cf - \"$part\" | gzip -1 >target/job$0.part && mv target/job$0.part target/job$0.done && \
        rm -rf target/job$0 || exit 1; \
    done; \
done";

/// Jobs that run until they are stopped, one on each processor.
pub(super) struct Build {
    jobs: Vec<Child>,
}

impl Build {
    /// Starts it in a workspace.
    pub(super) fn start(bench: &Bench<'_>, name: &str) -> Result<Self> {
        let processors = std::thread::available_parallelism().map_or(1, usize::from);
        let mut build = Self { jobs: Vec::new() };
        for job in 0..processors {
            let mut command = bench.command("sh");
            command.current_dir(bench.top().join(name)).args(["-c", JOB, &job.to_string()]);
            std::os::unix::process::CommandExt::process_group(&mut command, 0);
            build.jobs.push(command.stdout(Stdio::null()).spawn()?);
        }
        Ok(build)
    }

    /// Ends the jobs.
    ///
    /// # Errors
    /// A job has ended before.
    pub(super) fn stop(mut self) -> Result<()> {
        for job in &mut self.jobs {
            ensure!(job.try_wait()?.is_none(), "a job of the build beside has ended too early");
        }
        Ok(())
    }
}

impl Drop for Build {
    fn drop(&mut self) {
        use rustix::process::{Pid, Signal, kill_process_group};
        for job in &mut self.jobs {
            if let Some(group) = Pid::from_raw(job.id().cast_signed()) {
                let _ = kill_process_group(group, Signal::KILL);
            }
            let _ = job.wait();
        }
    }
}
