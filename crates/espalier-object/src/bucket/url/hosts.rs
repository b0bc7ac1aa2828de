//! Hosts: locations that are written with the host of a service, as its pages show them.

/// Hosts of Azure's storage accounts, which stand before them.
const AZURE_HOSTS: [&str; 2] = ["blob.core.windows.net", "dfs.core.windows.net"];
/// The same of Fabric.
const FABRIC_HOSTS: [&str; 2] = ["blob.fabric.microsoft.com", "dfs.fabric.microsoft.com"];

/// What is written `https://HOST/PATH`, as it is written with the scheme of its service. Whether
/// there is a bucket is not looked at.
///
/// # Errors
/// What is wrong, if the host is none of a known service.
pub(super) fn with_scheme(host: &str, path: &str) -> Result<String, String> {
    if path.contains('%') {
        return Err("write the path without %XX".into());
    }
    if host == "storage.googleapis.com" {
        return Ok(format!("gs://{path}"));
    }
    if let Some(labels) = host.strip_suffix(".amazonaws.com") {
        return amazon(labels, path).ok_or_else(|| unknown(host));
    }
    if host.ends_with(".r2.cloudflarestorage.com") {
        return Ok(format!("s3://{path}?endpoint=https://{host}&region=auto"));
    }
    azure(host, path).ok_or_else(|| unknown(host))
}

/// `s3.REGION` with the bucket in the path, or `BUCKET.s3.REGION`; `dualstack` before the region.
fn amazon(labels: &str, path: &str) -> Option<String> {
    let labels: Vec<&str> = labels.split('.').collect();
    let at = labels.iter().rposition(|label| *label == "s3")?;
    let place = match labels[..at].join(".") {
        bucket if bucket.is_empty() => path.to_owned(),
        bucket => format!("{bucket}/{path}"),
    };
    match labels[at + 1..] {
        [] => Some(format!("s3://{place}")),
        [region] => Some(format!("s3://{place}?region={region}")),
        ["dualstack", region] => {
            let endpoint = format!("https://s3.dualstack.{region}.amazonaws.com");
            Some(format!("s3://{place}?endpoint={endpoint}&region={region}"))
        }
        _ => None,
    }
}

fn azure(host: &str, path: &str) -> Option<String> {
    let (account, service) = host.split_once('.')?;
    if AZURE_HOSTS.contains(&service) {
        return Some(format!("az://{path}?account={account}"));
    }
    if FABRIC_HOSTS.contains(&service) {
        let endpoint = format!("https://{account}.blob.fabric.microsoft.com");
        return Some(format!("az://{path}?endpoint={endpoint}&account={account}"));
    }
    // A workspace behind a private link: its zone is a part of the account's name.
    let (zone, rest) = service.split_once('.')?;
    (zone.starts_with('z') && rest.ends_with(".fabric.microsoft.com"))
        .then(|| format!("az://{path}?endpoint=https://{host}&account={account}.{zone}"))
}

fn unknown(host: &str) -> String {
    format!(
        "{host} is no known host of an object store; write s3://BUCKET/PREFIX?endpoint=https://HOST if it speaks S3"
    )
}
