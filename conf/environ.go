package conf

import (
	"regexp"
	"strings"
)

const envPrefix = "REDLEAF_"

// serviceLink is what Kubernetes puts into every container for a service named redleaf or redleaf-…, unasked.
var serviceLink = regexp.MustCompile(`^REDLEAF_(.+_)?(SERVICE_HOST|SERVICE_PORT(_.+)?|PORT|PORT_[0-9]+_(TCP|UDP|SCTP)(_PROTO|_PORT|_ADDR)?)$`)

// environ reads REDLEAF_… variables.
func (l *loader) environ(environ []string) {
	byEnv := map[string]*row{}    // REDLEAF_AUTH_PASSWORD
	fromFile := map[string]*row{} // REDLEAF_SEGMENT_MYSQL_DSN_FILE
	for _, r := range l.rows {
		byEnv[r.env()] = r
		if r.secret {
			fromFile[r.env()+"_FILE"] = r
		}
	}
	vars := map[string]string{}
	for _, v := range environ {
		if name, value, ok := strings.Cut(v, "="); ok && strings.HasPrefix(name, envPrefix) {
			vars[name] = value
		}
	}
	var passedOver []string
	for _, name := range sortedKeys(vars) {
		from := origin{"env", name}
		if r := byEnv[name]; r != nil {
			l.assign(r.name, r.fromText(vars[name]), from)
		} else if r := fromFile[name]; r != nil {
			if text, ok := l.secretFile(name, r.name, vars[name]); ok {
				l.assign(r.name, r.fromText(text), from)
			}
		} else if serviceLink.MatchString(name) {
			passedOver = append(passedOver, name)
		} else {
			known := append(sortedKeys(byEnv), sortedKeys(fromFile)...)
			l.mistake(name, "", "unknown setting%s", didYouMean(name, known))
		}
	}
	if passedOver != nil {
		l.notes = append(l.notes, strings.Join(passedOver, ", ")+": passed over, they look like Kubernetes' service links (enableServiceLinks: false keeps them out)")
	}
}

// maxSecret bounds what is read from a file that should hold one secret.
const maxSecret = 64 << 10

// secretFile reads a secret for setting from a file, without the line end that editors add.
func (l *loader) secretFile(where, setting, file string) (string, bool) {
	data, err := l.readFile(file)
	text := strings.TrimRight(string(data), "\r\n")
	switch {
	case err != nil:
		l.mistake(where, setting, "%v", err)
	case text == "":
		l.mistake(where, setting, "%s is empty; it should hold the secret", file)
	case len(text) > maxSecret:
		l.mistake(where, setting, "%s is too large to hold a secret", file)
	default:
		return text, true
	}
	l.bad[setting] = true
	return "", false
}

// passwords reads auth.password_file and segment.mysql.password_file.
func (l *loader) passwords() {
	a := &l.c.Auth
	word, file := l.c.origin["auth.password"], l.c.origin["auth.password_file"]
	switch {
	case !a.Password.IsSet() || a.PasswordFile == "":
	case word.rank() > file.rank():
		a.PasswordFile = ""
		delete(l.c.origin, "auth.password_file")
	case word.rank() < file.rank():
		a.Password = Secret{}
	default:
		l.wrong([]string{"auth.password_file", "auth.password"}, "auth.password is set as well; take one away")
	}
	if a.PasswordFile != "" && !l.bad["auth.password_file"] {
		if text, ok := l.secretFile(file.where, "auth.password_file", a.PasswordFile); ok {
			a.Password = NewSecret(text)
			l.c.origin["auth.password"] = file
		}
	}
	m := &l.c.Segment.MySQL
	if m.PasswordFile != "" && !l.bad["segment.mysql.password_file"] {
		if text, ok := l.secretFile(l.c.origin["segment.mysql.password_file"].where, "segment.mysql.password_file", m.PasswordFile); ok {
			m.Password = NewSecret(text)
		}
	}
}
