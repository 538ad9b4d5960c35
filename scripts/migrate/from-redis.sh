#!/bin/sh
# Carries counters over from Redis' INCR to Redleaf, so that no number is given twice.
#
#   export FROM='redis-cli -h old-redis' TO='redis-cli -h redleaf -p 6380'
#   ./from-redis.sh list 'order:*' > counters       # looks only: check that these are the counters you mean
#   ./from-redis.sh take < counters > taken         # from now on INCR of these keys fails in Redis
#   ./from-redis.sh load < taken                    # Redleaf goes on where Redis ended; then switch your clients
#   ./from-redis.sh undo < taken                    # puts them back in Redis: only if nothing was drawn from Redleaf
#
# How it can't repeat: `take` puts "moved to redleaf at 1234" in place of each value, in one atomic step that returns the value. An
# INCR before it counts and is in the value; one after it is an error ("value is not an integer"). So Redis gives no number of
# these keys after the value that Redleaf begins above, whichever clients still talk to it. Any step may be run again.
#
# Redis may lose its last second in a crash or failover, the mark included. MARGIN=100000 makes `load` begin that much higher, which
# covers what such a Redis may still give out. Stop it, or keep the marks, until the last client has moved.
#
# Lines are "value key", the key as redis-cli writes it: quoted, with \x.. for bytes beyond ASCII. Keys that expire are left out
# (EXPIRING=1 takes them too): Redleaf has no expiry, use one tag per period. Of a Redis Cluster run it for each primary.
# Passwords: put `--user NAME --askpass` or the like into FROM and TO; REDISCLI_AUTH holds for both.
set -eu
: "${FROM:=redis-cli -p 6379}" "${TO:=redis-cli -p 6380}" "${MARGIN:=0}" "${EXPIRING:=0}"

fail() {
	printf '%s\n' "from-redis.sh: $*" >&2
	exit 1
}
case $MARGIN in *[!0-9]* | '') fail "MARGIN is '$MARGIN': a number is needed" ;; esac

tmp=$(mktemp -d)
trap 'rm -rf "$tmp"' EXIT
trap 'exit 130' INT
trap 'exit 143' TERM HUP

# ask SERVER: commands on stdin, one line each; one line of reply for each on stdout.
ask() {
	cat >"$tmp/commands"
	[ -s "$tmp/commands" ] || return 0
	# An error is followed by an empty line, and no reply here is empty.
	# shellcheck disable=SC2086
	$1 <"$tmp/commands" >"$tmp/raw" || fail "'$1' did not work: $(head -n 1 "$tmp/raw")"
	grep -v '^$' "$tmp/raw" >"$tmp/replies" || true
	[ "$(wc -l <"$tmp/commands")" -eq "$(wc -l <"$tmp/replies")" ] ||
		fail "'$1' answered only $(wc -l <"$tmp/replies") of $(wc -l <"$tmp/commands") commands, the last with: $(tail -n 1 "$tmp/replies"). Run this step again"
	cat "$tmp/replies"
}

# both SERVER SCRIPT: for each line "value key" on stdin, "reply value key" on stdout, where SCRIPT runs with the key and the value.
both() {
	cat >"$tmp/lines"
	[ -s "$tmp/lines" ] || return 0
	# shellcheck disable=SC2086
	sha=$($1 script load "$2") || fail "'$1' did not work: $sha"
	case $sha in *[!0-9a-f]* | '') fail "'$1' can't run scripts: $sha" ;; esac
	sed "s/^\([^ ]*\) \(.*\)$/evalsha $sha 1 \2 \1/" "$tmp/lines" | ask "$1" >"$tmp/answers"
	paste -d ' ' "$tmp/answers" "$tmp/lines"
}

lookup='
if redis.call("TYPE", KEYS[1]).ok ~= "string" then return "other" end
local v = redis.call("GET", KEYS[1])
if not (v == "0" or (string.match(v, "^[1-9]%d*$") and #v <= 19)) then return "other" end
if redis.call("TTL", KEYS[1]) >= 0 and ARGV[1] ~= "1" then return "expires" end
return v'

take='
if redis.call("TYPE", KEYS[1]).ok ~= "string" then return "gone" end
local v = redis.call("GET", KEYS[1])
local before = string.match(v, "^moved to redleaf at (%d+)$")
if before then return before end
if not (v == "0" or (string.match(v, "^[1-9]%d*$") and #v <= 19)) then return "gone" end
redis.call("SET", KEYS[1], "moved to redleaf at " .. v)
return v'

undo='
if redis.call("TYPE", KEYS[1]).ok ~= "string" then return "gone" end
local v = string.match(redis.call("GET", KEYS[1]), "^moved to redleaf at (%d+)$")
if not v then return "gone" end
redis.call("SET", KEYS[1], v)
return v'

case ${1:-} in
list)
	# shellcheck disable=SC2086
	$FROM --no-raw --scan --pattern "${2:-*}" >"$tmp/keys" || fail "'$FROM' did not work: $(head -n 1 "$tmp/keys")"
	# Older redis-cli print the bare key here.
	sed '/^"/!{s/[\\"]/\\&/g;s/.*/"&"/;}' "$tmp/keys" | sort -u | sed "s/^/$EXPIRING /" | both "$FROM" "$lookup" >"$tmp/found"
	# "value 0 key"
	awk '$1 ~ /^[0-9]+$/ { v = $1; sub(/^[^ ]+ [^ ]+ /, ""); print v, $0 }' "$tmp/found"
	awk '$1 == "expires" { e++ } $1 == "other" { o++ } $1 ~ /^[0-9]+$/ { n++ }
		END { printf "%d counters, %d keys that expire and were left out, %d that are no counters\n", n, e, o }' "$tmp/found" >&2
	;;
take)
	both "$FROM" "$take" >"$tmp/found"
	awk '$1 ~ /^[0-9]+$/ { v = $1; sub(/^[^ ]+ [^ ]+ /, ""); print v, $0 }' "$tmp/found"
	awk '$1 ~ /^[0-9]+$/ { n++; next } { bad++; print "not taken: " $0 } END { printf "%d taken\n", n; exit bad > 0 }' "$tmp/found" >&2
	;;
load)
	cat >"$tmp/taken"
	# Past 2^53 JavaScript clients see wrong numbers, so SET wants to be told that it is meant. awk counts in doubles: the sum is made
	# by the shell, digit for digit.
	while read -r v key; do
		n=$((v + MARGIN))
		[ "$n" -ge "$v" ] || fail "$v and MARGIN pass the largest number there is: $key"
		force=
		[ "$n" -le 9007199254740992 ] || force=' FORCE'
		printf '%s %s\n' "$n" "$key" >>"$tmp/wanted"
		printf 'SET %s %s%s\n' "$key" "$n" "$force"
	done <"$tmp/taken" >"$tmp/sets"
	[ -s "$tmp/sets" ] || fail "there are no lines to load"
	ask "$TO" <"$tmp/sets" >"$tmp/set"
	# A tag that stands there already, or above, was loaded before: that is well too.
	paste -d '\t' "$tmp/set" "$tmp/wanted" >"$tmp/both"
	awk -F '\t' '$1 != "OK" { print $2 }' "$tmp/both" >"$tmp/left"
	awk -F '\t' '$1 != "OK" { print $1 }' "$tmp/both" >"$tmp/why"
	sed 's/^[^ ]* /GET /' "$tmp/left" | ask "$TO" >"$tmp/have"
	loaded=$(grep -c '^OK$' "$tmp/set" || true) there=0 bad=0
	paste -d '\t' "$tmp/have" "$tmp/left" "$tmp/why" >"$tmp/compare"
	while IFS="$(printf '\t')" read -r have line why; do
		want=${line%% *}
		case $have in *[!0-9]* | '') have=-1 ;; esac
		if [ "$have" -ge "$want" ]; then
			there=$((there + 1))
		else
			bad=$((bad + 1))
			printf '%s\n' "not loaded: ${line#* }: $why" >&2
		fi
	done <"$tmp/compare"
	echo "$loaded loaded, $there were there before, $bad failed" >&2
	[ "$bad" = 0 ] || exit 1
	;;
undo)
	both "$FROM" "$undo" | awk '$1 ~ /^[0-9]+$/ { n++; next } { print "not put back: " $0 } END { printf "%d put back\n", n }' >&2
	;;
*)
	sed -n '2,/^set /{/^#/s/^# \{0,1\}//p;}' "$0"
	exit 2
	;;
esac
