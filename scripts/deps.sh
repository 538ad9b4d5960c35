#!/bin/sh
# Installs what the tests need from Debian's packages, and only what is missing.
#
#   scripts/deps.sh [GROUP]...      base (default), clients, monitoring, browser, all
#   scripts/deps.sh -n [GROUP]...   print what is missing and exit 1, install nothing
#
# base        MariaDB with Galera, ZooKeeper, redis-server and the tools that start and watch them
# clients     Redis clients of other languages, for the client matrix
# monitoring  Prometheus, which loads the alert rules and scrapes /metrics
# browser     Chromium, which renders the status page
#
# No package may start a service: the tests run private servers on free ports, and a machine that runs the tests keeps
# 3306, 6379 and 2181 as they were. Running it again with everything in place takes well under a second and needs no root.
set -eu

fail() {
	echo "deps.sh: $*" >&2
	exit 1
}

dry=
groups=
for arg in "$@"; do
	case $arg in
	-n) dry=1 ;;
	base | clients | monitoring | browser) groups="$groups $arg" ;;
	all) groups="base clients monitoring browser" ;;
	*) fail "unknown group '$arg': use base, clients, monitoring, browser or all" ;;
	esac
done
[ -n "$groups" ] || groups=base

command -v dpkg-query >/dev/null 2>&1 || fail "this is not Debian (no dpkg-query): install redis-server, mariadb-server, galera, rsync, socat, lsof, iproute2, ZooKeeper and a Java runtime by hand"

# has answers whether a Debian package is installed, whole.
has() {
	[ "$(dpkg-query -W -f='${db:Status-Status}' "$1" 2>/dev/null)" = installed ]
}

missing=
package() { # package NAME...: needed as a Debian package
	for p in "$@"; do
		has "$p" || missing="$missing $p"
	done
}
tool() { # tool COMMAND PACKAGE: any program of that name will do
	command -v "$1" >/dev/null 2>&1 || missing="$missing $2"
}

for g in $groups; do
	case $g in
	base)
		package redis-server redis-tools mariadb-server mariadb-client galera-4 zookeeper
		tool rsync rsync
		tool lsof lsof
		tool ss iproute2
		tool socat socat
		tool java default-jre-headless
		;;
	clients)
		package python3-redis php-cli php-redis php-nrk-predis ruby ruby-redis libhiredis-dev libc6-dev
		tool gcc gcc
		tool node nodejs
		# npm of other sources comes inside their nodejs package; Debian's is one of its own.
		tool npm npm
		;;
	monitoring) package prometheus ;;
	browser) package chromium ;;
	esac
done

[ -n "$missing" ] || exit 0
if [ -n "$dry" ]; then
	echo "missing:$missing"
	exit 1
fi
[ "$(id -u)" = 0 ] || fail "missing packages:$missing
run as root: scripts/deps.sh$groups"

export DEBIAN_FRONTEND=noninteractive LC_ALL=C
apt="apt-get -q -y -o DPkg::Lock::Timeout=600 -o Dpkg::Use-Pty=0"

# Two runs at once would trip over each other's policy-rc.d.
exec 9>/var/lock/redleaf-deps.lock
flock -w 900 9 || fail "another run of deps.sh holds /var/lock/redleaf-deps.lock for 15 minutes: end it and run this again"

# policy-rc.d answers 101 to "may this package start its service?". One that already refuses stays as it is; any other is
# put aside and back again, also by the next run if this one is killed in between.
policy=/usr/sbin/policy-rc.d
aside=$policy.before-redleaf
made=
restore() {
	[ -z "$made" ] || rm -f "$policy"
	[ ! -e "$aside" ] || mv -f "$aside" "$policy"
}
[ ! -e "$aside" ] || mv -f "$aside" "$policy"
trap restore EXIT
trap 'exit 130' INT
trap 'exit 143' TERM HUP
refuses() {
	[ -x "$policy" ] || return 1
	code=0
	"$policy" redis-server start >/dev/null 2>&1 </dev/null || code=$?
	[ "$code" = 101 ]
}
if ! refuses; then
	[ ! -e "$policy" ] || mv "$policy" "$aside"
	made=1
	printf '#!/bin/sh\n# By scripts/deps.sh of redleaf, for the length of one apt-get run.\nexit 101\n' >"$policy"
	chmod 755 "$policy"
fi

echo "deps.sh: installing$missing"
# --no-install-recommends: ZooKeeper alone would bring a web server, Chromium a desktop's worth.
# shellcheck disable=SC2086
install() { $apt install --no-install-recommends $missing </dev/null; }
known() {
	# shellcheck disable=SC2086
	$apt install -s --no-install-recommends $missing >/dev/null 2>&1 </dev/null
}
updated=
update() {
	updated=1
	$apt update </dev/null || fail "apt-get update did not succeed: check /etc/apt/sources.list and the network"
}
known || update
if ! install; then
	# Lists that are days old name versions that the mirror no longer has.
	[ -z "$updated" ] || fail "apt-get could not install$missing: its messages are above"
	update
	install || fail "apt-get could not install$missing: its messages are above"
fi

# Where systemd runs, a fresh package is enabled for the next boot. What this run installed is switched off again.
if command -v systemctl >/dev/null 2>&1; then
	for p in $missing; do
		case $p in
		redis-server) units=redis-server.service ;;
		mariadb-server) units=mariadb.service ;;
		prometheus) units="prometheus.service prometheus-node-exporter.service" ;;
		rsync) units=rsync.service ;;
		*) units= ;;
		esac
		for u in $units; do
			systemctl disable "$u" >/dev/null 2>&1 || true
		done
	done
fi

for p in $missing; do
	has "$p" || fail "$p is still missing after apt-get said it was installed"
done
echo "deps.sh: done"
