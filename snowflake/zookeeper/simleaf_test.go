package zookeeper

import (
	"context"
	"errors"
	"time"
)

// Leaf as it is (Meituan-Dianping/Leaf 86a6441), on the same ensemble: start, reporting, fallback to the local file, issuing.

func (p *simProc) leafMain() {
	clock, ctx := simClock{p.h}, context.Background()
	for {
		n, upload, ok := p.leafInit(ctx)
		if !ok {
			clock.Sleep(ctx, 5*time.Second) // the start failed; whoever watches it starts it again
			continue
		}
		if p.h.mixed && p.h.s.o.scheme != "leaf" && upload != "" {
			// Leaf reports one second after it began to issue. A number of ours that is recycled within that second, or before a
			// report ever arrives, is one on which Leaf in effect started offline: not promised, so not played.
			if _, err := p.conn.Set(ctx, upload, encode(leafOf(p.h.identity, clock.Now())), -1); err != nil {
				p.h.file = -1
				clock.Sleep(ctx, time.Second)
				continue
			}
		}
		p.worker = n
		p.h.s.note(p.h, "Leaf runs as %d, reports %v", n, upload != "")
		if upload == "" {
			return // leaf F14: no reports after a start from the local file
		}
		clock.Sleep(ctx, time.Second)
		last := int64(0)
		for {
			if now := clock.Now(); now >= last {
				if _, err := p.conn.Set(ctx, upload, encode(leafOf(p.h.identity, now)), -1); err == nil {
					last = now
				}
			}
			clock.Sleep(ctx, 3*time.Second)
		}
	}
}

// leafInit finds the number and the node to report to; "" after a start from the local file.
func (p *simProc) leafInit(ctx context.Context) (int64, string, bool) {
	pp := paths{"/snowflake/sim"}
	clock := simClock{p.h}
	try := func() (int64, string, error) {
		for range 40 { // Curator waits for a connection
			if _, up := p.conn.Session(); up {
				break
			}
			clock.Sleep(ctx, 250*time.Millisecond)
		}
		create := func() (string, error) {
			for _, dir := range []string{"/snowflake", "/snowflake/sim", pp.forever()} {
				if _, err := p.conn.Create(ctx, dir, nil, false); err != nil && !errors.Is(err, errExists) {
					return "", err
				}
			}
			return p.conn.Create(ctx, pp.sequential(p.h.identity), encode(leafOf(p.h.identity, clock.Now())), true)
		}
		names, _, err := p.conn.Children(ctx, pp.forever())
		if errors.Is(err, errNoNode) {
			if p.h.s.o.scheme != "leaf" {
				return 0, "", err // a Leaf that starts on a wiped ensemble takes 0, whoever has it: its own fault
			}
			path, err := create()
			if err != nil {
				return 0, "", err
			}
			return 0, path, nil // leaf F4: the number stays 0, whatever the node's is
		}
		if err != nil {
			return 0, "", err
		}
		for _, name := range names {
			c, ok := parseChild(name)
			if !ok || c.id != p.h.identity {
				continue
			}
			z, err := p.conn.Get(ctx, pp.node(name))
			if err != nil {
				return 0, "", err
			}
			n, err := decodeLeaf(z.Data)
			if err != nil {
				return 0, "", err
			}
			if n.Timestamp > clock.Now() {
				return 0, "", errors.New("the reported time is ahead") // leaf F1: caught below like any other
			}
			return c.number, pp.node(name), nil
		}
		path, err := create()
		if err != nil {
			return 0, "", err
		}
		c, _ := parseChild(path[len(pp.forever())+1:])
		return c.number, path, nil
	}
	n, upload, err := try()
	if err != nil {
		if p.h.file < 0 {
			return 0, "", false
		}
		n, upload = p.h.file, ""
	}
	p.h.file = n
	return n, upload, n <= p.h.s.o.hi
}

func (p *simProc) leafIssue() {
	s := p.h.s
	if p.dead || p.stopping {
		return
	}
	if s.now < p.h.pausedTill {
		s.at(p.h.pausedTill, p.leafIssue)
		return
	}
	s.after(s.between(3, 20), p.leafIssue)
	s.asked++
	if p.worker < 0 {
		return
	}
	ts := simClock{p.h}.Now()
	if ts < p.last {
		return
	}
	s.served++
	if ts != p.last {
		p.seq = s.between(0, 99)
	}
	p.last = ts
	for range 3 {
		p.seq++
		s.record(p, p.worker, ts, p.seq)
	}
}
