package engine

import (
	"redleaf/segment"
	"redleaf/snowflake"
)

// The engines' types that the consumers of this package handle, so that they import it alone.
type (
	Row      = segment.Row
	SetMode  = segment.SetMode
	TagInfo  = segment.TagInfo
	Layout   = snowflake.Layout
	Parts    = snowflake.Parts
	IDStatus = snowflake.Status
)

// The modes of SET: as it stands, NX and XX.
const (
	SetAlways    = segment.SetAlways
	SetIfAbsent  = segment.SetIfAbsent
	SetIfPresent = segment.SetIfPresent
)
