//! `espalier diff` and `espalier du`: what differs between two trees, and the space that trees take.

use crate::args::{Diff, Du};
use crate::control;
use crate::units::Size;
use anyhow::{Context, Result, bail};
use espalier_fuse::control::{DIFF, DIFF_NEXT, DIFFERENCES_BYTES, SPACE, size};
use serde_json::json;

/// Where the fields of an answer with differences are.
const LENGTH_AT: usize = 16;
const DATA_AT: usize = 24;

/// Runs `espalier diff`.
pub(crate) fn run(args: &Diff) -> Result<()> {
    let (old, new) = (control::open(&args.old)?, control::open(&args.new)?);
    let mut begin = control::token(&old, &args.old)?.to_vec();
    begin.resize(size(DIFF), 0);
    control::ask(&new, DIFF, &mut begin).map_err(|error| control::explain(error, &args.new))?;
    let session = begin[16..24].to_vec();
    let (mut added, mut removed, mut changed, mut nodes) = (Vec::new(), Vec::new(), Vec::new(), 0);
    loop {
        let mut answer = vec![0; size(DIFF_NEXT)];
        answer[..8].copy_from_slice(&session);
        control::ask(&new, DIFF_NEXT, &mut answer).map_err(|error| control::explain(error, &args.new))?;
        nodes = u64::from_ne_bytes(answer[8..16].try_into()?).max(nodes);
        let length = u32::from_ne_bytes(answer[LENGTH_AT..LENGTH_AT + 4].try_into()?) as usize;
        if length == 0 {
            break;
        }
        let mut rest = answer[DATA_AT..].get(..length.min(DIFFERENCES_BYTES)).unwrap_or_default();
        while let Some((&[kind, low, high], behind)) = rest.split_first_chunk::<3>() {
            let length = usize::from(u16::from_ne_bytes([low, high]));
            let Some((path, behind)) = behind.split_at_checked(length) else {
                bail!("the server's answer is cut off");
            };
            let path = String::from_utf8_lossy(path).into_owned();
            if !args.json {
                println!("{} {path}", char::from(kind));
            }
            match kind {
                b'+' => added.push(path),
                b'-' => removed.push(path),
                _ => changed.push(path),
            }
            rest = behind;
        }
    }
    if args.json {
        let all = json!({"added": added, "removed": removed, "changed": changed, "nodes_read": nodes});
        println!("{}", serde_json::to_string_pretty(&all)?);
    }
    Ok(())
}

/// Runs `espalier du`.
pub(crate) fn du(args: &Du) -> Result<()> {
    for path in &args.paths {
        let mut answer = [0; size(SPACE)];
        control::ask(&control::open(path)?, SPACE, &mut answer)
            .map_err(|error| control::explain(error, path))
            .with_context(|| "space cannot be told")?;
        let (bytes, exclusive) = answer.split_at(8);
        let (bytes, exclusive) =
            (u64::from_ne_bytes(bytes.try_into()?), u64::from_ne_bytes(exclusive.try_into()?));
        if args.json {
            println!("{}", json!({"path": path.to_string_lossy(), "bytes": bytes, "exclusive": exclusive}));
        } else {
            println!("{:>12}  {}", Size(if args.exclusive { exclusive } else { bytes }), path.display());
        }
    }
    Ok(())
}
