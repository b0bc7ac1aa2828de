"""The suites, in the order in which they run."""

from suites import (
    acl, container, cpython, dbench, fio, fsx, git, git_fsmonitor, golang, overlay, pjdfstest, posixtest,
    postgresql, sqlite, stress_ng, trips)

SUITES = [
    pjdfstest.Pjdfstest(),
    posixtest.Posixtest(),
    acl.Acl(),
    acl.Attr(),
    golang.Golang(),
    cpython.CPython(),
    stress_ng.StressNg(),
    fio.Fio(),
    fsx.Fsx(),
    trips.RoundTrips(),
    git.Git(),
    git_fsmonitor.GitFsmonitor(),
    overlay.Overlay(),
    container.Container(),
    dbench.Dbench(),
    postgresql.PostgreSql(),
    sqlite.Sqlite(),
]
