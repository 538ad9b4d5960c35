package server

import (
	"math"
	"time"
)

func snowflakeCommands() []command {
	return []command{
		{
			name: "snowflake.next", arity: -1, flags: write | fast, need: issue, group: "snowflake", since: "1.0.0",
			args: []arg{opt(after("COUNT", integer("count")))}, summary: "Takes one snowflake, or several.",
			reply: "a snowflake; with COUNT an array of that many, increasing. An integer when every ID of the layout fits 53 bits, else a bulk string (`snowflake.reply`)",
			run:   (*conn).snowflakeNext,
		},
		{
			name: "snowflake.parse", arity: 2, flags: readonly | fast | loading, need: read, group: "snowflake", since: "1.0.0",
			args: []arg{integer("id")}, summary: "Takes a snowflake apart by the layout in force.",
			reply: "map: timestamp (ms), time (RFC 3339, UTC), worker, sequence",
			run:   (*conn).snowflakeParse,
		},
		{
			name: "snowflake.info", arity: 1, flags: readonly | fast | loading, need: read, group: "snowflake", since: "1.0.0",
			summary: "Describes the snowflake engine.", reply: "map: worker, state, reason, layout, epoch, years_left, window, drift, …",
			run: (*conn).snowflakeInfo,
		},
	}
}

// snowflakeNext is SNOWFLAKE.NEXT, in the fast lane and out of it.
func (c *conn) snowflakeNext(args [][]byte, out []byte) []byte {
	if len(args) > 1 {
		return c.snowflakes(args, out)
	}
	if !c.spend(1) {
		return c.fail(out, c.limitText(1))
	}
	id, ok := c.s.engine.TrySnowflake()
	if !ok {
		if c.declines(1) {
			return out
		}
		var err error
		out = c.beforeWait(out)
		id, err = c.s.engine.Snowflake(&c.wait)
		c.afterWait()
		if err != nil {
			return c.failErr(out, err)
		}
	}
	return c.appendSnowflake(out, id)
}

// appendSnowflake is an integer where no client can misread it, else a bulk string: JavaScript's numbers would make two IDs
// of 63 bits the same.
func (c *conn) appendSnowflake(out []byte, id int64) []byte {
	if c.s.snowflakeInt {
		return appendInt(out, id)
	}
	return appendBulkInt(out, id)
}

func (c *conn) snowflakes(args [][]byte, out []byte) []byte {
	n, text := countOption(args[1:])
	if text != "" {
		return c.fail(out, text)
	}
	if !c.spend(n) {
		return c.fail(out, c.limitText(n))
	}
	out = c.beforeWait(out)
	ids, err := c.s.engine.Snowflakes(&c.wait, nil, n)
	c.afterWait()
	if err != nil {
		return c.failErr(out, err)
	}
	out = appendArray(out, len(ids))
	for _, id := range ids {
		out = c.appendSnowflake(out, id)
	}
	return out
}

// isoMilli is RFC 3339 with the milliseconds that a snowflake has.
const isoMilli = "2006-01-02T15:04:05.000Z07:00"

func (c *conn) snowflakeParse(args [][]byte, out []byte) []byte {
	id, ok := parseInt(args[1])
	if !ok {
		return c.fail(out, errNotInteger)
	}
	p, err := c.s.engine.Parse(id)
	if err != nil {
		return c.failErr(out, err)
	}
	out = c.appendMap(out, 4)
	out = appendInt(appendBulk(out, "timestamp"), p.Ms)
	out = appendBulk(appendBulk(out, "time"), time.UnixMilli(p.Ms).UTC().Format(isoMilli))
	out = appendInt(appendBulk(out, "worker"), p.Worker)
	return appendInt(appendBulk(out, "sequence"), p.Sequence)
}

func (c *conn) snowflakeInfo(_ [][]byte, out []byte) []byte {
	e := c.s.engine
	st := e.Stats().Snowflake
	l := e.Layout()
	years := l.Left(time.Now().UnixMilli()).Hours() / 24 / 365.2425
	out = c.appendMap(out, 17)
	bulk := func(name, value string) { out = appendBulk(appendBulk(out, name), value) }
	num := func(name string, n int64) { out = appendInt(appendBulk(out, name), n) }
	state, worker := st.State, st.Worker
	if !e.SnowflakeOn() {
		state, worker = "off", -1
	}
	num("worker", worker)
	bulk("state", state)
	bulk("reason", st.Reason)
	bulk("registry", st.Registry)
	bulk("identity", st.Identity)
	bulk("layout", l.String())
	num("epoch", l.Epoch)
	out = c.appendDouble(appendBulk(out, "years_left"), math.Floor(years*10)/10)
	num("window_base", st.Window.Base)
	num("window_until", st.Window.Until)
	num("drift_ms", st.DriftMono.Milliseconds())
	num("skew_ms", st.Skew.Milliseconds())
	num("workers_free", st.Free)
	num("workers", st.Total)
	num("issued", int64(st.Issued))
	num("rollbacks_waited", int64(st.RollbacksWaited))
	num("rollbacks_refused", int64(st.RollbacksRefused))
	return out
}
