/* One client of the matrix: hiredis. clients_test.go says what is asked and judges the answers. */
#include <hiredis/hiredis.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static redisContext *r;
static const char *password;

static redisContext *open_as(const char *user, const char *pass, char *said, size_t size) {
	redisContext *c = redisConnect(getenv("MATRIX_HOST"), atoi(getenv("MATRIX_PORT")));
	redisReply *a;
	if (!c || c->err) {
		snprintf(said, size, "%s", c ? c->errstr : "no memory");
		return NULL;
	}
	if (!*pass)
		return c;
	a = *user ? redisCommand(c, "AUTH %s %s", user, pass) : redisCommand(c, "AUTH %s", pass);
	if (!a || a->type == REDIS_REPLY_ERROR) {
		snprintf(said, size, "%s", a ? a->str : c->errstr);
		if (a)
			freeReplyObject(a);
		redisFree(c);
		return NULL;
	}
	freeReplyObject(a);
	return c;
}

static const char *check;
static int ok, count;
static char detail[1024];

static void begin(const char *name) {
	check = name;
	ok = 1;
	detail[0] = 0;
	count = 0;
	printf("{\"lib\":\"hiredis\",\"version\":\"%d.%d.%d\",\"check\":\"%s\",\"ids\":[", HIREDIS_MAJOR, HIREDIS_MINOR, HIREDIS_PATCH, name);
}

static void end(void) {
	char *p;
	printf("],\"ok\":%s,\"detail\":\"", ok ? "true" : "false");
	for (p = detail; *p; p++) {
		if (*p == '"' || *p == '\\')
			putchar('\\');
		putchar((unsigned char)*p < ' ' ? ' ' : *p);
	}
	printf("\"}\n");
	fflush(stdout);
}

static void say(const char *format, ...) {
	va_list a;
	va_start(a, format);
	vsnprintf(detail, sizeof detail, format, a);
	va_end(a);
}

/* take prints a reply's IDs and frees it. An error reply, or none at all, makes the check a failure. */
static void take(redisReply *a) {
	size_t i;
	if (!a) {
		ok = 0;
		say("no reply: %s", r->errstr);
		return;
	}
	switch (a->type) {
	case REDIS_REPLY_INTEGER:
		printf("%s\"%lld\"", count++ ? "," : "", a->integer);
		break;
	case REDIS_REPLY_STRING:
		printf("%s\"%s\"", count++ ? "," : "", a->str);
		break;
	case REDIS_REPLY_ARRAY:
		for (i = 0; i < a->elements; i++) {
			take(a->element[i]);
			a->element[i] = NULL; /* freed */
		}
		break;
	default:
		ok = 0;
		say("%s", a->str ? a->str : "a reply of another type");
	}
	freeReplyObject(a);
}

static void expect_ok(redisReply *a) {
	if (!a || a->type == REDIS_REPLY_ERROR) {
		ok = 0;
		say("%s", a ? a->str : r->errstr);
	}
	if (a)
		freeReplyObject(a);
}

static void text(redisReply *a) {
	if (!a) {
		ok = 0;
		say("no reply: %s", r->errstr);
		return;
	}
	if (a->str)
		say("%s", a->str);
	freeReplyObject(a);
}

static void run(const char *name) {
	int i;
	void *a;
	redisContext *c;

	begin(name);
	if (!strcmp(name, "connect")) {
		text(redisCommand(r, "PING"));
	} else if (!strcmp(name, "nopassword")) {
		c = open_as("", "", detail, sizeof detail);
		if (c) {
			text(redisCommand(c, "INCR order"));
			redisFree(c);
		}
	} else if (!strcmp(name, "wrongpassword")) {
		c = open_as("", "wrong", detail, sizeof detail);
		if (c) {
			say("no error");
			redisFree(c);
		}
	} else if (!strcmp(name, "incr")) {
		for (i = 0; i < 10; i++)
			take(redisCommand(r, "INCR order"));
	} else if (!strcmp(name, "incrby")) {
		take(redisCommand(r, "INCRBY order 100"));
	} else if (!strcmp(name, "pipeline")) {
		for (i = 0; i < 1000; i++)
			redisAppendCommand(r, "INCR order");
		for (i = 0; i < 1000; i++) {
			a = NULL;
			if (redisGetReply(r, &a) != REDIS_OK)
				a = NULL;
			take(a);
		}
	} else if (!strcmp(name, "multi")) {
		expect_ok(redisCommand(r, "MULTI"));
		expect_ok(redisCommand(r, "INCR order"));
		expect_ok(redisCommand(r, "INCR order"));
		expect_ok(redisCommand(r, "INCRBY order 5"));
		take(redisCommand(r, "EXEC"));
	} else if (!strcmp(name, "snowflake")) {
		for (i = 0; i < 20; i++)
			take(redisCommand(r, "SNOWFLAKE.NEXT"));
	} else if (!strcmp(name, "snowflakes")) {
		take(redisCommand(r, "SNOWFLAKE.NEXT COUNT 100"));
	} else if (!strcmp(name, "alias")) {
		for (i = 0; i < 10; i++)
			take(redisCommand(r, "INCR snowflake:a"));
	} else if (!strcmp(name, "segment")) {
		take(redisCommand(r, "SEGMENT.NEXT order"));
	} else if (!strcmp(name, "segments")) {
		take(redisCommand(r, "SEGMENT.NEXT order COUNT 10"));
	} else if (!strcmp(name, "range")) {
		take(redisCommand(r, "SEGMENT.RANGE order 50"));
	} else if (!strcmp(name, "get")) {
		text(redisCommand(r, "GET order"));
	} else if (!strcmp(name, "refusal")) {
		char said[sizeof detail];
		text(redisCommand(r, "DECR order"));
		memcpy(said, detail, sizeof said);
		expect_ok(redisCommand(r, "PING"));
		if (ok)
			memcpy(detail, said, sizeof detail);
	} else if (!strcmp(name, "options")) {
		expect_ok(redisCommand(r, "SELECT 0"));
		expect_ok(redisCommand(r, "CLIENT SETNAME matrix"));
		take(redisCommand(r, "INCR order"));
		if (*password) {
			c = open_as(getenv("MATRIX_USER"), getenv("MATRIX_USER_PASSWORD"), detail, sizeof detail);
			if (c) {
				take(redisCommand(c, "INCR order"));
				redisFree(c);
			} else {
				ok = 0;
			}
		}
	} else if (!strcmp(name, "restart")) {
		/* The line that was begun is one line of JSON: it can't be interrupted, so the event was printed before it. */
		for (i = 1; i < 20; i++) {
			redisReply *b = redisCommand(r, "INCR order");
			if (b) {
				say("%d attempts", i);
				take(b);
				break;
			}
			/* hiredis reports the loss and connects again when it is told to; AUTH is the caller's. */
			if (redisReconnect(r) == REDIS_OK && *password)
				expect_ok(redisCommand(r, "AUTH %s", password));
		}
	} else if (!strcmp(name, "quit")) {
		redisFree(r);
		r = NULL;
	} else {
		ok = 0;
		say("unknown check");
	}
	end();
}

int main(void) {
	char said[256], *checks = strdup(getenv("MATRIX_CHECKS")), *name, *save = NULL, line[64];
	password = getenv("MATRIX_PASSWORD");
	r = open_as("", password, said, sizeof said);
	for (name = strtok_r(checks, ",", &save); name; name = strtok_r(NULL, ",", &save)) {
		if (!r) {
			begin(name);
			ok = 0;
			say("%s", said);
			end();
			continue;
		}
		if (!strcmp(name, "restart")) {
			printf("{\"event\":\"restart\"}\n");
			fflush(stdout);
			if (!fgets(line, sizeof line, stdin))
				return 1;
		}
		run(name);
	}
	free(checks);
	return 0;
}
