"""PostgreSQL: pgbench, an immediate stop in the middle of it, recovery, and what must hold then."""

from process import debian_version
from suite import ALL_PLAIN, FAILED, PASSED, Suite

BIN = "/usr/lib/postgresql/15/bin"
# Every transaction of pgbench adds one amount to an account, a teller and a branch, and notes it.
SUMS = """select (select sum(abalance) from pgbench_accounts) = (select sum(bbalance) from pgbench_branches)
and (select sum(tbalance) from pgbench_tellers) = (select sum(bbalance) from pgbench_branches)
and (select coalesce(sum(delta), 0) from pgbench_history) = (select sum(bbalance) from pgbench_branches)"""
STEPS = [
    ("initdb with checksums", "initdb -D data --data-checksums --auth=trust -U postgres -E UTF8 --no-locale"),
    ("start", "start"),
    ("pgbench -i", "pgbench -q -i -s 5 postgres"),
    ("pgbench", "pgbench -n -c 8 -j 2 -T 10 postgres"),
    ("sums agree", "sums"),
    ("acknowledged counts are there", "acknowledged"),
    ("an immediate stop under load", "crash"),
    ("recovery", "start"),
    ("sums agree after recovery", "sums"),
    ("acknowledged counts are there after recovery", "acknowledged"),
    ("a second immediate stop and recovery", "crash && start"),
    ("sums agree again", "sums"),
    ("heap and indexes (amcheck)", "psql -qc 'create extension if not exists amcheck' && pg_amcheck --heapallindexed -d postgres"),
    ("vacuum full, reindex, create a database", "psql -qc 'vacuum full' && psql -qc 'reindex database postgres' && createdb other && dropdb other"),
    ("dump and restore", "createdb again && pg_dump postgres | psql -q -d again && psql -d again -Atc \"$SUMS\" | grep -qx t"),
    ("stop", "pg_ctl -D data -w -m fast stop"),
    ("pg_checksums", "pg_checksums --check -D data"),
]
PRELUDE = r"""
start() { pg_ctl -D data -w -t 120 -l log -o "-c listen_addresses='' -c unix_socket_directories=$PGHOST" start; }
sums() { psql -Atc "$SUMS" | grep -qx t; }
acknowledged() {
    psql -qc 'create table if not exists counted (n int)'
    for n in $(seq 50); do psql -qc "insert into counted values ($n)" && echo "$n" >>$PGHOST/counted; done
    test "$(psql -Atc 'select count(*) from counted')" = "$(wc -l <$PGHOST/counted)"
}
crash() {
    pgbench -n -c 8 -j 2 -T 30 postgres &
    # Stopped once it has written something.
    local before=$(psql -Atc 'select count(*) from pgbench_history')
    while test "$(psql -Atc 'select count(*) from pgbench_history')" -lt $((before + 500)); do :; done
    pg_ctl -D data -w -m immediate stop
    wait || true
}
"""


class PostgreSql(Suite):
    name = "PostgreSQL"
    # The server refuses root.
    runs = ALL_PLAIN
    least = len(STEPS)

    def version(self):
        return debian_version("postgresql-15")

    def run(self, place, quick):
        cases = {}
        environment = {
            "PATH": f"{BIN}:/usr/bin:/bin", "PGHOST": place.work, "PGUSER": "postgres",
            "PGDATABASE": "postgres", "SUMS": SUMS,
        }
        try:
            for name, script in STEPS:
                status, _ = place.run(["bash", "-e", "-o", "pipefail", "-c", PRELUDE + script],
                                      env=environment, limit=300)
                cases[name] = PASSED if status == 0 else FAILED
        finally:
            place.run([f"{BIN}/pg_ctl", "-D", "data", "-m", "immediate", "stop"])
        return cases
