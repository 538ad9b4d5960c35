package conf

import (
	"errors"
	"slices"
)

// userProblem is a mistake in one [[auth.user]]; loader finds the line by index and field.
type userProblem struct {
	index       int
	name, field string
	problem     string
}

type userProblems []userProblem

func (p userProblems) Error() string { return "has mistakes" }

// userRows are the fields of one [[auth.user]], read like settings.
func userRows(u *User) []row {
	return []row{
		{name: "name", dst: &u.Name, valid: validUser},
		{name: "password_sha256", dst: &u.PasswordSHA256, valid: validHash, secret: true},
		{name: "tags", dst: &u.Tags, valid: validGlob},
		{name: "groups", dst: &u.Groups, valid: validGroup},
		{name: "rate", dst: &u.Rate},
	}
}

// parseUsers reads [[auth.user]], or the same as a list of inline tables.
func parseUsers(v any) ([]User, error) {
	var tables []map[string]any
	switch v := v.(type) {
	case []map[string]any:
		tables = v
	case []any:
		for _, t := range v {
			m, ok := t.(map[string]any)
			if !ok {
				return nil, errors.New("needs a list of tables, each with name and password_sha256")
			}
			tables = append(tables, m)
		}
	default:
		return nil, errors.New("needs [[auth.user]], a list of tables")
	}
	users := make([]User, len(tables))
	taken := map[string]bool{}
	var bad userProblems
	for i, t := range tables {
		u := &users[i]
		*u = User{Tags: []string{"*"}, Groups: []string{"issue", "read"}}
		label, _ := t["name"].(string)
		report := func(field, problem string) { bad = append(bad, userProblem{i, label, field, problem}) }
		rows := userRows(u)
		for j := range rows {
			r := &rows[j]
			if v, ok := t[r.name]; ok {
				if err := r.set(v); err != nil {
					report(r.name, err.Error())
				}
			} else if r.name == "name" || r.name == "password_sha256" {
				report(r.name, "is missing")
			}
		}
		for _, field := range sortedKeys(t) {
			if !slices.ContainsFunc(rows, func(r row) bool { return r.name == field }) {
				report(field, "unknown; a user has name, password_sha256, tags, groups and rate")
			}
		}
		if list, err := stringList(t["password_sha256"]); err == nil && len(list) == 0 {
			report("password_sha256", "needs at least one hash")
		}
		if u.Name != "" && taken[u.Name] {
			report("name", "is taken by another user above")
		}
		taken[u.Name] = true
	}
	if bad != nil {
		return nil, bad
	}
	return users, nil
}
