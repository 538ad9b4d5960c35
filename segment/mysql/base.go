package mysql

import (
	"context"

	"redleaf/segment"
)

// RaiseBase: see segment.BaseRaiser. Without a server row there is no base, and nothing to raise. A base that is raised on data
// that went back is too high at worst.
func (s *Store) RaiseBase(ctx context.Context, floor int64) error {
	s.mu.Lock()
	on := s.guarded
	s.mu.Unlock()
	if !on {
		return nil
	}
	return s.classify(s.do(ctx, func(ctx context.Context, c *session) error {
		_, err := c.ExecContext(ctx, "UPDATE "+s.table.server()+" SET base = GREATEST(base, ?) WHERE name = ?", floor, s.table.name)
		return err
	}))
}

var _ segment.BaseRaiser = (*Store)(nil)
