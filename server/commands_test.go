package server

import (
	"fmt"
	"regexp"
	"strings"
	"testing"
	"time"
)

// everyRow is one session that calls every row of the command table, with the literal bytes of each reply in RESP2 and, where
// it differs, in RESP3. A reply that begins with ~ is a regular expression: of what holds a time, an address or an ID.
var everyRow = []struct{ line, two, three string }{
	{"PING", "+PONG\r\n", ""},
	{"PING hi", "$2\r\nhi\r\n", ""},
	{"ECHO hi", "$2\r\nhi\r\n", ""},
	{"AUTH x", "-" + errNoPassword + "\r\n", ""},
	{"SELECT 0", "+OK\r\n", ""},
	{"CLIENT ID", "~^:1\r\n$", ""},
	{"CLIENT GETNAME", "$-1\r\n", "_\r\n"},
	{"CLIENT SETNAME me", "+OK\r\n", ""},
	{"CLIENT GETNAME", "$2\r\nme\r\n", ""},
	{"CLIENT SETINFO LIB-NAME lib", "+OK\r\n", ""},
	{"CLIENT SETINFO lib-ver 1.2", "+OK\r\n", ""},
	{"CLIENT SETINFO bogus 1.2", "-ERR Unrecognized option 'bogus'\r\n", ""},
	{"CLIENT INFO", `~^\$\d+\r\nid=1 addr=127\.0\.0\.1:\d+ laddr=127\.0\.0\.1:\d+ fd=-1 name=me age=\d+ idle=\d+ flags=N db=0 sub=0 psub=0 ssub=0 multi=-1 .* cmd=client\|info user=default redir=-1 resp=2 lib-name=lib lib-ver=1\.2\n\r\n$`,
		`~^=\d+\r\ntxt:id=1 .* resp=3 .*\n\r\n$`},
	{"CLIENT LIST", `~^\$\d+\r\nid=1 .* cmd=client\|list .*\n\r\n$`, `~^=\d+\r\ntxt:id=1 .*\n\r\n$`},
	{"CLIENT LIST ID 1 TYPE", "-ERR Invalid client ID\r\n", ""},
	{"CLIENT LIST TYPE pubsub", "$0\r\n\r\n", "=4\r\ntxt:\r\n"},
	{"CLIENT KILL 1.2.3.4:5", "-ERR No such client\r\n", ""},
	{"CLIENT KILL ADDR 1.2.3.4:5", ":0\r\n", ""},
	{"CLIENT KILL MAXAGE 100", ":0\r\n", ""},
	{"CLIENT NO-EVICT ON", "+OK\r\n", ""},
	{"CLIENT NO-TOUCH OFF", "+OK\r\n", ""},
	{"CLIENT REPLY ON", "+OK\r\n", ""},
	{"CLIENT PAUSE 0", "+OK\r\n", ""},
	{"CLIENT UNPAUSE", "+OK\r\n", ""},
	{"CLIENT GETREDIR", ":-1\r\n", ""},
	{"CLIENT TRACKING ON OPTIN", "+OK\r\n", ""},
	{"CLIENT CACHING YES", "+OK\r\n", ""},
	{"CLIENT TRACKINGINFO", "*6\r\n$5\r\nflags\r\n*3\r\n$2\r\non\r\n$5\r\noptin\r\n$11\r\ncaching-yes\r\n$8\r\nredirect\r\n:0\r\n$8\r\nprefixes\r\n*0\r\n",
		"%3\r\n$5\r\nflags\r\n~3\r\n$2\r\non\r\n$5\r\noptin\r\n$11\r\ncaching-yes\r\n$8\r\nredirect\r\n:0\r\n$8\r\nprefixes\r\n*0\r\n"},
	{"CLIENT GETREDIR", ":0\r\n", ""},
	{"CLIENT TRACKING ON BCAST", "-ERR CLIENT TRACKING BCAST is refused: counters move with every INCR, and each client would hear of all of them. Use OPTIN\r\n", ""},
	{"CLIENT TRACKING OFF", "+OK\r\n", ""},
	{"CLIENT HELP", `~^\*35\r\n\+CLIENT <subcommand>`, ""},

	{"INCR order", ":1\r\n", ""},
	{"INCRBY order 10", ":11\r\n", ""},
	{"SEGMENT.NEXT order", ":12\r\n", ""},
	{"SEGMENT.NEXT order COUNT 3", "*3\r\n:13\r\n:14\r\n:15\r\n", ""},
	{"SEGMENT.NEXT order COUNT 0", "-ERR COUNT is 0: 1 to 10000 at a time (segment.max_array); SEGMENT.RANGE takes more\r\n", ""},
	{"SEGMENT.NEXT order BOGUS 1", "-ERR syntax error\r\n", ""},
	{"SEGMENT.RANGE order 5", "*2\r\n:16\r\n:20\r\n", ""},
	{"SEGMENT.RANGE order 0", "-ERR the increment is 0: counters only move forward, by 1 to 1000000 at a time (segment.max_count)\r\n", ""},
	{"GET order", "$2\r\n20\r\n", ""},
	{"GET nosuch", "$-1\r\n", "_\r\n"},
	{"MGET order nosuch", "*2\r\n$2\r\n20\r\n$-1\r\n", "*2\r\n$2\r\n20\r\n_\r\n"},
	{"SET made 100", "+OK\r\n", ""},
	{"INCR made", ":101\r\n", ""},
	{"SET made 50", "~^-ERR .*made.*50.*101.*\r\n$", ""},
	{"SET made 500 NX", "$-1\r\n", "_\r\n"},
	{"SET nosuch 500 XX", "$-1\r\n", "_\r\n"},
	{"SET made 9007199254740993", "-ERR the value is past 2^53, where JavaScript clients read different IDs as the same number: SET … FORCE if that is meant\r\n", ""},
	{"SET made -1", "-ERR the value is negative: IDs are positive, and 0 is the start of a new tag\r\n", ""},
	{"SETNX nx 7", ":1\r\n", ""},
	{"SETNX nx 9", ":0\r\n", ""},
	{"INCR nx", ":8\r\n", ""},
	{"SEGMENT.CREATE c START 1000 STEP 500 DESC orders", "+OK\r\n", ""},
	{"SEGMENT.CREATE c", `-ERR tag "c" is there already, and was left as it is: SEGMENT.INFO shows it, SET moves it forward` + "\r\n", ""},
	{"SEGMENT.CREATE d START 0", "-ERR START is 0: it must be at least 1\r\n", ""},
	{"INCR c", ":1000\r\n", ""},
	{"SEGMENT.INFO c", `~^\*36\r\n\$3\r\ntag\r\n\$1\r\nc\r\n\$5\r\nstate\r\n\$5\r\nready\r\n\$6\r\nreason\r\n\$0\r\n\r\n\$4\r\nlast\r\n:1000\r\n\$9\r\nremaining\r\n:\d+\r\n\$6\r\nrunway\r\n:-?\d+\r\n\$4\r\nspan\r\n:\d+\r\n\$4\r\nstep\r\n:500\r\n\$4\r\nrate\r\n\$[^:]*\r\n\$3\r\nrow\r\n:\d+\r\n\$5\r\nfloor\r\n:\d+\r\n\$6\r\nissued\r\n:1\r\n`,
		`~^%18\r\n\$3\r\ntag\r\n\$1\r\nc\r\n.*\$4\r\nrate\r\n,[0-9.]+\r\n`},
	{"SEGMENT.INFO nosuch", `~^-NOTAG .*nosuch.*\r\n$`, ""},
	{"SEGMENT.LIST", "*4\r\n$1\r\nc\r\n$4\r\nmade\r\n$2\r\nnx\r\n$5\r\norder\r\n", ""},
	{"SEGMENT.LIST AFTER made COUNT 1", "*1\r\n$2\r\nnx\r\n", ""},
	{"SEGMENT.LIST MATCH *e*", "*2\r\n$4\r\nmade\r\n$5\r\norder\r\n", ""},
	{"SEGMENT.LIST COUNT 0", "-ERR COUNT is 0: 1 to 10000 at a time; go on with AFTER\r\n", ""},
	{"EXISTS order nosuch order", ":2\r\n", ""},
	{"TYPE order", "+string\r\n", ""},
	{"TTL order", ":-1\r\n", ""},
	{"PTTL nosuch", ":-2\r\n", ""},
	{"DBSIZE", ":4\r\n", ""},
	{"KEYS n?", "*1\r\n$2\r\nnx\r\n", ""},
	{"SCAN 0 MATCH o* COUNT 100", "*2\r\n$1\r\n0\r\n*1\r\n$5\r\norder\r\n", ""},
	{"RANDOMKEY", `~^\$\d\r\n(c|made|nx|order)\r\n$`, ""},
	{"MEMORY USAGE order", ":405\r\n", ""},
	{"MEMORY USAGE nosuch", "$-1\r\n", "_\r\n"},
	{"MEMORY HELP", `~^\*5\r\n`, ""},

	{"SNOWFLAKE.NEXT", `~^\$19\r\n\d{19}\r\n$`, ""},
	{"SNOWFLAKE.NEXT COUNT 2", `~^\*2\r\n\$19\r\n\d{19}\r\n\$19\r\n\d{19}\r\n$`, ""},
	{"SNOWFLAKE.NEXT COUNT 10001", "-ERR COUNT is 10001: 1 to 10000 at a time (segment.max_array)\r\n", ""},
	{"SNOWFLAKE.NEXT COUNT", "-ERR syntax error\r\n", ""},
	{"SNOWFLAKE.PARSE 2127567812003104714", "*8\r\n$9\r\ntimestamp\r\n:1796086669337\r\n$4\r\ntime\r\n$24\r\n2026-12-01T00:57:49.337Z\r\n$6\r\nworker\r\n:0\r\n$8\r\nsequence\r\n:1994\r\n",
		"%4\r\n$9\r\ntimestamp\r\n:1796086669337\r\n$4\r\ntime\r\n$24\r\n2026-12-01T00:57:49.337Z\r\n$6\r\nworker\r\n:0\r\n$8\r\nsequence\r\n:1994\r\n"},
	{"SNOWFLAKE.PARSE x", "-ERR value is not an integer or out of range\r\n", ""},
	{"SNOWFLAKE.PARSE -5", "-ERR -5 is no ID of the layout 41-10-12\r\n", ""},
	{"SNOWFLAKE.INFO", `~^\*34\r\n\$6\r\nworker\r\n:0\r\n\$5\r\nstate\r\n\$7\r\nserving\r\n.*\$6\r\nlayout\r\n\$8\r\n41-10-12\r\n\$5\r\nepoch\r\n:1288834974657\r\n\$10\r\nyears_left\r\n\$4\r\n5\d\.\d\r\n`,
		`~^%17\r\n.*\$10\r\nyears_left\r\n,5\d(\.\d)?\r\n`},

	{"MULTI", "+OK\r\n", ""},
	{"INCR order", "+QUEUED\r\n", ""},
	{"EXEC", "*1\r\n:21\r\n", ""},
	{"MULTI", "+OK\r\n", ""},
	{"DISCARD", "+OK\r\n", ""},
	{"WATCH order", "+OK\r\n", ""},
	{"INCR order", ":22\r\n", ""},
	{"MULTI", "+OK\r\n", ""},
	{"EXEC", "*-1\r\n", "_\r\n"},
	{"UNWATCH", "+OK\r\n", ""},

	{"COMMAND", `~^\*\d+\r\n\*10\r\n\$3\r\nacl\r\n`, ""},
	{"COMMAND COUNT", `~^:\d+\r\n$`, ""},
	{"COMMAND INFO segment.next", "*1\r\n*10\r\n$12\r\nsegment.next\r\n:-2\r\n*2\r\n+write\r\n+fast\r\n:1\r\n:1\r\n:1\r\n*3\r\n+@write\r\n+@fast\r\n+@segment\r\n*0\r\n*1\r\n*6\r\n$5\r\nflags\r\n*3\r\n+RW\r\n+access\r\n+update\r\n$12\r\nbegin_search\r\n*4\r\n$4\r\ntype\r\n$5\r\nindex\r\n$4\r\nspec\r\n*2\r\n$5\r\nindex\r\n:1\r\n$9\r\nfind_keys\r\n*4\r\n$4\r\ntype\r\n$5\r\nrange\r\n$4\r\nspec\r\n*6\r\n$7\r\nlastkey\r\n:0\r\n$7\r\nkeystep\r\n:1\r\n$5\r\nlimit\r\n:0\r\n*0\r\n",
		"*1\r\n*10\r\n$12\r\nsegment.next\r\n:-2\r\n~2\r\n+write\r\n+fast\r\n:1\r\n:1\r\n:1\r\n~3\r\n+@write\r\n+@fast\r\n+@segment\r\n~0\r\n~1\r\n%3\r\n$5\r\nflags\r\n~3\r\n+RW\r\n+access\r\n+update\r\n$12\r\nbegin_search\r\n%2\r\n$4\r\ntype\r\n$5\r\nindex\r\n$4\r\nspec\r\n%1\r\n$5\r\nindex\r\n:1\r\n$9\r\nfind_keys\r\n%2\r\n$4\r\ntype\r\n$5\r\nrange\r\n$4\r\nspec\r\n%3\r\n$7\r\nlastkey\r\n:0\r\n$7\r\nkeystep\r\n:1\r\n$5\r\nlimit\r\n:0\r\n~0\r\n"},
	{"COMMAND DOCS snowflake.next", "*2\r\n$14\r\nsnowflake.next\r\n*10\r\n$7\r\nsummary\r\n$31\r\nTakes one snowflake, or several\r\n$5\r\nsince\r\n$5\r\n1.0.0\r\n$5\r\ngroup\r\n$9\r\nsnowflake\r\n$10\r\ncomplexity\r\n$4\r\nO(1)\r\n$9\r\narguments\r\n*1\r\n*8\r\n$4\r\nname\r\n$5\r\ncount\r\n$4\r\ntype\r\n$7\r\ninteger\r\n$5\r\ntoken\r\n$5\r\nCOUNT\r\n$5\r\nflags\r\n*1\r\n+optional\r\n",
		"%1\r\n$14\r\nsnowflake.next\r\n%5\r\n$7\r\nsummary\r\n$31\r\nTakes one snowflake, or several\r\n$5\r\nsince\r\n$5\r\n1.0.0\r\n$5\r\ngroup\r\n$9\r\nsnowflake\r\n$10\r\ncomplexity\r\n$4\r\nO(1)\r\n$9\r\narguments\r\n*1\r\n%4\r\n$4\r\nname\r\n$5\r\ncount\r\n$4\r\ntype\r\n$7\r\ninteger\r\n$5\r\ntoken\r\n$5\r\nCOUNT\r\n$5\r\nflags\r\n~1\r\n+optional\r\n"},
	{"COMMAND LIST FILTERBY PATTERN segment.*", "*5\r\n$14\r\nsegment.create\r\n$12\r\nsegment.info\r\n$12\r\nsegment.list\r\n$12\r\nsegment.next\r\n$13\r\nsegment.range\r\n", ""},
	{"COMMAND LIST FILTERBY ACLCAT snowflake", "*3\r\n$14\r\nsnowflake.info\r\n$14\r\nsnowflake.next\r\n$15\r\nsnowflake.parse\r\n", ""},
	{"COMMAND GETKEYS SEGMENT.RANGE k 5", "*1\r\n$1\r\nk\r\n", ""},
	{"COMMAND HELP", `~^\*13\r\n`, ""},
	{"INFO", `~^\$\d+\r\n# Server\r\nredis_version:7\.2\.4\r\n`, `~^=\d+\r\ntxt:# Server\r\nredis_version:7\.2\.4\r\n`},
	{"INFO nosuch", "$0\r\n\r\n", "=4\r\ntxt:\r\n"},
	{"INFO errorstats", `~^\$\d+\r\n# Errorstats\r\n(errorstat_[A-Z]+:count=\d+\r\n)+\r\n$`, `~.*`},
	{"INFO commandstats", `~.*\r\ncmdstat_incr:calls=\d+,usec=\d+,usec_per_call=[0-9.]+,rejected_calls=0,failed_calls=0\r\n`, ""},
	{"CONFIG GET slowlog-max-len maxclients", "*4\r\n$10\r\nmaxclients\r\n$1\r\n0\r\n$15\r\nslowlog-max-len\r\n$3\r\n128\r\n", "%2\r\n$10\r\nmaxclients\r\n$1\r\n0\r\n$15\r\nslowlog-max-len\r\n$3\r\n128\r\n"},
	{"CONFIG GET segment.*", "*2\r\n$12\r\nsegment.step\r\n$4\r\n1000\r\n", "%1\r\n$12\r\nsegment.step\r\n$4\r\n1000\r\n"},
	{"CONFIG SET log.level debug", "+OK\r\n", ""},
	{"CONFIG SET segment.step 5", "-ERR CONFIG SET failed (possibly related to argument 'segment.step') - segment.step can't be changed here\r\n", ""},
	{"CONFIG SET nosuch 5", "-ERR Unknown option or number of arguments for CONFIG SET - 'nosuch'\r\n", ""},
	{"CONFIG RESETSTAT", "+OK\r\n", ""},
	{"INFO commandstats", `~^\$\d+\r\n# Commandstats\r\ncmdstat_info:calls=1,`, "~.*"},
	{"CONFIG REWRITE", "-ERR The server is running without a config file\r\n", ""},
	{"CONFIG HELP", `~^\*11\r\n`, ""},
	{"TIME", `~^\*2\r\n\$10\r\n\d{10}\r\n\$\d\r\n\d{1,6}\r\n$`, ""},
	{"ROLE", "*3\r\n$6\r\nmaster\r\n:0\r\n*0\r\n", ""},
	{"WAIT 1 100", ":0\r\n", ""},
	{"SLOWLOG GET", "*0\r\n", ""},
	{"SLOWLOG LEN", ":0\r\n", ""},
	{"SLOWLOG RESET", "+OK\r\n", ""},
	{"SLOWLOG HELP", `~^\*9\r\n`, ""},
	{"LATENCY LATEST", "*0\r\n", ""},
	{"LATENCY RESET", ":0\r\n", ""},
	{"LATENCY HELP", `~^\*7\r\n`, ""},
	{"ACL WHOAMI", "$7\r\ndefault\r\n", ""},
	{"ACL HELP", `~^\*5\r\n`, ""},
	{"MODULE LIST", "*0\r\n", ""},
	{"MODULE HELP", `~^\*5\r\n`, ""},
	{"LOLWUT", "$33\r\nEach leaf once. Redleaf ver. 9.9\n\r\n", "=37\r\ntxt:Each leaf once. Redleaf ver. 9.9\n\r\n"},
	{"CLUSTER SLOTS", "-ERR This instance has cluster support disabled\r\n", ""},
	{"READONLY", "-ERR This instance has cluster support disabled\r\n", ""},
	{"READWRITE", "-ERR This instance has cluster support disabled\r\n", ""},
	{"ASKING", "-ERR This instance has cluster support disabled\r\n", ""},
	{"DEBUG SLEEP 0", "-" + errDebug + "\r\n", ""},
	{"MONITOR", "~^-ERR MONITOR is refused: ", ""},
	{"SHUTDOWN ABORT", "-ERR No shutdown in progress.\r\n", ""},

	{"DEL order", "~^-ERR DEL is refused: a counter that is deleted begins again at 1", ""},
	{"UNLINK order", "~^-ERR UNLINK is refused: ", ""},
	{"DECR order", "~^-ERR DECR is refused: counters only move forward", ""},
	{"DECRBY order 1", "~^-ERR DECRBY is refused: ", ""},
	{"INCRBYFLOAT order 1", "~^-ERR INCRBYFLOAT is refused: IDs are integers", ""},
	{"APPEND order 1", "~^-ERR APPEND is refused: ", ""},
	{"SETRANGE order 1 1", "~^-ERR SETRANGE is refused: ", ""},
	{"GETSET order 1", "~^-ERR GETSET is refused: ", ""},
	{"GETDEL order", "~^-ERR GETDEL is refused: ", ""},
	{"GETEX order", "~^-ERR GETEX is refused: counters don't expire", ""},
	{"SETEX order 1 1", "~^-ERR SETEX is refused: counters don't expire", ""},
	{"PSETEX order 1 1", "~^-ERR PSETEX is refused: ", ""},
	{"MSET order 1", "~^-ERR MSET is refused: ", ""},
	{"MSETNX order 1", "~^-ERR MSETNX is refused: ", ""},
	{"RENAME order a", "~^-ERR RENAME is refused: ", ""},
	{"RENAMENX order a", "~^-ERR RENAMENX is refused: ", ""},
	{"COPY order a", "~^-ERR COPY is refused: ", ""},
	{"MOVE order 1", "~^-ERR MOVE is refused: there is one database", ""},
	{"RESTORE order 0 x", "~^-ERR RESTORE is refused: ", ""},
	{"EXPIRE order 1", "~^-ERR EXPIRE is refused: counters don't expire, .* Use one tag per period", ""},
	{"PEXPIRE order 1", "~^-ERR PEXPIRE is refused: ", ""},
	{"EXPIREAT order 1", "~^-ERR EXPIREAT is refused: ", ""},
	{"PEXPIREAT order 1", "~^-ERR PEXPIREAT is refused: ", ""},
	{"PERSIST order", "~^-ERR PERSIST is refused: ", ""},
	{"FLUSHDB", "~^-ERR FLUSHDB is refused: ", ""},
	{"FLUSHALL", "~^-ERR FLUSHALL is refused: ", ""},
	{"SWAPDB 0 1", "~^-ERR SWAPDB is refused: ", ""},
	{"EVAL x 0", "~^-ERR EVAL is refused: there are no scripts here", ""},
	{"EVALSHA x 0", "~^-ERR EVALSHA is refused: ", ""},
	{"EVAL_RO x 0", "~^-ERR EVAL_RO is refused: ", ""},
	{"EVALSHA_RO x 0", "~^-ERR EVALSHA_RO is refused: ", ""},
	{"FCALL x 0", "~^-ERR FCALL is refused: ", ""},
	{"FCALL_RO x 0", "~^-ERR FCALL_RO is refused: ", ""},
	{"SCRIPT LOAD x", "~^-ERR SCRIPT is refused: ", ""},
	{"FUNCTION LIST", "~^-ERR FUNCTION is refused: ", ""},
	{"INCR order", ":23\r\n", ""},

	{"SUBSCRIBE a", "*3\r\n$9\r\nsubscribe\r\n$1\r\na\r\n:1\r\n", ">3\r\n$9\r\nsubscribe\r\n$1\r\na\r\n:1\r\n"},
	{"PSUBSCRIBE p*", "*3\r\n$10\r\npsubscribe\r\n$2\r\np*\r\n:2\r\n", ">3\r\n$10\r\npsubscribe\r\n$2\r\np*\r\n:2\r\n"},
	{"SSUBSCRIBE s", "*3\r\n$10\r\nssubscribe\r\n$1\r\ns\r\n:1\r\n", ">3\r\n$10\r\nssubscribe\r\n$1\r\ns\r\n:1\r\n"},
	{"GET order", "-ERR Can't execute 'get': only (P|S)SUBSCRIBE / (P|S)UNSUBSCRIBE / PING / QUIT / RESET are allowed in this context\r\n", "$2\r\n23\r\n"},
	{"PING", "*2\r\n$4\r\npong\r\n$0\r\n\r\n", "+PONG\r\n"},
	{"SUNSUBSCRIBE", "*3\r\n$12\r\nsunsubscribe\r\n$1\r\ns\r\n:0\r\n", ">3\r\n$12\r\nsunsubscribe\r\n$1\r\ns\r\n:0\r\n"},
	{"UNSUBSCRIBE a", "*3\r\n$11\r\nunsubscribe\r\n$1\r\na\r\n:1\r\n", ">3\r\n$11\r\nunsubscribe\r\n$1\r\na\r\n:1\r\n"},
	{"PUNSUBSCRIBE", "*3\r\n$12\r\npunsubscribe\r\n$2\r\np*\r\n:0\r\n", ">3\r\n$12\r\npunsubscribe\r\n$2\r\np*\r\n:0\r\n"},
	{"UNSUBSCRIBE", "*3\r\n$11\r\nunsubscribe\r\n$-1\r\n:0\r\n", ">3\r\n$11\r\nunsubscribe\r\n_\r\n:0\r\n"},

	{"HELLO", "*14\r\n$6\r\nserver\r\n$5\r\nredis\r\n$7\r\nversion\r\n$5\r\n7.2.4\r\n$5\r\nproto\r\n:2\r\n$2\r\nid\r\n:1\r\n$4\r\nmode\r\n$10\r\nstandalone\r\n$4\r\nrole\r\n$6\r\nmaster\r\n$7\r\nmodules\r\n*0\r\n",
		"%7\r\n$6\r\nserver\r\n$5\r\nredis\r\n$7\r\nversion\r\n$5\r\n7.2.4\r\n$5\r\nproto\r\n:3\r\n$2\r\nid\r\n:1\r\n$4\r\nmode\r\n$10\r\nstandalone\r\n$4\r\nrole\r\n$6\r\nmaster\r\n$7\r\nmodules\r\n*0\r\n"},
	{"RESET", "+RESET\r\n", ""},
	{"CLIENT GETNAME", "$-1\r\n", ""},
	{"QUIT", "+OK\r\n", ""},
}

func rowOptions() rigOptions {
	return rigOptions{Options: Options{
		Version:  "9.9",
		Settings: func() [][2]string { return [][2]string{{"segment.step", "1000"}, {"log.level", "info"}} },
		ConfigSet: func(name, value string) error {
			if name == "log.level" {
				return nil
			}
			return fmt.Errorf("%s can't be changed here", name)
		},
		Shutdown: func() {},
	}}
}

func TestEveryRow(t *testing.T) {
	for _, proto := range []string{"2", "3"} {
		t.Run("RESP"+proto, func(t *testing.T) {
			r := startRig(t, rowOptions())
			c := r.dial()
			c.do("HELLO", proto)
			called := map[string]bool{}
			for _, row := range everyRow {
				want := row.two
				if proto == "3" && row.three != "" {
					want = row.three
				}
				args := strings.Fields(row.line)
				got := c.do(args...)
				if re, ok := strings.CutPrefix(want, "~"); ok {
					if !regexp.MustCompile("(?s)" + re).MatchString(got) {
						t.Errorf("%s: got %q, want a match of %q", row.line, got, re)
					}
				} else if got != want {
					t.Errorf("%s:\n got %q\nwant %q", row.line, got, want)
				}
				name := strings.ToLower(args[0])
				if r := r.server.table.byName[name]; r.sub != nil && len(args) > 1 {
					name += "|" + strings.ToLower(args[1])
				}
				called[name] = true
			}
			c.closed()
			for _, row := range r.server.rows {
				if !called[row.full] && row.sub == nil && row.name != "shutdown" {
					t.Errorf("%s is not called by this test", row.full)
				}
			}
		})
	}
}

// TestArity calls every row with one argument too few and one too many.
func TestArity(t *testing.T) {
	r := startRig(t, rowOptions())
	c := r.dial()
	for _, row := range r.server.rows {
		name := strings.Split(row.full, "|")
		word := "ERR "
		if row.name == "exec" {
			word = errExecAbortFor
		}
		call := func(n int) {
			t.Helper()
			args := append([]string{}, name...)
			for len(args) < n {
				args = append(args, "1")
			}
			c.want("-"+word+"wrong number of arguments for '"+row.full+"' command\r\n", args...)
		}
		least := max(row.arity, -row.arity)
		if least > len(name) {
			call(least - 1)
		}
		if row.arity > 0 {
			call(least + 1)
		}
	}
	if n := r.store.Calls("Reserve") + r.store.Calls("Create"); n != 0 {
		t.Errorf("the store was asked %d times by commands that are wrong", n)
	}
}

// TestTable holds the command table to what its readers rely on.
func TestTable(t *testing.T) {
	for _, r := range newTable().rows {
		if r.summary == "" || r.group == "" || r.since == "" || r.arity == 0 {
			t.Errorf("%s: summary, group, since and arity must be set", r.full)
		}
		if r.sub == nil && r.run == nil {
			t.Errorf("%s: no handler", r.full)
		}
		if r.need == issue && !r.has(write) {
			t.Errorf("%s takes IDs but has no write flag: clients would send it to a replica", r.full)
		}
		if r.has(refused) && r.check == nil && r.full != "config|rewrite" {
			t.Errorf("%s is refused, but only when it runs: MULTI would burn IDs", r.full)
		}
		if r.keys[0] > 0 && r.need == 0 && !r.has(refused) {
			t.Errorf("%s has keys but needs no rights", r.full)
		}
		for _, a := range r.args {
			if a.kind == "key" && r.keys[0] == 0 {
				t.Errorf("%s: an argument is a key, but it has no key position", r.full)
			}
		}
	}
	table := CommandTable()
	for _, want := range []string{"| `INCR key` | issue | the next ID |\n", "| `SET key value [NX \\| XX] [FORCE]` | admin |", "`DEL` `UNLINK`", "| `CLIENT KILL"} {
		if !strings.Contains(table, want) {
			t.Errorf("README's table lacks %q:\n%s", want, table)
		}
	}
}

func TestShutdownCommand(t *testing.T) {
	o := rowOptions()
	called := make(chan struct{}, 1)
	o.Shutdown = func() { called <- struct{}{} }
	r := startRig(t, o)
	c := r.dial()
	c.send(wire("SHUTDOWN", "NOSAVE") + wire("INCR", "order"))
	c.closed()
	select {
	case <-called:
	case <-time.After(10 * time.Second):
		t.Fatal("the hook was not called")
	}
	if row, ok := r.store.DB().Row("order"); ok {
		t.Errorf("a command behind SHUTDOWN ran: %+v", row)
	}
}
