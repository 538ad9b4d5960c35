"""One client of the matrix: redis-py with its default options. clients_test.go says what is asked and judges the answers."""

import json
import os
import sys

import redis

HOST, PORT = os.environ["MATRIX_HOST"], int(os.environ["MATRIX_PORT"])
PASSWORD, CA = os.environ["MATRIX_PASSWORD"] or None, os.environ["MATRIX_CA"]
TLS = {"ssl": True, "ssl_ca_certs": CA} if CA else {}


def connect(**more):
    return redis.Redis(host=HOST, port=PORT, **{"password": PASSWORD, **TLS, **more})


def text(reply):
    return reply.decode() if isinstance(reply, bytes) else str(reply)


def texts(replies):
    return [text(r) for r in replies]


def error_of(call):
    try:
        return "no error but %r" % (call(),)
    except redis.RedisError as e:
        return str(e)


r = connect()


def incr():
    return [text(r.incr("order")) for _ in range(10)]


def pipeline():
    p = r.pipeline(transaction=False)
    for _ in range(1000):
        p.incr("order")
    return texts(p.execute())


def multi():  # a pipeline of redis-py is a transaction unless told otherwise
    return texts(r.pipeline().incr("order").incr("order").incrby("order", 5).execute())


def watch():
    own = "own:redis-py"
    seen = []

    def undisturbed(p):
        seen.append(int(p.get(own) or 0))
        p.multi()
        p.incr(own)

    first = r.transaction(undisturbed, own)
    with r.pipeline() as p:
        p.watch(own)
        second = r.incr(own)  # over another connection, behind the transaction's back
        p.multi()
        p.incr(own)
        try:
            return "executed although the key had changed: %r" % p.execute(), []
        except redis.WatchError:
            return "WatchError", texts(first) + [text(second)]


def options():
    c = connect(db=0, client_name="matrix", decode_responses=True, health_check_interval=1)
    ids = [text(c.incr("order"))]
    if PASSWORD:
        c = connect(username=os.environ["MATRIX_USER"], password=os.environ["MATRIX_USER_PASSWORD"])
        ids.append(text(c.incr("order")))
    return ids


def refusal():
    said = error_of(lambda: r.decr("order"))
    assert r.ping()
    return said, []


def restart():
    print(json.dumps({"event": "restart"}), flush=True)
    sys.stdin.readline()
    for attempt in range(1, 20):
        try:
            return "%d attempts" % attempt, [text(r.incr("order"))]
        except redis.RedisError as e:
            last = str(e)
    return "never: " + last, []


CHECKS = {
    "connect": lambda: ("PONG" if r.ping() is True else "no", []),
    "nopassword": lambda: (error_of(connect(password=None).ping), []),
    "wrongpassword": lambda: (error_of(connect(password="wrong").ping), []),
    "incr": incr,
    "incrby": lambda: [text(r.incrby("order", 100))],
    "pipeline": pipeline,
    "multi": multi,
    "watch": watch,
    "snowflake": lambda: [text(r.execute_command("SNOWFLAKE.NEXT")) for _ in range(20)],
    "snowflakes": lambda: texts(r.execute_command("SNOWFLAKE.NEXT", "COUNT", 100)),
    "alias": lambda: [text(r.incr("snowflake:a")) for _ in range(10)],
    "segment": lambda: [text(r.execute_command("SEGMENT.NEXT", "order"))],
    "segments": lambda: texts(r.execute_command("SEGMENT.NEXT", "order", "COUNT", 10)),
    "range": lambda: texts(r.execute_command("SEGMENT.RANGE", "order", 50)),
    "get": lambda: (text(r.get("order")), []),
    "refusal": refusal,
    "options": options,
    "restart": restart,
    "quit": lambda: (text(r.close()), []),
}

for check in os.environ["MATRIX_CHECKS"].split(","):
    line = {"lib": "redis-py", "version": redis.__version__, "check": check, "ok": True, "detail": "", "ids": []}
    try:
        got = CHECKS[check]()
        line["detail"], line["ids"] = got if isinstance(got, tuple) else ("", got)
    except Exception as e:
        line["ok"], line["detail"] = False, "%s: %s" % (type(e).__name__, e)
    print(json.dumps(line), flush=True)
