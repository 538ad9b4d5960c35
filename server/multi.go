package server

// A transaction here is a queue that runs without another command of the same connection in between. IDs are taken at EXEC;
// other connections go on meanwhile, which the commands there are do not notice: each is atomic by itself.

// maxWatched bounds what one connection may watch.
const maxWatched = 1024

// maxQueued bounds the bytes that all open transactions hold together (I14).
const maxQueued = 256 << 20

type queued struct {
	row  *command
	args [][]byte
}

type transaction struct {
	queue []queued
	bytes int64
	dirty bool // a command was refused: EXEC aborts
}

func multiCommands() []command {
	always := noscript | loading | stale | fast | allowBusy | immediate
	return []command{
		{
			name: "multi", arity: 1, flags: always, group: "transactions", since: "1.2.0",
			summary: "Begins a transaction.", reply: "OK; what follows is queued", run: (*conn).multi,
		},
		{
			name: "exec", arity: 1, flags: noscript | loading | stale | skipSlowlog | immediate, group: "transactions", since: "1.2.0",
			summary: "Runs what was queued.", reply: "array of the replies; null when a watched key moved. IDs are taken now, none when a command was refused", run: (*conn).exec,
		},
		{
			name: "discard", arity: 1, flags: always, group: "transactions", since: "2.0.0",
			summary: "Forgets what was queued.", reply: "OK", run: (*conn).discard,
		},
		{
			name: "watch", arity: -2, flags: always, keys: [3]int{1, -1, 1}, access: "RO", need: issue | read, group: "transactions", since: "2.2.0",
			args: []arg{many(keyArg())}, summary: "Makes EXEC depend on keys.", reply: "OK; EXEC answers null if one of them moves on this instance until then", run: (*conn).watch,
		},
		{
			name: "unwatch", arity: 1, flags: noscript | loading | stale | fast | allowBusy, group: "transactions", since: "2.2.0",
			summary: "Forgets the watched keys.", reply: "OK", run: (*conn).unwatch,
		},
	}
}

func (c *conn) multi(_ [][]byte, out []byte) []byte {
	if c.tx != nil {
		return c.fail(out, errNestedMulti)
	}
	c.tx = &transaction{}
	c.queuedNow.Store(0)
	return appendOK(out)
}

// enqueue is what happens to a command inside MULTI.
func (c *conn) enqueue(row *command, args [][]byte, out []byte) []byte {
	n := int64(64)
	for _, a := range args {
		n += int64(len(a)) + 24
	}
	if c.s.queued.Add(n) > maxQueued {
		c.s.queued.Add(-n)
		c.tx.dirty = true
		return c.fail(out, "ERR the open transactions hold too much together: EXEC more often")
	}
	c.tx.bytes += n
	c.tx.queue = append(c.tx.queue, queued{row, args})
	c.queuedNow.Store(int32(len(c.tx.queue)))
	return append(out, "+QUEUED\r\n"...)
}

// endTransaction leaves MULTI and forgets what was watched.
func (c *conn) endTransaction() {
	if c.tx != nil {
		c.s.queued.Add(-c.tx.bytes)
		c.tx = nil
	}
	c.queuedNow.Store(-1)
	c.watched = nil
}

func (c *conn) discard(_ [][]byte, out []byte) []byte {
	if c.tx == nil {
		return c.fail(out, errDiscardNoMulti)
	}
	c.endTransaction()
	return appendOK(out)
}

func (c *conn) watch(args [][]byte, out []byte) []byte {
	if c.tx != nil {
		return c.fail(out, errWatchInMulti)
	}
	if len(c.watched)+len(args)-1 > maxWatched {
		return c.fail(out, "ERR a connection may watch 1024 keys at most")
	}
	if c.watched == nil {
		c.watched = make(map[string]uint64)
	}
	for _, key := range args[1:] {
		if _, ok := c.watched[string(key)]; !ok {
			c.watched[string(key)] = c.s.engine.Version(key)
		}
	}
	return appendOK(out)
}

func (c *conn) unwatch(_ [][]byte, out []byte) []byte {
	c.watched = nil
	return appendOK(out)
}

func (c *conn) exec(_ [][]byte, out []byte) []byte {
	if c.tx == nil {
		return c.fail(out, errExecNoMulti)
	}
	tx, watched := c.tx, c.watched
	defer c.endTransaction()
	if tx.dirty {
		return c.fail(out, errExecAbort)
	}
	for key, version := range watched {
		if c.s.engine.Version([]byte(key)) != version {
			return c.appendNullArray(out)
		}
	}
	c.tx, c.running = nil, true // from here on commands run
	defer func() { c.tx, c.running, c.ahead = tx, false, nil }()
	if c.muted {
		out = c.write(out) // replies to what came before
	}
	out = appendArray(out, len(tx.queue))
	for i := range tx.queue {
		q := &tx.queue[i]
		c.ahead = tx.queue[i+1:]
		// The user's rights may have changed since the command was queued.
		if text := c.forbidden(q.row, q.args); text != "" {
			out = c.fail(out, text)
		} else {
			out = c.call(q.row, q.args, out)
		}
		out = c.spill(out)
	}
	return out
}
