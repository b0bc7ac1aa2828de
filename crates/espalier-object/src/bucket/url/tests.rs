//! Locations that are right, wrong, and have secrets.

use super::*;

#[test]
fn locations_are_read_and_written() {
    for text in [
        "s3://bucket/a/b?endpoint=http://127.0.0.1:7070",
        "s3://bucket/",
        "s3://bucket/x?endpoint=https://s3.example.org&region=eu-1",
        "gs://bucket/a/b",
        "gs://bucket/?endpoint=http://127.0.0.1:4443",
        "az://container/a/b",
        "az://container/?account=name",
        "az://container/x?endpoint=http://127.0.0.1:10000/devstoreaccount1&account=devstoreaccount1",
        "file:///srv/store",
    ] {
        assert!(Location::is_meant_by(text), "{text}");
        assert_eq!(Location::parse(text).unwrap().to_string(), text);
    }
}

#[test]
fn hosts_of_services_are_the_same_locations() {
    for (text, same) in [
        ("https://s3.eu-west-1.amazonaws.com/bucket/a/b", "s3://bucket/a/b?region=eu-west-1"),
        ("https://bucket.s3.eu-west-1.amazonaws.com/a/b/", "s3://bucket/a/b?region=eu-west-1"),
        ("https://bucket.s3.amazonaws.com/a", "s3://bucket/a"),
        ("https://bucket.s3.amazonaws.com", "s3://bucket/"),
        ("https://my.bucket.s3.us-east-2.amazonaws.com/a", "s3://my.bucket/a?region=us-east-2"),
        (
            "https://s3.dualstack.us-east-2.amazonaws.com/bucket/a",
            "s3://bucket/a?endpoint=https://s3.dualstack.us-east-2.amazonaws.com&region=us-east-2",
        ),
        (
            "https://account.eu.r2.cloudflarestorage.com/bucket/a",
            "s3://bucket/a?endpoint=https://account.eu.r2.cloudflarestorage.com&region=auto",
        ),
        ("https://storage.googleapis.com/bucket/a/b", "gs://bucket/a/b"),
        ("https://name.blob.core.windows.net/container/a/b", "az://container/a/b?account=name"),
        ("https://name.dfs.core.windows.net/container", "az://container/?account=name"),
        (
            "https://onelake.dfs.fabric.microsoft.com/workspace/item",
            "az://workspace/item?endpoint=https://onelake.blob.fabric.microsoft.com&account=onelake",
        ),
        (
            "https://0123.z28.blob.fabric.microsoft.com/container/a",
            "az://container/a?endpoint=https://0123.z28.blob.fabric.microsoft.com&account=0123.z28",
        ),
    ] {
        let location = Location::parse(text).unwrap_or_else(|error| panic!("{text}: {error}"));
        assert_eq!(location.to_string(), same, "{text}");
        assert_eq!(Location::parse(same).unwrap(), location);
    }
}

#[test]
fn what_is_no_location_or_has_a_secret_is_refused() {
    for (text, word) in [
        ("disk.img", "s3://"),
        ("http://bucket", "s3://"),
        ("s3://", "s3://BUCKET/PREFIX"),
        ("s3:///prefix", "s3://BUCKET/PREFIX"),
        ("gs:///prefix", "gs://BUCKET/PREFIX"),
        ("az://?account=name", "az://CONTAINER/PREFIX"),
        ("file://relative", "absolute"),
        ("s3://key:secret@bucket/prefix", "s3://BUCKET/PREFIX"),
        ("s3://bucket/p?secret=1", "AWS_ACCESS_KEY_ID"),
        ("s3://bucket/p?account=name", "only endpoint=... and region=..."),
        ("s3://bucket/p?region=", "region is a name"),
        ("s3://bucket/p?endpoint=http://user:secret@host", "without a password"),
        ("gs://bucket/p?region=here", "GOOGLE_APPLICATION_CREDENTIALS"),
        ("gs://bucket/p?endpoint=http://host/?token=secret", "without a password"),
        ("az://container/p?sv=2024&sig=secret", "AZURE_STORAGE_ACCOUNT_KEY"),
        ("az://container/p?account=a/b", "account is a name"),
        ("https://example.org/bucket/p", "s3://BUCKET/PREFIX?endpoint=https://HOST"),
        ("https://example.org/bucket", "example.org is no known host"),
        ("https://key:secret@example.org/bucket", "without a password"),
        ("https://KEY:secret/more@bucket.s3.amazonaws.com/p", "without a password"),
        ("https://KEY:secret", "without a password"),
        ("https://key:secret@name.blob.core.windows.net/container", "without a password"),
        ("https://name.blob.core.windows.net/container/p?sig=secret", "AZURE_STORAGE_SAS_TOKEN"),
        ("https://name.blob.core.windows.net", "BUCKET"),
        ("https://ec2.amazonaws.com/bucket", "no known host"),
        ("https://s3.eu-west-1.amazonaws.com", "BUCKET"),
        ("https://storage.googleapis.com/bucket/a%20b", "%XX"),
    ] {
        let error = Location::parse(text).unwrap_err().to_string().replace("CONTAINER", "BUCKET");
        assert!(error.contains(&word.replace("CONTAINER", "BUCKET")), "{text}: {error}");
        assert!(!error.contains("secret"), "{text}: {error}");
    }
}

#[test]
fn what_is_shown_of_a_bad_location_has_no_secret() {
    for (text, shown) in [
        ("s3://key:secret@bucket/p", "s3://bucket/p"),
        ("az://container/p?sig=secret", "az://container/p"),
        ("gs://bucket/p#secret", "gs://bucket/p"),
        ("secret", "secret"),
        ("s3://a:b@c:secret@bucket/p", "s3://bucket/p"),
        ("s3://a:b@c:secret@bucket/p?x", "s3://..."),
        ("s3://key:sec?secret@bucket/p", "s3://..."),
        ("az://c/p?sig=a@secret", "az://..."),
        ("https://KEY:secret/more", "https://..."),
    ] {
        assert_eq!(Location::without_secrets(text), shown);
    }
}
