# The README's commands. `all` needs Rust and a compiler for C, `install` only what `all` has built.
# What other targets need and is missing is installed by scripts/install-deps.

CARGO ?= cargo
PREFIX ?= /usr/local
# mount(8), mkfs(8) and fsck(8) look for their helpers here.
SBINDIR ?= /sbin
DESTDIR ?=
TARGET := $(or $(CARGO_TARGET_DIR),target)

.PHONY: all demo test test-long conformance soak-fsx lint fuzz soak soak-object power-cut bench install \
	install-files install-library built-program built-library uninstall clean static deb rpm wheel dist dist-check package-test unit-test first-file \
	publish-check site guarantees

all:
	$(CARGO) build --release -p espalier-cli -p espalier-c

# Makes an image, mounts it, works in it, checks it, compares every byte; then makes a pool of
# workspaces, and as root container roots. Prints each step's time.
demo:
	./scripts/install-deps build demo
	$(CARGO) build --release -p espalier-cli
	$(TARGET)/release/espalier demo $(DEMO)
	./scripts/workspaces $(if $(filter 0,$(shell id -u)),-c)

# Every test, the lints first. Needs root, or FUSE and fusermount3 at least.
test:
	./scripts/install-deps build test suites objects bindings fuzz package
	./scripts/test

# What takes too long for every run: all outside suites with all their cases on every kind of mount,
# PyTorch with the Python package, and fsx for MINUTES. Needs root.
test-long:
	./scripts/install-deps build suites suites-long bindings torch
	$(CARGO) build --release -p espalier-cli
	./scripts/conformance $(CONFORMANCE)
	ESPALIER=$(TARGET)/release/espalier ./scripts/bindings --torch
	./scripts/soak-fsx --minutes $(or $(MINUTES),60)

# The outside suites, and the table of docs/conformance.md from what came out. Needs root.
conformance:
	./scripts/install-deps build suites suites-long
	$(CARGO) build --release -p espalier-cli
	./scripts/conformance --write $(CONFORMANCE)

# fsx with new seeds on several mounts for MINUTES; counts its operations. Needs root.
soak-fsx:
	./scripts/install-deps build suites
	$(CARGO) build --release -p espalier-cli
	./scripts/soak-fsx --minutes $(or $(MINUTES),60)

lint:
	$(CARGO) fmt --all --check
	$(CARGO) clippy --workspace --all-targets --locked -- -D warnings
	$(CARGO) doc --workspace --no-deps --document-private-items --locked --quiet
	$(CARGO) run -p espalier-lint --locked --quiet -- check

# Fuzzes image parsing, log replay and the decoding of requests and of clients' calls, so many
# seconds each.
fuzz:
	./scripts/install-deps build fuzz
	./scripts/fuzz $(or $(SECONDS),60)

# Random workloads, power cuts and faults for MINUTES (more options in SOAK, such as SOAK="--seed
# 1000 --json"); then every short history with a power cut at every change.
soak:
	./scripts/install-deps build
	$(CARGO) run --release -p espalier-sim -- --minutes $(or $(MINUTES),60) $(SOAK)
	ESPALIER_HISTORIES=1 $(CARGO) test --release -p espalier-fs --test model power_cuts

# Recoveries of stores in a simulated object store, with and without a journal, for MINUTES: prints
# how many there were.
soak-object:
	./scripts/install-deps build
	$(CARGO) run --release -p espalier-sim -- --minutes $(or $(MINUTES),60) --only object --only journal $(SOAK)

# Kills a user-mode Linux guest that works on a mount, CUTS times, and checks that what was synced
# is there.
power-cut:
	./scripts/install-deps build test
	./scripts/power-cut $(or $(CUTS),20) $(or $(SEED),1)

# Side by side with ext4, XFS and Btrfs (espalier bench suite); options in BENCH, for example
# BENCH=--quick or BENCH=workspaces. Needs root. BENCH=engine, with its options behind it, is the
# engine beside RocksDB, redb, fjall and LMDB, which are built for it; for every user.
bench:
ifeq ($(firstword $(BENCH)),engine)
	./scripts/install-deps build bench-engine
	$(CARGO) build --release --locked --manifest-path bench/engine/Cargo.toml --target-dir $(TARGET)/bench
	$(TARGET)/bench/release/engine-bench $(wordlist 2,$(words $(BENCH)),$(BENCH))
else
	./scripts/install-deps build bench
	$(CARGO) build --release -p espalier-cli
	$(CARGO) build --release -p espalier-fuse --example bound
	$(TARGET)/release/espalier bench suite --bound $(TARGET)/release/examples/bound $(BENCH)
endif

HELPERS := mkfs.espalier fsck.espalier mount.espalier mount.fuse.espalier \
	umount.espalier umount.fuse.espalier umount.fuseblk.espalier
SHARE = $(DESTDIR)$(PREFIX)/share
BASH_COMPLETION = $(SHARE)/bash-completion/completions/espalier
ZSH_COMPLETION = $(SHARE)/zsh/$(ZSH_FUNCTIONS)/_espalier
FISH_COMPLETION = $(SHARE)/fish/vendor_completions.d/espalier.fish
UNIT = $(DESTDIR)$(PREFIX)/lib/systemd/system/espalier@.service
INCLUDE = $(DESTDIR)$(PREFIX)/include
HEADERS := $(notdir $(wildcard include/*.h))
# With everything that they link to, except for sources: there the text of the link remains.
DOC = $(SHARE)/doc/espalier
DOCUMENTS := $(wildcard *.md docs/*.md docs/*/*.md docs/images/*) LICENSE-APACHE LICENSE-MIT
SOURCE_LINK := \[([^]]*)\]\((\.\./)*(crates|include|integrations|scripts)(/[^)]*)?\)
# Debian's packages have vendor-completions.
ZSH_FUNCTIONS ?= site-functions
BINARY ?= $(TARGET)/release/espalier
# The C library: where it was built, where it goes, and its name for the dynamic linker
# (crates/espalier-c/build.rs).
LIBRARIES ?= $(patsubst %/,%,$(dir $(BINARY)))
LIBDIR ?= $(PREFIX)/lib
VERSION := $(shell sed -n 's/^version = "\(.*\)"/\1/p' Cargo.toml | head -n 1)
SONAME := libespalier.so.$(basename $(VERSION))

# Builds nothing: it is for root, and the tree is another user's.
install: built-program built-library install-files install-library

# A sentence, unless the file is there.
built = $(if $(shell test -e $(1) && echo yes),,$(error $(1) is not there: run make first))

built-program:
	$(call built,$(BINARY))

built-library:
	$(call built,$(LIBRARIES)/libespalier_c.so)

install-library: built-library
	install -D -m 644 $(LIBRARIES)/libespalier_c.so $(DESTDIR)$(LIBDIR)/libespalier.so.$(VERSION)
	ln -sf libespalier.so.$(VERSION) $(DESTDIR)$(LIBDIR)/$(SONAME)
	ln -sf $(SONAME) $(DESTDIR)$(LIBDIR)/libespalier.so
	install -d $(INCLUDE) $(DESTDIR)$(LIBDIR)/pkgconfig
	install -m 644 $(addprefix include/,$(HEADERS)) $(INCLUDE)
	sed 's|@PREFIX@|$(PREFIX)|; s|@LIBDIR@|$(LIBDIR)|; s|@VERSION@|$(VERSION)|' \
		packaging/pkgconfig/espalier.pc.in >$(DESTDIR)$(LIBDIR)/pkgconfig/espalier.pc
	chmod 644 $(DESTDIR)$(LIBDIR)/pkgconfig/espalier.pc

install-files: built-program
	install -D -m 755 $(BINARY) $(DESTDIR)$(PREFIX)/bin/espalier
	install -D -m 755 integrations/git-espalier/git-espalier $(DESTDIR)$(PREFIX)/bin/git-espalier
	install -D -m 644 packaging/modprobe.d/espalier.conf $(DESTDIR)$(PREFIX)/lib/modprobe.d/espalier.conf
	install -D -m 644 packaging/grafana/espalier.json $(SHARE)/espalier/grafana.json
	install -d $(DESTDIR)$(SBINDIR) $(dir $(BASH_COMPLETION) $(ZSH_COMPLETION) $(FISH_COMPLETION) $(UNIT))
	for name in $(HELPERS); do ln -sf $(PREFIX)/bin/espalier $(DESTDIR)$(SBINDIR)/$$name; done
	$(BINARY) man $(SHARE)/man
	COMPLETE=bash $(BINARY) >$(BASH_COMPLETION)
	COMPLETE=zsh $(BINARY) >$(ZSH_COMPLETION)
	COMPLETE=fish $(BINARY) >$(FISH_COMPLETION)
	$(BINARY) unit $(PREFIX)/bin/espalier >$(UNIT)
	chmod 644 $(BASH_COMPLETION) $(ZSH_COMPLETION) $(FISH_COMPLETION) $(UNIT)
	for file in $(DOCUMENTS); do install -D -m 644 $$file $(DOC)/$$file || exit; done
	find $(DOC) -name '*.md' -exec sed -E -i 's,$(SOURCE_LINK),\1,g' {} +

uninstall:
	rm -f $(DESTDIR)$(PREFIX)/bin/espalier $(DESTDIR)$(PREFIX)/lib/modprobe.d/espalier.conf
	rm -f $(DESTDIR)$(PREFIX)/bin/git-espalier
	rm -f $(BASH_COMPLETION) $(ZSH_COMPLETION) $(FISH_COMPLETION) $(UNIT)
	rm -rf $(SHARE)/espalier $(DOC)
	rm -f $(DESTDIR)$(LIBDIR)/libespalier.so $(DESTDIR)$(LIBDIR)/$(SONAME) $(DESTDIR)$(LIBDIR)/libespalier.so.$(VERSION)
	rm -f $(DESTDIR)$(LIBDIR)/pkgconfig/espalier.pc $(addprefix $(INCLUDE)/,$(HEADERS))
	rm -f $(SHARE)/man/man1/espalier.1 $(SHARE)/man/man1/espalier-*.1 $(SHARE)/man/man1/git-espalier.1
	rm -f $(SHARE)/man/man5/espalier.5 $(SHARE)/man/man5/espalier.toml.5
	for name in $(HELPERS); do rm -f $(DESTDIR)$(SBINDIR)/$$name $(SHARE)/man/man8/$$name.8; done

# Packages, in target/dist-out: a static binary, a Debian package, an RPM, a wheel for Python.
static deb rpm wheel:
	./scripts/install-deps build dist bindings
	./scripts/package $@

# All of them, with SHA-256 sums and a list of the crates that they are made of.
dist:
	./scripts/install-deps build dist bindings
	./scripts/package all

# Two builds of the static binary, from two directories, have the same bytes; lintian has no error.
dist-check:
	./scripts/install-deps build dist
	./scripts/package check

# The Debian package in a fresh root, with the README's commands.
package-test:
	./scripts/install-deps build dist package
	./scripts/package deb
	./scripts/package-test

# The same package under a systemd of its own, in a container.
unit-test:
	./scripts/install-deps build dist package unit
	./scripts/package deb
	./scripts/unit-test

# Seconds from the first command to the first file, in a fresh root, for each way to install.
first-file:
	./scripts/install-deps build dist package
	./scripts/package static
	./scripts/package deb
	./scripts/first-file $(WAYS)

# What crates.io would get is complete, and builds.
publish-check:
	$(CARGO) publish --workspace --dry-run --locked $(PUBLISH)

# The documentation site, in target/site.
site:
	./scripts/install-deps build site
	./scripts/site

# How many cases stand behind docs/guarantees.md.
guarantees:
	./scripts/guarantees

clean:
	$(CARGO) clean
