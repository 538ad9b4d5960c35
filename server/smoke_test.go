package server

import "testing"

func TestSmoke(t *testing.T) {
	r := startRig(t, rigOptions{})
	c := r.dial()
	c.wantLine("+PONG\r\n", "PING")
	c.wantLine(":1\r\n", "INCR order")
	c.wantLine(":11\r\n", "INCRBY order 10")
	c.wantLine("$2\r\n11\r\n", "GET order")
	t.Log(c.line("SNOWFLAKE.NEXT"))
	t.Log(c.line("HELLO 3"))
	t.Log(c.line("INFO"))
	t.Log(c.line("COMMAND DOCS incr"))
	t.Log(c.line("COMMAND INFO incr"))
}
