package mysql

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"database/sql"
	"database/sql/driver"
	"errors"
	"fmt"
	"net"
	"strings"
	"time"

	"github.com/go-sql-driver/mysql"
	"github.com/rs/zerolog"

	"redleaf/segment"
)

// driverLog puts the driver's own messages, which it prints about connections that break, into the log.
type driverLog struct {
	log      zerolog.Logger
	password string
}

func (l driverLog) Print(v ...any) {
	l.log.Debug().Msg("mysql driver: " + scrub(strings.TrimSpace(fmt.Sprint(v...)), l.password))
}

// scrub takes a password out of a text that others wrote. (I13)
func scrub(text, password string) string {
	if len(password) < 4 { // "a" stands in every text; and the texts here come from a server that never had it
		return text
	}
	return strings.ReplaceAll(text, password, "***")
}

// Numbers of the server's errors. SQLSTATE is no help: 1040 comes with none.
const (
	errTooManyConnections = 1040
	errNoSuchTable        = 1146
	errTableDenied        = 1142
	errColumnDenied       = 1143
	errDuplicate          = 1062
	errLockWait           = 1205
	errDeadlock           = 1213
	errMixOfCollations    = 1267
	errOutOfRange         = 1690
)

// refusals are the errors that waiting does not cure, each with its cure.
var refusals = map[uint16]string{
	1044: "GRANT the account the database of segment.mysql.dsn",
	1045: "correct user and password of segment.mysql.dsn or segment.mysql.password_file",
	1049: "correct the database in segment.mysql.dsn",
	1054: "segment.mysql.table needs Leaf's columns biz_tag, max_id, step, description and update_time",
	1129: "run FLUSH HOSTS on the server",
	1130: "let the account connect from this host",
	1142: "GRANT SELECT and UPDATE on segment.mysql.table, and INSERT where Redleaf makes tags",
	1143: "GRANT SELECT and UPDATE on segment.mysql.table, and INSERT where Redleaf makes tags",
	1146: "make the table (scripts/schema.sql) or correct segment.mysql.table and the database in segment.mysql.dsn",
	1227: "give the account the privilege named",
	1235: "something between Redleaf and the database does not carry out the statement: connect to the database directly",
	1251: "give the account an authentication plugin that the driver knows",
	1264: "make max_id a BIGINT",
	1364: "give the column a default, or make tags by hand",
	1698: "give the account a password; this one only opens the server's own socket",
	1792: "the session is read-only: clear tx_read_only",
	1820: "set a new password for the account",
	1862: "set a new password for the account",
	4151: "unlock the account",
}

// classify makes one of the contract's errors out of whatever came from the driver.
func (s *Store) classify(err error) error {
	if err == nil {
		return nil
	}
	var (
		un  *segment.UnavailableError
		ref *segment.RefusedError
		re  *segment.RegressedError
		cl  *segment.ClashError
		st  *segment.StepError
	)
	switch {
	case errors.Is(err, segment.ErrNoTag), errors.Is(err, segment.ErrExhausted), errors.As(err, &un), errors.As(err, &ref),
		errors.As(err, &re), errors.As(err, &cl), errors.As(err, &st):
		return err
	case errors.Is(err, sql.ErrConnDone), errors.Is(err, errClosed):
		return segment.ErrClosed
	}
	for _, e := range s.endpoints {
		if text := scrub(err.Error(), e.config.Passwd); text != err.Error() {
			err = errors.New(text)
		}
	}
	var my *mysql.MySQLError
	if errors.As(err, &my) {
		if cure, ok := refusals[my.Number]; ok {
			return &segment.RefusedError{Cause: fmt.Errorf("the database refuses: %w. To cure it, %s", err, cure)}
		}
		return &segment.UnavailableError{Cause: fmt.Errorf("the database can't do it now: %w", err)}
	}
	var (
		cert *tls.CertificateVerificationError
		auth x509.UnknownAuthorityError
		host x509.HostnameError
		rec  tls.RecordHeaderError
	)
	switch {
	case errors.As(err, &cert), errors.As(err, &auth), errors.As(err, &host), errors.As(err, &rec):
		return &segment.RefusedError{Cause: fmt.Errorf("the database's TLS certificate is not accepted: %w. Correct segment.mysql.tls_ca, or the host in segment.mysql.dsn", err)}
	case errors.Is(err, mysql.ErrNoTLS):
		return &segment.RefusedError{Cause: fmt.Errorf("%w: set up TLS in the database, or take segment.mysql.tls_* and the DSN's tls parameter away", err)}
	case errors.Is(err, mysql.ErrCleartextPassword), errors.Is(err, mysql.ErrNativePassword), errors.Is(err, mysql.ErrOldPassword), errors.Is(err, mysql.ErrUnknownPlugin), errors.Is(err, mysql.ErrOldProtocol):
		return &segment.RefusedError{Cause: fmt.Errorf("can't log in to the database: %w", err)}
	case errors.Is(err, context.DeadlineExceeded), errors.Is(err, context.Canceled):
		return &segment.UnavailableError{Cause: fmt.Errorf("the database at %s did not answer in time: %w", s.addrs(), err)}
	case errors.Is(err, mysql.ErrInvalidConn):
		return &segment.UnavailableError{Cause: fmt.Errorf("the connection to the database at %s broke or hung", s.addrs())}
	case errors.Is(err, driver.ErrBadConn):
		return &segment.UnavailableError{Cause: fmt.Errorf("the database at %s refuses writes or closes its connections", s.addrs())}
	}
	// Without this machine's own port, which is another one each time: a text that stays is logged once.
	if op := (*net.OpError)(nil); errors.As(err, &op) {
		err = fmt.Errorf("%s: %w", op.Op, op.Err)
	}
	return &segment.UnavailableError{Cause: fmt.Errorf("the database at %s (segment.mysql.dsn) can't be reached: %w", s.addrs(), err)}
}

func (s *Store) addrs() string {
	var a []string
	for _, e := range s.endpoints {
		a = append(a, e.addr)
	}
	return strings.Join(a, ", ")
}

func number(err error) uint16 {
	var my *mysql.MySQLError
	if errors.As(err, &my) {
		return my.Number
	}
	return 0
}

// isMix says that a column and a value have no common character set: the value can't be in the column.
func isMix(err error) bool {
	switch number(err) {
	case errMixOfCollations, 1270, 1271:
		return true
	}
	return false
}

func refusef(format string, args ...any) error {
	return &segment.RefusedError{Cause: fmt.Errorf(format, args...)}
}

func waitf(format string, args ...any) error {
	return &segment.UnavailableError{Cause: fmt.Errorf(format, args...)}
}

// tell logs what is wrong with the store as a whole once per change, and once that it is over.
func (s *Store) tell(err error) {
	text := ""
	refused := false
	if err != nil {
		var ref *segment.RefusedError
		refused = errors.As(err, &ref)
		text = err.Error()
	}
	s.mu.Lock()
	was := s.told
	s.told = text
	s.mu.Unlock()
	switch {
	case text == was:
	case err == nil:
		s.log.Info().Msg("the database answers again")
	case refused:
		s.log.Error().Msg(text)
	default:
		s.log.Warn().Msg(text)
	}
}

// warn logs a fault that is served with, once.
func (s *Store) warn(text string) { s.warnAs(text, text) }

// warnAs is warn for texts that vary: one in ten minutes for each key.
func (s *Store) warnAs(key, text string) {
	s.mu.Lock()
	at, again := s.warned[key]
	if again = again && (key == text || time.Since(at) < 10*time.Minute); !again {
		s.warned[key] = time.Now()
	}
	s.mu.Unlock()
	if !again {
		s.log.Warn().Msg(text)
	}
}
