//! Services: how each of them is reached, with credentials of the environment.
//!
//! Nothing is repeated here ([`crate::requests`] does), and every put may have a condition. Each
//! request has the time limit of [`super::remote`] and no other: `object_store` would end every
//! request after 30 s, which is too short for a segment on a slow link.

#[cfg(any(feature = "aws", feature = "gcp", feature = "azure"))]
use super::failures::failure;
use super::{Failure, FailureKind, Location};
use object_store::ObjectStore;
use std::sync::Arc;

/// What a service calls the state of an object that a put may have as its condition.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Versions {
    /// The ETag.
    Tags,
    /// A number that grows with each put: Google's condition takes no ETag.
    Generations,
}

/// The store of a location that is no directory, and what tells states of its objects apart.
///
/// # Errors
/// If something is missing, or this program was built without what it needs.
pub(super) fn open(location: &Location) -> Result<(Arc<dyn ObjectStore>, Versions), Failure> {
    match location {
        Location::S3 { .. } => s3(location).map(|store| (store, Versions::Tags)),
        Location::Google { .. } => google(location).map(|store| (store, Versions::Generations)),
        Location::Azure { .. } => azure(location).map(|store| (store, Versions::Tags)),
        Location::Directory(_) => Err(other(location)),
    }
}

fn other(location: &Location) -> Failure {
    Failure::new(FailureKind::Unsupported, format!("{location} is of another service"))
}

/// TLS takes its ciphers from the process. Another library may have chosen them already.
#[cfg(any(feature = "aws", feature = "gcp", feature = "azure"))]
fn choose_ciphers() {
    let _ = rustls::crypto::ring::default_provider().install_default();
}

/// The time limit of `object_store`, which is behind that of any request of ours.
#[cfg(any(feature = "aws", feature = "gcp", feature = "azure"))]
const NO_LIMIT: (object_store::ClientConfigKey, &str) = (object_store::ClientConfigKey::Timeout, "1 day");

#[cfg(any(feature = "aws", feature = "gcp", feature = "azure"))]
fn no_retries() -> object_store::RetryConfig {
    object_store::RetryConfig { max_retries: 0, ..Default::default() }
}

#[cfg(feature = "aws")]
fn s3(location: &Location) -> Result<Arc<dyn ObjectStore>, Failure> {
    s3_with(object_store::aws::AmazonS3Builder::from_env(), location)
}

/// A store of S3, by a builder that has the credentials.
#[cfg(feature = "aws")]
pub(super) fn s3_with(
    builder: object_store::aws::AmazonS3Builder,
    location: &Location,
) -> Result<Arc<dyn ObjectStore>, Failure> {
    use object_store::aws::{AmazonS3ConfigKey, S3ConditionalPut};
    let Location::S3 { bucket, endpoint, region, .. } = location else { return Err(other(location)) };
    choose_ciphers();
    let mut builder = builder
        .with_bucket_name(bucket)
        .with_retry(no_retries())
        .with_config(AmazonS3ConfigKey::Client(NO_LIMIT.0), NO_LIMIT.1)
        .with_conditional_put(S3ConditionalPut::ETagMatch);
    if let Some(endpoint) = endpoint {
        builder = builder.with_endpoint(endpoint).with_allow_http(endpoint.starts_with("http://"));
    }
    if let Some(region) = region {
        builder = builder.with_region(region);
    }
    Ok(Arc::new(builder.build().map_err(failure)?))
}

#[cfg(feature = "gcp")]
fn google(location: &Location) -> Result<Arc<dyn ObjectStore>, Failure> {
    google_with(object_store::gcp::GoogleCloudStorageBuilder::from_env(), location)
}

/// Google's store, by a builder that has the credentials.
#[cfg(feature = "gcp")]
fn google_with(
    builder: object_store::gcp::GoogleCloudStorageBuilder,
    location: &Location,
) -> Result<Arc<dyn ObjectStore>, Failure> {
    use object_store::{ClientConfigKey, gcp::GoogleConfigKey};
    let Location::Google { bucket, endpoint, .. } = location else { return Err(other(location)) };
    choose_ciphers();
    let mut builder = builder
        .with_bucket_name(bucket)
        .with_retry(no_retries())
        .with_config(GoogleConfigKey::Client(NO_LIMIT.0), NO_LIMIT.1);
    if let Some(endpoint) = endpoint {
        let allow_http = GoogleConfigKey::Client(ClientConfigKey::AllowHttp);
        builder = builder
            .with_base_url(endpoint.trim_end_matches('/'))
            .with_config(allow_http, endpoint.starts_with("http://").to_string());
    }
    Ok(Arc::new(builder.build().map_err(failure)?))
}

/// Whether a variable of the environment says yes, in the words that the library takes.
#[cfg(feature = "azure")]
fn is_yes(word: &str) -> bool {
    ["1", "true", "on", "yes", "y"].iter().any(|yes| word.eq_ignore_ascii_case(yes))
}

#[cfg(feature = "azure")]
fn azure(location: &Location) -> Result<Arc<dyn ObjectStore>, Failure> {
    azure_with(object_store::azure::MicrosoftAzureBuilder::from_env(), location)
}

/// Azure's store, by a builder that has the credentials.
#[cfg(feature = "azure")]
fn azure_with(
    builder: object_store::azure::MicrosoftAzureBuilder,
    location: &Location,
) -> Result<Arc<dyn ObjectStore>, Failure> {
    use object_store::azure::AzureConfigKey;
    let Location::Azure { container, account, endpoint, .. } = location else { return Err(other(location)) };
    choose_ciphers();
    let mut builder = builder
        .with_container_name(container)
        .with_retry(no_retries())
        .with_config(AzureConfigKey::Client(NO_LIMIT.0), NO_LIMIT.1);
    if let Some(endpoint) = endpoint {
        builder = builder.with_endpoint(endpoint.clone()).with_allow_http(endpoint.starts_with("http://"));
    }
    if let Some(account) = account {
        builder = builder.with_account(account);
    }
    let is_named = builder.get_config_value(&AzureConfigKey::AccountName).is_some();
    let is_emulator = builder.get_config_value(&AzureConfigKey::UseEmulator).is_some_and(|on| is_yes(&on));
    if !is_named && !is_emulator {
        let message =
            "name the storage account, by ?account=NAME or in the environment (AZURE_STORAGE_ACCOUNT_NAME)";
        return Err(Failure::new(FailureKind::Unsupported, message));
    }
    Ok(Arc::new(builder.build().map_err(failure)?))
}

#[cfg(not(feature = "aws"))]
fn s3(location: &Location) -> Result<Arc<dyn ObjectStore>, Failure> {
    Err(without(location, "S3 (feature aws)"))
}

#[cfg(not(feature = "gcp"))]
fn google(location: &Location) -> Result<Arc<dyn ObjectStore>, Failure> {
    Err(without(location, "Google Cloud Storage (feature gcp)"))
}

#[cfg(not(feature = "azure"))]
fn azure(location: &Location) -> Result<Arc<dyn ObjectStore>, Failure> {
    Err(without(location, "Azure Blob Storage (feature azure)"))
}

#[cfg(not(all(feature = "aws", feature = "gcp", feature = "azure")))]
fn without(location: &Location, what: &str) -> Failure {
    Failure::new(FailureKind::Unsupported, format!("{location}: this program was built without {what}"))
}

#[cfg(all(test, feature = "gcp", feature = "azure"))]
mod tests;
